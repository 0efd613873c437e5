// Memory for things that live as long as one another, such as the weights of a model: taken one
// after the other from large blocks, so that small ones lie in large pages too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/aligned.h"

namespace drafthead {

class Arena {
public:
    // Zeroed bytes, aligned to a cache line. The block stays until the last that lies in it is
    // gone.
    std::shared_ptr<uint8_t> take(size_t bytes) {
        const size_t needed = (bytes + 63) / 64 * 64;
        if (block_ == nullptr || needed > block_->size() - used_) {
            block_ = std::make_shared<Aligned<uint8_t>>(std::max(needed, block_bytes));
            used_ = 0;
        }
        uint8_t* at = block_->data() + used_;
        used_ += needed;
        return {block_, at};
    }

private:
    static constexpr size_t block_bytes = size_t{64} << 20;  // what is not used costs no memory

    std::shared_ptr<Aligned<uint8_t>> block_;
    size_t used_ = 0;
};

}  // namespace drafthead
