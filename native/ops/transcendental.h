// exp from correctly rounded operations only: the same polynomial, in the same order, on every
// instruction set. Relative error below 2 ulp on [-87, 88]; arguments outside are clamped,
// and so is NaN.
#pragma once

namespace drafthead::ops {

// exp(x) = 2^n exp(r), n = round(x / ln 2), r = x - n ln 2 in two parts, |r| <= ln(2) / 2.
template <class S>
typename S::F exp(typename S::F x) {
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
    return S::mul(S::add(p, S::set1(1.0f)), S::exp2i(n));
}

}  // namespace drafthead::ops
