// The vector vocabulary on AVX2 with FMA and F16C: a vector is two registers. See scalar.h for the
// meaning of each operation.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace drafthead::simd {

// `variant` tells apart what is compiled with different flags: no function of one instruction set
// may stand in for that of another.
template <int variant>
struct Avx2Base {
    static constexpr int max_rows = 4;

    struct F {
        __m256 lo, hi;
    };
    struct I {
        __m256i lo, hi;
    };
    using Bytes = I;

    static F set1(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
    static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
    static void store(float* p, F v) {
        _mm256_storeu_ps(p, v.lo);
        _mm256_storeu_ps(p + 8, v.hi);
    }
    static F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
    static F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
    static F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
    static F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
    static F fma(F a, F b, F c) {
        return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
    }
    static F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
    static F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
    static F abs(F a) {
        const __m256 sign = _mm256_set1_ps(-0.0f);
        return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
    }
    static F first(int n, F a, F b) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i lo = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
        const __m256i hi = _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane);
        return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(lo)),
                _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(hi))};
    }
    static F load_f16(const uint16_t* p) {
        const auto* q = reinterpret_cast<const __m128i*>(p);
        return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
    }
    static F load_bf16(const uint16_t* p) {
        const auto* q = reinterpret_cast<const __m128i*>(p);
        const auto widen = [](__m128i v) {
            return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
        };
        return {widen(_mm_loadu_si128(q)), widen(_mm_loadu_si128(q + 1))};
    }
    static void store_f16(uint16_t* p, F v) {
        constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        auto* q = reinterpret_cast<__m128i*>(p);
        _mm_storeu_si128(q, _mm256_cvtps_ph(v.lo, mode));
        _mm_storeu_si128(q + 1, _mm256_cvtps_ph(v.hi, mode));
    }
    static I round(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
    static F to_float(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
    static F exp2i(I n) {
        const __m256i bias = _mm256_set1_epi32(127);
        return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.lo, bias), 23)),
                _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.hi, bias), 23))};
    }
    static I izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static I iset1(int32_t v) { return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
    static I imul(I a, I b) {
        return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
    }
    template <int n>
    static I shift_left(I a) {
        return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
    }
    static I load_i8(const int8_t* p) {
        const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
    }
    static I load_u8(const uint8_t* p) {
        const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
    }
    static I load_u4(const uint8_t* p) {
        const I v = load_u8(p);
        const __m256i mask = _mm256_set1_epi32(15);
        return {_mm256_and_si256(v.lo, mask), _mm256_and_si256(v.hi, mask)};
    }
    static I load_high_u4(const uint8_t* p) {
        const I v = load_u8(p);
        return {_mm256_srli_epi32(v.lo, 4), _mm256_srli_epi32(v.hi, 4)};
    }
    static I iadd(I a, I b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
    static void store_i8(int8_t* p, I a) {
        const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0b11011000);
        _mm_storeu_si128(
            reinterpret_cast<__m128i*>(p),
            _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
    static int32_t reduce_iadd(I a) {
        const __m256i b = _mm256_add_epi32(a.lo, a.hi);
        __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
        c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0b01001110));
        c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0b10110001));
        return _mm_cvtsi128_si32(c);
    }

    static float reduce_add(F a) {
        const __m256 b = _mm256_add_ps(a.lo, a.hi);
        const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
        const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
        return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
    }
    static float reduce_max(F a) {
        const __m256 b = _mm256_max_ps(a.lo, a.hi);
        const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
        const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
        return _mm_cvtss_f32(_mm_max_ss(d, _mm_shuffle_ps(d, d, 1)));
    }

    static Bytes load_bytes(const uint8_t* p) {
        const auto* q = reinterpret_cast<const __m256i*>(p);
        return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
    }
    template <int shift, int mask>
    static __m256i field(__m256i a) {
        if constexpr (shift > 0) a = _mm256_srli_epi16(a, shift);
        if constexpr (shift < 0) a = _mm256_slli_epi16(a, -shift);
        return _mm256_and_si256(a, _mm256_set1_epi8(static_cast<char>(mask)));
    }
    template <int shift, int mask>
    static Bytes field(Bytes a) {
        return {field<shift, mask>(a.lo), field<shift, mask>(a.hi)};
    }
    static Bytes bor(Bytes a, Bytes b) {
        return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
    }
    static Bytes lookup(const uint8_t* table, Bytes index) {
        const __m256i t =
            _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
        return {_mm256_shuffle_epi8(t, index.lo), _mm256_shuffle_epi8(t, index.hi)};
    }
    static __m256i four(const int8_t* x) {
        int32_t v;
        std::memcpy(&v, x, 4);
        return _mm256_set1_epi32(v);
    }
};

struct Avx2 : Avx2Base<0> {
    static constexpr const char* name = "avx2";

    // A pair sum is at most 2 * 127 * 127 = 32,258, so the 16-bit step never saturates.
    static __m256i dot_u7(__m256i acc, __m256i w, __m256i x) {
        const __m256i pairs = _mm256_maddubs_epi16(w, x);
        return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    static I dot_u7(I acc, Bytes w, const int8_t* x) {
        const __m256i v = four(x);
        return {dot_u7(acc.lo, w.lo, v), dot_u7(acc.hi, w.hi, v)};
    }
    // |w| <= 128 and |x| <= 127: a pair sum is at most 32,512 and never saturates.
    static __m256i dot_w8(__m256i acc, __m256i w, __m256i x) {
        const __m256i signed_w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
        const __m256i pairs =
            _mm256_maddubs_epi16(_mm256_abs_epi8(signed_w), _mm256_sign_epi8(x, signed_w));
        return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    static I start_w8(int32_t) { return izero(); }
    static I dot_w8(I acc, Bytes w, const int8_t* x) {
        const __m256i v = four(x);
        return {dot_w8(acc.lo, w.lo, v), dot_w8(acc.hi, w.hi, v)};
    }
};

}  // namespace drafthead::simd
