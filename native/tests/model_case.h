// A whole model, read from a file that a test has written: logits, states and taps of every row,
// then a draft of each head.
#pragma once

#include <vector>

#include "tests/record.h"

namespace drafthead::tests {

// chunks: how many rows a pass takes; each runs with 1 and 2 threads, the latter in a float
// environment that another library might have left behind.
void run_model(const char* path, const std::vector<int>& chunks, Record& record);

}  // namespace drafthead::tests
