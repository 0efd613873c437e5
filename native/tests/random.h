// Inputs that are the same on every machine: integers from xorshift64* (Vigna, arXiv 1402.6246) and
// floats made from them exactly.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace drafthead::tests {

class Random {
public:
    // Named after the case it serves, so that a case added in front changes no other.
    explicit Random(const std::string& seed) {
        for (const char c : seed) state_ = (state_ ^ static_cast<uint8_t>(c)) * 1099511628211ull;
    }

    uint32_t bits() {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        return static_cast<uint32_t>((state_ * 2685821657736338717ull) >> 32);
    }
    int below(int limit) { return static_cast<int>(bits() % static_cast<uint32_t>(limit)); }
    // In [-size, size], in steps of size / 2^23.
    float number(float size) {
        return (static_cast<float>(bits() >> 8) - 8388608.0f) * (size / 8388608.0f);
    }
    // Any finite float, subnormals included.
    float any_finite() {
        uint32_t word;
        do word = bits();
        while ((word & 0x7f800000) == 0x7f800000);
        float value;
        std::memcpy(&value, &word, 4);
        return value;
    }
    std::vector<float> numbers(size_t count, float size) {
        std::vector<float> values(count);
        for (float& value : values) value = number(size);
        return values;
    }

private:
    uint64_t state_ = 14695981039346656037ull;
};

}  // namespace drafthead::tests
