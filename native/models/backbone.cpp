#include "models/backbone.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "runtime/dispatch.h"
#include "runtime/fp_env.h"

namespace drafthead {

namespace {

// Row order that turns interleaved rotary pairs (2 i, 2 i + 1) into split halves (i, i + half).
// Queries and keys get the same order, so their products are untouched.
std::function<int(int)> split_half_rows(const ModelSpec& spec) {
    if (!spec.rope_interleaved) return nullptr;
    return [dim = spec.head_dim](int row) {
        const int half = dim / 2;
        const int i = row % dim;
        return row - i + (i < half ? 2 * i : 2 * (i - half) + 1);
    };
}

// False for NaN, whichever way it is compared.
bool within(double value, double low, double high) { return value >= low && value <= high; }

bool sound_sizes(const ModelSpec& s) {
    constexpr int limit = 1 << 24;  // products of sizes stay ints, angles keep their precision
    bool sound = true;
    for (const int size : {s.layers, s.width, s.heads, s.kv_heads, s.head_dim, s.ff_width,
                           s.vocabulary, s.context}) {
        sound = sound && size > 0 && size <= limit;
    }
    for (const int size : {s.width, s.head_dim, s.ff_width}) {
        sound = sound && size % block_k == 0;
    }
    return sound && s.head_dim <= max_head_dim && s.heads <= limit / s.head_dim &&
           s.heads % s.kv_heads == 0;
}

bool sound_choices(const ModelSpec& s) {
    bool sound = within(s.rms_eps, 0, 1) && within(s.embedding_scale, 1e-6, 1e6) &&
                 within(s.attention_scale, 1e-6, 1e6) && within(s.attention_softcap, 0, 1e6) &&
                 within(s.final_softcap, 0, 1e6) && (!s.rope_factors || !s.ropes.empty());
    for (const RopeSpec& rope : s.ropes) {
        sound = sound && within(rope.base, 1, 1e18) && within(rope.scale, 1e-6, 1);
    }
    sound = sound && s.layer_specs.size() == static_cast<size_t>(s.layers);
    for (const LayerSpec& layer : s.layer_specs) {
        sound = sound && layer.window >= 0 && layer.rope >= -1 &&
                layer.rope < static_cast<int>(s.ropes.size());
    }
    return sound;
}

void check_spec(const ModelSpec& s) {
    if (!sound_sizes(s)) throw std::invalid_argument("the model's sizes are not supported");
    if (!sound_choices(s)) {
        throw std::invalid_argument("the model's scales, windows or ropes are not supported");
    }
}

}  // namespace

Backbone::Backbone(const ModelSpec& spec, int threads)
    : spec_((check_spec(spec), spec)),
      rotary_(spec),
      pool_(threads),
      layers_(static_cast<size_t>(spec.layers)),
      ones_(static_cast<size_t>(spec.width)) {
    std::fill_n(ones_.data(), ones_.size(), 1.0f);
    slots_.matrix("token_embd.weight", &embedding_, spec.vocabulary, spec.width);
    slots_.vector("output_norm.weight", &final_norm_, spec.width);
    if (!spec.tied) slots_.matrix("output.weight", &output_, spec.vocabulary, spec.width);
    if (spec.rope_factors) {
        slots_.vector("rope_freqs.weight", &rope_factors_, spec.head_dim / 2);
    }
    for (int i = 0; i < spec.layers; ++i) name_layer(i);
}

void Backbone::name_layer(int index) {
    const ModelSpec& s = spec_;
    DecoderLayer& layer = layers_[static_cast<size_t>(index)];
    const std::string at = "blk." + std::to_string(index) + ".";
    const auto order = split_half_rows(s);
    slots_.vector(at + "attn_norm.weight", &layer.attention_norm, s.width);
    slots_.matrix(at + "attn_q.weight", &layer.query, s.query_width(), s.width, order);
    slots_.matrix(at + "attn_k.weight", &layer.key, s.kv_width(), s.width, order);
    slots_.matrix(at + "attn_v.weight", &layer.value, s.kv_width(), s.width);
    slots_.matrix(at + "attn_output.weight", &layer.output, s.width, s.query_width());
    slots_.vector(at + "ffn_norm.weight", &layer.ff_norm, s.width);
    slots_.matrix(at + "ffn_gate.weight", &layer.gate, s.ff_width, s.width);
    slots_.matrix(at + "ffn_up.weight", &layer.up, s.ff_width, s.width);
    slots_.matrix(at + "ffn_down.weight", &layer.down, s.width, s.ff_width);
    if (s.qkv_bias) {
        slots_.vector(at + "attn_q.bias", &layer.query_bias, s.query_width(), order);
        slots_.vector(at + "attn_k.bias", &layer.key_bias, s.kv_width(), order);
        slots_.vector(at + "attn_v.bias", &layer.value_bias, s.kv_width());
    }
    if (s.qk_norm) {
        slots_.vector(at + "attn_q_norm.weight", &layer.query_norm, s.head_dim, order);
        slots_.vector(at + "attn_k_norm.weight", &layer.key_norm, s.head_dim, order);
    }
    if (s.post_norms) {
        slots_.vector(at + "post_attention_norm.weight", &layer.post_attention_norm, s.width);
        slots_.vector(at + "post_ffw_norm.weight", &layer.post_ff_norm, s.width);
    }
}

void Backbone::finish() {
    const std::lock_guard<std::mutex> lock(turn_);
    if (finished_) return;
    slots_.require_all();
    if (spec_.rope_factors) {
        for (size_t i = 0; i < rope_factors_.size(); ++i) {
            if (!within(rope_factors_.data()[i], 1, 1e6)) {
                throw std::invalid_argument("tensor 'rope_freqs.weight' must hold 1 or more");
            }
        }
        const FloatEnvironment environment;
        rotary_.divide_frequencies(rope_factors_.data());
    }
    finished_ = true;
}

void Backbone::require_finished() const {
    if (!finished_) throw std::invalid_argument("the model's tensors are not complete");
}

size_t Backbone::weight_bytes() const {
    return pass_bytes() + (spec_.tied ? 0 : embedding_.bytes());
}

size_t Backbone::pass_bytes() const {
    size_t total = output().bytes() + final_norm_.bytes();
    for (const DecoderLayer& layer : layers_) total += layer.bytes();
    return total;
}

std::unique_ptr<KvCache> Backbone::new_cache(int capacity, KvType type) {
    if (capacity < 1 || capacity > spec_.context) {
        throw std::invalid_argument("a cache of " + std::to_string(capacity) +
                                    " cells is not possible: the model has 1 to " +
                                    std::to_string(spec_.context) + " positions");
    }
    std::vector<int> windows;
    for (const LayerSpec& layer : spec_.layer_specs) windows.push_back(layer.window);
    auto cache = std::make_unique<KvCache>(windows, spec_.kv_heads, spec_.head_dim, capacity, type);
    const std::lock_guard<std::mutex> lock(turn_);
    // A draft after the last cell has a position of its own.
    rotary_.grow(std::min(capacity + 1, spec_.context), pool_);
    return cache;
}

void Backbone::embed(const int32_t* tokens, int count, float* out) const {
    for (int i = 0; i < count; ++i, out += spec_.width) {
        dequantize_row(embedding_, tokens[i], out);
        for (int j = 0; j < spec_.width; ++j) out[j] *= spec_.embedding_scale;
    }
}

void Backbone::output_rows(const int32_t* tokens, int count, float* out) const {
    for (int i = 0; i < count; ++i) {
        dequantize_row(output(), tokens[i], out + static_cast<size_t>(i) * spec_.width);
    }
}

int Backbone::checked_rows(const std::vector<Segment>& segments, const int32_t* tokens,
                           const std::vector<int>& outputs) const {
    require_finished();
    int rows = 0;
    for (size_t i = 0; i < segments.size(); ++i) {
        const Segment& s = segments[i];
        for (size_t j = 0; j < i; ++j) {
            if (segments[j].cache == s.cache) {
                throw std::invalid_argument("a cache appears twice in one pass");
            }
        }
        if (s.count < 1) throw std::invalid_argument("a segment of a pass is empty");
        if (s.count > s.cache->capacity() - s.cache->length()) {
            throw std::invalid_argument(std::to_string(s.count) + " rows do not fit a cache with " +
                                        std::to_string(s.cache->capacity() - s.cache->length()) +
                                        " free cells");
        }
        rows += s.count;
    }
    for (int r = 0; r < rows; ++r) {
        if (tokens[r] < 0 || tokens[r] >= spec_.vocabulary) {
            throw std::invalid_argument("token " + std::to_string(tokens[r]) +
                                        " is outside the vocabulary of " +
                                        std::to_string(spec_.vocabulary));
        }
    }
    for (const int r : outputs) {
        if (r < 0 || r >= rows) throw std::invalid_argument("an output row is outside the pass");
    }
    return rows;
}

void Backbone::forward(const std::vector<Segment>& segments, const int32_t* tokens,
                       const std::vector<int>& outputs, Level level, const PassOutputs& out) {
    const std::lock_guard<std::mutex> lock(turn_);
    const int rows = checked_rows(segments, tokens, outputs);
    for (const int layer : out.taps) {
        if (layer < 0 || layer >= spec_.layers) {
            throw std::invalid_argument("a tap of layer " + std::to_string(layer) +
                                        " of a backbone with " + std::to_string(spec_.layers));
        }
    }
    if (rows == 0) return;

    std::vector<RowPlace> places;
    places.reserve(static_cast<size_t>(rows));
    int longest = 0;
    for (const Segment& s : segments) {
        for (int i = 0; i < s.count; ++i) {
            const int position = s.cache->length() + i;
            places.push_back({s.cache, position, position + 1});
            longest = std::max(longest, position + 1);
        }
    }
    const int output_count = static_cast<int>(outputs.size());
    work_.resize(rows, spec_, spec_.ff_width, pool_.size(), longest);
    final_.resize(output_count, spec_.width);
    if (level != Level::hidden) scores_.resize(output_count, spec_.vocabulary);

    const PassContext pass{spec_, rotary_, kernels(), places, work_};
    pool_.run([&](Team& team) {
        run_rows(team, tokens, outputs, pass, out);
        run_outputs(team, outputs, level, pass, out);
    });
    for (const Segment& s : segments) s.cache->append(s.count);
}

void Backbone::run_rows(Team& team, const int32_t* tokens, const std::vector<int>& outputs,
                        const PassContext& pass, const PassOutputs& out) {
    const auto [begin, end] = team.share(static_cast<int>(pass.rows.size()));
    embed(tokens + begin, end - begin, work_.x.data() + static_cast<size_t>(begin) * spec_.width);
    team.barrier();
    for (int i = 0; i < spec_.layers; ++i) {
        run_layer(layers_[static_cast<size_t>(i)], i, pass, team);
        for (size_t slot = 0; slot < out.taps.size(); ++slot) {
            if (out.taps[slot] == i) keep_tap(team, slot, outputs, pass, out);
        }
    }
}

// x is complete, and nobody changes it before the next layer's first barrier.
void Backbone::keep_tap(Team& team, size_t slot, const std::vector<int>& outputs,
                        const PassContext& pass, const PassOutputs& out) {
    const auto width = static_cast<size_t>(spec_.width);
    const size_t stride = (1 + out.taps.size()) * width;
    const auto [begin, end] = team.share(static_cast<int>(outputs.size()));
    for (int i = begin; i < end; ++i) {
        const auto row = static_cast<size_t>(outputs[static_cast<size_t>(i)]);
        pass.kernels.rms_norm(work_.x.data() + row * width, ones_.data(), spec_.width,
                              spec_.rms_eps,
                              out.hidden + static_cast<size_t>(i) * stride + (1 + slot) * width);
    }
}

void Backbone::run_outputs(Team& team, const std::vector<int>& outputs, Level level,
                           const PassContext& pass, const PassOutputs& out) {
    const auto [begin, end] = team.share(static_cast<int>(outputs.size()));
    const size_t row_bytes = static_cast<size_t>(spec_.width) * sizeof(float);
    for (int i = begin; i < end; ++i) {
        const float* x =
            work_.x.data() + static_cast<size_t>(outputs[static_cast<size_t>(i)]) * spec_.width;
        pass.kernels.rms_norm(x, final_norm_.data(), spec_.width, spec_.rms_eps, final_.row(i));
        final_.quantize(pass.kernels, i, 0, spec_.width);
        const size_t stride = (1 + out.taps.size()) * row_bytes / sizeof(float);
        std::memcpy(out.hidden + static_cast<size_t>(i) * stride, final_.row(i), row_bytes);
    }
    if (level == Level::hidden || outputs.empty()) return;
    team.barrier();
    scores_.score(output(), nullptr, final_.view(), false, spec_.final_softcap, pass.kernels, team);
    team.barrier();
    for (int i = begin; i < end; ++i) {
        out.tokens[i] = scores_.best(i).index;
        if (level == Level::logits) {
            std::memcpy(out.logits + static_cast<size_t>(i) * spec_.vocabulary, scores_.logits(i),
                        static_cast<size_t>(spec_.vocabulary) * sizeof(float));
        }
    }
}

}  // namespace drafthead
