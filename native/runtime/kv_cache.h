// Keys and values of one sequence. A layer that sees everything has a cell for each position; a
// layer with a sliding window keeps a ring of window + slack cells, where position p lies in cell
// p mod cells. Keys are stored after the rotary embedding.
//
// A rollback is one integer: cells past `length` are stale and never read. A ring forgets, though:
// what a longer length has overwritten cannot come back, so `rollback_floor` is the smallest
// length, beside 0, that still has every cell its next row sees.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/kernels.h"
#include "runtime/aligned.h"

namespace drafthead {

class KvCache {
public:
    // Cells that a ring has beyond its window: how many rows a pass may add, or a rollback take
    // back, before a cell that is still seen is overwritten.
    static constexpr int slack = 256;

    // windows: for each layer the cells a query sees, or 0 for all. Cells are whole blocks of 16.
    KvCache(const std::vector<int>& windows, int kv_heads, int head_dim, int capacity, KvType type)
        : kv_heads_(kv_heads), head_dim_(head_dim), capacity_(capacity), type_(type) {
        size_t total = 0;
        for (const int window : windows) {
            const int seen = window > 0 && window < capacity - slack ? window + slack : capacity;
            layers_.push_back({window, (seen + 15) / 16 * 16, total});
            total += static_cast<size_t>(kv_heads) * head_bytes(layers_.back());
        }
        keys_.reset(total);
        values_.reset(total);
    }

    int layers() const { return static_cast<int>(layers_.size()); }
    int kv_heads() const { return kv_heads_; }
    int head_dim() const { return head_dim_; }
    int capacity() const { return capacity_; }
    KvType type() const { return type_; }
    int cells(int layer) const { return at(layer).cells; }
    int length() const { return length_; }
    size_t bytes() const { return keys_.bytes() + values_.bytes(); }

    // The first position that a row at `position` sees in a layer.
    int first_seen(int layer, int position) const {
        const int window = at(layer).window;
        return window > 0 ? std::max(0, position + 1 - window) : 0;
    }
    // Rows whose cells may be written before the first of them has attended.
    int rows_at_once(int layer) const {
        return wraps(at(layer)) ? at(layer).cells - at(layer).window + 1
                                : std::numeric_limits<int>::max();
    }

    void append(int count) {
        length_ += count;
        written_ = std::max(written_, length_);
    }
    int rollback_floor() const {
        int floor = adopted_floor_;
        for (const Layer& layer : layers_) {
            if (wraps(layer) && written_ > layer.cells) {
                floor = std::max(floor, written_ - layer.cells + layer.window - 1);
            }
        }
        return floor;
    }
    // Takes cells that were written from outside: positions below `length`, of which lengths from
    // `floor` on still have every cell their next row sees.
    void adopt(int length, int floor) {
        if (length < 0 || length > capacity_ || floor < 0 || floor > length) {
            throw std::invalid_argument("a cache of " + std::to_string(capacity_) +
                                        " cannot take length " + std::to_string(length) +
                                        " and floor " + std::to_string(floor));
        }
        length_ = written_ = length;
        adopted_floor_ = floor;
    }
    // Throws std::invalid_argument where cells are gone that the length needs; nothing changes.
    void rollback(int length) {
        if (length < 0 || length > length_) {
            throw std::invalid_argument("rollback to " + std::to_string(length) +
                                        " of a cache of length " + std::to_string(length_));
        }
        if (length > 0 && length < rollback_floor()) {
            throw std::invalid_argument("rollback to " + std::to_string(length) +
                                        " of a cache of length " + std::to_string(length_) +
                                        " is too deep: its sliding windows have overwritten "
                                        "cells that lengths below " +
                                        std::to_string(rollback_floor()) +
                                        " need; roll back to 0 and feed the tokens again");
        }
        length_ = length;
        if (length == 0) written_ = adopted_floor_ = 0;
    }

    // (cells / 16, head_dim, 16) and (cells, head_dim) items of the cache's type
    void* keys(int layer, int head) { return keys_.data() + offset(layer, head); }
    const void* keys(int layer, int head) const { return keys_.data() + offset(layer, head); }
    void* values(int layer, int head) { return values_.data() + offset(layer, head); }
    const void* values(int layer, int head) const { return values_.data() + offset(layer, head); }

    // T is uint16_t or float, as the type says.
    template <class T>
    void store(int layer, int head, int position, const T* key, const T* value) {
        const int cell = position % at(layer).cells;
        T* to = static_cast<T*>(keys(layer, head)) +
                static_cast<size_t>(cell / 16) * head_dim_ * 16 + cell % 16;
        for (int i = 0; i < head_dim_; ++i) to[i * 16] = key[i];
        std::copy_n(value, head_dim_,
                    static_cast<T*>(values(layer, head)) + static_cast<size_t>(cell) * head_dim_);
    }

private:
    struct Layer {
        int window, cells;
        size_t offset;  // bytes
    };
    const Layer& at(int layer) const { return layers_[static_cast<size_t>(layer)]; }
    bool wraps(const Layer& layer) const { return layer.cells < capacity_; }
    size_t head_bytes(const Layer& layer) const {
        const size_t item = type_ == KvType::f16 ? 2 : 4;
        return static_cast<size_t>(layer.cells) * static_cast<size_t>(head_dim_) * item;
    }
    size_t offset(int layer, int head) const {
        return at(layer).offset + static_cast<size_t>(head) * head_bytes(at(layer));
    }

    int kv_heads_, head_dim_, capacity_;
    KvType type_;
    int length_ = 0;
    int adopted_floor_ = 0;  // of cells that were written from outside
    int written_ = 0;        // the longest length since the cache was empty
    std::vector<Layer> layers_;
    Aligned<uint8_t> keys_, values_;
};

}  // namespace drafthead
