// Weight types as a GGUF file stores them, and the tiles they are packed into.
//
// A tile holds 16 output rows, one lane a row. It is one sequence in ascending K, so that a pass
// reads one stream:
//
//   for each 256 of K of a K-quant     f16 d (and dmin)
//     for each block of 32             the planes of the integer codes (below), then f16 scales
//                                      (and minima), or a K-quant's integer sub-scales
//
// Code planes of a block. A word w[j] is 64 bytes: byte 4 * lane + b is weight k = 4 j + b.
//   8 bits   words w[0] .. w[7]
//   4 bits   4 x 64 bytes: low nibbles are w[2 i], high nibbles w[2 i + 1]
//   2 bits   2 x 64 bytes: bits 2 j .. 2 j + 1 of the i-th are w[4 i + j]
//   1 bit    64 bytes: bit j is w[j]
// Codes of 5 and 6 bits are a plane of 4 and one of 1 or 2; of 3 bits a plane of 2 and one of 1.
// Layouts of the file's blocks: ggml/src/ggml-common.h of the ggml project.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace drafthead {

// GGUF's own numbers.
enum class GgmlType : int {
    f32 = 0,
    f16 = 1,
    q4_0 = 2,
    q4_1 = 3,
    q5_0 = 6,
    q5_1 = 7,
    q8_0 = 8,
    q2_k = 10,
    q3_k = 11,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    iq4_nl = 20,
    iq4_xs = 23,
    bf16 = 30,
};

// A block of a file: 32 or 256 weights of a row. Half-precision numbers come as their bits.
struct BlockQ4_0 {  // d * (q - 8); byte i holds weight i low and weight i + 16 high
    uint16_t d;
    uint8_t q[16];
};
struct BlockQ4_1 {  // d * q + m
    uint16_t d, m;
    uint8_t q[16];
};
struct BlockQ5_0 {  // d * (q - 16); bit i of high is bit 4 of weight i
    uint16_t d;
    uint8_t high[4];
    uint8_t q[16];
};
struct BlockQ5_1 {  // d * q + m
    uint16_t d, m;
    uint8_t high[4];
    uint8_t q[16];
};
struct BlockQ8_0 {  // d * q
    uint16_t d;
    int8_t q[32];
};
struct BlockIQ4NL {  // d * table[q]
    uint16_t d;
    uint8_t q[16];
};
struct BlockQ2K {  // d * (scale & 15) * q - dmin * (scale >> 4), sub-blocks of 16
    uint8_t scales[16];
    uint8_t q[64];
    uint16_t d, dmin;
};
struct BlockQ3K {  // d * (scale - 32) * (q - 4), sub-blocks of 16
    uint8_t high[32];
    uint8_t q[64];
    uint8_t scales[12];
    uint16_t d;
};
struct BlockQ4K {  // d * scale * q - dmin * min, sub-blocks of 32
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t q[128];
};
struct BlockQ5K {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t high[32];
    uint8_t q[128];
};
struct BlockQ6K {  // d * scale * (q - 32), sub-blocks of 16
    uint8_t low[128];
    uint8_t high[64];
    int8_t scales[16];
    uint16_t d;
};
struct BlockIQ4XS {  // d * (scale - 32) * table[q], sub-blocks of 32
    uint16_t d;
    uint16_t scales_high;
    uint8_t scales_low[4];
    uint8_t q[128];
};
static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34 && sizeof(BlockIQ4NL) == 18);
static_assert(sizeof(BlockQ2K) == 84 && sizeof(BlockQ3K) == 110 && sizeof(BlockQ4K) == 144);
static_assert(sizeof(BlockQ5K) == 176 && sizeof(BlockQ6K) == 210 && sizeof(BlockIQ4XS) == 136);

// The values that the codes of IQ4_NL and IQ4_XS stand for, with 128 added as 8-bit codes have it.
constexpr uint8_t iq4_table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                   129, 141, 153, 166, 181, 197, 217, 241};

// One packed format a weight type.
enum class Format : int {
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    q8_0,
    iq4_nl,  // an f16 scale for each block of 32
    q4_k,
    q5_k,
    iq4_xs,  // an integer scale for each block of 32
    q2_k,
    q3_k,
    q6_k,  // two for each block: one for each 16
    f16,
    bf16,
    f32,  // as stored
};
constexpr int format_count = 15;
constexpr int tile_rows = 16;
constexpr int block_k = 32;
constexpr int super_k = 256;

