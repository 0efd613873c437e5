#include "quant/matrix.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "quant/codes.h"
#include "simd/half.h"

namespace drafthead {

namespace {

// Calls f with the format as a compile-time constant.
template <class F>
void with_integer_format(Format format, const F& f) {
    switch (format) {
#define DRAFTHEAD_CASE(name) \
    case Format::name: return f.template operator()<Format::name>()
        DRAFTHEAD_CASE(q4_0);
        DRAFTHEAD_CASE(q4_1);
        DRAFTHEAD_CASE(q5_0);
        DRAFTHEAD_CASE(q5_1);
        DRAFTHEAD_CASE(q8_0);
        DRAFTHEAD_CASE(iq4_nl);
        DRAFTHEAD_CASE(q4_k);
        DRAFTHEAD_CASE(q5_k);
        DRAFTHEAD_CASE(iq4_xs);
        DRAFTHEAD_CASE(q2_k);
        DRAFTHEAD_CASE(q3_k);
        DRAFTHEAD_CASE(q6_k);
#undef DRAFTHEAD_CASE
        default: break;
    }
}

// Block b of a tile: codes, its own scales, and the f16 scales, which may be those of its 256.
template <Format f>
struct TileBlock {
    TileBlock(uint8_t* tile, int b)
        : codes(tile + block_offset(f, b)),
          scales(codes + code_bytes(f)),
          halves(is_k_quant(f) ? tile + static_cast<size_t>(b / 8) * super_bytes(f) : scales) {}
    uint8_t *codes, *scales, *halves;
};

// Four weights k = 4 j .. 4 j + 3 at a time: a word of the lane in each plane.
template <Format f>
void put_codes(const uint8_t* q, int lane, uint8_t* block) {
    uint32_t w[8];
    std::memcpy(w, q, sizeof w);
    const auto put = [&](size_t at, uint32_t word) {
        std::memcpy(block + at + 4 * static_cast<size_t>(lane), &word, 4);
    };
    constexpr int low = low_bits(f);
    if constexpr (low == 8) {
        for (size_t j = 0; j < 8; ++j) put(64 * j, w[j]);
    } else if constexpr (low == 4) {
        constexpr uint32_t mask = 0x0f0f0f0f;
        for (size_t i = 0; i < 4; ++i) {
            put(64 * i, (w[2 * i] & mask) | ((w[2 * i + 1] & mask) << 4));
        }
    } else {
        constexpr uint32_t mask = 0x03030303;
        for (size_t i = 0; i < 2; ++i) {
            uint32_t word = 0;
            for (size_t j = 0; j < 4; ++j) word |= (w[4 * i + j] & mask) << (2 * j);
            put(64 * i, word);
        }
    }
    if constexpr (high_bits(f) == 1) {
        uint32_t word = 0;
        for (size_t j = 0; j < 8; ++j) word |= ((w[j] >> low) & 0x01010101) << j;
        put(low_plane_bytes(f), word);
    } else if constexpr (high_bits(f) == 2) {
        for (size_t i = 0; i < 2; ++i) {
            uint32_t word = 0;
            for (size_t j = 0; j < 4; ++j) word |= ((w[4 * i + j] >> low) & 0x03030303) << (2 * j);
            put(low_plane_bytes(f) + 64 * i, word);
        }
    }
}

template <Format f>
void get_codes(const uint8_t* block, int lane, uint8_t* q) {
    const auto byte = [&](size_t at, int k) {
        return block[at + 4 * static_cast<size_t>(lane) + static_cast<size_t>(k % 4)];
    };
    for (int k = 0; k < block_k; ++k) {
        const int j = k / 4;
        int code;
        if constexpr (low_bits(f) == 8) {
            code = byte(static_cast<size_t>(64 * j), k);
        } else if constexpr (low_bits(f) == 4) {
            code = (byte(static_cast<size_t>(64 * (j / 2)), k) >> (4 * (j % 2))) & 15;
        } else {
            code = (byte(static_cast<size_t>(64 * (j / 4)), k) >> (2 * (j % 4))) & 3;
        }
        constexpr size_t high = low_plane_bytes(f);
        if constexpr (high_bits(f) == 1) code |= ((byte(high, k) >> j) & 1) << low_bits(f);
        if constexpr (high_bits(f) == 2) {
            code |= ((byte(high + static_cast<size_t>(64 * (j / 4)), k) >> (2 * (j % 4))) & 3)
                    << low_bits(f);
        }
        q[k] = static_cast<uint8_t>(code);
    }
}

void put_half(uint8_t* lanes, int lane, uint16_t bits) { std::memcpy(lanes + 2 * lane, &bits, 2); }

float half_at(const uint8_t* lanes, int lane) {
    uint16_t bits;
    std::memcpy(&bits, lanes + 2 * lane, 2);
    return half_to_float(bits);
}

template <Format f>
void pack_row(const uint8_t* source, int columns, int lane, uint8_t* tile) {
    for (int b = 0; b < columns / block_k; ++b) {
        const Codes c = read_codes<f>(source, b);
        const TileBlock<f> to(tile, b);
        put_codes<f>(c.q, lane, to.codes);
        put_half(to.halves, lane, c.d);
        if constexpr (has_minimum(f)) put_half(to.halves + 32, lane, c.minimum);
        if constexpr (f == Format::q2_k) {
            for (int h = 0; h < 2; ++h) {
                to.scales[16 * h + lane] =
                    static_cast<uint8_t>(c.scale[h] | (c.sub_minimum[h] << 4));
            }
        } else if constexpr (has_halves(f)) {
            for (int h = 0; h < 2; ++h) to.scales[16 * h + lane] = static_cast<uint8_t>(c.scale[h]);
        } else if constexpr (is_k_quant(f)) {
            to.scales[lane] = static_cast<uint8_t>(c.scale[0]);
            if constexpr (has_minimum(f)) to.scales[16 + lane] = c.sub_minimum[0];
        }
    }
}

template <Format f>
void unpack_row(const Matrix& m, int row, float* out) {
    auto* tile = const_cast<uint8_t*>(m.tile(row / tile_rows));  // only read
    const int lane = row % tile_rows;
    for (int b = 0; b < m.columns / block_k; ++b, out += block_k) {
        uint8_t q[block_k];
        const TileBlock<f> from(tile, b);
        get_codes<f>(from.codes, lane, q);
        const float d = half_at(from.halves, lane);
        const float minimum = has_minimum(f) ? half_at(from.halves + 32, lane) : 0.0f;
        for (int k = 0; k < block_k; ++k) {
            const uint8_t sub = from.scales[(has_halves(f) ? 16 * (k / 16) : 0) + lane];
            if constexpr (f == Format::q4_1 || f == Format::q5_1) {
                out[k] = d * static_cast<float>(q[k]) + minimum;
            } else if constexpr (f == Format::q4_k || f == Format::q5_k) {
                out[k] = d * static_cast<float>(sub) * static_cast<float>(q[k]) -
                         minimum * static_cast<float>(from.scales[16 + lane]);
            } else if constexpr (f == Format::q2_k) {
                out[k] = d * static_cast<float>(sub & 15) * static_cast<float>(q[k]) -
                         minimum * static_cast<float>(sub >> 4);
            } else {
                const bool table = f == Format::iq4_nl || f == Format::iq4_xs;
                const int code = table ? iq4_table[q[k]] : q[k];
                const float scale =
                    is_k_quant(f) ? d * static_cast<float>(static_cast<int8_t>(sub)) : d;
                out[k] = scale * static_cast<float>(code - (1 << zero_shift(f)));
            }
        }
    }
}

void pack_row_plain(const uint8_t* source, int columns, size_t item, int lane, uint8_t* tile) {
    for (int k = 0; k < columns; ++k) {
        std::memcpy(tile + (static_cast<size_t>(k) * tile_rows + static_cast<size_t>(lane)) * item,
                    source + static_cast<size_t>(k) * item, item);
    }
}

void unpack_row_plain(const Matrix& m, int row, float* out) {
    const uint8_t* tile = m.tile(row / tile_rows);
    const int lane = row % tile_rows;
    for (int k = 0; k < m.columns; ++k, tile += column_bytes(m.format)) {
        if (m.format == Format::f32) {
            std::memcpy(out + k, tile + 4 * lane, 4);
        } else if (m.format == Format::f16) {
            out[k] = half_at(tile, lane);
        } else {
            uint32_t bits = 0;
            std::memcpy(reinterpret_cast<uint8_t*>(&bits) + 2, tile + 2 * lane, 2);
            std::memcpy(out + k, &bits, 4);
        }
    }
}

}  // namespace

size_t ggml_row_bytes(GgmlType type, int columns) {
    const TypeInfo info = type_info(type);
    return static_cast<size_t>(columns) / info.weights * info.bytes;
}

namespace {

// The system takes the pages of a file's map back, and reads them again if they are wanted again.
void give_back(const uint8_t* data, size_t bytes) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto at = reinterpret_cast<uintptr_t>(data);
    const uintptr_t first = (at + page - 1) / page * page;
    const uintptr_t last = (at + bytes) / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void pack_rows(Matrix& m, const TypeInfo& info, int row_begin, int row_end, const uint8_t* data,
               size_t row_bytes, const std::function<int(int)>& source_row) {
    for (int row = row_begin; row < row_end; ++row) {
        const uint8_t* source = data + static_cast<size_t>(source_row(row)) * row_bytes;
        uint8_t* tile = m.data.get() + static_cast<size_t>(row / tile_rows) * m.tile_bytes;
        const int lane = row % tile_rows;
        if (is_integer(m.format)) {
            with_integer_format(m.format,
                                [&]<Format f>() { pack_row<f>(source, m.columns, lane, tile); });
        } else {
            pack_row_plain(source, m.columns, info.bytes, lane, tile);
        }
    }
}

}  // namespace

Matrix pack_matrix(GgmlType type, int rows, int columns, const uint8_t* data, bool mapped,
                   const std::function<int(int)>& source_row, Arena& arena, ThreadPool& pool) {
    const TypeInfo info = type_info(type);
    const int multiple = info.weights > block_k ? static_cast<int>(info.weights) : block_k;
    if (rows <= 0 || columns <= 0 || columns % multiple != 0) {
        throw std::invalid_argument(
            "a weight matrix of " + std::to_string(rows) + " x " + std::to_string(columns) +
            " cannot be packed: columns must be a multiple of " + std::to_string(multiple));
    }
    Matrix m;
    m.format = info.format;
    m.rows = rows;
    m.columns = columns;
    m.tile_bytes = tile_bytes(m.format, columns);
    m.data = arena.take(m.bytes());
    // In parts, so that a large tensor is never there twice.
    constexpr size_t part_bytes = size_t{8} << 20;
    const size_t row_bytes = ggml_row_bytes(type, columns);
    const int part_tiles = static_cast<int>(part_bytes / (row_bytes * tile_rows)) + 1;
    for (int tile = 0; tile < m.tiles(); tile += part_tiles) {
        const int tiles = std::min(part_tiles, m.tiles() - tile);
        pool.run([&](Team& team) {
            const auto [begin, end] = team.share(tiles);
            pack_rows(m, info, (tile + begin) * tile_rows, std::min((tile + end) * tile_rows, rows),
                      data, row_bytes, source_row);
        });
        const int first = tile * tile_rows;
        const int count = std::min(tiles * tile_rows, rows - first);
        if (mapped) give_back(data + first * row_bytes, static_cast<size_t>(count) * row_bytes);
    }
    return m;
}

void dequantize_row(const Matrix& m, int row, float* out) {
    if (is_integer(m.format)) {
        with_integer_format(m.format, [&]<Format f>() { unpack_row<f>(m, row, out); });
    } else {
        unpack_row_plain(m, row, out);
    }
}

}  // namespace drafthead
