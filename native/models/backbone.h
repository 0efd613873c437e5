// The frozen backbone: rows of any number of sequences in, hidden states and greedy tokens out.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "models/decoder_layer.h"
#include "models/score.h"
#include "models/weights.h"

namespace drafthead {

// `count` rows appended to a cache.
struct Segment {
    KvCache* cache;
    int count;
};

enum class Level : int { hidden = 0, tokens = 1, logits = 2 };

// Where a pass writes; null where it is not asked for. R output rows.
//
// taps: layers whose output is given too. Such a row of the residual stream is divided by its root
// mean square, as every reader does first, so that half precision holds it.
struct PassOutputs {
    float* hidden;    // (R, (1 + taps) D): the state after the final norm, then each tap
    int32_t* tokens;  // (R) argmax, -1 where a row has no finite logit
    float* logits;    // (R, V)
    std::vector<int> taps = {};
};

class Backbone {
public:
    Backbone(const ModelSpec& spec, int threads);

    WeightSlots& slots() { return slots_; }
    void finish();
    void require_finished() const;  // throws std::invalid_argument before finish()

    // One pass. outputs: indices of rows. Throws std::invalid_argument before any cell
    // is written where a token is outside the vocabulary or a segment does not fit its cache.
    void forward(const std::vector<Segment>& segments, const int32_t* tokens,
                 const std::vector<int>& outputs, Level level, const PassOutputs& out);

    // Input of the first layer (scaled where the model does that) and rows of the output matrix.
    void embed(const int32_t* tokens, int count, float* out) const;        // (count, D)
    void output_rows(const int32_t* tokens, int count, float* out) const;  // (count, D)
    std::unique_ptr<KvCache> new_cache(int capacity, KvType type);

    const ModelSpec& spec() const { return spec_; }
    const Rotary& rotary() const { return rotary_; }
    const Matrix& output() const { return spec_.tied ? embedding_ : output_; }
    ThreadPool& pool() { return pool_; }
    // Held by whoever runs a pass or a draft: their buffers serve one at a time.
    std::mutex& turn() { return turn_; }
    size_t weight_bytes() const;
    size_t pass_bytes() const;

private:
    void name_layer(int index);
    int checked_rows(const std::vector<Segment>& segments, const int32_t* tokens,
                     const std::vector<int>& outputs) const;
    void run_rows(Team& team, const int32_t* tokens, const std::vector<int>& outputs,
                  const PassContext& pass, const PassOutputs& out);
    void keep_tap(Team& team, size_t slot, const std::vector<int>& outputs, const PassContext& pass,
                  const PassOutputs& out);
    void run_outputs(Team& team, const std::vector<int>& outputs, Level level,
                     const PassContext& pass, const PassOutputs& out);

    ModelSpec spec_;
    Rotary rotary_;
    ThreadPool pool_;
    std::mutex turn_;
    WeightSlots slots_;
    bool finished_ = false;
    Aligned<float> rope_factors_;  // (head_dim / 2), empty without
    std::vector<DecoderLayer> layers_;
    Matrix embedding_, output_;
    Aligned<float> final_norm_, ones_;
    Workspace work_;
    Activations final_;
    Scores scores_;
};

}  // namespace drafthead
