#include "simd/vnni256.h"

#include "ops/table.h"

namespace drafthead {

const Kernels* avx512vl_kernels() { return ops::table<simd::Vnni256<false>>(); }

}  // namespace drafthead
