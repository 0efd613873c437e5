// Cosines and sines of the rotary embedding (Su et al., arXiv 2104.09864, eq. 34), from our own
// double arithmetic, so that no libm decides a bit. A table grows by blocks of positions and never
// moves one; who grows it sees to it that nobody reads meanwhile.
#pragma once

#include <vector>

#include "runtime/aligned.h"

namespace drafthead {

class RopeTable {
public:
    // angle(position, i) = position * scale * base^(-2 i / (2 half)), i < half
    RopeTable(double base, double scale, int half);
    // factors: (half), before the table is filled (Llama 3.1's scaling, as its files store it).
    void divide_frequencies(const float* factors);

    void reserve(int positions);    // room for positions 0 .. positions - 1, rounded up
    void fill(int begin, int end);  // computes a part of what is reserved
    int positions() const { return static_cast<int>(blocks_.size()) * block_rows; }
    const float* cosines(int position) const {
        return blocks_[static_cast<size_t>(position / block_rows)].data() + offset(position);
    }
    const float* sines(int position) const { return cosines(position) + half_; }

private:
    static constexpr int block_rows = 256;
    size_t offset(int position) const {
        return 2 * static_cast<size_t>(position % block_rows) * static_cast<size_t>(half_);
    }
    int half_;
    Aligned<double> frequencies_;
    std::vector<Aligned<float>> blocks_;  // each (block_rows, 2, half): cosines, sines
};

}  // namespace drafthead
