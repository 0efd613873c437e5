// What a decoder-only transformer is made of: sizes, and the few choices in which the families
// differ. One layer code runs them all.
#pragma once

#include <vector>

namespace drafthead {

constexpr int max_head_dim = 512;

// Rotary angle of position p at frequency i: p * scale * base^(-2 i / head_dim).
struct RopeSpec {
    double base = 10000;
    double scale = 1;
};

struct LayerSpec {
    int window = 0;  // cells that a query sees, its own included; 0: all
    int rope = 0;    // index of the rope table; -1: no turn
};

struct ModelSpec {
    int layers = 0;
    int width = 0;  // hidden size D
    int heads = 0;
    int kv_heads = 0;
    int head_dim = 0;
    int ff_width = 0;
    int vocabulary = 0;
    int context = 0;  // positions that have rotary angles
    float rms_eps = 0;
    bool tied = true;               // the output matrix is the embedding
    bool rope_interleaved = false;  // the file pairs (2 i, 2 i + 1); packing turns it to split-half
    bool rope_factors = false;      // a tensor divides the frequencies of rope 0
    bool gelu = false;              // gelu(gate) * up instead of silu(gate) * up
    bool qkv_bias = false;
    bool qk_norm = false;     // RMS norm of each query and key head before its turn
    bool post_norms = false;  // RMS norm of each branch before it joins the residual stream
    float embedding_scale = 1;
    float attention_scale = 0;    // of the query, 1 / sqrt(head_dim) as a rule
    float attention_softcap = 0;  // 0: none
    float final_softcap = 0;      // 0: none
    std::vector<RopeSpec> ropes;
    std::vector<LayerSpec> layer_specs;  // (layers)

    int query_width() const { return heads * head_dim; }
    int kv_width() const { return kv_heads * head_dim; }
    int group() const { return heads / kv_heads; }  // query heads that share a key-value head
};

}  // namespace drafthead
