#include "quant/matrix.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "simd/half.h"

namespace drafthead {

namespace {

Format packed_format(GgmlType type) {
    switch (type) {
        case GgmlType::f32: return Format::f32;
        case GgmlType::f16: return Format::f16;
        case GgmlType::q4_1: return Format::u4m;
        case GgmlType::q8_0: return Format::s8;
    }
    throw std::invalid_argument("weight type " + std::to_string(static_cast<int>(type)) +
                                " is not supported");
}

void pack_row_u4m(const uint8_t* source, int blocks, int lane, uint8_t* tile) {
    for (int b = 0; b < blocks; ++b, tile += tile_block_bytes(Format::u4m)) {
        BlockQ4_1 block;
        std::memcpy(&block, source + b * sizeof block, sizeof block);
        const auto weight = [&](int k) { return k < 16 ? block.q[k] & 15 : block.q[k - 16] >> 4; };
        for (int j = 0; j < 4; ++j) {
            for (int i = 0; i < 4; ++i) {
                const int k = 8 * j + i;
                tile[64 * j + 4 * lane + i] =
                    static_cast<uint8_t>(weight(k) | (weight(k + 4) << 4));
            }
        }
        std::memcpy(tile + 256 + 2 * lane, &block.d, 2);
        std::memcpy(tile + 288 + 2 * lane, &block.m, 2);
    }
}

void pack_row_s8(const uint8_t* source, int blocks, int lane, uint8_t* tile) {
    for (int b = 0; b < blocks; ++b, tile += tile_block_bytes(Format::s8)) {
        BlockQ8_0 block;
        std::memcpy(&block, source + b * sizeof block, sizeof block);
        for (int k = 0; k < block_k; ++k) {
            tile[64 * (k / 4) + 4 * lane + k % 4] = static_cast<uint8_t>(block.q[k] + 128);
        }
        std::memcpy(tile + 512 + 2 * lane, &block.d, 2);
    }
}

void pack_row_plain(const uint8_t* source, int columns, size_t item, int lane, uint8_t* tile) {
    for (int k = 0; k < columns; ++k) {
        std::memcpy(tile + (static_cast<size_t>(k) * tile_rows + lane) * item, source + k * item,
                    item);
    }
}

float half_at(const uint8_t* p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    return half_to_float(h);
}

}  // namespace

size_t ggml_row_bytes(GgmlType type, int columns) {
    const auto n = static_cast<size_t>(columns);
    switch (type) {
        case GgmlType::f32: return n * 4;
        case GgmlType::f16: return n * 2;
        case GgmlType::q4_1: return n / block_k * sizeof(BlockQ4_1);
        case GgmlType::q8_0: return n / block_k * sizeof(BlockQ8_0);
    }
    throw std::invalid_argument("weight type " + std::to_string(static_cast<int>(type)) +
                                " is not supported");
}

Matrix pack_matrix(GgmlType type, int rows, int columns, const uint8_t* data,
                   const std::function<int(int)>& source_row) {
    Matrix m;
    m.format = packed_format(type);
    if (rows <= 0 || columns <= 0 || columns % block_k != 0) {
        throw std::invalid_argument("a weight matrix of " + std::to_string(rows) + " x " +
                                    std::to_string(columns) +
                                    " cannot be packed: columns must be a multiple of 32");
    }
    m.rows = rows;
    m.columns = columns;
    const int blocks = tile_blocks(m.format, columns);
    m.tile_bytes = static_cast<size_t>(blocks) * tile_block_bytes(m.format);
    m.data.reset(m.tile_bytes * static_cast<size_t>(m.tiles()));
    const size_t row_bytes = ggml_row_bytes(type, columns);
    for (int row = 0; row < rows; ++row) {
        const uint8_t* source = data + static_cast<size_t>(source_row(row)) * row_bytes;
        uint8_t* tile = m.data.data() + static_cast<size_t>(row / tile_rows) * m.tile_bytes;
        const int lane = row % tile_rows;
        switch (m.format) {
            case Format::u4m: pack_row_u4m(source, blocks, lane, tile); break;
            case Format::s8: pack_row_s8(source, blocks, lane, tile); break;
            case Format::f16: pack_row_plain(source, columns, 2, lane, tile); break;
            case Format::f32: pack_row_plain(source, columns, 4, lane, tile); break;
        }
    }
    return m;
}

void dequantize_row(const Matrix& m, int row, float* out) {
    const uint8_t* tile = m.tile(row / tile_rows);
    const int lane = row % tile_rows;
    const size_t step = tile_block_bytes(m.format);
    for (int b = 0; b < tile_blocks(m.format, m.columns); ++b, tile += step) {
        switch (m.format) {
            case Format::u4m:
                for (int k = 0; k < block_k; ++k) {
                    const uint8_t byte = tile[64 * (k / 8) + 4 * lane + k % 4];
                    const int q = (k / 4) % 2 == 0 ? byte & 15 : byte >> 4;
                    out[b * block_k + k] = half_at(tile + 256 + 2 * lane) * static_cast<float>(q) +
                                           half_at(tile + 288 + 2 * lane);
                }
                break;
            case Format::s8:
                for (int k = 0; k < block_k; ++k) {
                    const int q = tile[64 * (k / 4) + 4 * lane + k % 4] - 128;
                    out[b * block_k + k] = half_at(tile + 512 + 2 * lane) * static_cast<float>(q);
                }
                break;
            case Format::f16: out[b] = half_at(tile + 2 * lane); break;
            case Format::f32: std::memcpy(out + b, tile + 4 * lane, 4); break;
        }
    }
}

}  // namespace drafthead
