// One decoder layer over the rows of a pass, in the order of the usual figure:
//
//   x += post(O . attention(rope(norm(Q . norm(x) + b)), rope(norm(K . norm(x) + b)), V . ... + b))
//   x += post(down . (gate_function(gate . norm(x)) * (up . norm(x))))
//
// Biases, norms of query and key heads and norms of a branch are there where the layer has them.
// The same code runs a backbone layer, which writes its keys and values, and a head layer, which
// has only the query side and reads a backbone layer's, or has no first line at all.
#pragma once

#include <vector>

#include "models/activations.h"
#include "models/model_spec.h"
#include "models/rotary.h"
#include "quant/matrix.h"
#include "runtime/kv_cache.h"
#include "runtime/thread_pool.h"

namespace drafthead {

// A vector that a model does not have is empty.
struct DecoderLayer {
    Aligned<float> attention_norm, ff_norm;            // (D)
    Aligned<float> post_attention_norm, post_ff_norm;  // (D)
    Aligned<float> query_norm, key_norm;               // (head_dim)
    Aligned<float> query_bias;                         // (heads * head_dim)
    Aligned<float> key_bias, value_bias;               // (kv_heads * head_dim)
    // key and value are empty in a head layer, and all four in one without attention
    Matrix query, key, value, output;
    Matrix gate, up, down;
    size_t bytes() const;
};

// A row of the pass: which cache it reads, the position of its rotary angle and its windows, and
// the cells that are there: `end`. A backbone row writes cell `position` and ends after it.
struct RowPlace {
    KvCache* cache;
    int position;
    int end;
};

// Buffers that every layer of a pass shares. Sizes: M rows.
struct Workspace {
    void resize(int rows, const ModelSpec& spec, int ff_width, int threads, int longest);
    size_t bytes() const;

    Aligned<float> x;                 // (M, D) residual stream
    Aligned<float> branch;            // (M, D) what a post norm takes; empty without
    std::vector<Activations> normed;  // (M, D): one that threads share, or one for each
    Activations attended, hidden;     // (M, heads * head_dim), (M, ff)
    Aligned<float> q, k, v;           // (M, heads * head_dim), 2 x (M, kv_heads * head_dim)
    Aligned<float> gate, up;          // (M, ff)
    Aligned<float> scores;            // (threads, max_queries, score_stride)
    size_t score_stride = 0;
};

// What stays the same for all layers of a pass.
struct PassContext {
    const ModelSpec& spec;
    const Rotary& rotary;
    const Kernels& kernels;
    const std::vector<RowPlace>& rows;
    Workspace& work;
};

// Runs on every thread of a job; kv_layer is the cache layer that is read (and written, where the
// layer has keys and values) and whose window and rotary angles hold; a layer without attention
// does not look at it. x must be complete on entry and is complete on return.
void run_layer(const DecoderLayer& layer, int kv_layer, const PassContext& pass, Team& team);

// out = (or +=) m . rows; this thread's share of the tiles, no barrier.
void project(const Matrix& m, const Rows& rows, float* out, bool accumulate, const Kernels& kernels,
             const Team& team);

}  // namespace drafthead
