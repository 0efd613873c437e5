#include "ops/rope_table.h"

#include <algorithm>
#include <iterator>

#include "runtime/fp_env.h"

namespace drafthead {

namespace {

// Series in double, exact to about one unit in the last place of a double: far below the float they
// are rounded to. Only +, -, *, / are used, so every platform computes the same.
constexpr double ln2 = 0.69314718055994530942;
constexpr double half_pi = 1.57079632679489661923;
// pi / 2 in three parts; the first two have 33 bits, so small multiples of them are exact.
constexpr double half_pi_1 = 1.57079632673412561417e+00;
constexpr double half_pi_2 = 6.07710050630396597660e-11;
constexpr double half_pi_3 = 2.02226624879595063154e-21;

double natural_log(double x) {  // x > 0
    int exponent = 0;
    while (x > 1.5) {
        x /= 2;
        ++exponent;
    }
    while (x < 0.75) {
        x *= 2;
        --exponent;
    }
    const double t = (x - 1) / (x + 1);  // ln x = 2 atanh t, |t| <= 0.2
    double sum = 0;
    for (int k = 27; k >= 1; k -= 2) sum = sum * t * t + 1.0 / k;
    return 2 * t * sum + exponent * ln2;
}

double exponential(double x) {  // x <= 0, moderate
    int halvings = 0;
    for (; x < -0.5; x /= 2) ++halvings;
    double sum = 1;
    for (int k = 18; k >= 1; --k) sum = 1 + sum * x / k;
    for (; halvings > 0; --halvings) sum *= sum;
    return sum;
}

double sine_series(double r) {  // |r| <= pi / 4
    double sum = 1;
    for (int k = 20; k >= 2; k -= 2) sum = 1 - sum * r * r / (k * (k + 1));
    return r * sum;
}

double cosine_series(double r) {
    double sum = 1;
    for (int k = 19; k >= 1; k -= 2) sum = 1 - sum * r * r / (k * (k + 1));
    return sum;
}

struct SineCosine {
    double sine, cosine;
};

SineCosine sine_cosine(double angle) {  // 0 <= angle < 2^24
    const auto quadrant = static_cast<long long>(angle / half_pi + 0.5);
    const auto n = static_cast<double>(quadrant);
    const double r = ((angle - n * half_pi_1) - n * half_pi_2) - n * half_pi_3;
    const double s = sine_series(r);
    const double c = cosine_series(r);
    switch (quadrant & 3) {
        case 0: return {s, c};
        case 1: return {c, -s};
        case 2: return {-s, -c};
        default: return {-c, s};
    }
}

}  // namespace

RopeTable::RopeTable(double base, double scale, int half)
    : half_(half), frequencies_(static_cast<size_t>(half)) {
    const FloatEnvironment environment;
    const double log_base = natural_log(base);
    for (int i = 0; i < half; ++i) {
        frequencies_.data()[i] = exponential(-log_base * i / half) * scale;
    }
}

void RopeTable::divide_frequencies(const float* factors) {
    for (int i = 0; i < half_; ++i) frequencies_.data()[i] /= static_cast<double>(factors[i]);
}

void RopeTable::reserve(int positions) {
    std::vector<Aligned<float>> more;  // kept only if there is room for all of them
    for (int known = this->positions(); known < positions; known += block_rows) {
        more.emplace_back(2 * static_cast<size_t>(block_rows) * static_cast<size_t>(half_));
    }
    blocks_.reserve(blocks_.size() + more.size());
    std::move(more.begin(), more.end(), std::back_inserter(blocks_));
}

void RopeTable::fill(int begin, int end) {
    for (int p = begin; p < end; ++p) {
        float* cosine = blocks_[static_cast<size_t>(p / block_rows)].data() + offset(p);
        for (int i = 0; i < half_; ++i) {
            const SineCosine v = sine_cosine(p * frequencies_.data()[i]);
            cosine[i] = static_cast<float>(v.cosine);
            cosine[half_ + i] = static_cast<float>(v.sine);
        }
    }
}

}  // namespace drafthead
