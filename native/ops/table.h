// Fills the kernel table for one instruction set.
#pragma once

#include "ops/attention.h"
#include "ops/kernels.h"
#include "ops/matmul.h"
#include "ops/rows.h"

namespace drafthead::ops {

template <class S>
const Kernels* table() {
    static const Kernels kernels = {
        S::name,
        {matmul<S, Format::u4m>, matmul<S, Format::s8>, matmul<S, Format::f16>,
         matmul<S, Format::f32>},
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
    };
    return &kernels;
}

}  // namespace drafthead::ops
