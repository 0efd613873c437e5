// The sizes of a decoder-only transformer.
#pragma once

namespace drafthead {

constexpr int max_head_dim = 512;

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
    double rope_base = 0;
    bool rope_interleaved = false;  // the file pairs (2 i, 2 i + 1); packing turns it to split-half
    bool tied = true;               // the output matrix is the embedding

    int query_width() const { return heads * head_dim; }
    int kv_width() const { return kv_heads * head_dim; }
    int group() const { return heads / kv_heads; }  // query heads that share a key-value head
};

}  // namespace drafthead
