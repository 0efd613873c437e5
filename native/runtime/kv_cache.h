// Keys and values of one sequence, half precision. Its rollback is one integer: cells past `length`
// are stale and never read. Keys are stored after the rotary embedding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/aligned.h"

namespace drafthead {

class KvCache {
public:
    // capacity is rounded up to whole blocks of 16 cells.
    KvCache(int layers, int kv_heads, int head_dim, int capacity)
        : layers_(layers),
          kv_heads_(kv_heads),
          head_dim_(head_dim),
          cells_((capacity + 15) / 16 * 16),
          capacity_(capacity),
          keys_(static_cast<size_t>(layers) * layer_size()),
          values_(static_cast<size_t>(layers) * layer_size()) {}

    int layers() const { return layers_; }
    int kv_heads() const { return kv_heads_; }
    int head_dim() const { return head_dim_; }
    int cells() const { return cells_; }
    int capacity() const { return capacity_; }
    int length() const { return length_; }
    void set_length(int length) { length_ = length; }
    size_t bytes() const { return keys_.bytes() + values_.bytes(); }

    // (blocks, head_dim, 16)
    uint16_t* keys(int layer, int head) { return keys_.data() + offset(layer, head); }
    const uint16_t* keys(int layer, int head) const { return keys_.data() + offset(layer, head); }
    // (cells, head_dim)
    uint16_t* values(int layer, int head) { return values_.data() + offset(layer, head); }
    const uint16_t* values(int layer, int head) const {
        return values_.data() + offset(layer, head);
    }

    void store_key(int layer, int head, int position, const uint16_t* key) {
        uint16_t* to =
            keys(layer, head) + static_cast<size_t>(position / 16) * head_dim_ * 16 + position % 16;
        for (int i = 0; i < head_dim_; ++i) to[i * 16] = key[i];
    }

private:
    size_t layer_size() const {
        return static_cast<size_t>(kv_heads_) * static_cast<size_t>(cells_) *
               static_cast<size_t>(head_dim_);
    }
    size_t offset(int layer, int head) const {
        return static_cast<size_t>(layer) * layer_size() + static_cast<size_t>(head) *
                                                               static_cast<size_t>(cells_) *
                                                               static_cast<size_t>(head_dim_);
    }

    int layers_, kv_heads_, head_dim_, cells_, capacity_;
    int length_ = 0;
    Aligned<uint16_t> keys_, values_;
};

}  // namespace drafthead
