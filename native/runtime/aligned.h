// A block of memory aligned to a cache line, zero at the start.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>

namespace drafthead {

// Memory comes in whole pages from the system, which has them zeroed and gives a page its place
// only when it is first written: a large cache costs what is used of it.
template <class T>
class Aligned {
public:
    Aligned() = default;
    explicit Aligned(size_t count) { reset(count); }
    Aligned(Aligned&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Aligned& operator=(Aligned&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Aligned() { release(); }

    void reset(size_t count) {
        release();
        if (count == 0) return;
        if (count > max_bytes / sizeof(T)) throw std::bad_alloc();
        void* p = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
        // Weights are streamed: with pages of 4 KiB the address translation becomes the limit.
        if (count * sizeof(T) >= huge_page_bytes) madvise(p, count * sizeof(T), MADV_HUGEPAGE);
#endif
        data_ = static_cast<T*>(p);
        size_ = count;
    }
    void grow(size_t count) {
        if (count > size_) reset(count);
    }

    T* data() { return data_; }
    const T* data() const { return data_; }
    size_t size() const { return size_; }
    size_t bytes() const { return size_ * sizeof(T); }

private:
    static constexpr size_t huge_page_bytes = size_t{1} << 21;
    static constexpr size_t max_bytes = size_t{1} << 46;

    void release() {
        if (data_ != nullptr) munmap(data_, size_ * sizeof(T));
        data_ = nullptr;
        size_ = 0;
    }

    T* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace drafthead
