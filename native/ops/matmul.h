// Matrix product of packed weights with rows of activations.
//
// For each output element: integer dots over blocks of 32 (exact in any order), then the float
// accumulation over blocks in ascending K with fused multiply-adds. How many rows share a call
// changes which registers are used, never this sequence.
#pragma once

#include "ops/kernels.h"

namespace drafthead::ops {

// One tile times R rows. Reference: out[n] = sum_b (dx_b d_b) (q_b . w_b) + m_b (dx_b sum q_b).
template <class S, int R>
void tile_u4m(const uint8_t* tile, int blocks, const Rows& rows, int first, typename S::F* out) {
    typename S::F acc[R];
    for (int r = 0; r < R; ++r) acc[r] = S::set1(0.0f);
    const int8_t* q[R];
    for (int r = 0; r < R; ++r) q[r] = rows.q + static_cast<size_t>(first + r) * rows.columns;
    const float* d = rows.d + static_cast<size_t>(first) * blocks;
    const float* d_sum = rows.d_sum + static_cast<size_t>(first) * blocks;
    for (int b = 0; b < blocks; ++b, tile += tile_block_bytes(Format::u4m)) {
        typename S::I dot[R];
        for (int r = 0; r < R; ++r) dot[r] = S::izero();
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const auto bytes = S::load_bytes(tile + 64 * j);
            const auto low = S::low_nibbles(bytes);
            const auto high = S::high_nibbles(bytes);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const int8_t* x = q[r] + b * block_k + 8 * j;
                dot[r] = S::dot_u4(S::dot_u4(dot[r], low, x), high, x + 4);
            }
        }
        const auto scale = S::load_f16(reinterpret_cast<const uint16_t*>(tile + 256));
        const auto minimum = S::load_f16(reinterpret_cast<const uint16_t*>(tile + 288));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const size_t at = static_cast<size_t>(r) * blocks + b;
            acc[r] = S::fma(S::to_float(dot[r]), S::mul(scale, S::set1(d[at])), acc[r]);
            acc[r] = S::fma(minimum, S::set1(d_sum[at]), acc[r]);
        }
    }
    for (int r = 0; r < R; ++r) out[r] = acc[r];
}

// Reference: out[n] = sum_b (dx_b d_b) (q_b . w_b).
template <class S, int R>
void tile_s8(const uint8_t* tile, int blocks, const Rows& rows, int first, typename S::F* out) {
    typename S::F acc[R];
    for (int r = 0; r < R; ++r) acc[r] = S::set1(0.0f);
    const int8_t* q[R];
    for (int r = 0; r < R; ++r) q[r] = rows.q + static_cast<size_t>(first + r) * rows.columns;
    const float* d = rows.d + static_cast<size_t>(first) * blocks;
    const int32_t* sum = rows.sum + static_cast<size_t>(first) * blocks;
    for (int b = 0; b < blocks; ++b, tile += tile_block_bytes(Format::s8)) {
        typename S::I dot[R];
        for (int r = 0; r < R; ++r) dot[r] = S::start_w8(sum[static_cast<size_t>(r) * blocks + b]);
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
            const auto bytes = S::load_bytes(tile + 64 * j);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                dot[r] = S::dot_w8(dot[r], bytes, q[r] + b * block_k + 4 * j);
            }
        }
        const auto scale = S::load_f16(reinterpret_cast<const uint16_t*>(tile + 512));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const size_t at = static_cast<size_t>(r) * blocks + b;
            acc[r] = S::fma(S::to_float(dot[r]), S::mul(scale, S::set1(d[at])), acc[r]);
        }
    }
    for (int r = 0; r < R; ++r) out[r] = acc[r];
}

// Float weights take float activations: out[n] = sum_k w_k x_k, ascending.
template <class S, int R, Format format>
void tile_float(const uint8_t* tile, int columns, const Rows& rows, int first, typename S::F* out) {
    typename S::F acc[R];
    for (int r = 0; r < R; ++r) acc[r] = S::set1(0.0f);
    const float* x = rows.x + static_cast<size_t>(first) * rows.columns;
    for (int k = 0; k < columns; ++k, tile += tile_block_bytes(format)) {
        typename S::F w;
        if constexpr (format == Format::f16) {
            w = S::load_f16(reinterpret_cast<const uint16_t*>(tile));
        } else {
            w = S::load(reinterpret_cast<const float*>(tile));
        }
        for (int r = 0; r < R; ++r) {
            acc[r] = S::fma(w, S::set1(x[static_cast<size_t>(r) * rows.columns + k]), acc[r]);
        }
    }
    for (int r = 0; r < R; ++r) out[r] = acc[r];
}

template <class S, Format format, int R>
void tile_rows_product(const uint8_t* tile, const Rows& rows, int first, float* out,
                       size_t out_stride, bool accumulate) {
    typename S::F result[R];
    const int blocks = tile_blocks(format, rows.columns);
    if constexpr (format == Format::u4m) {
        tile_u4m<S, R>(tile, blocks, rows, first, result);
    } else if constexpr (format == Format::s8) {
        tile_s8<S, R>(tile, blocks, rows, first, result);
    } else {
        tile_float<S, R, format>(tile, blocks, rows, first, result);
    }
    for (int r = 0; r < R; ++r) {
        float* to = out + static_cast<size_t>(first + r) * out_stride;
        S::store(to, accumulate ? S::add(S::load(to), result[r]) : result[r]);
    }
}

// Takes the rows that are left, R or fewer at a time.
template <class S, Format format, int R>
void remaining_rows(const uint8_t* tile, const Rows& rows, int first, float* out, size_t out_stride,
                    bool accumulate) {
    if constexpr (R > 0) {
        if (rows.rows - first >= R) {
            tile_rows_product<S, format, R>(tile, rows, first, out, out_stride, accumulate);
            return;
        }
        remaining_rows<S, format, R - 1>(tile, rows, first, out, out_stride, accumulate);
    }
}

template <class S, Format format>
void matmul(const Matrix& m, int tile_begin, int tile_end, const Rows& rows, float* out,
            size_t out_stride, bool accumulate) {
    for (int t = tile_begin; t < tile_end; ++t) {
        const uint8_t* tile = m.tile(t);
        float* to = out + static_cast<size_t>(t - tile_begin) * tile_rows;
        int first = 0;
        for (; rows.rows - first >= S::max_rows; first += S::max_rows) {
            tile_rows_product<S, format, S::max_rows>(tile, rows, first, to, out_stride,
                                                      accumulate);
        }
        remaining_rows<S, format, S::max_rows - 1>(tile, rows, first, to, out_stride, accumulate);
    }
}

}  // namespace drafthead::ops
