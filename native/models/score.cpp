#include "models/score.h"

#include <algorithm>
#include <cmath>

namespace drafthead {

void Scores::resize(int rows, int tokens) {
    rows_ = rows;
    tokens_ = tokens;
    const int tiles = (tokens + tile_rows - 1) / tile_rows;
    chunks_ = (tiles + chunk_tiles - 1) / chunk_tiles;
    stride_ = static_cast<size_t>(tiles) * tile_rows;
    logits_.grow(static_cast<size_t>(rows) * stride_);
    best_.resize(static_cast<size_t>(rows) * static_cast<size_t>(chunks_));
    sums_.grow(best_.size());
}

void Scores::score(const Matrix& m, const int* tiles, const Rows& rows, bool with_sums,
                   float softcap, const Kernels& kernels, const Team& team) {
    const auto [begin, end] = team.share(chunks_);
    for (int chunk = begin; chunk < end; ++chunk) {
        multiply_chunk(chunk, m, tiles, rows, kernels);
        for (int r = 0; r < rows_; ++r) reduce_chunk(chunk, r, with_sums, softcap, kernels);
    }
}

void Scores::multiply(const Matrix& m, const int* tiles, const Rows& rows, const Kernels& kernels,
                      const Team& team) {
    const auto [begin, end] = team.share(chunks_);
    for (int chunk = begin; chunk < end; ++chunk) multiply_chunk(chunk, m, tiles, rows, kernels);
}

void Scores::add_and_reduce(int row, const Matrix& more, const Rows& input, float softcap,
                            const Kernels& kernels, const Team& team) {
    const auto [begin, end] = team.share(chunks_);
    for (int chunk = begin; chunk < end; ++chunk) {
        const Tiles of = tiles_of(chunk);
        // Tokens behind those of `more` get nothing from it.
        const int end_tile = std::min(of.end, (more.rows + tile_rows - 1) / tile_rows);
        if (of.begin < end_tile)
            kernels.matmul[static_cast<int>(more.format)](
                more, of.begin, end_tile, input, logits(row) + of.begin * tile_rows, stride_, true);
        reduce_chunk(chunk, row, true, softcap, kernels);
    }
}

Scores::Tiles Scores::tiles_of(int chunk) const {
    const int first = chunk * chunk_tiles;
    return {first, std::min(first + chunk_tiles, static_cast<int>(stride_) / tile_rows)};
}

void Scores::multiply_chunk(int chunk, const Matrix& m, const int* tiles, const Rows& rows,
                            const Kernels& kernels) {
    const auto matmul = kernels.matmul[static_cast<int>(m.format)];
    const auto [first, last] = tiles_of(chunk);
    float* out = logits_.data() + static_cast<size_t>(first) * tile_rows;
    if (tiles == nullptr) {
        matmul(m, first, last, rows, out, stride_, false);
        return;
    }
    for (int i = first; i < last; ++i, out += tile_rows) {
        matmul(m, tiles[i], tiles[i] + 1, rows, out, stride_, false);
    }
}

void Scores::reduce_chunk(int chunk, int row, bool with_sums, float softcap,
                          const Kernels& kernels) {
    const auto [begin, end] = tiles_of(chunk);
    const int first = begin * tile_rows;
    const int count = std::min(end * tile_rows, tokens_) - first;
    float* x = logits(row) + first;
    if (softcap > 0) kernels.softcap(softcap, count, x);
    Best b = kernels.argmax(x, count);
    const size_t at = static_cast<size_t>(row) * static_cast<size_t>(chunks_) + chunk;
    if (with_sums) sums_.data()[at] = kernels.sum_exp(x, count, b.value);
    if (b.index >= 0) b.index += first;
    best_[at] = b;
}

Best Scores::best(int row) const {
    Best best{-INFINITY, -1};
    const Best* chunk = best_.data() + static_cast<size_t>(row) * static_cast<size_t>(chunks_);
    for (int c = 0; c < chunks_; ++c) {
        if (chunk[c].value > best.value) best = chunk[c];
    }
    return std::isfinite(best.value) ? best : Best{best.value, -1};
}

float Scores::confidence(int row, const Kernels& kernels) const {
    const size_t at = static_cast<size_t>(row) * static_cast<size_t>(chunks_);
    const float top = best(row).value;
    float total = 0.0f;
    for (int c = 0; c < chunks_; ++c) {
        // exp of one number by the same polynomial
        alignas(64) const float value[16] = {best_[at + static_cast<size_t>(c)].value};
        total += sums_.data()[at + static_cast<size_t>(c)] * kernels.sum_exp(value, 1, top);
    }
    return 1.0f / total;
}

}  // namespace drafthead
