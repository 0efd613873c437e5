#include "models/mtp_head.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "runtime/dispatch.h"

namespace drafthead {

namespace {

std::vector<int> whole_tiles(const std::vector<int32_t>& tokens, int vocabulary) {
    if (tokens.empty() || tokens.size() % tile_rows != 0) {
        throw std::invalid_argument("the draft vocabulary must be whole groups of 16 token ids");
    }
    std::vector<int> tiles;
    for (size_t i = 0; i < tokens.size(); ++i) {
        const auto lane = static_cast<int32_t>(i % tile_rows);
        if (lane == 0) {
            const bool ascending = tiles.empty() || tokens[i] / tile_rows > tiles.back();
            if (tokens[i] < 0 || tokens[i] % tile_rows != 0 || tokens[i] > vocabulary - tile_rows ||
                !ascending) {
                throw std::invalid_argument("draft token " + std::to_string(tokens[i]) +
                                            " does not start an aligned, ascending group of 16");
            }
            tiles.push_back(tokens[i] / tile_rows);
        } else if (tokens[i] != tiles.back() * tile_rows + lane) {
            throw std::invalid_argument("draft token " + std::to_string(tokens[i]) +
                                        " breaks its group of 16 consecutive ids");
        }
    }
    return tiles;
}

void check_shape(const HeadShape& shape, const ModelSpec& backbone) {
    constexpr int most_positions = 64;
    if (shape.ff_width < block_k || shape.ff_width % block_k != 0) {
        throw std::invalid_argument("the head's feed-forward size must be a multiple of 32");
    }
    if (shape.markov_rank < 0 || shape.markov_rank % block_k != 0) {
        throw std::invalid_argument("the rank of the head's Markov bias must be a multiple of 32");
    }
    if (shape.taps < 0 || shape.taps > backbone.layers) {
        throw std::invalid_argument("the head has more taps than the backbone has layers");
    }
    if (shape.positions < 1 || shape.positions > most_positions) {
        throw std::invalid_argument("a head drafts 1 to 64 positions in one pass");
    }
    for (const int layer : shape.kv_layers) {
        if (layer < -1 || layer >= backbone.layers) {
            throw std::invalid_argument("the head reads layer " + std::to_string(layer) +
                                        " of a backbone with " + std::to_string(backbone.layers));
        }
    }
}

}  // namespace

float DraftEnd::calibrated(float confidence, int step) const {
    if (calibration.empty()) return confidence;
    const auto [temperature, shift] = at(calibration, step);
    const float against = std::max(0.0f, 1.0f - confidence) / confidence;
    return 1.0f / (1.0f + std::pow(against, 1.0f / temperature) * std::exp(-shift));
}

MtpHead::MtpHead(std::shared_ptr<Backbone> backbone, const HeadShape& shape,
                 const std::vector<int32_t>& draft_tokens)
    : backbone_(std::move(backbone)),
      spec_(backbone_->spec()),
      shape_((check_shape(shape, spec_), shape)),
      draft_tiles_(whole_tiles(draft_tokens, spec_.vocabulary)),
      scored_tiles_(draft_tiles_),
      tap_norms_(static_cast<size_t>(shape.taps)),
      position_embeddings_(static_cast<size_t>(shape.positions)),
      layers_(shape.kv_layers.size()) {
    spec_.ff_width = shape.ff_width;
    spec_.gelu = false;  // a head's own layers are plain: SiLU, no norm of a branch
    spec_.post_norms = false;
    const int d = spec_.width;
    slots_.vector("embedding_norm.weight", &embedding_norm_, d);
    slots_.vector("hidden_norm.weight", &hidden_norm_, d);
    slots_.matrix("pre_projection.weight", &pre_projection_, d, (2 + shape.taps) * d);
    slots_.vector("model.norm.weight", &final_norm_, d);
    for (size_t i = 0; i < tap_norms_.size(); ++i) {
        slots_.vector("tap_norms." + std::to_string(i) + ".weight", &tap_norms_[i], d);
    }
    for (size_t j = 1; j < position_embeddings_.size(); ++j) {
        const std::string name = "position_embeddings." + std::to_string(j - 1);
        slots_.vector(name, &position_embeddings_[j], d);
    }
    if (shape.markov_rank > 0) {
        const auto words = static_cast<int>(draft_tokens.size());
        slots_.matrix("markov.previous.weight", &markov_previous_, words, shape.markov_rank);
        slots_.matrix("markov.next.weight", &markov_next_, words, shape.markov_rank);
    }
    for (size_t i = 0; i < layers_.size(); ++i) name_layer(i);
}

void MtpHead::name_layer(size_t index) {
    const int d = spec_.width;
    const int ff_width = shape_.ff_width;
    DecoderLayer& layer = layers_[index];
    const std::string at = "model.layers." + std::to_string(index) + ".";
    if (shape_.kv_layers[index] >= 0) {
        slots_.vector(at + "input_layernorm.weight", &layer.attention_norm, d);
        slots_.matrix(at + "self_attn.q_proj.weight", &layer.query, spec_.query_width(), d);
        if (shape_.query_bias) {
            slots_.vector(at + "self_attn.q_proj.bias", &layer.query_bias, spec_.query_width());
        }
        if (shape_.query_norm) {
            slots_.vector(at + "self_attn.q_norm.weight", &layer.query_norm, spec_.head_dim);
        }
        slots_.matrix(at + "self_attn.o_proj.weight", &layer.output, d, spec_.query_width());
    }
    slots_.vector(at + "pre_feedforward_layernorm.weight", &layer.ff_norm, d);
    slots_.matrix(at + "mlp.gate_proj.weight", &layer.gate, ff_width, d);
    slots_.matrix(at + "mlp.up_proj.weight", &layer.up, ff_width, d);
    slots_.matrix(at + "mlp.down_proj.weight", &layer.down, d, ff_width);
}

void MtpHead::finish() {
    backbone_->require_finished();
    slots_.require_all();
    embedded_.reset(static_cast<size_t>(spec_.width));
    if (shape_.markov_rank > 0) {
        previous_.resize(static_cast<size_t>(backbone_->pool().size()));
        for (Activations& a : previous_) a.resize(1, shape_.markov_rank);
    }
    resize(shape_.positions);
    work_.resize(shape_.positions, spec_, spec_.ff_width, backbone_->pool().size(), 1);
    finished_ = true;
}

void MtpHead::resize(int rows) {
    joined_.resize(rows, (2 + shape_.taps) * spec_.width);
    states_.resize(rows, spec_.width);
    scores_.resize(rows, static_cast<int>(scored_tiles_.size()) * tile_rows);
}

void MtpHead::choose_tiles(const std::vector<int>& more) {
    scored_tiles_ = draft_tiles_;
    if (!shape_.prompt_tokens) return;
    int before = -1;
    for (const int tile : more) {
        if (tile <= before) throw std::invalid_argument("groups of ids must ascend from 0");
        before = tile;
        const bool whole = tile < spec_.vocabulary / tile_rows;
        if (whole && !std::binary_search(draft_tiles_.begin(), draft_tiles_.end(), tile)) {
            scored_tiles_.push_back(tile);
        }
    }
}

size_t MtpHead::step_bytes() const {
    const Matrix& output = backbone_->output();
    size_t total =
        pre_projection_.bytes() + markov_next_.bytes() + draft_tiles_.size() * output.tile_bytes;
    for (const DecoderLayer& layer : layers_) total += layer.bytes();
    return total;
}

size_t MtpHead::bytes() const {
    size_t total = pre_projection_.bytes() + markov_previous_.bytes() + markov_next_.bytes() +
                   embedding_norm_.bytes() + hidden_norm_.bytes() + final_norm_.bytes() +
                   joined_.bytes() + states_.bytes() + embedded_.bytes() + scores_.bytes() +
                   work_.bytes() - work_.scores.bytes();
    for (const DecoderLayer& layer : layers_) total += layer.bytes();
    for (const Aligned<float>& v : tap_norms_) total += v.bytes();
    for (const Aligned<float>& v : position_embeddings_) total += v.bytes();
    for (const Activations& a : previous_) total += a.bytes();
    return total;
}

int MtpHead::draft(const KvCache& cache, int32_t token, const float* hidden, int max_tokens,
                   const DraftEnd& end, const std::vector<int>& more, int32_t* tokens,
                   float* confidences) {
    if (!finished_) throw std::invalid_argument("the head's tensors are not complete");
    if (end.floors.empty()) throw std::invalid_argument("a draft needs a floor to end at");
    const std::lock_guard<std::mutex> lock(backbone_->turn());
    const int n = cache.length();
    if (token < 0 || token >= spec_.vocabulary) {
        throw std::invalid_argument("token " + std::to_string(token) +
                                    " is outside the vocabulary");
    }
    if (n < 1 || n >= spec_.context || max_tokens < 1) return 0;

    const int rows = std::min(shape_.positions, max_tokens);
    // Head layers have no keys and values of their own, so the cache is only read.
    const std::vector<RowPlace> places(static_cast<size_t>(rows),
                                       {const_cast<KvCache*>(&cache), n, n});
    choose_tiles(more);
    resize(rows);
    work_.resize(rows, spec_, spec_.ff_width, backbone_->pool().size(), n);
    const PassContext pass{spec_, backbone_->rotary(), kernels(), places, work_};
    Drafting drafting{hidden, max_tokens, end, tokens, confidences, 0};
    backbone_->pool().run([&](Team& team) { run_draft(team, rows, token, drafting, pass); });
    return drafting.count;
}

void MtpHead::run_draft(Team& team, int rows, int32_t token, Drafting& drafting,
                        const PassContext& pass) {
    const float* taps = drafting.hidden + spec_.width;
    const float* state = drafting.hidden;
    const int end = shape_.positions > 1 ? rows : drafting.max_tokens;
    float product = 1.0f;
    for (int step = 0; step < end; ++step) {
        const int row = step % rows;
        if (row == 0) {
            run_rows(team, token, state, taps, pass);
            state = states_.row(0);
        }
        if (shape_.markov_rank > 0) score_row(team, row, token, pass.kernels);
        // Every thread reads the same scores, so all take the same decision.
        const Best best = scores_.best(row);
        if (best.index < 0) return;
        const auto tile = static_cast<size_t>(best.index / tile_rows);
        token = scored_tiles_[tile] * tile_rows + best.index % tile_rows;
        const float confidence =
            drafting.end.calibrated(scores_.confidence(row, pass.kernels), step);
        if (team.index == 0) {
            drafting.tokens[step] = token;
            drafting.confidences[step] = confidence;
            drafting.count = step + 1;
        }
        product *= confidence;
        if (!(product >= drafting.end.floor(step))) return;
    }
}

void MtpHead::run_rows(Team& team, int32_t token, const float* state, const float* taps,
                       const PassContext& pass) {
    if (team.index == 0) join_inputs(token, state, taps, pass);
    team.barrier();
    project(pre_projection_, joined_.view(), work_.x.data(), false, pass.kernels, team);
    team.barrier();
    for (size_t i = 0; i < layers_.size(); ++i) {
        run_layer(layers_[i], shape_.kv_layers[i], pass, team);
    }
    if (team.index == 0) {
        for (int r = 0; r < static_cast<int>(pass.rows.size()); ++r) {
            const float* x = work_.x.data() + static_cast<size_t>(r) * spec_.width;
            pass.kernels.rms_norm(x, final_norm_.data(), spec_.width, spec_.rms_eps,
                                  states_.row(r));
            states_.quantize(pass.kernels, r, 0, spec_.width);
        }
    }
    team.barrier();
    const Matrix& output = backbone_->output();
    if (shape_.markov_rank > 0) {
        scores_.multiply(output, scored_tiles_.data(), states_.view(), pass.kernels, team);
        return;
    }
    scores_.score(output, scored_tiles_.data(), states_.view(), true, spec_.final_softcap,
                  pass.kernels, team);
    team.barrier();
}

void MtpHead::join_inputs(int32_t token, const float* state, const float* taps,
                          const PassContext& pass) {
    const int d = spec_.width;
    float* first = joined_.row(0);
    const auto norm = [&](const float* x, const Aligned<float>& weight, float* out) {
        pass.kernels.rms_norm(x, weight.data(), d, spec_.rms_eps, out);
    };
    backbone_->embed(&token, 1, embedded_.data());
    norm(embedded_.data(), embedding_norm_, first);
    norm(state, hidden_norm_, first + d);
    for (size_t i = 0; i < tap_norms_.size(); ++i) {
        const size_t at = i * static_cast<size_t>(d);
        norm(taps + at, tap_norms_[i], first + 2 * d + at);
    }
    for (int r = 0; r < static_cast<int>(pass.rows.size()); ++r) {
        if (r > 0) {
            float* row = joined_.row(r);
            std::copy_n(first, (2 + shape_.taps) * d, row);
            const float* own = position_embeddings_[static_cast<size_t>(r)].data();
            for (int i = 0; i < d; ++i) row[i] += own[i];
        }
        joined_.quantize(pass.kernels, r, 0, (2 + shape_.taps) * d);
    }
}

// Adds the Markov bias of the token before to the scores of a row and finds the best.
void MtpHead::score_row(Team& team, int row, int32_t previous, const Kernels& kernels) {
    Activations& a = previous_[static_cast<size_t>(team.index)];
    const int place = place_of(previous);
    if (place < 0) {
        std::fill_n(a.row(0), shape_.markov_rank, 0.0f);
    } else {
        dequantize_row(markov_previous_, place, a.row(0));
    }
    a.quantize(kernels, 0, 0, shape_.markov_rank);
    scores_.add_and_reduce(row, markov_next_, a.view(), spec_.final_softcap, kernels, team);
    team.barrier();
}

int MtpHead::place_of(int32_t token) const {
    const int tile = token / tile_rows;
    const auto found = std::lower_bound(draft_tiles_.begin(), draft_tiles_.end(), tile);
    if (found == draft_tiles_.end() || *found != tile) return -1;
    return static_cast<int>(found - draft_tiles_.begin()) * tile_rows + token % tile_rows;
}

}  // namespace drafthead
