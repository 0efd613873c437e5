#include "models/backbone.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "runtime/dispatch.h"

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

void check_spec(const ModelSpec& s) {
    constexpr int limit = 1 << 24;  // products of sizes stay ints, angles keep their precision
    bool sound = true;
    for (const int size : {s.layers, s.width, s.heads, s.kv_heads, s.head_dim, s.ff_width,
                           s.vocabulary, s.context}) {
        sound = sound && size > 0 && size <= limit;
    }
    for (const int size : {s.width, s.head_dim, s.ff_width}) {
        sound = sound && size % block_k == 0;
    }
    sound = sound && s.head_dim <= max_head_dim && s.heads <= limit / s.head_dim &&
            s.heads % s.kv_heads == 0 && s.rms_eps >= 0 && s.rms_eps < 1 && s.rope_base >= 1 &&
            s.rope_base < 1e18;
    if (!sound) throw std::invalid_argument("the model's sizes are not supported");
}

}  // namespace

Backbone::Backbone(const ModelSpec& spec, int threads)
    : spec_((check_spec(spec), spec)),
      rope_(spec.rope_base, spec.head_dim / 2, spec.context),
      pool_(threads),
      layers_(static_cast<size_t>(spec.layers)) {
    const auto order = split_half_rows(spec);
    slots_.matrix("token_embd.weight", &embedding_, spec.vocabulary, spec.width);
    slots_.vector("output_norm.weight", &final_norm_, spec.width);
    if (!spec.tied) slots_.matrix("output.weight", &output_, spec.vocabulary, spec.width);
    for (int i = 0; i < spec.layers; ++i) {
        DecoderLayer& layer = layers_[static_cast<size_t>(i)];
        const std::string at = "blk." + std::to_string(i) + ".";
        slots_.vector(at + "attn_norm.weight", &layer.attention_norm, spec.width);
        slots_.matrix(at + "attn_q.weight", &layer.query, spec.query_width(), spec.width, order);
        slots_.matrix(at + "attn_k.weight", &layer.key, spec.kv_width(), spec.width, order);
        slots_.matrix(at + "attn_v.weight", &layer.value, spec.kv_width(), spec.width);
        slots_.matrix(at + "attn_output.weight", &layer.output, spec.width, spec.query_width());
        slots_.vector(at + "ffn_norm.weight", &layer.ff_norm, spec.width);
        slots_.matrix(at + "ffn_gate.weight", &layer.gate, spec.ff_width, spec.width);
        slots_.matrix(at + "ffn_up.weight", &layer.up, spec.ff_width, spec.width);
        slots_.matrix(at + "ffn_down.weight", &layer.down, spec.width, spec.ff_width);
    }
}

void Backbone::finish() {
    slots_.require_all();
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

std::unique_ptr<KvCache> Backbone::new_cache(int capacity) const {
    if (capacity < 1 || capacity > spec_.context) {
        throw std::invalid_argument("a cache of " + std::to_string(capacity) +
                                    " cells is not possible: the model has 1 to " +
                                    std::to_string(spec_.context) + " positions");
    }
    return std::make_unique<KvCache>(spec_.layers, spec_.kv_heads, spec_.head_dim, capacity);
}

void Backbone::embed(const int32_t* tokens, int count, float* out) const {
    for (int i = 0; i < count; ++i) {
        dequantize_row(embedding_, tokens[i], out + static_cast<size_t>(i) * spec_.width);
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

    const PassContext pass{spec_, rope_, kernels(), places, work_};
    pool_.run([&](Team& team) {
        run_rows(team, tokens, pass);
        run_outputs(team, outputs, level, pass, out);
    });
    for (const Segment& s : segments) s.cache->set_length(s.cache->length() + s.count);
}

void Backbone::run_rows(Team& team, const int32_t* tokens, const PassContext& pass) {
    const auto [begin, end] = team.share(static_cast<int>(pass.rows.size()));
    embed(tokens + begin, end - begin, work_.x.data() + static_cast<size_t>(begin) * spec_.width);
    team.barrier();
    for (int i = 0; i < spec_.layers; ++i) {
        run_layer(layers_[static_cast<size_t>(i)], i, pass, team);
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
        std::memcpy(out.hidden + static_cast<size_t>(i) * spec_.width, final_.row(i), row_bytes);
    }
    if (level == Level::hidden || outputs.empty()) return;
    team.barrier();
    scores_.score(output(), nullptr, final_.view(), false, pass.kernels, team);
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
