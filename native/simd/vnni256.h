// The vector vocabulary on 256-bit registers with the dot-product instruction of VNNI: AVX2 but for
// the integer dots. The instruction has two encodings, VEX (AVX-VNNI: laptops without AVX-512) and
// EVEX (AVX-512 VNNI and VL), and a name for each in C.
#pragma once

#include "simd/avx2.h"

namespace drafthead::simd {

template <bool vex>
struct Vnni256 : Avx2Base<vex ? 1 : 2> {
    using Base = Avx2Base<vex ? 1 : 2>;
    using typename Base::Bytes;
    using typename Base::I;
    static constexpr const char* name = vex ? "avxvnni" : "avx512vl";

    static __m256i dot(__m256i acc, __m256i w, __m256i x) {
#if defined(__AVXVNNI__)
        static_assert(vex);
        return _mm256_dpbusd_avx_epi32(acc, w, x);
#else
        static_assert(!vex);
        return _mm256_dpbusd_epi32(acc, w, x);
#endif
    }
    static I dot_u7(I acc, Bytes w, const int8_t* x) {
        const __m256i v = Base::four(x);
        return {dot(acc.lo, w.lo, v), dot(acc.hi, w.hi, v)};
    }
    // The weights carry an offset of 128, so the sum starts at minus 128 times the activations.
    static I start_w8(int32_t minus_sum) {
        return Base::template shift_left<7>(Base::iset1(minus_sum));
    }
    static I dot_w8(I acc, Bytes w, const int8_t* x) { return dot_u7(acc, w, x); }
};

}  // namespace drafthead::simd
