// One decoder layer over the rows of a pass, in the order of the usual figure:
//
//   x += O . attention(rope(Q . norm(x)), rope(K . norm(x)), V . norm(x))
//   x += down . (silu(gate . norm(x)) * (up . norm(x)))
//
// The same code runs a backbone layer, which writes its keys and values, and a head layer, which
// has only the query side and reads a backbone layer's.
#pragma once

#include <vector>

#include "models/activations.h"
#include "models/model_spec.h"
#include "ops/rope_table.h"
#include "quant/matrix.h"
#include "runtime/kv_cache.h"
#include "runtime/thread_pool.h"

namespace drafthead {

struct DecoderLayer {
    Aligned<float> attention_norm, ff_norm;  // (D)
    Matrix query, key, value, output;        // key and value are empty in a head layer
    Matrix gate, up, down;
    size_t bytes() const;
};

// A row of the pass: which cache it reads, the position of its rotary angle, and how many cells
// its queries see. A backbone row writes cell `position` and sees position + 1 cells.
struct RowPlace {
    KvCache* cache;
    int position;
    int visible;
};

// Buffers that every layer of a pass shares. Sizes: M rows.
struct Workspace {
    void resize(int rows, const ModelSpec& spec, int ff_width, int threads, int longest);
    size_t bytes() const;

    Aligned<float> x;                      // (M, D) residual stream
    Activations normed, attended, hidden;  // (M, D), (M, heads * head_dim), (M, ff)
    Aligned<float> q, k, v;                // (M, heads * head_dim), 2 x (M, kv_heads * head_dim)
    Aligned<float> gate, up;               // (M, ff)
    Aligned<float> scores;                 // (threads, max_queries, score_stride)
    size_t score_stride = 0;
};

// What stays the same for all layers of a pass.
struct PassContext {
    const ModelSpec& spec;
    const RopeTable& rope;
    const Kernels& kernels;
    const std::vector<RowPlace>& rows;
    Workspace& work;
};

// Runs on every thread of a job; kv_layer is the cache layer that is read (and written, where the
// layer has keys and values). x must be complete on entry and is complete on return.
void run_layer(const DecoderLayer& layer, int kv_layer, const PassContext& pass, Team& team);

// normed = norm(x) for all rows, with its int8 form; ends with a barrier.
void norm_rows(const float* weight, const PassContext& pass, Team& team);

// out = (or +=) m . rows; this thread's share of the tiles, no barrier.
void project(const Matrix& m, const Rows& rows, float* out, bool accumulate, const Kernels& kernels,
             const Team& team);

}  // namespace drafthead
