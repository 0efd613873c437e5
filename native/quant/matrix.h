// A weight matrix packed into tiles of 16 output rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "quant/formats.h"
#include "runtime/aligned.h"
#include "runtime/thread_pool.h"

namespace drafthead {

struct Matrix {
    Format format = Format::f32;
    int rows = 0;  // output elements; the last tile is padded with zero weights
    int columns = 0;
    size_t tile_bytes = 0;
    Aligned<uint8_t> data;

    int tiles() const { return (rows + tile_rows - 1) / tile_rows; }
    const uint8_t* tile(int index) const {
        return data.data() + static_cast<size_t>(index) * tile_bytes;
    }
    size_t bytes() const { return data.bytes(); }
};

size_t ggml_row_bytes(GgmlType type, int columns);

// Packs `rows` x `columns` weights of a GGUF tensor on every thread of the pool. Packed row r takes
// the file's row source_row(r). mapped: data lies in a read-only map of a file, whose pages are
// given back as they are packed. Throws std::invalid_argument where the type or a size is not
// supported.
Matrix pack_matrix(GgmlType type, int rows, int columns, const uint8_t* data, bool mapped,
                   const std::function<int(int)>& source_row, ThreadPool& pool);

// The reference dequantisation of one packed row: columns floats, the bits of ggml's own.
void dequantize_row(const Matrix& matrix, int row, float* out);

}  // namespace drafthead
