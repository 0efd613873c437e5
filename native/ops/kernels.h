// The table of numeric kernels. Each instruction set fills one; the active one is chosen at start.
// Every kernel computes an output element by one fixed sequence of operations that depends on its
// own row only (native/README.md, "The numerics contract").
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/matrix.h"

namespace drafthead {

// Rows of activations, as floats and as int8 in blocks of 32 along K: x = d * q. The quantised
// arrays lie in groups of 8 rows, and in a group block after block, so that the rows that a kernel
// takes together are neighbours. Row r is lane r % 8 of its group; the last group holds the rows
// that are left, G of them.
constexpr int row_group = 8;
struct Rows {
    const float* x;             // (rows, columns)
    const int8_t* q;            // groups of (columns / 32, G, 32)
    const float* d;             // groups of (columns / 32, G)
    const float* d_sum;         // groups of (columns / 32, G): d times the block's sum of q
    const int32_t* minus_sum;   // groups of (columns / 32, G): minus the block's sum of q
    const int32_t* minus_half;  // groups of (columns / 32, 2, G): the same of its first, last 16
    int rows;
    int columns;
};

// Where the quantised form of a row's blocks goes: pointers to its first block, and the distance
// from block to block in rows.
struct QuantizedRow {
    int8_t* q;
    float* d;
    float* d_sum;
    int32_t* minus_sum;
    int32_t* minus_half;
    int stride;
};

// What a cell of the KV cache holds.
enum class KvType : int { f16 = 0, f32 = 1 };
constexpr int kv_type_count = 2;

// Up to max_queries queries of one key-value head, over a ring of cells: position p lies in cell
// p mod cells, a multiple of 16. keys[cell / 16][dim][cell % 16]; values[cell][dim].
constexpr int max_queries = 4;
struct Attention {
    const void* keys;
    const void* values;
    int cells;
    int head_dim;
    float softcap;  // of the scores; 0: none
    float* scores;  // scratch: (max_queries, score_stride)
    size_t score_stride;
    int queries;
    const float* query[max_queries];  // (head_dim), already scaled
    float* out[max_queries];          // (head_dim)
    int begin[max_queries];           // query i sees positions begin[i] .. end[i] - 1
    int end[max_queries];
};

struct Best {
    float value;  // -inf where no finite logit was seen
    int index;
};

struct Kernels {
    const char* name;
    // out[row][0 ..] = the outputs of tiles [tile_begin, tile_end), or += where accumulate is set
    void (*matmul[format_count])(const Matrix& m, int tile_begin, int tile_end, const Rows& rows,
                                 float* out, size_t out_stride, bool accumulate);
    // a row whose mean square is not finite becomes NaN throughout
    void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* out);
    // a block that is not finite throughout gets d = d_sum = NaN, so that no integer hides it
    void (*quantize)(const float* x, int n, const QuantizedRow& to);
    // rotates (x[i], x[i + half]) by the angle of frequency i, then scales
    void (*rope)(float* x, const float* cosines, const float* sines, int half, float scale);
    void (*to_half)(const float* x, int n, uint16_t* out);
    // a score that is not finite makes its query's output NaN
    void (*attend[kv_type_count])(const Attention& a);
    void (*swiglu)(const float* gate, const float* up, int n, float* out);
    void (*geglu)(const float* gate, const float* up, int n, float* out);
    // x = cap tanh(x / cap), NaN where x is not finite; n is rounded up to a multiple of 16
    void (*softcap)(float cap, int n, float* x);
    Best (*argmax)(const float* x, int n);                    // ties: the lowest index
    float (*sum_exp)(const float* x, int n, float subtract);  // sum of exp(x - subtract)
    int32_t (*dot_rounds)(int rounds);  // rounds of probe_products multiply-adds (ops/probe.h)
    int32_t (*read_lines)(const uint8_t* data, int lines);  // of 64 bytes
};

const Kernels* scalar_kernels();
const Kernels* avx2_kernels();  // x86-64 only, like the next three
const Kernels* avxvnni_kernels();
const Kernels* avx512vl_kernels();
const Kernels* avx512_kernels();
const Kernels* neon_kernels();  // AArch64 only, like the next
const Kernels* neon_i8mm_kernels();

}  // namespace drafthead
