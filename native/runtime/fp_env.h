// Sets the floating-point environment the contract needs (round to nearest, subnormals kept) for a
// scope: another library in the process may have switched flush-to-zero on.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace drafthead {

class FloatEnvironment {
public:
#if defined(__x86_64__)
    FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
    ~FloatEnvironment() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
    FloatEnvironment() {
        asm volatile("mrs %0, fpcr" : "=r"(saved_));
        set(0);
    }
    ~FloatEnvironment() { set(saved_); }
#else
    FloatEnvironment() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~FloatEnvironment() { std::fesetenv(&saved_); }
#endif
    FloatEnvironment(const FloatEnvironment&) = delete;
    FloatEnvironment& operator=(const FloatEnvironment&) = delete;

private:
#if defined(__x86_64__)
    unsigned saved_;
#elif defined(__aarch64__)
    // Memory is named so that no load or store, and so no arithmetic between, moves across.
    static void set(uint64_t value) { asm volatile("msr fpcr, %0" ::"r"(value) : "memory"); }

    uint64_t saved_;
#else
    std::fenv_t saved_;
#endif
};

}  // namespace drafthead
