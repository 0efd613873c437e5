// Softmax attention of a few queries over one key-value head (Vaswani et al., arXiv 1706.03762,
// eq. 1). Two passes: all scores and one maximum, then exponentials and values in ascending
// position order. Blocks of 16 positions are aligned to absolute positions.
#pragma once

#include "ops/kernels.h"
#include "ops/transcendental.h"

namespace drafthead::ops {

// scores[q][position] for the blocks up to the longest query; returns nothing, masks nothing.
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

// Turns scores into unnormalised weights in place; returns their sum.
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
        const auto e = exp<S>(S::sub(S::load(scores + i), offset));
        const auto w = S::first(length - i, e, zero);
        sum = S::add(sum, w);
        S::store(scores + i, w);
    }
    return S::reduce_add(sum);
}

// out[dim .. dim + 16 V) = sum over positions of weight * value, ascending, divided by the sum.
template <class S, int V>
void weighted_values(const Attention& a, int query, int dim, float sum) {
    const float* weights = a.scores + query * a.score_stride;
    const uint16_t* value = a.values + dim;
    typename S::F acc[V];
    for (int v = 0; v < V; ++v) acc[v] = S::set1(0.0f);
    for (int i = 0; i < a.lengths[query]; ++i, value += a.head_dim) {
        const auto w = S::set1(weights[i]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) acc[v] = S::fma(w, S::load_f16(value + 16 * v), acc[v]);
    }
    for (int v = 0; v < V; ++v) S::store(a.out[query] + dim + 16 * v, S::div(acc[v], S::set1(sum)));
}

template <class S>
void attend(const Attention& a) {
    int longest = 0;
    for (int i = 0; i < a.queries; ++i) longest = a.lengths[i] > longest ? a.lengths[i] : longest;
    const int blocks = (longest + 15) / 16;
    switch (a.queries) {
        case 1: key_scores<S, 1>(a, blocks); break;
        case 2: key_scores<S, 2>(a, blocks); break;
        case 3: key_scores<S, 3>(a, blocks); break;
        default: key_scores<S, 4>(a, blocks); break;
    }
    for (int i = 0; i < a.queries; ++i) {
        const float sum = softmax_weights<S>(a.scores + i * a.score_stride, a.lengths[i]);
        int dim = 0;
        for (; dim + 64 <= a.head_dim; dim += 64) weighted_values<S, 4>(a, i, dim, sum);
        for (; dim < a.head_dim; dim += 16) weighted_values<S, 1>(a, i, dim, sum);
    }
}

}  // namespace drafthead::ops
