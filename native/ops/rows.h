// Operations along one row: norm, activation quantisation, rotary embedding, gates, argmax.
#pragma once

#include "ops/kernels.h"
#include "ops/transcendental.h"

namespace drafthead::ops {

// out = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, arXiv 1910.07467, eq. 4); n % 16 ==
// 0.
template <class S>
void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
    auto squares = S::set1(0.0f);
    for (int i = 0; i < n; i += 16) {
        const auto v = S::load(x + i);
        squares = S::fma(v, v, squares);
    }
    const float mean = S::reduce_add(squares) / static_cast<float>(n);
    // An infinite mean would give factor 0 and a row of zeros that looks sound.
    const bool finite = mean < __builtin_inff();
    const auto factor = S::set1(finite ? 1.0f / __builtin_sqrtf(mean + eps) : __builtin_nanf(""));
    for (int i = 0; i < n; i += 16) {
        S::store(out + i, S::mul(S::mul(S::load(x + i), factor), S::load(weight + i)));
    }
}

// Symmetric int8 in blocks of 32: d = max|x| / 127, q = round(x / d). n % 32 == 0.
template <class S>
void quantize(const float* x, int n, const QuantizedRow& to) {
    const auto limit = S::set1(127.0f);
    const auto zero = S::set1(0.0f);
    for (int b = 0; b < n / block_k; ++b, x += block_k) {
        const auto low = S::load(x);
        const auto high = S::load(x + 16);
        const float largest = S::reduce_max(S::max(S::abs(low), S::abs(high)));
        const auto inverse = S::set1(largest > 0.0f ? 127.0f / largest : 0.0f);
        // Zero, or NaN where the block is not finite: the maximum above may have lost a NaN.
        const float poison = S::reduce_add(S::fma(low, zero, S::mul(high, zero)));
        // The clamp keeps a NaN or an infinity from becoming an undefined integer.
        const auto clamp = [&](typename S::F v) {
            return S::min(S::max(v, S::set1(-127.0f)), limit);
        };
        const auto a = S::round(clamp(S::mul(low, inverse)));
        const auto c = S::round(clamp(S::mul(high, inverse)));
        const int at = b * to.stride;
        S::store_i8(to.q + at * block_k, a);
        S::store_i8(to.q + at * block_k + 16, c);
        const int32_t first = S::reduce_iadd(a);
        const int32_t last = S::reduce_iadd(c);
        to.minus_half[2 * at] = -first;
        to.minus_half[2 * at + to.stride] = -last;
        to.minus_sum[at] = -(first + last);
        to.d[at] = largest / 127.0f + poison;
        to.d_sum[at] = to.d[at] * static_cast<float>(first + last);
    }
}

// Rotary embedding in the split-half layout (Su et al., arXiv 2104.09864, eq. 34); half % 16 == 0.
template <class S>
void rope(float* x, const float* cosines, const float* sines, int half, float scale) {
    const auto factor = S::set1(scale);
    for (int i = 0; i < half; i += 16) {
        const auto a = S::load(x + i);
        const auto b = S::load(x + half + i);
        const auto c = S::load(cosines + i);
        const auto s = S::load(sines + i);
        S::store(x + i, S::mul(S::sub(S::mul(a, c), S::mul(b, s)), factor));
        S::store(x + half + i, S::mul(S::add(S::mul(b, c), S::mul(a, s)), factor));
    }
}

template <class S>
void to_half(const float* x, int n, uint16_t* out) {
    for (int i = 0; i < n; i += 16) S::store_f16(out + i, S::load(x + i));
}

// silu(gate) * up (Shazeer, arXiv 2002.05202, eq. 6); n % 16 == 0.
template <class S>
void swiglu(const float* gate, const float* up, int n, float* out) {
    const auto one = S::set1(1.0f);
    for (int i = 0; i < n; i += 16) {
        const auto g = S::load(gate + i);
        const auto sigmoid = S::div(one, S::add(one, exp<S>(S::sub(S::set1(0.0f), g))));
        S::store(out + i, S::mul(S::mul(g, sigmoid), S::load(up + i)));
    }
}

// gelu(gate) * up with gelu's tanh form (Hendrycks and Gimpel, arXiv 1606.08415, section 2);
// n % 16 == 0.
template <class S>
void geglu(const float* gate, const float* up, int n, float* out) {
    const auto half = S::set1(0.5f);
    for (int i = 0; i < n; i += 16) {
        const auto g = S::load(gate + i);
        // sqrt(2 / pi) (g + 0.044715 g^3); where it overflows, tanh is 1 anyway.
        const auto cubic = S::fma(S::mul(g, g), S::set1(0.044715f), S::set1(1.0f));
        const auto inner = S::mul(S::mul(g, S::set1(0.797884560802865356f)), cubic);
        const auto h = S::mul(g, half);
        const auto gelu = S::fma(h, tanh<S>(inner), h);  // not finite where g is not
        S::store(out + i, S::mul(gelu, S::load(up + i)));
    }
}

// x = cap tanh(x / cap); n is rounded up to a multiple of 16.
template <class S>
void softcap_row(float cap, int n, float* x) {
    const auto limit = S::set1(cap);
    for (int i = 0; i < n; i += 16) S::store(x + i, softcap<S>(S::load(x + i), limit));
}

template <class S>
Best argmax(const float* x, int n) {
    const auto lowest = S::set1(-__builtin_inff());
    auto best = lowest;
    for (int i = 0; i < n; i += 16) {
        // A NaN in the first argument yields the second: NaN logits are never chosen.
        best = S::max(S::first(n - i, S::load(x + i), lowest), best);
    }
    const float value = S::reduce_max(best);
    if (!(value > -__builtin_inff())) return {value, -1};
    for (int i = 0; i < n; ++i) {
        if (x[i] == value) return {value, i};
    }
    return {value, -1};
}

// x must be readable up to the next multiple of 16.
template <class S>
float sum_exp(const float* x, int n, float subtract) {
    const auto offset = S::set1(subtract);
    const auto zero = S::set1(0.0f);
    auto sum = zero;
    for (int i = 0; i < n; i += 16) {
        sum = S::add(sum, S::first(n - i, exp<S>(S::sub(S::load(x + i), offset)), zero));
    }
    return S::reduce_add(sum);
}

}  // namespace drafthead::ops
