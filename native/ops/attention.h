// Softmax attention of a few queries over one key-value head (Vaswani et al., arXiv 1706.03762,
// eq. 1). Two passes: all scores and one maximum, then exponentials and values in ascending
// position order. Blocks of 16 positions are aligned to absolute positions.
#pragma once

#include "ops/kernels.h"
#include "ops/transcendental.h"

namespace drafthead::ops {

// scores[q][position] for the blocks up to the longest query; what lies past a query's own length
// is masked later.
template <class S, int Q>
void key_scores(const Attention& a, int blocks) {
    for (int b = 0; b < blocks; ++b) {
        const uint16_t* key = a.keys + static_cast<size_t>(b) * a.head_dim * 16;
        typename S::F even[Q], odd[Q];
        for (int i = 0; i < Q; ++i) even[i] = odd[i] = S::set1(0.0f);
        for (int dim = 0; dim < a.head_dim; dim += 2, key += 32) {
            const auto k0 = S::load_f16(key);
            const auto k1 = S::load_f16(key + 16);
#pragma GCC unroll 4
            for (int i = 0; i < Q; ++i) {
                even[i] = S::fma(k0, S::set1(a.query[i][dim]), even[i]);
                odd[i] = S::fma(k1, S::set1(a.query[i][dim + 1]), odd[i]);
            }
        }
        for (int i = 0; i < Q; ++i) {
            S::store(a.scores + i * a.score_stride + b * 16, S::add(even[i], odd[i]));
        }
    }
}

// Turns scores into unnormalised weights in place; returns their sum: NaN where a score is not
// finite, which the clamp of exp would hide.
template <class S>
float softmax_weights(float* scores, int length) {
    const auto lowest = S::set1(-__builtin_inff());
    auto largest = lowest;
    for (int i = 0; i < length; i += 16) {
        largest = S::max(S::first(length - i, S::load(scores + i), lowest), largest);
    }
    const auto offset = S::set1(S::reduce_max(largest));
    const auto zero = S::set1(0.0f);
    auto sum = zero;
    for (int i = 0; i < length; i += 16) {
        const auto score = S::first(length - i, S::load(scores + i), zero);
        const auto w = S::first(length - i, exp<S>(S::sub(score, offset)), zero);
        sum = S::fma(score, zero, S::add(sum, w));
        S::store(scores + i, w);
    }
    return S::reduce_add(sum);
}

// out[dim .. dim + 16 V) = sum over positions of weight * value, ascending, divided by the sum.
// Queries share the loads of the positions that all of them see; each then goes on alone.
template <class S, int Q, int V>
void weighted_values(const Attention& a, int dim, const float* sums) {
    typename S::F acc[Q][V];
    int shortest = a.lengths[0];
    for (int q = 0; q < Q; ++q) {
        shortest = a.lengths[q] < shortest ? a.lengths[q] : shortest;
        for (int v = 0; v < V; ++v) acc[q][v] = S::set1(0.0f);
    }
    const uint16_t* value = a.values + dim;
    for (int i = 0; i < shortest; ++i, value += a.head_dim) {
        typename S::F column[V];
        for (int v = 0; v < V; ++v) column[v] = S::load_f16(value + 16 * v);
        for (int q = 0; q < Q; ++q) {
            const auto w = S::set1(a.scores[q * a.score_stride + i]);
            for (int v = 0; v < V; ++v) acc[q][v] = S::fma(w, column[v], acc[q][v]);
        }
    }
    for (int q = 0; q < Q; ++q) {
        const float* weights = a.scores + q * a.score_stride;
        const uint16_t* rest = value;
        for (int i = shortest; i < a.lengths[q]; ++i, rest += a.head_dim) {
            const auto w = S::set1(weights[i]);
            for (int v = 0; v < V; ++v)
                acc[q][v] = S::fma(w, S::load_f16(rest + 16 * v), acc[q][v]);
        }
        const auto sum = S::set1(sums[q]);
        for (int v = 0; v < V; ++v) S::store(a.out[q] + dim + 16 * v, S::div(acc[q][v], sum));
    }
}

template <class S, int Q>
void attend_queries(const Attention& a) {
    int longest = 0;
    for (int q = 0; q < Q; ++q) longest = a.lengths[q] > longest ? a.lengths[q] : longest;
    key_scores<S, Q>(a, (longest + 15) / 16);
    float sums[Q];
    for (int q = 0; q < Q; ++q) {
        sums[q] = softmax_weights<S>(a.scores + q * a.score_stride, a.lengths[q]);
    }
    int dim = 0;
    for (; dim + 64 <= a.head_dim; dim += 64) weighted_values<S, Q, 4>(a, dim, sums);
    for (; dim < a.head_dim; dim += 32) weighted_values<S, Q, 2>(a, dim, sums);
}

template <class S>
void attend(const Attention& a) {
    switch (a.queries) {
        case 1: attend_queries<S, 1>(a); break;
        case 2: attend_queries<S, 2>(a); break;
        case 3: attend_queries<S, 3>(a); break;
        default: attend_queries<S, 4>(a); break;
    }
}

}  // namespace drafthead::ops
