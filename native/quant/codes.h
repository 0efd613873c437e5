// A row's weights as a file stores them, taken apart: integer codes and scales of one block of 32.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "quant/formats.h"

namespace drafthead {

// Codes lie in 0 .. 2^bits - 1, signed 8-bit ones with 128 added. What the scales are depends on
// the format: f16 bits of d and m, or a K-quant's integers (a scale for each half where there are
// two, minima beside) and the f16 bits of its d and dmin.
struct Codes {
    uint8_t q[32];
    uint16_t d, minimum;
    int8_t scale[2];
    uint8_t sub_minimum[2];
};

namespace codes {

inline void nibbles(const uint8_t* q, uint8_t* out) {
    for (int i = 0; i < 16; ++i) {
        out[i] = q[i] & 15;
        out[i + 16] = q[i] >> 4;
    }
}

inline void fifth_bits(const uint8_t* high, uint8_t* out) {
    for (int i = 0; i < 32; ++i) {
        out[i] = static_cast<uint8_t>(out[i] | (((high[i / 8] >> (i % 8)) & 1) << 4));
    }
}

// Q4_K and Q5_K keep eight 6-bit scales and eight 6-bit minima in 12 bytes.
inline void six_bit_pair(const uint8_t* packed, int b, Codes* out) {
    if (b < 4) {
        out->scale[0] = static_cast<int8_t>(packed[b] & 63);
        out->sub_minimum[0] = packed[b + 4] & 63;
    } else {
        out->scale[0] = static_cast<int8_t>((packed[b + 4] & 15) | ((packed[b - 4] >> 6) << 4));
        out->sub_minimum[0] = static_cast<uint8_t>((packed[b + 4] >> 4) | ((packed[b] >> 6) << 4));
    }
}

// Q3_K keeps sixteen 6-bit scales in 12 bytes: 4 low bits in the first 8, 2 high bits in the rest.
inline int8_t six_bit_scale(const uint8_t* packed, int i) {
    const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
    const int high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
    return static_cast<int8_t>((low | (high << 4)) - 32);
}

template <class Block>
Block block_at(const uint8_t* row, int index) {
    Block block;
    std::memcpy(&block, row + static_cast<size_t>(index) * sizeof block, sizeof block);
    return block;
}

}  // namespace codes

// Block b (32 weights) of a row in the file.
template <Format f>
Codes read_codes(const uint8_t* row, int b) {
    Codes out{};
    const int part = b % 8;  // which 32 of a K-quant's 256
    if constexpr (f == Format::q4_0 || f == Format::iq4_nl) {
        const auto block = codes::block_at<BlockQ4_0>(row, b);
        codes::nibbles(block.q, out.q);
        out.d = block.d;
    } else if constexpr (f == Format::q4_1) {
        const auto block = codes::block_at<BlockQ4_1>(row, b);
        codes::nibbles(block.q, out.q);
        out.d = block.d;
        out.minimum = block.m;
    } else if constexpr (f == Format::q5_0) {
        const auto block = codes::block_at<BlockQ5_0>(row, b);
        codes::nibbles(block.q, out.q);
        codes::fifth_bits(block.high, out.q);
        out.d = block.d;
    } else if constexpr (f == Format::q5_1) {
        const auto block = codes::block_at<BlockQ5_1>(row, b);
        codes::nibbles(block.q, out.q);
        codes::fifth_bits(block.high, out.q);
        out.d = block.d;
        out.minimum = block.m;
    } else if constexpr (f == Format::q8_0) {
        const auto block = codes::block_at<BlockQ8_0>(row, b);
        for (int i = 0; i < 32; ++i) out.q[i] = static_cast<uint8_t>(block.q[i] + 128);
        out.d = block.d;
    } else if constexpr (f == Format::q4_k || f == Format::q5_k) {
        using Block = std::conditional_t<f == Format::q4_k, BlockQ4K, BlockQ5K>;
        const auto block = codes::block_at<Block>(row, b / 8);
        // Parts 2 i and 2 i + 1 are the low and the high nibbles of 32 bytes.
        const uint8_t* q = block.q + 32 * (part / 2);
        for (int i = 0; i < 32; ++i) out.q[i] = (q[i] >> (4 * (part % 2))) & 15;
        if constexpr (f == Format::q5_k) {
            for (int i = 0; i < 32; ++i) {
                out.q[i] = static_cast<uint8_t>(out.q[i] | (((block.high[i] >> part) & 1) << 4));
            }
        }
        codes::six_bit_pair(block.scales, part, &out);
        out.d = block.d;
        out.minimum = block.dmin;
    } else if constexpr (f == Format::iq4_xs) {
        const auto block = codes::block_at<BlockIQ4XS>(row, b / 8);
        codes::nibbles(block.q + 16 * part, out.q);
        const int low = (block.scales_low[part / 2] >> (4 * (part % 2))) & 15;
        const int high = (block.scales_high >> (2 * part)) & 3;
        out.scale[0] = static_cast<int8_t>((low | (high << 4)) - 32);
        out.d = block.d;
    } else if constexpr (f == Format::q2_k) {
        const auto block = codes::block_at<BlockQ2K>(row, b / 8);
        // Each 32 bytes hold four parts, two bits a weight.
        const uint8_t* q = block.q + 32 * (part / 4);
        for (int i = 0; i < 32; ++i) out.q[i] = (q[i] >> (2 * (part % 4))) & 3;
        for (int h = 0; h < 2; ++h) {
            out.scale[h] = static_cast<int8_t>(block.scales[2 * part + h] & 15);
            out.sub_minimum[h] = block.scales[2 * part + h] >> 4;
        }
        out.d = block.d;
        out.minimum = block.dmin;
    } else if constexpr (f == Format::q3_k) {
        const auto block = codes::block_at<BlockQ3K>(row, b / 8);
        const uint8_t* q = block.q + 32 * (part / 4);
        for (int i = 0; i < 32; ++i) {
            out.q[i] = static_cast<uint8_t>(((q[i] >> (2 * (part % 4))) & 3) |
                                            (((block.high[i] >> part) & 1) << 2));
        }
        for (int h = 0; h < 2; ++h) {
            out.scale[h] = codes::six_bit_scale(block.scales, 2 * part + h);
        }
        out.d = block.d;
    } else {
        static_assert(f == Format::q6_k);
        const auto block = codes::block_at<BlockQ6K>(row, b / 8);
        // Each 128 weights: 64 bytes of low nibbles (parts 0 and 1 low, 2 and 3 high), 32 bytes
        // with two high bits for each of the four parts.
        const uint8_t* low = block.low + 64 * (part / 4) + 32 * (part % 2);
        const uint8_t* high = block.high + 32 * (part / 4);
        const int nibble = part % 4 / 2;
        for (int i = 0; i < 32; ++i) {
            out.q[i] = static_cast<uint8_t>(((low[i] >> (4 * nibble)) & 15) |
                                            (((high[i] >> (2 * (part % 4))) & 3) << 4));
        }
        for (int h = 0; h < 2; ++h) out.scale[h] = block.scales[2 * part + h];
        out.d = block.d;
    }
    return out;
}

}  // namespace drafthead
