// A whole model, read from a file that a test has written: passes of several chunkings and thread
// counts, then a draft.
#pragma once

#include "tests/record.h"

namespace drafthead::tests {

void run_model(const char* path, Record& record);

}  // namespace drafthead::tests
