// Scores of a vocabulary: the output projection, the best token, and how sure it is.
//
// The vocabulary is cut into chunks of 16 tiles (256 tokens). A chunk belongs to one thread and is
// reduced by one fixed sequence; chunks are combined in ascending order. So neither the number of
// threads nor of rows can change a result.
#pragma once

#include <vector>

#include "models/activations.h"
#include "quant/matrix.h"
#include "runtime/thread_pool.h"

namespace drafthead {

class Scores {
public:
    static constexpr int chunk_tiles = 16;

    void resize(int rows, int tokens);

    // logits = m . rows, capped where softcap is not 0, and each chunk's best; this thread's share
    // of the chunks, no barrier. tiles: which tiles of m are scored, in order, or null for all.
    void score(const Matrix& m, const int* tiles, const Rows& rows, bool with_sums, float softcap,
               const Kernels& kernels, const Team& team);

    // The two parts of it, for scores that are not complete after the first: logits = m . rows;
    // then logits of one row += more . input, capped, and each chunk's best. A thread has the same
    // chunks in both, so nobody waits in between.
    void multiply(const Matrix& m, const int* tiles, const Rows& rows, const Kernels& kernels,
                  const Team& team);
    void add_and_reduce(int row, const Matrix& more, const Rows& input, float softcap,
                        const Kernels& kernels, const Team& team);

    float* logits(int row) { return logits_.data() + static_cast<size_t>(row) * stride_; }
    // The row's best over all chunks; the index counts scored tokens. After a barrier.
    Best best(int row) const;
    // Softmax probability of the best token among those scored. Needs with_sums.
    float confidence(int row, const Kernels& kernels) const;
    size_t bytes() const { return logits_.bytes() + best_.size() * sizeof(Best) + sums_.bytes(); }

private:
    struct Tiles {
        int begin, end;
    };
    Tiles tiles_of(int chunk) const;
    void multiply_chunk(int chunk, const Matrix& m, const int* tiles, const Rows& rows,
                        const Kernels& kernels);
    void reduce_chunk(int chunk, int row, bool with_sums, float softcap, const Kernels& kernels);

    int rows_ = 0, tokens_ = 0, chunks_ = 0;
    size_t stride_ = 0;
    Aligned<float> logits_;   // (rows, stride): tokens rounded up to whole tiles
    std::vector<Best> best_;  // (rows, chunks)
    Aligned<float> sums_;     // (rows, chunks): sum of exp(logit - the chunk's best)
};

}  // namespace drafthead
