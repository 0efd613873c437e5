// Matrix product of packed weights with rows of activations.
//
// For each output element and block of 32 along K: an integer dot, exact in any order, then the
// float accumulation, blocks ascending, with fused multiply-adds. With q the codes, z their zero
// point and x_b = d_b q_b the quantised activations:
//
//   d (q - z)              acc += (d d_b) ((q - z) . q_b)
//   d q + m                acc += (d d_b) (q . q_b) ;  acc += m (d_b sum q_b)
//   two sub-scales s0 s1   acc += (d d_b) (s0 (q - z)_0 . q_b0 + s1 (q - z)_1 . q_b1)
//
// How many rows share a call changes which registers are used, never this sequence.
#pragma once

#include <algorithm>
#include <utility>

#include "ops/kernels.h"

namespace drafthead::ops {

constexpr size_t prefetch_bytes = 4096;

// f(0), f(1) ... f(N - 1) with compile-time numbers.
template <int N, class F>
inline __attribute__((always_inline)) void unrolled(const F& f) {
    [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
        (f(std::integral_constant<int, i>{}), ...);
    }(std::make_integer_sequence<int, N>{});
}

// Rows of one group, block after block; see Rows in kernels.h.
struct GroupRows {
    const int8_t* q;
    const float* d;
    const float* d_sum;
    const int32_t* minus_sum;
    const int32_t* minus_half;
    int stride;

    GroupRows(const Rows& rows, int first) {
        const int group = first / row_group * row_group;
        const int lane = first - group;
        const auto at = static_cast<size_t>(group) * static_cast<size_t>(rows.columns) / block_k;
        stride = std::min(rows.rows - group, row_group);
        q = rows.q + (at + static_cast<size_t>(lane)) * block_k;
        d = rows.d + at + lane;
        d_sum = rows.d_sum + at + lane;
        minus_sum = rows.minus_sum + at + lane;
        minus_half = rows.minus_half + 2 * at + lane;
    }
    void next_block() {
        q += block_k * stride;
        d += stride;
        d_sum += stride;
        minus_sum += stride;
        minus_half += 2 * stride;
    }
};

// Word j of a block's codes: 16 rows times weights 4 j .. 4 j + 3.
template <class S, Format f, int j>
typename S::Bytes code_word(const uint8_t* block) {
    constexpr int low = low_bits(f);
    if constexpr (low == 8) {
        return S::load_bytes(block + 64 * j);
    } else {
        constexpr int per_byte = 8 / low;
        auto q = S::template field<low*(j % per_byte), (1 << low) - 1>(
            S::load_bytes(block + 64 * (j / per_byte)));
        if constexpr (f == Format::iq4_nl || f == Format::iq4_xs) q = S::lookup(iq4_table, q);
        constexpr size_t high = low_plane_bytes(f);
        if constexpr (high_bits(f) == 1) {
            q = S::bor(q, S::template field<j - low, 1 << low>(S::load_bytes(block + high)));
        } else if constexpr (high_bits(f) == 2) {
            q = S::bor(q, S::template field<2 * (j % 4) - low, 3 << low>(
                              S::load_bytes(block + high + 64 * (j / 4))));
        }
        return q;
    }
}

template <Format f>
constexpr bool has_byte_codes = f == Format::q8_0 || f == Format::iq4_nl || f == Format::iq4_xs;

// dot[r] += words first .. first + count - 1 times row r's activations.
template <class S, Format f, int R, int first, int count>
inline __attribute__((always_inline)) void add_dots(const uint8_t* block, const int8_t* q,
                                                    typename S::I (&dot)[R]) {
    if constexpr (R > 1 && requires { S::multiplies_row_pairs; }) {
        const auto word = [&](auto i) __attribute__((always_inline)) {
            return code_word<S, f, first + i>(block);
        };
        S::template add_dots<R, count>(dot, word, q + 4 * first);
    } else {
        unrolled<count>([&](auto i) __attribute__((always_inline)) {
            constexpr int j = first + i;
            const auto word = code_word<S, f, j>(block);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const int8_t* x = q + block_k * r + 4 * j;
                dot[r] =
                    has_byte_codes<f> ? S::dot_w8(dot[r], word, x) : S::dot_u7(dot[r], word, x);
            }
        });
    }
}

