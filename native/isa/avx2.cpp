#include "simd/avx2.h"

#include "ops/table.h"

namespace drafthead {

const Kernels* avx2_kernels() { return ops::table<simd::Avx2>(); }

}  // namespace drafthead
