// A fixed block of memory aligned to a cache line, zeroed at the start.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace drafthead {

template <class T>
class Aligned {
public:
    Aligned() = default;
    explicit Aligned(size_t count) { reset(count); }

    void reset(size_t count) {
        data_.reset();
        size_ = 0;
        if (count == 0) return;
        const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
        void* p = std::aligned_alloc(64, bytes);
        if (p == nullptr) throw std::bad_alloc();
        std::memset(p, 0, bytes);
        data_.reset(static_cast<T*>(p));
        size_ = count;
    }
    void grow(size_t count) {
        if (count > size_) reset(count);
    }

    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    size_t size() const { return size_; }
    size_t bytes() const { return size_ * sizeof(T); }

private:
    struct Free {
        void operator()(T* p) const { std::free(p); }
    };
    std::unique_ptr<T, Free> data_;
    size_t size_ = 0;
};

}  // namespace drafthead
