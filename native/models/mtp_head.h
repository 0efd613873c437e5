// The multi-token-prediction head: a small trained transformer that drafts from the backbone's own
// last hidden state and reads the backbone's keys and values in place. It owns no cache.
//
// One draft step, for the last token x_n (n = cache length) and the state h before it:
//
//   x = pre_projection . [norm(embedding(x_n)), norm(h), norm(tap) for each tap]
//   x = layer(x) for each head layer, attending to backbone cells 0 .. n - 1
//   s = norm(x)
//   draft token = argmax over the draft vocabulary of output_row . s (+ markov_next_row . a)
//
// The next step takes the drafted token and s in place of h; taps, cells and the rotary position n
// stay. What a head has of the following is told by its shape:
//
//   layers without attention  a feed-forward part alone
//   taps                      outputs of backbone layers, which follow h in its row
//   Markov bias               a bigram of low rank: a is the row of markov_previous that belongs to
//                             the last token, and zero where that cannot be drafted (as in the
//                             published DSpark heads, deepseek-ai/DeepSpec)
//   positions P > 1           no recurrence: one pass drafts up to P tokens from P rows. All take
//                             what the first step takes; row j > 0 adds position_embeddings[j] to
//                             the norm of the embedding. The Markov bias alone goes from token to
//                             token.
//
// The layout follows the Gemma 4 assistant checkpoints.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "models/backbone.h"

namespace drafthead {

// kv_layers: for each head layer the backbone layer it reads, or -1 for one without attention.
// query_bias, query_norm: what the queries have besides their matrix. markov_rank: 0 for no bias.
struct HeadShape {
    int ff_width = 0;
    std::vector<int> kv_layers;
    bool query_bias = false, query_norm = false;
    int markov_rank = 0;
    int taps = 0;
    int positions = 1;
    bool prompt_tokens = false;  // drafts tokens of the text so far too
};

// When a draft ends, step by step; the last value counts for all steps behind it.
// floors: a draft ends after the token with which the product of the confidences, the head's own
// guess that all are accepted, falls below this. calibration: a temperature that divides the
// log-odds of a confidence, and a shift that is added to them; none leaves them as they are.
struct DraftEnd {
    std::vector<float> floors;
    std::vector<std::pair<float, float>> calibration;

    float floor(int step) const { return at(floors, step); }
    float calibrated(float confidence, int step) const;

private:
    template <typename T>
    static T at(const std::vector<T>& values, int step) {
        return values[std::min(static_cast<size_t>(step), values.size() - 1)];
    }
};

class MtpHead {
public:
    // draft_tokens: whole, aligned groups of 16 ids, ascending, so that they are tiles of the
    // backbone's output matrix.
    MtpHead(std::shared_ptr<Backbone> backbone, const HeadShape& shape,
            const std::vector<int32_t>& draft_tokens);

    WeightSlots& slots() { return slots_; }
    void finish();

    // Drafts up to max_tokens ids after `token`; stops early where `end` says so, or before one
    // whose scores are not finite. hidden: (D) post-final-norm state of the last
    // cell, then (D) of each tap. more: ascending groups of 16 ids that may be drafted besides the
    // draft vocabulary, in a head with prompt_tokens. Returns the number of drafted tokens.
    int draft(const KvCache& cache, int32_t token, const float* hidden, int max_tokens,
              const DraftEnd& end, const std::vector<int>& more, int32_t* tokens,
              float* confidences);

    const Backbone& backbone() const { return *backbone_; }
    Backbone& backbone() { return *backbone_; }
    const std::vector<int>& kv_layers() const { return shape_.kv_layers; }
    int positions() const { return shape_.positions; }
    int taps() const { return shape_.taps; }
    bool prompt_tokens() const { return shape_.prompt_tokens; }
    size_t bytes() const;       // own weights and buffers but for the score scratch of attention
    size_t step_bytes() const;  // streamed by one step: own weights and the shared output rows

private:
    // What is drafted from, and what has come of it. Every thread decides the same; one writes.
    struct Drafting {
        const float* hidden;
        int max_tokens;
        const DraftEnd& end;
        int32_t* tokens;
        float* confidences;
        int count;
    };

    void name_layer(size_t index);
    void resize(int rows);
    void choose_tiles(const std::vector<int>& more);
    // All draft tokens, on every thread: passes of `rows` rows.
    void run_draft(Team& team, int rows, int32_t token, Drafting& drafting,
                   const PassContext& pass);
    void run_rows(Team& team, int32_t token, const float* state, const float* taps,
                  const PassContext& pass);
    void join_inputs(int32_t token, const float* state, const float* taps, const PassContext& pass);
    void score_row(Team& team, int row, int32_t previous, const Kernels& kernels);
    int place_of(int32_t token) const;  // in the draft vocabulary; -1 outside

    std::shared_ptr<Backbone> backbone_;
    ModelSpec spec_;
    HeadShape shape_;
    WeightSlots slots_;
    std::vector<int> draft_tiles_;   // of the draft vocabulary, ascending
    std::vector<int> scored_tiles_;  // they, and behind them those of the text so far
    bool finished_ = false;
    Aligned<float> embedding_norm_, hidden_norm_, final_norm_;
    std::vector<Aligned<float>> tap_norms_, position_embeddings_;
    Matrix pre_projection_, markov_previous_, markov_next_;
    std::vector<DecoderLayer> layers_;
    Workspace work_;
    Activations joined_, states_;
    std::vector<Activations> previous_;  // one for each thread: (1, markov_rank)
    Aligned<float> embedded_;
    Scores scores_;
};

}  // namespace drafthead
