#include "models/mtp_head.h"

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

}  // namespace

MtpHead::MtpHead(std::shared_ptr<Backbone> backbone, const HeadShape& shape,
                 const std::vector<int32_t>& draft_tokens)
    : backbone_(std::move(backbone)),
      spec_(backbone_->spec()),
      kv_layers_(shape.kv_layers),
      draft_tiles_(whole_tiles(draft_tokens, spec_.vocabulary)),
      layers_(kv_layers_.size()) {
    const int ff_width = shape.ff_width;
    if (ff_width < block_k || ff_width % block_k != 0) {
        throw std::invalid_argument("the head's feed-forward size must be a multiple of 32");
    }
    spec_.ff_width = ff_width;
    spec_.gelu = false;  // a head's own layers are plain: SiLU, no norm of a branch
    spec_.post_norms = false;
    const int d = spec_.width;
    slots_.vector("embedding_norm.weight", &embedding_norm_, d);
    slots_.vector("hidden_norm.weight", &hidden_norm_, d);
    slots_.matrix("pre_projection.weight", &pre_projection_, d, 2 * d);
    slots_.vector("model.norm.weight", &final_norm_, d);
    for (size_t i = 0; i < layers_.size(); ++i) {
        if (kv_layers_[i] < 0 || kv_layers_[i] >= spec_.layers) {
            throw std::invalid_argument("the head reads layer " + std::to_string(kv_layers_[i]) +
                                        " of a backbone with " + std::to_string(spec_.layers));
        }
        DecoderLayer& layer = layers_[i];
        const std::string at = "model.layers." + std::to_string(i) + ".";
        slots_.vector(at + "input_layernorm.weight", &layer.attention_norm, d);
        slots_.matrix(at + "self_attn.q_proj.weight", &layer.query, spec_.query_width(), d);
        if (shape.query_bias) {
            slots_.vector(at + "self_attn.q_proj.bias", &layer.query_bias, spec_.query_width());
        }
        if (shape.query_norm) {
            slots_.vector(at + "self_attn.q_norm.weight", &layer.query_norm, spec_.head_dim);
        }
        slots_.matrix(at + "self_attn.o_proj.weight", &layer.output, d, spec_.query_width());
        slots_.vector(at + "pre_feedforward_layernorm.weight", &layer.ff_norm, d);
        slots_.matrix(at + "mlp.gate_proj.weight", &layer.gate, ff_width, d);
        slots_.matrix(at + "mlp.up_proj.weight", &layer.up, ff_width, d);
        slots_.matrix(at + "mlp.down_proj.weight", &layer.down, d, ff_width);
    }
}

void MtpHead::finish() {
    backbone_->require_finished();
    slots_.require_all();
    joined_.resize(1, 2 * spec_.width);
    state_.resize(1, spec_.width);
    embedded_.reset(static_cast<size_t>(spec_.width));
    scores_.resize(1, static_cast<int>(draft_tiles_.size()) * tile_rows);
    work_.resize(1, spec_, spec_.ff_width, backbone_->pool().size(), 1);
    finished_ = true;
}

size_t MtpHead::step_bytes() const {
    const Matrix& output = backbone_->output();
    size_t total = pre_projection_.bytes() + draft_tiles_.size() * output.tile_bytes;
    for (const DecoderLayer& layer : layers_) total += layer.bytes();
    return total;
}

size_t MtpHead::bytes() const {
    size_t total = pre_projection_.bytes() + embedding_norm_.bytes() + hidden_norm_.bytes() +
                   final_norm_.bytes() + joined_.bytes() + state_.bytes() + embedded_.bytes() +
                   scores_.bytes() + work_.bytes() - work_.scores.bytes();
    for (const DecoderLayer& layer : layers_) total += layer.bytes();
    return total;
}

int MtpHead::draft(const KvCache& cache, int32_t token, const float* hidden, int max_tokens,
                   float min_confidence, int32_t* tokens, float* confidences) {
    if (!finished_) throw std::invalid_argument("the head's tensors are not complete");
    const std::lock_guard<std::mutex> lock(backbone_->turn());
    const int n = cache.length();
    if (token < 0 || token >= spec_.vocabulary) {
        throw std::invalid_argument("token " + std::to_string(token) +
                                    " is outside the vocabulary");
    }
    if (n < 1 || n >= spec_.context) return 0;

    // Head layers have no keys and values of their own, so the cache is only read.
    const std::vector<RowPlace> rows{{const_cast<KvCache*>(&cache), n, n}};
    work_.resize(1, spec_, spec_.ff_width, backbone_->pool().size(), n);
    const PassContext pass{spec_, backbone_->rotary(), kernels(), rows, work_};
    int drafted = 0;
    backbone_->pool().run([&](Team& team) {
        int32_t last = token;
        const float* state = hidden;
        float product = 1.0f;
        for (int step = 0; step < max_tokens; ++step) {
            run_step(team, last, state, pass);
            // Every thread reads the same scores, so all take the same decision.
            const Best best = scores_.best(0);
            if (best.index < 0) break;
            const auto tile = static_cast<size_t>(best.index / tile_rows);
            last = draft_tiles_[tile] * tile_rows + best.index % tile_rows;
            const float confidence = scores_.confidence(0, pass.kernels);
            if (team.index == 0) {
                tokens[step] = last;
                confidences[step] = confidence;
                drafted = step + 1;
            }
            product *= confidence;
            if (!(product >= min_confidence)) break;
            state = state_.row(0);
        }
    });
    return drafted;
}

void MtpHead::run_step(Team& team, int32_t token, const float* state, const PassContext& pass) {
    const auto norm = [&](const float* x, const Aligned<float>& weight, float* out) {
        pass.kernels.rms_norm(x, weight.data(), spec_.width, spec_.rms_eps, out);
    };
    if (team.index == 0) {
        backbone_->embed(&token, 1, embedded_.data());
        norm(embedded_.data(), embedding_norm_, joined_.row(0));
        norm(state, hidden_norm_, joined_.row(0) + spec_.width);
        joined_.quantize(pass.kernels, 0, 0, 2 * spec_.width);
    }
    team.barrier();
    project(pre_projection_, joined_.view(), work_.x.data(), false, pass.kernels, team);
    team.barrier();
    for (size_t i = 0; i < layers_.size(); ++i) run_layer(layers_[i], kv_layers_[i], pass, team);
    if (team.index == 0) {
        norm(work_.x.data(), final_norm_, state_.row(0));
        state_.quantize(pass.kernels, 0, 0, spec_.width);
    }
    team.barrier();
    scores_.score(backbone_->output(), draft_tiles_.data(), state_.view(), true,
                  spec_.final_softcap, pass.kernels, team);
    team.barrier();
}

}  // namespace drafthead
