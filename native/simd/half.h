// IEEE half precision in integer arithmetic: round to nearest even, subnormals kept, the same bits
// as the F16C instructions.
#pragma once

#include <cstdint>
#include <cstring>

namespace drafthead {

inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31;
    uint32_t mantissa = h & 0x3ff;
    uint32_t bits;
    if (exponent == 31) {  // infinity, or NaN made quiet as the hardware does
        bits = sign | 0x7f800000 | (mantissa << 13) | (mantissa ? 0x400000 : 0);
    } else if (exponent != 0) {
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    } else if (mantissa == 0) {
        bits = sign;
    } else {
        exponent = 113;
        while (!(mantissa & 0x400)) {
            mantissa <<= 1;
            --exponent;
        }
        bits = sign | (exponent << 23) | ((mantissa & 0x3ff) << 13);
    }
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

inline uint16_t float_to_half(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    const uint32_t sign = (bits >> 16) & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {  // NaN: quiet, upper mantissa bits kept
        return static_cast<uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
    }
    if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
    if (magnitude < 0x33000000) return static_cast<uint16_t>(sign);  // below half of the smallest
    const uint32_t exponent = magnitude >> 23;
    uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    const uint32_t shift = exponent >= 113 ? 13 : 126 - exponent;
    uint32_t half = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1);
    const uint32_t middle = 1u << (shift - 1);
    if (rest > middle || (rest == middle && (half & 1))) ++half;
    if (exponent >= 113) half += (exponent - 113) << 10;  // the implicit bit adds the last one
    return static_cast<uint16_t>(sign | half);
}

}  // namespace drafthead
