// Chooses the kernel table of an instruction set: the best of this machine at start, or by name.
#pragma once

#include <string>
#include <vector>

#include "ops/kernels.h"

namespace drafthead {

std::vector<std::string> available_isas();  // best first
const Kernels& kernels();                   // the active table
void set_isa(const std::string& name);      // std::invalid_argument where it cannot run here

}  // namespace drafthead
