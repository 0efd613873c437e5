// Weight types as a GGUF file stores them, and the tiles they are packed into.
//
// A tile holds 16 output rows. Along K it is a sequence of blocks; the byte counts equal the
// file's, so a pass streams no more than the file holds.
//
//   format   block      bytes of a tile block                     value of a weight
//   u4m      32 of K    4 x 64 nibble bytes, 16 d, 16 m (f16)     d * q + m,  q in 0..15
//   s8       32 of K    8 x 64 bytes (q + 128), 16 d (f16)        d * q,      q in -128..127
//   f16      1 of K     16 halves                                 as stored
//   f32      1 of K     16 floats                                 as stored
//
// Byte 4 * row + b of the j-th 64 bytes belongs to weight k = 4 j + b (s8), or to k = 8 j + b in
// its low and k = 8 j + 4 + b in its high nibble (u4m): one 64-byte load gives 16 rows x 4 weights.
#pragma once

#include <cstddef>
#include <cstdint>

namespace drafthead {

// GGUF's own numbers.
enum class GgmlType : int { f32 = 0, f16 = 1, q4_1 = 3, q8_0 = 8 };

struct BlockQ4_1 {  // 32 weights: d * q + m; byte i holds weight i low and weight i + 16 high
    uint16_t d, m;
    uint8_t q[16];
};
static_assert(sizeof(BlockQ4_1) == 20);

struct BlockQ8_0 {  // 32 weights: d * q
    uint16_t d;
    int8_t q[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

enum class Format : int { u4m, s8, f16, f32 };
constexpr int format_count = 4;
constexpr int tile_rows = 16;
constexpr int block_k = 32;

constexpr size_t tile_block_bytes(Format format) {
    switch (format) {
        case Format::u4m: return 4 * 64 + 2 * 32;
        case Format::s8: return 8 * 64 + 32;
        case Format::f16: return 32;
        case Format::f32: return 64;
    }
    return 0;
}
constexpr bool is_integer(Format format) { return format == Format::u4m || format == Format::s8; }
constexpr int tile_blocks(Format format, int columns) {
    return is_integer(format) ? columns / block_k : columns;
}

}  // namespace drafthead
