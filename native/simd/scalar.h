// The vector vocabulary on plain C++: the definition that every other instruction set must equal
// bit for bit. A vector is 16 lanes wide everywhere, whatever the register width.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd/half.h"

namespace drafthead::simd {

struct Scalar {
    static constexpr const char* name = "scalar";
    static constexpr int max_rows = 4;  // rows a matmul kernel keeps in registers

    struct F {
        float lane[16];
    };
    struct I {
        int32_t lane[16];
    };
    struct Bytes {
        uint8_t byte[64];
    };

    template <class Op>
    static F map(Op op) {
        F r;
        for (int i = 0; i < 16; ++i) r.lane[i] = op(i);
        return r;
    }
    template <class Op>
    static I imap(Op op) {
        I r;
        for (int i = 0; i < 16; ++i) r.lane[i] = op(i);
        return r;
    }
    static F set1(float v) {
        return map([&](int) { return v; });
    }
    static F load(const float* p) {
        F r;
        std::memcpy(r.lane, p, sizeof r.lane);
        return r;
    }
    static void store(float* p, const F& v) { std::memcpy(p, v.lane, sizeof v.lane); }
    static F add(const F& a, const F& b) {
        return map([&](int i) { return a.lane[i] + b.lane[i]; });
    }
    static F sub(const F& a, const F& b) {
        return map([&](int i) { return a.lane[i] - b.lane[i]; });
    }
    static F mul(const F& a, const F& b) {
        return map([&](int i) { return a.lane[i] * b.lane[i]; });
    }
    static F div(const F& a, const F& b) {
        return map([&](int i) { return a.lane[i] / b.lane[i]; });
    }
    // a * b + c with one rounding
    static F fma(const F& a, const F& b, const F& c) {
        return map([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
    }
    // a > b ? a : b, so a NaN in a yields b: the rule of the x86 instruction
    static F max(const F& a, const F& b) {
        return map([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static F min(const F& a, const F& b) {
        return map([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static F abs(const F& a) {
        return map([&](int i) { return std::fabs(a.lane[i]); });
    }
    // lanes 0..n-1 of a, the others of b
    static F first(int n, const F& a, const F& b) {
        return map([&](int i) { return i < n ? a.lane[i] : b.lane[i]; });
    }
    static F load_f16(const uint16_t* p) {
        return map([&](int i) { return half_to_float(p[i]); });
    }
    static F load_bf16(const uint16_t* p) {
        return map([&](int i) {
            const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
            float v;
            std::memcpy(&v, &bits, 4);
            return v;
        });
    }
    static void store_f16(uint16_t* p, const F& v) {
        for (int i = 0; i < 16; ++i) p[i] = float_to_half(v.lane[i]);
    }

    // Rounds to nearest even. The argument must be below 2^22 in magnitude.
    static I round(const F& a) {
        I r;
        for (int i = 0; i < 16; ++i) {
            r.lane[i] = static_cast<int32_t>((a.lane[i] + 12582912.0f) - 12582912.0f);
        }
        return r;
    }
    static F to_float(const I& a) {
        return map([&](int i) { return static_cast<float>(a.lane[i]); });
    }
    // 2^n for n in [-126, 127]
    static F exp2i(const I& n) {
        F r;
        for (int i = 0; i < 16; ++i) {
            const uint32_t bits = static_cast<uint32_t>(n.lane[i] + 127) << 23;
            std::memcpy(&r.lane[i], &bits, 4);
        }
        return r;
    }
    static I izero() { return I{}; }
    static I iset1(int32_t v) {
        return imap([&](int) { return v; });
    }
    static I iadd(const I& a, const I& b) {
        return imap([&](int i) { return a.lane[i] + b.lane[i]; });
    }
    static I imul(const I& a, const I& b) {
        return imap([&](int i) { return a.lane[i] * b.lane[i]; });
    }
    template <int n>
    static I shift_left(const I& a) {
        return imap([&](int i) { return a.lane[i] * (1 << n); });
    }
    static I load_i8(const int8_t* p) {
        return imap([&](int i) { return p[i]; });
    }
    // the low and the high nibbles of 16 bytes
    static I load_u4(const uint8_t* p) {
        return imap([&](int i) { return p[i] & 15; });
    }
    static I load_high_u4(const uint8_t* p) {
        return imap([&](int i) { return p[i] >> 4; });
    }
    static void store_i8(int8_t* p, const I& a) {
        for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.lane[i]);
    }
    static int32_t reduce_iadd(const I& a) {
        int32_t s = 0;
        for (int i = 0; i < 16; ++i) s += a.lane[i];
        return s;
    }

    // The canonical tree: lane i with i + 8, then + 4, + 2, + 1.
    static float reduce_add(F a) {
        for (int width = 8; width > 0; width /= 2) {
            for (int i = 0; i < width; ++i) a.lane[i] = a.lane[i] + a.lane[i + width];
        }
        return a.lane[0];
    }
    static float reduce_max(F a) {
        for (int width = 8; width > 0; width /= 2) {
            for (int i = 0; i < width; ++i) {
                a.lane[i] = a.lane[i] > a.lane[i + width] ? a.lane[i] : a.lane[i + width];
            }
        }
        return a.lane[0];
    }

    static Bytes load_bytes(const uint8_t* p) {
        Bytes r;
        std::memcpy(r.byte, p, 64);
        return r;
    }
    // (a >> shift) & mask of every byte; a negative shift goes left
    template <int shift, int mask>
    static Bytes field(const Bytes& a) {
        Bytes r;
        for (int i = 0; i < 64; ++i) {
            const int v = shift >= 0 ? a.byte[i] >> (shift & 7) : a.byte[i] << (-shift & 7);
            r.byte[i] = static_cast<uint8_t>(v & mask);
        }
        return r;
    }
    static Bytes bor(const Bytes& a, const Bytes& b) {
        Bytes r;
        for (int i = 0; i < 64; ++i) r.byte[i] = a.byte[i] | b.byte[i];
        return r;
    }
    // table[index] of every byte; 16 entries
    static Bytes lookup(const uint8_t* table, const Bytes& index) {
        Bytes r;
        for (int i = 0; i < 64; ++i) r.byte[i] = table[index.byte[i]];
        return r;
    }
    // acc[lane] += sum of four weights (unsigned, at most 127) times four activations (int8 at x)
    static I dot_u7(const I& acc, const Bytes& w, const int8_t* x) {
        I r;
        for (int i = 0; i < 16; ++i) {
            int32_t s = acc.lane[i];
            for (int b = 0; b < 4; ++b) s += w.byte[4 * i + b] * x[b];
            r.lane[i] = s;
        }
        return r;
    }
    // The same for 8-bit weights, stored with 128 added. start_w8 is the accumulator that makes the
    // sum come out signed; instruction sets that undo the offset per weight start from zero.
    static I start_w8(int32_t /*minus_sum*/) { return I{}; }
    static I dot_w8(const I& acc, const Bytes& w, const int8_t* x) {
        I r;
        for (int i = 0; i < 16; ++i) {
            int32_t s = acc.lane[i];
            for (int b = 0; b < 4; ++b) s += (w.byte[4 * i + b] - 128) * x[b];
            r.lane[i] = s;
        }
        return r;
    }
};

}  // namespace drafthead::simd
