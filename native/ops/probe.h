// What the instruction set can do at best: integer dots on registers alone.
#pragma once

#include <cstdint>

namespace drafthead::ops {

constexpr int probe_chains = 10;  // independent sums: more than the dot instruction's latency
constexpr int probe_products = probe_chains * 64;  // multiply-adds of one round

// Runs `rounds` rounds of independent dots; the sum they end in keeps the compiler from leaving
// them out.
template <class S>
int32_t dot_rounds(int rounds) {
    const uint8_t weights[64] = {1, 2, 3};
    const int8_t activations[32] = {1, -1, 1, -1, 2};
    const auto word = S::load_bytes(weights);
    typename S::I sum[probe_chains];
    for (auto& s : sum) s = S::izero();
    for (int i = 0; i < rounds; ++i) {
        const int8_t* x = activations + 4 * (i % 8);
#pragma GCC unroll 10
        for (auto& s : sum) s = S::dot_u7(s, word, x);
    }
    auto total = S::izero();
    for (const auto& s : sum) total = S::iadd(total, s);
    return S::reduce_iadd(total);
}

}  // namespace drafthead::ops