// What a dot starts from, so that it ends as the sum over (q - zero).
template <class S, Format f>
typename S::I dot_start(int32_t minus_sum) {
    if constexpr (has_minimum(f)) {
        return S::izero();
    } else if constexpr (has_byte_codes<f>) {
        return S::start_w8(minus_sum);
    } else {
        return S::template shift_left<zero_shift(f)>(S::iset1(minus_sum));
    }
}

template <class S, Format f, int R>
inline __attribute__((always_inline)) void block_dots(const uint8_t* block, const int8_t* scales,
                                                      const GroupRows& x, typename S::I (&dot)[R]) {
    if constexpr (!has_halves(f)) {
        for (int r = 0; r < R; ++r) dot[r] = dot_start<S, f>(x.minus_sum[r]);
        add_dots<S, f, R, 0, 8>(block, x.q, dot);
    } else {
        typename S::I high[R], scale[2];
        for (int h = 0; h < 2; ++h) {
            scale[h] = f == Format::q2_k
                           ? S::load_u4(reinterpret_cast<const uint8_t*>(scales) + 16 * h)
                           : S::load_i8(scales + 16 * h);
        }
        for (int r = 0; r < R; ++r) dot[r] = dot_start<S, f>(x.minus_half[r]);
        add_dots<S, f, R, 0, 4>(block, x.q, dot);
        for (int r = 0; r < R; ++r) dot[r] = S::imul(dot[r], scale[0]);
        for (int r = 0; r < R; ++r) high[r] = dot_start<S, f>(x.minus_half[x.stride + r]);
        add_dots<S, f, R, 4, 4>(block, x.q, high);
        for (int r = 0; r < R; ++r) dot[r] = S::iadd(dot[r], S::imul(high[r], scale[1]));
    }
}

// acc[r] += one block of the tile times row r. super_scales: those of the block's 256.
template <class S, Format f, int R>
inline __attribute__((always_inline)) void add_block(const uint8_t* block,
                                                     const uint8_t* super_scales,
                                                     const GroupRows& x, typename S::F (&acc)[R]) {
    const uint8_t* scales = block + code_bytes(f);
    const auto* halves = reinterpret_cast<const uint16_t*>(is_k_quant(f) ? super_scales : scales);
    const auto* sub = reinterpret_cast<const int8_t*>(scales);
    typename S::I dot[R];
    block_dots<S, f, R>(block, sub, x, dot);
    auto scale = S::load_f16(halves);
    if constexpr (is_k_quant(f) && !has_halves(f)) {
        scale = S::mul(scale, S::to_float(S::load_i8(sub)));
    }
    for (int r = 0; r < R; ++r) {
        acc[r] = S::fma(S::to_float(dot[r]), S::mul(scale, S::set1(x.d[r])), acc[r]);
    }
    if constexpr (f == Format::q4_1 || f == Format::q5_1) {
        const auto minimum = S::load_f16(halves + 16);
        for (int r = 0; r < R; ++r) acc[r] = S::fma(minimum, S::set1(x.d_sum[r]), acc[r]);
    } else if constexpr (f == Format::q4_k || f == Format::q5_k) {
        const auto dmin = S::sub(S::set1(0.0f), S::load_f16(halves + 16));
        const auto minimum = S::mul(dmin, S::to_float(S::load_i8(sub + 16)));
        for (int r = 0; r < R; ++r) acc[r] = S::fma(minimum, S::set1(x.d_sum[r]), acc[r]);
    } else if constexpr (f == Format::q2_k) {
        const auto dmin = S::load_f16(halves + 16);
        const auto low = S::load_high_u4(scales);
        const auto high = S::load_high_u4(scales + 16);
        for (int r = 0; r < R; ++r) {
            const auto sum = S::iadd(S::imul(low, S::iset1(x.minus_half[r])),
                                     S::imul(high, S::iset1(x.minus_half[x.stride + r])));
            acc[r] = S::fma(S::to_float(sum), S::mul(dmin, S::set1(x.d[r])), acc[r]);
        }
    }
}

