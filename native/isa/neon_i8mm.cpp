#include "simd/neon.h"

#include "ops/table.h"

namespace drafthead {

const Kernels* neon_i8mm_kernels() { return ops::table<simd::NeonI8mm>(); }

}  // namespace drafthead
