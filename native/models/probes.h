// What this machine and these kernels can do, timed: the limits that a pass is held against.
#pragma once

#include <cstddef>
#include <vector>

#include "quant/matrix.h"
#include "runtime/aligned.h"
#include "runtime/thread_pool.h"

namespace drafthead {

// Multiply-adds a second of the integer dots alone, the best of a few runs: the arithmetic limit of
// a pass.
double integer_peak(int threads);

// Reads memory as a pass reads weights, each thread its own part: the memory's limit of a pass. Its
// threads stay, as those of a backbone do: a new one may share the core of another for a while.
class MemoryReader {
public:
    MemoryReader(size_t bytes, int threads);
    void read();

private:
    ThreadPool pool_;
    Aligned<uint8_t> data_;
};

// Seconds of each of `repeats` products of a matrix with `rows` rows on `threads` threads. Throws
// std::invalid_argument where one of them is below 1.
std::vector<double> time_products(const Matrix& matrix, int rows, int repeats, int threads);

}  // namespace drafthead