constexpr bool is_integer(Format f) { return f < Format::f16; }
constexpr bool is_k_quant(Format f) { return f >= Format::q4_k && f < Format::f16; }
// Two sub-scales for each block of 32.
constexpr bool has_halves(Format f) { return f >= Format::q2_k && f <= Format::q6_k; }
// d * q + m rather than d * (q - zero).
constexpr bool has_minimum(Format f) {
    return f == Format::q4_1 || f == Format::q5_1 || f == Format::q4_k || f == Format::q5_k ||
           f == Format::q2_k;
}
constexpr int low_bits(Format f) {
    return f == Format::q8_0 ? 8 : f == Format::q2_k || f == Format::q3_k ? 2 : 4;
}
constexpr int high_bits(Format f) {
    const bool one =
        f == Format::q5_0 || f == Format::q5_1 || f == Format::q5_k || f == Format::q3_k;
    return one ? 1 : f == Format::q6_k ? 2 : 0;
}
// log2 of the code that stands for zero where there is no minimum.
constexpr int zero_shift(Format f) {
    switch (f) {
        case Format::q3_k: return 2;
        case Format::q4_0: return 3;
        case Format::q5_0: return 4;
        case Format::q6_k: return 5;
        default: return 7;  // 8-bit codes and the IQ4 table
    }
}

constexpr size_t low_plane_bytes(Format f) { return static_cast<size_t>(64 * low_bits(f)); }
constexpr size_t code_bytes(Format f) {  // of a tile block: 16 rows x 32
    return static_cast<size_t>(64 * (low_bits(f) + high_bits(f)));
}
constexpr size_t block_scale_bytes(Format f) {
    if (is_k_quant(f)) return f == Format::iq4_xs ? 16 : 32;
    return has_minimum(f) ? 64 : 32;
}
constexpr size_t super_scale_bytes(Format f) {
    return is_k_quant(f) ? (has_minimum(f) ? 64 : 32) : 0;
}
// Bytes of one column of 16 rows where weights stay as stored.
constexpr size_t column_bytes(Format f) { return f == Format::f32 ? 64 : 32; }

constexpr size_t block_bytes(Format f) { return code_bytes(f) + block_scale_bytes(f); }
// From one 256 to the next.
constexpr size_t super_bytes(Format f) {
    return super_scale_bytes(f) + super_k / block_k * block_bytes(f);
}
// Where block b of a tile lies.
constexpr size_t block_offset(Format f, int b) {
    const auto at = static_cast<size_t>(b);
    if (!is_k_quant(f)) return at * block_bytes(f);
    return at / 8 * super_bytes(f) + super_scale_bytes(f) + at % 8 * block_bytes(f);
}
constexpr size_t tile_bytes(Format f, int columns) {
    const auto k = static_cast<size_t>(columns);
    if (!is_integer(f)) return k * column_bytes(f);
    return is_k_quant(f) ? k / super_k * super_bytes(f) : k / block_k * block_bytes(f);
}

// How a type lies in a file: `bytes` hold `weights` of a row; and its packed format.
struct TypeInfo {
    Format format;
    size_t weights, bytes;
};
constexpr TypeInfo type_info(GgmlType type) {
    switch (type) {
        case GgmlType::f32: return {Format::f32, 1, 4};
        case GgmlType::f16: return {Format::f16, 1, 2};
        case GgmlType::bf16: return {Format::bf16, 1, 2};
        case GgmlType::q4_0: return {Format::q4_0, 32, sizeof(BlockQ4_0)};
        case GgmlType::q4_1: return {Format::q4_1, 32, sizeof(BlockQ4_1)};
        case GgmlType::q5_0: return {Format::q5_0, 32, sizeof(BlockQ5_0)};
        case GgmlType::q5_1: return {Format::q5_1, 32, sizeof(BlockQ5_1)};
        case GgmlType::q8_0: return {Format::q8_0, 32, sizeof(BlockQ8_0)};
        case GgmlType::iq4_nl: return {Format::iq4_nl, 32, sizeof(BlockIQ4NL)};
        case GgmlType::q2_k: return {Format::q2_k, 256, sizeof(BlockQ2K)};
        case GgmlType::q3_k: return {Format::q3_k, 256, sizeof(BlockQ3K)};
        case GgmlType::q4_k: return {Format::q4_k, 256, sizeof(BlockQ4K)};
        case GgmlType::q5_k: return {Format::q5_k, 256, sizeof(BlockQ5K)};
        case GgmlType::q6_k: return {Format::q6_k, 256, sizeof(BlockQ6K)};
        case GgmlType::iq4_xs: return {Format::iq4_xs, 256, sizeof(BlockIQ4XS)};
    }
    throw std::invalid_argument("weight type " + std::to_string(static_cast<int>(type)) +
                                " is not supported");
}

}  // namespace drafthead
