#include "models/probes.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "models/activations.h"
#include "ops/probe.h"
#include "runtime/dispatch.h"

namespace drafthead {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double integer_peak(int threads) {
    constexpr int rounds = 1 << 18;
    constexpr int runs = 64;  // a new thread may share the core of another at first
    ThreadPool pool(threads);
    const Kernels& k = kernels();
    double best = 0;
    for (int run = 0; run < runs; ++run) {
        const auto start = std::chrono::steady_clock::now();
        pool.run([&](Team&) { k.dot_rounds(rounds); });
        best =
            std::max(best, double{rounds} * ops::probe_products * threads / seconds_since(start));
    }
    return best;
}

MemoryReader::MemoryReader(size_t bytes, int threads) : pool_(threads), data_(bytes) {
    std::fill_n(data_.data(), bytes, uint8_t{1});  // a page that nobody wrote is no memory
}

void MemoryReader::read() {
    const auto lines = static_cast<int>(data_.size() / 64);
    pool_.run([&](Team& team) {
        const auto [begin, end] = team.share(lines);
        kernels().read_lines(data_.data() + static_cast<size_t>(begin) * 64, end - begin);
    });
}

std::vector<double> time_products(const Matrix& matrix, int rows, int repeats, int threads) {
    if (rows < 1 || repeats < 1 || threads < 1) {
        throw std::invalid_argument("rows, repeats and threads must be at least 1");
    }
    ThreadPool pool(threads);
    Activations x;
    x.resize(rows, matrix.columns);
    for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < matrix.columns; ++i) x.row(r)[i] = static_cast<float>(i % 7 - 3);
        x.quantize(kernels(), r, 0, matrix.columns);
    }
    const auto stride = static_cast<size_t>(matrix.tiles()) * tile_rows;
    Aligned<float> out(static_cast<size_t>(rows) * stride);
    std::vector<double> seconds;
    for (int i = 0; i < repeats; ++i) {
        const auto start = std::chrono::steady_clock::now();
        pool.run([&](Team& team) {
            const auto [begin, end] = team.share(matrix.tiles());
            kernels().matmul[static_cast<int>(matrix.format)](
                matrix, begin, end, x.view(), out.data() + static_cast<size_t>(begin) * tile_rows,
                stride, false);
        });
        seconds.push_back(seconds_since(start));
    }
    return seconds;
}

}  // namespace drafthead
