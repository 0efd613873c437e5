// Rows of activations with their int8 form: what one stage of a pass hands to the next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"
#include "runtime/aligned.h"

namespace drafthead {

class Activations {
public:
    void resize(int rows, int columns) {
        rows_ = rows;
        columns_ = columns;
        const size_t n = static_cast<size_t>(rows) * static_cast<size_t>(columns);
        x_.grow(n);
        q_.grow(n);
        d_.grow(n / block_k);
        d_sum_.grow(n / block_k);
        minus_sum_.grow(n / block_k);
        minus_half_.grow(2 * (n / block_k));
    }
    float* row(int r) { return x_.data() + static_cast<size_t>(r) * columns_; }
    const float* row(int r) const { return x_.data() + static_cast<size_t>(r) * columns_; }

    // Quantises n floats of a row from `begin`; both are multiples of 32.
    void quantize(const Kernels& k, int r, int begin, int n) {
        const int group = r / row_group * row_group;
        const int stride = std::min(rows_ - group, row_group);
        const size_t lane = static_cast<size_t>(r - group);
        const size_t start = static_cast<size_t>(group) * static_cast<size_t>(columns_) / block_k;
        const size_t block = static_cast<size_t>(begin / block_k) * static_cast<size_t>(stride);
        const size_t at = start + block + lane;
        k.quantize(
            row(r) + begin, n,
            {q_.data() + at * block_k, d_.data() + at, d_sum_.data() + at, minus_sum_.data() + at,
             minus_half_.data() + 2 * (start + block) + lane, stride});
    }
    Rows view() const {
        return {x_.data(),         q_.data(),          d_.data(), d_sum_.data(),
                minus_sum_.data(), minus_half_.data(), rows_,     columns_};
    }
    size_t bytes() const {
        return x_.bytes() + q_.bytes() + d_.bytes() + d_sum_.bytes() + minus_sum_.bytes() +
               minus_half_.bytes();
    }

private:
    int rows_ = 0;
    int columns_ = 0;
    Aligned<float> x_;
    Aligned<int8_t> q_;
    Aligned<float> d_, d_sum_;
    Aligned<int32_t> minus_sum_, minus_half_;
};

}  // namespace drafthead
