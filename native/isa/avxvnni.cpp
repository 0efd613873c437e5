#include "simd/vnni256.h"

#include "ops/table.h"

namespace drafthead {

const Kernels* avxvnni_kernels() { return ops::table<simd::Vnni256<true>>(); }

}  // namespace drafthead