// One tile times R rows.
template <class S, Format f, int R>
void tile_product(const uint8_t* tile, const Rows& rows, int first, typename S::F (&out)[R]) {
    typename S::F acc[R];  // apart from out: the compiler keeps it in registers
    for (int r = 0; r < R; ++r) acc[r] = S::set1(0.0f);
    GroupRows x(rows, first);
    constexpr int together = is_k_quant(f) ? super_k / block_k : 1;
    for (int b = 0; b < rows.columns / block_k; b += together) {
        const uint8_t* super_scales = tile;
        tile += super_scale_bytes(f);
        for (int i = 0; i < together; ++i, tile += block_bytes(f)) {
            // The processor does not look far enough ahead by itself, whatever the number of rows.
            for (size_t line = 0; line < block_bytes(f); line += 64) {
                __builtin_prefetch(tile + prefetch_bytes + line);
            }
            add_block<S, f, R>(tile, super_scales, x, acc);
            x.next_block();
        }
    }
    for (int r = 0; r < R; ++r) out[r] = acc[r];
}

// Float weights take float activations: out[n] = sum_k w_k x_k, ascending.
template <class S, Format f, int R>
void float_tile_product(const uint8_t* tile, const Rows& rows, int first, typename S::F (&out)[R]) {
    typename S::F acc[R];
    for (int r = 0; r < R; ++r) acc[r] = S::set1(0.0f);
    const float* x = rows.x + static_cast<size_t>(first) * static_cast<size_t>(rows.columns);
    for (int k = 0; k < rows.columns; ++k, tile += column_bytes(f)) {
        typename S::F w;
        if constexpr (f == Format::f16) {
            w = S::load_f16(reinterpret_cast<const uint16_t*>(tile));
        } else if constexpr (f == Format::bf16) {
            w = S::load_bf16(reinterpret_cast<const uint16_t*>(tile));
        } else {
            w = S::load(reinterpret_cast<const float*>(tile));
        }
        for (int r = 0; r < R; ++r) {
            acc[r] = S::fma(w, S::set1(x[static_cast<size_t>(r) * rows.columns + k]), acc[r]);
        }
    }
    for (int r = 0; r < R; ++r) out[r] = acc[r];
}

template <class S, Format f, int R>
void tile_rows_product(const uint8_t* tile, const Rows& rows, int first, float* out,
                       size_t out_stride, bool accumulate) {
    typename S::F result[R];
    if constexpr (is_integer(f)) {
        tile_product<S, f, R>(tile, rows, first, result);
    } else {
        float_tile_product<S, f, R>(tile, rows, first, result);
    }
    for (int r = 0; r < R; ++r) {
        float* to = out + static_cast<size_t>(first + r) * out_stride;
        S::store(to, accumulate ? S::add(S::load(to), result[r]) : result[r]);
    }
}

// Takes the rows that are left, R or fewer at a time.
template <class S, Format f, int R>
void remaining_rows(const uint8_t* tile, const Rows& rows, int first, float* out, size_t out_stride,
                    bool accumulate) {
    if constexpr (R > 0) {
        if (rows.rows - first >= R) {
            tile_rows_product<S, f, R>(tile, rows, first, out, out_stride, accumulate);
        } else {
            remaining_rows<S, f, R - 1>(tile, rows, first, out, out_stride, accumulate);
        }
    }
}

template <class S, Format f>
void matmul(const Matrix& m, int tile_begin, int tile_end, const Rows& rows, float* out,
            size_t out_stride, bool accumulate) {
    static_assert(row_group % S::max_rows == 0);  // a kernel's rows never straddle a group
    for (int t = tile_begin; t < tile_end; ++t) {
        const uint8_t* tile = m.tile(t);
        float* to = out + static_cast<size_t>(t - tile_begin) * tile_rows;
        int first = 0;
        for (; rows.rows - first >= S::max_rows; first += S::max_rows) {
            tile_rows_product<S, f, S::max_rows>(tile, rows, first, to, out_stride, accumulate);
        }
        remaining_rows<S, f, S::max_rows - 1>(tile, rows, first, to, out_stride, accumulate);
    }
}

}  // namespace drafthead::ops
