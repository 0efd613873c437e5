#include "simd/scalar.h"

#include "ops/table.h"

namespace drafthead {

const Kernels* scalar_kernels() { return ops::table<simd::Scalar>(); }

}  // namespace drafthead
