#include "simd/avx512.h"

#include "ops/table.h"

namespace drafthead {

const Kernels* avx512_kernels() { return ops::table<simd::Avx512>(); }

}  // namespace drafthead
