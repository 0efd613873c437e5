// exp and tanh from correctly rounded operations only: the same polynomial, in the same order, on
// every instruction set. Arguments outside the range are clamped, and so is NaN: a caller that may
// meet one adds 0 x, which is NaN for NaN and infinity.
#pragma once

namespace drafthead::ops {

// exp(x) = power (1 + rest), power = 2^n, n = round(x / ln 2); rest = exp(r) - 1, r = x - n ln 2 in
// two parts, |r| <= ln(2) / 2. x is clamped to [-87, 88].
template <class S>
struct ExpParts {
    typename S::F power, rest;
};

template <class S>
ExpParts<S> exp_parts(typename S::F x) {
    x = S::min(S::max(x, S::set1(-87.0f)), S::set1(88.0f));
    const auto n = S::round(S::mul(x, S::set1(1.44269504088896341f)));
    const auto nf = S::to_float(n);
    auto r = S::fma(nf, S::set1(-0.693359375f), x);
    r = S::fma(nf, S::set1(2.12194440054690581e-4f), r);
    // Taylor coefficients 1/7! ... 1/2!: the first term left out is below 4e-9 on |r| <= 0.347.
    auto p = S::set1(1.98412698412698413e-4f);
    p = S::fma(p, r, S::set1(1.38888888888888889e-3f));
    p = S::fma(p, r, S::set1(8.33333333333333333e-3f));
    p = S::fma(p, r, S::set1(4.16666666666666667e-2f));
    p = S::fma(p, r, S::set1(1.66666666666666667e-1f));
    p = S::fma(p, r, S::set1(0.5f));
    p = S::fma(p, S::mul(r, r), r);
    return {S::exp2i(n), p};
}

// Relative error below 2 ulp.
template <class S>
typename S::F exp(typename S::F x) {
    const auto e = exp_parts<S>(x);
    return S::mul(S::add(e.rest, S::set1(1.0f)), e.power);
}

// tanh(x) = e / (e + 2), e = exp(2 x) - 1: no cancellation near 0, and -1 or 1 at the ends.
template <class S>
typename S::F tanh(typename S::F x) {
    const auto parts = exp_parts<S>(S::add(x, x));
    const auto e = S::fma(parts.rest, parts.power, S::sub(parts.power, S::set1(1.0f)));
    return S::div(e, S::add(e, S::set1(2.0f)));
}

// cap tanh(x / cap) (Gemma 2, arXiv 2408.00118, section 2); NaN where x is not finite.
template <class S>
typename S::F softcap(typename S::F x, typename S::F cap) {
    const auto poison = S::mul(x, S::set1(0.0f));
    return S::fma(cap, tanh<S>(S::div(x, cap)), poison);
}

}  // namespace drafthead::ops
