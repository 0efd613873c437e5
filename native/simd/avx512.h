// The vector vocabulary on AVX-512 with VNNI. See scalar.h for the meaning of each operation.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace drafthead::simd {

struct Avx512 {
    static constexpr const char* name = "avx512";
    static constexpr int max_rows = 8;

    using F = __m512;
    using I = __m512i;
    using Bytes = __m512i;

    static F set1(float v) { return _mm512_set1_ps(v); }
    static F load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F div(F a, F b) { return _mm512_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F max(F a, F b) { return _mm512_max_ps(a, b); }
    static F min(F a, F b) { return _mm512_min_ps(a, b); }
    static F abs(F a) { return _mm512_abs_ps(a); }
    static F first(int n, F a, F b) {
        const auto mask = static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << (n < 0 ? 0 : n)) - 1);
        return _mm512_mask_blend_ps(mask, b, a);
    }
    static F load_f16(const uint16_t* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static F load_bf16(const uint16_t* p) {
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
    }
    static void store_f16(uint16_t* p, F v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                            _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    static I round(F a) { return _mm512_cvtps_epi32(a); }
    static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
    static F exp2i(I n) {
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
    }
    static I izero() { return _mm512_setzero_si512(); }
    static I iset1(int32_t v) { return _mm512_set1_epi32(v); }
    static I imul(I a, I b) { return _mm512_mullo_epi32(a, b); }
    template <int n>
    static I shift_left(I a) {
        return _mm512_slli_epi32(a, n);
    }
    static I load_i8(const int8_t* p) {
        return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static I load_u4(const uint8_t* p) {
        return _mm512_and_si512(load_u8(p), _mm512_set1_epi32(15));
    }
    static I load_high_u4(const uint8_t* p) { return _mm512_srli_epi32(load_u8(p), 4); }
    static I load_u8(const uint8_t* p) {
        return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
    static void store_i8(int8_t* p, I a) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a));
    }
    static int32_t reduce_iadd(I a) { return _mm512_reduce_add_epi32(a); }

    static float reduce_add(F a) {
        const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
        const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
        const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
        return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
    }
    static float reduce_max(F a) {
        const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
        const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
        const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
        return _mm_cvtss_f32(_mm_max_ss(d, _mm_shuffle_ps(d, d, 1)));
    }

    static Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
    template <int shift, int mask>
    static Bytes field(Bytes a) {
        if constexpr (shift > 0) a = _mm512_srli_epi16(a, shift);
        if constexpr (shift < 0) a = _mm512_slli_epi16(a, -shift);
        return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(mask)));
    }
    static Bytes bor(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
    static Bytes lookup(const uint8_t* table, Bytes index) {
        const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), index);
    }
    static I four(const int8_t* x) {
        int32_t v;
        std::memcpy(&v, x, 4);
        return _mm512_set1_epi32(v);
    }
    static I dot_u7(I acc, Bytes w, const int8_t* x) {
        return _mm512_dpbusd_epi32(acc, w, four(x));
    }
    // The weights carry an offset of 128, so the sum starts at minus 128 times the activations.
    static I start_w8(int32_t minus_sum) { return shift_left<7>(iset1(minus_sum)); }
    static I dot_w8(I acc, Bytes w, const int8_t* x) {
        return _mm512_dpbusd_epi32(acc, w, four(x));
    }
};

}  // namespace drafthead::simd
