// What the machine can do at best: integer dots on registers alone, and memory read as one stream.
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

// Reads lines of 64 bytes in order, as a pass reads weights.
template <class S>
int32_t read_lines(const uint8_t* data, int lines) {
    const int8_t ones[4] = {1, 1, 1, 1};
    typename S::I sum[4];
    for (auto& s : sum) s = S::izero();
    for (int line = 0; line + 4 <= lines; line += 4, data += 256) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sum[i] = S::dot_u7(sum[i], S::load_bytes(data + 64 * i), ones);
    }
    return S::reduce_iadd(S::iadd(S::iadd(sum[0], sum[1]), S::iadd(sum[2], sum[3])));
}

}  // namespace drafthead::ops
