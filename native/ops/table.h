// Fills the kernel table for one instruction set.
#pragma once

#include "ops/attention.h"
#include "ops/kernels.h"
#include "ops/matmul.h"
#include "ops/probe.h"
#include "ops/rows.h"

namespace drafthead::ops {

template <class S>
const Kernels* table() {
    static const Kernels kernels = {
        S::name,
        {matmul<S, Format::q4_0>, matmul<S, Format::q4_1>, matmul<S, Format::q5_0>,
         matmul<S, Format::q5_1>, matmul<S, Format::q8_0>, matmul<S, Format::iq4_nl>,
         matmul<S, Format::q4_k>, matmul<S, Format::q5_k>, matmul<S, Format::iq4_xs>,
         matmul<S, Format::q2_k>, matmul<S, Format::q3_k>, matmul<S, Format::q6_k>,
         matmul<S, Format::f16>, matmul<S, Format::bf16>, matmul<S, Format::f32>},
        rms_norm<S>,
        quantize<S>,
        rope<S>,
        to_half<S>,
        {attend<S, uint16_t>, attend<S, float>},
        swiglu<S>,
        geglu<S>,
        softcap_row<S>,
        argmax<S>,
        sum_exp<S>,
        dot_rounds<S>,
        read_lines<S>,
    };
    return &kernels;
}

}  // namespace drafthead::ops
