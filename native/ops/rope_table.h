// Cosines and sines of the rotary embedding for every position, from our own double arithmetic, so
// that no libm decides a bit.
#pragma once

#include "runtime/aligned.h"

namespace drafthead {

class RopeTable {
public:
    // angle(position, i) = position * base^(-2 i / (2 half)), i < half
    RopeTable(double base, int half, int positions);
    const float* cosines(int position) const { return cosines_.data() + row(position); }
    const float* sines(int position) const { return sines_.data() + row(position); }
    int positions() const { return positions_; }
    size_t bytes() const { return cosines_.bytes() + sines_.bytes(); }

private:
    size_t row(int position) const {
        return static_cast<size_t>(position) * static_cast<size_t>(half_);
    }
    int half_, positions_;
    Aligned<float> cosines_, sines_;
};

}  // namespace drafthead
