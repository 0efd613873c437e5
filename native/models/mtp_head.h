// The multi-token-prediction head: a small trained transformer that drafts from the backbone's own
// last hidden state and reads the backbone's keys and values in place. It owns no cache.
//
// One draft step, for the last token x_n (n = cache length) and the state h before it:
//
//   x = pre_projection . [norm(embedding(x_n)), norm(h)]
//   x = layer(x) for each head layer, attending to backbone cells 0 .. n - 1
//   s = norm(x);  draft token = argmax over the draft vocabulary of output_row . s
//
// The next step takes the drafted token and s in place of h; cells and the rotary position n stay.
// The layout follows the Gemma 4 assistant checkpoints.
#pragma once

#include <memory>
#include <vector>

#include "models/backbone.h"

namespace drafthead {

// kv_layers: for each head layer the backbone layer it reads. query_bias, query_norm: what the
// queries have besides their matrix.
struct HeadShape {
    int ff_width;
    std::vector<int> kv_layers;
    bool query_bias, query_norm;
};

class MtpHead {
public:
    // draft_tokens: whole, aligned groups of 16 ids, ascending, so that they are tiles of the
    // backbone's output matrix.
    MtpHead(std::shared_ptr<Backbone> backbone, const HeadShape& shape,
            const std::vector<int32_t>& draft_tokens);

    WeightSlots& slots() { return slots_; }
    void finish();

    // Drafts up to max_tokens ids after `token`; stops early after the token with which the product
    // of the confidences, the head's own guess that all are accepted, falls below min_confidence,
    // or before one whose scores are not finite. hidden: (D) post-final-norm state of the last
    // cell. Returns the number of drafted tokens.
    int draft(const KvCache& cache, int32_t token, const float* hidden, int max_tokens,
              float min_confidence, int32_t* tokens, float* confidences);

    const Backbone& backbone() const { return *backbone_; }
    Backbone& backbone() { return *backbone_; }
    const std::vector<int>& kv_layers() const { return kv_layers_; }
    size_t bytes() const;       // own weights and buffers but for the score scratch of attention
    size_t step_bytes() const;  // streamed by one step: own weights and the shared output rows

private:
    void run_step(Team& team, int32_t token, const float* state, const PassContext& pass);

    std::shared_ptr<Backbone> backbone_;
    ModelSpec spec_;
    WeightSlots slots_;
    std::vector<int> kv_layers_;
    std::vector<int> draft_tiles_;
    bool finished_ = false;
    Aligned<float> embedding_norm_, hidden_norm_, final_norm_;
    Matrix pre_projection_;
    std::vector<DecoderLayer> layers_;
    Workspace work_;
    Activations joined_, state_;
    Aligned<float> embedded_;
    Scores scores_;
};

}  // namespace drafthead
