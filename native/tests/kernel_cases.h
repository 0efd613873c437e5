// Every kernel of the table on inputs that this program makes itself.
#pragma once

#include <vector>

#include "ops/kernels.h"
#include "tests/record.h"

namespace drafthead::tests {

// Runs the kernels of one instruction set; matmul for each of the GGUF weight types given.
void run_kernels(const Kernels& kernels, const std::vector<GgmlType>& types, Record& record);

}  // namespace drafthead::tests
