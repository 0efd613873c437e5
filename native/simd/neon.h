// The vector vocabulary on NEON: a vector is four registers. See scalar.h for the meaning of each
// operation. Two instruction sets share it: Neon needs the dot product (Armv8.2), NeonI8mm has the
// 8-bit matrix product too.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>
#include <utility>

namespace drafthead::simd {

// A template on the instruction set that uses it, because each is compiled with flags of its own.
template <class Self>
struct NeonVectors {
    static constexpr int max_rows = 4;

    struct F {
        float32x4_t part[4];
    };
    struct I {
        int32x4_t part[4];
    };
    struct Bytes {
        uint8x16_t part[4];
    };

    template <class Op>
    static F floats(Op op) {
        return {{op(0), op(1), op(2), op(3)}};
    }
    template <class Op>
    static I ints(Op op) {
        return {{op(0), op(1), op(2), op(3)}};
    }
    template <class Op>
    static Bytes bytes(Op op) {
        return {{op(0), op(1), op(2), op(3)}};
    }

    static F set1(float v) {
        return floats([&](int) { return vdupq_n_f32(v); });
    }
    static F load(const float* p) {
        return floats([&](int i) { return vld1q_f32(p + 4 * i); });
    }
    static void store(float* p, F v) {
        for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, v.part[i]);
    }
    static F add(F a, F b) {
        return floats([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
    }
    static F sub(F a, F b) {
        return floats([&](int i) { return vsubq_f32(a.part[i], b.part[i]); });
    }
    static F mul(F a, F b) {
        return floats([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
    }
    static F div(F a, F b) {
        return floats([&](int i) { return vdivq_f32(a.part[i], b.part[i]); });
    }
    static F fma(F a, F b, F c) {
        return floats([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
    }
    // A comparison, not fmax: that one keeps a NaN wherever it stands.
    static float32x4_t larger(float32x4_t a, float32x4_t b) {
        return vbslq_f32(vcgtq_f32(a, b), a, b);
    }
    static F max(F a, F b) {
        return floats([&](int i) { return larger(a.part[i], b.part[i]); });
    }
    static F min(F a, F b) {
        return floats([&](int i) {
            return vbslq_f32(vcltq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]);
        });
    }
    static F abs(F a) {
        return floats([&](int i) { return vabsq_f32(a.part[i]); });
    }
    static F first(int n, F a, F b) {
        const int32x4_t lane = {0, 1, 2, 3};
        return floats([&](int i) {
            return vbslq_f32(vcltq_s32(lane, vdupq_n_s32(n - 4 * i)), a.part[i], b.part[i]);
        });
    }
    static F load_f16(const uint16_t* p) {
        return floats(
            [&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
    }
    static F load_bf16(const uint16_t* p) {
        return floats(
            [&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
    }
    static void store_f16(uint16_t* p, F v) {
        for (int i = 0; i < 4; ++i) {
            vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(v.part[i])));
        }
    }
    static I round(F a) {
        return ints([&](int i) { return vcvtnq_s32_f32(a.part[i]); });
    }
    static F to_float(I a) {
        return floats([&](int i) { return vcvtq_f32_s32(a.part[i]); });
    }
    static F exp2i(I n) {
        return floats([&](int i) {
            const int32x4_t exponent = vaddq_s32(n.part[i], vdupq_n_s32(127));
            return vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23));
        });
    }
    static I izero() {
        return ints([](int) { return vdupq_n_s32(0); });
    }
    static I iset1(int32_t v) {
        return ints([&](int) { return vdupq_n_s32(v); });
    }
    static I iadd(I a, I b) {
        return ints([&](int i) { return vaddq_s32(a.part[i], b.part[i]); });
    }
    static I imul(I a, I b) {
        return ints([&](int i) { return vmulq_s32(a.part[i], b.part[i]); });
    }
    template <int n>
    static I shift_left(I a) {
        return ints([&](int i) { return vshlq_n_s32(a.part[i], n); });
    }
    static I widen(int8x16_t v) {
        const int16x8_t low = vmovl_s8(vget_low_s8(v));
        const int16x8_t high = vmovl_s8(vget_high_s8(v));
        return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)),
                 vmovl_s16(vget_low_s16(high)), vmovl_s16(vget_high_s16(high))}};
    }
    static I load_i8(const int8_t* p) { return widen(vld1q_s8(p)); }
    static I load_u4(const uint8_t* p) {
        return widen(vreinterpretq_s8_u8(vandq_u8(vld1q_u8(p), vdupq_n_u8(15))));
    }
    static I load_high_u4(const uint8_t* p) {
        return widen(vreinterpretq_s8_u8(vshrq_n_u8(vld1q_u8(p), 4)));
    }
    static void store_i8(int8_t* p, I a) {
        const int16x8_t low = vcombine_s16(vmovn_s32(a.part[0]), vmovn_s32(a.part[1]));
        const int16x8_t high = vcombine_s16(vmovn_s32(a.part[2]), vmovn_s32(a.part[3]));
        vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    }
    static int32_t reduce_iadd(I a) {
        return vaddvq_s32(
            vaddq_s32(vaddq_s32(a.part[0], a.part[1]), vaddq_s32(a.part[2], a.part[3])));
    }
    static float reduce_add(F a) {
        const float32x4_t b =
            vaddq_f32(vaddq_f32(a.part[0], a.part[2]), vaddq_f32(a.part[1], a.part[3]));
        const float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
        return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
    }
    static float reduce_max(F a) {
        const float32x4_t b = larger(larger(a.part[0], a.part[2]), larger(a.part[1], a.part[3]));
        const float32x4_t c = larger(b, vextq_f32(b, b, 2));
        return vgetq_lane_f32(larger(c, vextq_f32(c, c, 1)), 0);
    }

    static Bytes load_bytes(const uint8_t* p) {
        return bytes([&](int i) { return vld1q_u8(p + 16 * i); });
    }
    template <int shift, int mask>
    static Bytes field(Bytes a) {
        return bytes([&](int i) {
            uint8x16_t v = a.part[i];
            if constexpr (shift > 0) v = vshrq_n_u8(v, shift);
            if constexpr (shift < 0) v = vshlq_n_u8(v, -shift);
            return vandq_u8(v, vdupq_n_u8(mask));
        });
    }
    static Bytes bor(Bytes a, Bytes b) {
        return bytes([&](int i) { return vorrq_u8(a.part[i], b.part[i]); });
    }
    static Bytes lookup(const uint8_t* table, Bytes index) {
        const uint8x16_t t = vld1q_u8(table);
        return bytes([&](int i) { return vqtbl1q_u8(t, index.part[i]); });
    }
    static int8x16_t four(const int8_t* x) {
        int32_t v;
        std::memcpy(&v, x, 4);
        return vreinterpretq_s8_s32(vdupq_n_s32(v));
    }
    static I dot_u7(I acc, Bytes w, const int8_t* x) {
        const int8x16_t v = four(x);
        return ints(
            [&](int i) { return vdotq_s32(acc.part[i], vreinterpretq_s8_u8(w.part[i]), v); });
    }
};

struct Neon : NeonVectors<Neon> {
    static constexpr const char* name = "neon";

