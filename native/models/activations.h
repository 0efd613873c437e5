// Rows of activations with their int8 form: what one stage of a pass hands to the next.
#pragma once

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
        sum_.grow(n / block_k);
    }
    float* row(int r) { return x_.data() + static_cast<size_t>(r) * columns_; }
    const float* row(int r) const { return x_.data() + static_cast<size_t>(r) * columns_; }
    int columns() const { return columns_; }

    // Quantises n floats of a row from `begin`; both are multiples of 32.
    void quantize(const Kernels& k, int r, int begin, int n) {
        const size_t at = static_cast<size_t>(r) * columns_ + static_cast<size_t>(begin);
        const size_t block = at / block_k;
        k.quantize(x_.data() + at, n, q_.data() + at, d_.data() + block, d_sum_.data() + block,
                   sum_.data() + block);
    }
    Rows view() const {
        return {x_.data(), q_.data(), d_.data(), d_sum_.data(), sum_.data(), rows_, columns_};
    }
    size_t bytes() const {
        return x_.bytes() + q_.bytes() + d_.bytes() + d_sum_.bytes() + sum_.bytes();
    }

private:
    int rows_ = 0;
    int columns_ = 0;
    Aligned<float> x_;
    Aligned<int8_t> q_;
    Aligned<float> d_, d_sum_;
    Aligned<int32_t> sum_;
};

}  // namespace drafthead
