// Softmax attention of a few queries over one key-value head (Vaswani et al., arXiv 1706.03762,
// eq. 1). Two passes: all scores and one maximum, then exponentials and values in ascending
// position order. Blocks of 16 positions are aligned to absolute positions, wherever the ring of
// the cache has put them, so neither a window nor a wrap moves a position to another lane.
#pragma once

#include "ops/kernels.h"
#include "ops/transcendental.h"

namespace drafthead::ops {

template <class S>
typename S::F load_cell(const uint16_t* p) {
    return S::load_f16(p);
}
template <class S>
typename S::F load_cell(const float* p) {
    return S::load(p);
}

// scores[q][position - first] for `blocks` blocks from position `first`, a multiple of 16; what
// lies outside a query's own range is masked later.
template <class S, class T, int Q>
void key_scores(const Attention& a, int first, int blocks) {
    const size_t block_size = static_cast<size_t>(a.head_dim) * 16;
    const int ring_blocks = a.cells / 16;
    int slot = first / 16 % ring_blocks;
    for (int b = 0; b < blocks; ++b) {
        const T* key = static_cast<const T*>(a.keys) + static_cast<size_t>(slot) * block_size;
        slot = slot + 1 == ring_blocks ? 0 : slot + 1;
        typename S::F even[Q], odd[Q];
        for (int i = 0; i < Q; ++i) even[i] = odd[i] = S::set1(0.0f);
        for (int dim = 0; dim < a.head_dim; dim += 2, key += 32) {
            const auto k0 = load_cell<S>(key);
            const auto k1 = load_cell<S>(key + 16);
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

// Turns scores [begin, end) into unnormalised weights in place; returns their sum: NaN where a
// score is not finite, which the clamp of exp would hide. Lanes outside the range count for
// nothing, whatever they hold.
template <class S>
float softmax_weights(float* scores, int begin, int end, float cap) {
    const int start = begin / 16 * 16;
    const auto lowest = S::set1(-__builtin_inff());
    const auto zero = S::set1(0.0f);
    const auto masked = [&](int i, typename S::F inside, typename S::F outside) {
        if (i >= begin && i + 16 <= end) return inside;
        return S::first(begin - i, outside, S::first(end - i, inside, outside));
    };
    if (cap > 0.0f) {
        const auto limit = S::set1(cap);
        for (int i = start; i < end; i += 16) {
            S::store(scores + i, softcap<S>(S::load(scores + i), limit));
        }
    }
    auto largest = lowest;
    for (int i = start; i < end; i += 16) {
        largest = S::max(masked(i, S::load(scores + i), lowest), largest);
    }
    const auto offset = S::set1(S::reduce_max(largest));
    auto sum = zero;
    for (int i = start; i < end; i += 16) {
        const auto score = masked(i, S::load(scores + i), zero);
        const auto w = masked(i, exp<S>(S::sub(score, offset)), zero);
        sum = S::fma(score, zero, S::add(sum, w));
        S::store(scores + i, w);
    }
    return S::reduce_add(sum);
}

// acc[q][v] += weight * value over positions [from, to), ascending. weights + q * score_stride is
// where query q's weight of position `from` lies, values + dim of cell 0 at `values`.
template <class S, class T, int Q, int V>
void add_values(const Attention& a, const T* values, const float* weights, int from, int to,
                typename S::F (*acc)[V]) {
    while (from < to) {
        const int cell = from % a.cells;
        const int count = to - from < a.cells - cell ? to - from : a.cells - cell;
        const T* value = values + static_cast<size_t>(cell) * a.head_dim;
        for (int i = 0; i < count; ++i, value += a.head_dim) {
            typename S::F column[V];
            for (int v = 0; v < V; ++v) column[v] = load_cell<S>(value + 16 * v);
            for (int q = 0; q < Q; ++q) {
                const auto w = S::set1(weights[q * a.score_stride + i]);
                for (int v = 0; v < V; ++v) acc[q][v] = S::fma(w, column[v], acc[q][v]);
            }
        }
        weights += count;
        from += count;
    }
}

// out[dim .. dim + 16 V) = sum over positions of weight * value, ascending, divided by the sum.
// Queries share the loads of the positions that all of them see, and go alone before and after.
// first: the position of the scores' column 0.
template <class S, class T, int Q, int V>
void weighted_values(const Attention& a, int first, int dim, const float* sums) {
    int shared_begin = a.begin[0], shared_end = a.end[0];
    for (int q = 1; q < Q; ++q) {
        shared_begin = a.begin[q] > shared_begin ? a.begin[q] : shared_begin;
        shared_end = a.end[q] < shared_end ? a.end[q] : shared_end;
    }
    shared_end = shared_end > shared_begin ? shared_end : shared_begin;
    const T* values = static_cast<const T*>(a.values) + dim;
    typename S::F acc[Q][V];
    for (int q = 0; q < Q; ++q) {
        for (int v = 0; v < V; ++v) acc[q][v] = S::set1(0.0f);
        const int end = a.end[q] < shared_begin ? a.end[q] : shared_begin;
        const float* weights = a.scores + q * a.score_stride + (a.begin[q] - first);
        add_values<S, T, 1, V>(a, values, weights, a.begin[q], end, acc + q);
    }
    const float* shared = a.scores + (shared_begin - first);
    add_values<S, T, Q, V>(a, values, shared, shared_begin, shared_end, acc);
    for (int q = 0; q < Q; ++q) {
        const float* weights = a.scores + q * a.score_stride + (shared_end - first);
        add_values<S, T, 1, V>(a, values, weights, shared_end, a.end[q], acc + q);
        const auto sum = S::set1(sums[q]);
        for (int v = 0; v < V; ++v) S::store(a.out[q] + dim + 16 * v, S::div(acc[q][v], sum));
    }
}

template <class S, class T, int Q>
void attend_queries(const Attention& a) {
    int first = a.begin[0], last = a.end[0];
    for (int q = 1; q < Q; ++q) {
        first = a.begin[q] < first ? a.begin[q] : first;
        last = a.end[q] > last ? a.end[q] : last;
    }
    first = first / 16 * 16;
    key_scores<S, T, Q>(a, first, (last - first + 15) / 16);
    float sums[Q];
    for (int q = 0; q < Q; ++q) {
        sums[q] = softmax_weights<S>(a.scores + q * a.score_stride, a.begin[q] - first,
                                     a.end[q] - first, a.softcap);
    }
    int dim = 0;
    for (; dim + 64 <= a.head_dim; dim += 64) weighted_values<S, T, Q, 4>(a, first, dim, sums);
    for (; dim < a.head_dim; dim += 32) weighted_values<S, T, Q, 2>(a, first, dim, sums);
}

template <class S, class T>
void attend(const Attention& a) {
    switch (a.queries) {
        case 1: attend_queries<S, T, 1>(a); break;
        case 2: attend_queries<S, T, 2>(a); break;
        case 3: attend_queries<S, T, 3>(a); break;
        default: attend_queries<S, T, 4>(a); break;
    }
}

}  // namespace drafthead::ops