    static I start_w8(int32_t) { return izero(); }
    static I dot_w8(I acc, Bytes w, const int8_t* x) {
        return dot_u7(acc, bytes([&](int i) { return veorq_u8(w.part[i], vdupq_n_u8(128)); }), x);
    }
};

#if defined(__ARM_FEATURE_MATMUL_INT8)
struct NeonI8mm : NeonVectors<NeonI8mm> {
    static constexpr const char* name = "neon-i8mm";
    static constexpr bool multiplies_row_pairs = true;

    // The weights carry an offset of 128, so the sum starts at minus 128 times the activations.
    static I start_w8(int32_t minus_sum) { return shift_left<7>(iset1(minus_sum)); }
    static I dot_w8(I acc, Bytes w, const int8_t* x) {
        const int8x16_t v = four(x);
        return ints([&](int i) { return vusdotq_s32(acc.part[i], w.part[i], v); });
    }

    // dot[r] += words 0 .. words - 1 of a block times x + 32 r, as dot_u7 or dot_w8 would. The
    // matrix product takes 2 weight rows and 2 activation rows, so rows go in pairs.
    template <int R, int words, class Word>
    static inline __attribute__((always_inline)) void add_dots(I (&dot)[R], const Word& word,
                                                               const int8_t* x) {
        constexpr int pairs = R / 2;
        Pair sums[pairs];
        for (int p = 0; p < pairs; ++p) sums[p] = join(dot[2 * p], dot[2 * p + 1]);
        [&]<int... j>(std::integer_sequence<int, j...>) __attribute__((always_inline)) {
            (add_words<R>(sums, dot, word(std::integral_constant<int, 2 * j>{}),
                          word(std::integral_constant<int, 2 * j + 1>{}), x + 8 * j),
             ...);
        }(std::make_integer_sequence<int, words / 2>{});
        for (int p = 0; p < pairs; ++p) split(sums[p], dot[2 * p], dot[2 * p + 1]);
    }

private:
    // Of weight rows 2 i and 2 i + 1: each with the first activation row, then with the second.
    struct Pair {
        int32x4_t part[8];
    };
    static Pair join(I first, I second) {
        Pair sums;
        for (int i = 0; i < 4; ++i) {
            sums.part[2 * i] = vzip1q_s32(first.part[i], second.part[i]);
            sums.part[2 * i + 1] = vzip2q_s32(first.part[i], second.part[i]);
        }
        return sums;
    }
    static void split(const Pair& sums, I& first, I& second) {
        for (int i = 0; i < 4; ++i) {
            first.part[i] = vuzp1q_s32(sums.part[2 * i], sums.part[2 * i + 1]);
            second.part[i] = vuzp2q_s32(sums.part[2 * i], sums.part[2 * i + 1]);
        }
    }
    template <int R>
    static inline __attribute__((always_inline)) void add_words(Pair (&sums)[R / 2], I (&dot)[R],
                                                                Bytes w0, Bytes w1,
                                                                const int8_t* x) {
        if constexpr (R % 2 == 1) {
            const int8_t* last = x + 32 * (R - 1);
            dot[R - 1] = dot_w8(dot_w8(dot[R - 1], w0, last), w1, last + 4);
        }
        for (int i = 0; i < 4; ++i) {
            const uint32x4_t even = vreinterpretq_u32_u8(w0.part[i]);
            const uint32x4_t odd = vreinterpretq_u32_u8(w1.part[i]);
            const uint8x16_t low = vreinterpretq_u8_u32(vzip1q_u32(even, odd));
            const uint8x16_t high = vreinterpretq_u8_u32(vzip2q_u32(even, odd));
            for (int p = 0; p < R / 2; ++p) {
                const int8_t* rows = x + 64 * p;
                const int8x16_t v = vcombine_s8(vld1_s8(rows), vld1_s8(rows + 32));
                sums[p].part[2 * i] = vusmmlaq_s32(sums[p].part[2 * i], low, v);
                sums[p].part[2 * i + 1] = vusmmlaq_s32(sums[p].part[2 * i + 1], high, v);
            }
        }
    }
};
#endif

}  // namespace drafthead::simd
