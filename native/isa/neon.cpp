#include "simd/neon.h"

#include "ops/table.h"

namespace drafthead {

const Kernels* neon_kernels() { return ops::table<simd::Neon>(); }

}  // namespace drafthead
