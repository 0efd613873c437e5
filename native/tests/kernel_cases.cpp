#include "tests/kernel_cases.h"

#include <algorithm>
#include <limits>

#include "models/activations.h"
#include "simd/half.h"
#include "tests/random.h"

namespace drafthead::tests {

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

bool is_float(GgmlType type) { return type == GgmlType::f32 || type == GgmlType::f16; }

// Bytes of one row as a file might hold them. Quantised types take any bytes that stand for finite
// weights, so every field of a block takes every value; float types take moderate numbers.
std::vector<uint8_t> weight_row(GgmlType type, int columns, Random& random) {
    std::vector<uint8_t> bytes(ggml_row_bytes(type, columns));
    std::vector<float> values(static_cast<size_t>(columns));
    const auto size = bytes.size() / values.size();
    do {
        for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(random.bits());
        for (size_t k = 0; is_float(type) && k < values.size(); ++k) {
            const float value = random.number(2.0f);
            const uint16_t half = float_to_half(value);
            const void* from = size == 4 ? static_cast<const void*>(&value) : &half;
            std::memcpy(bytes.data() + k * size, from, size);
        }
        const Matrix row = pack_matrix(type, 1, columns, bytes.data(), [](int r) { return r; });
        dequantize_row(row, 0, values.data());
    } while (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }));
    return bytes;
}

// Rows of every kind: ordinary ones, zero blocks, a NaN, an infinity, very large and very small.
void fill_activations(const Kernels& kernels, int rows, int columns, Random& random,
                      Activations& activations) {
    activations.resize(rows, columns);
    for (int r = 0; r < rows; ++r) {
        float* x = activations.row(r);
        const float size = r == 5 ? 1e30f : r == 6 ? 1e-30f : 3.0f;
        for (int k = 0; k < columns; ++k) x[k] = random.number(size);
        if (r == 2) std::fill_n(x, block_k, 0.0f);
        if (r == 7) x[random.below(columns)] = nan_value;
        if (r == 8) x[random.below(columns)] = infinity;
        activations.quantize(kernels, r, 0, columns);
    }
}

void run_matmul(const Kernels& kernels, GgmlType type, Record& record) {
    constexpr int outputs = 40, columns = 512, most_rows = 9;
    const std::string name = "matmul." + std::to_string(static_cast<int>(type));
    Random random(name);
    std::vector<uint8_t> data;
    for (int r = 0; r < outputs; ++r) {
        const auto row = weight_row(type, columns, random);
        data.insert(data.end(), row.begin(), row.end());
    }
    const Matrix m = pack_matrix(type, outputs, columns, data.data(), [](int r) { return r; });
    Activations activations;
    fill_activations(kernels, most_rows, columns, random, activations);
    const auto stride = static_cast<size_t>(m.tiles()) * tile_rows;
    for (int rows = 1; rows <= most_rows; ++rows) {
        std::vector<float> out = random.numbers(static_cast<size_t>(rows) * stride, 1.0f);
        Rows view = activations.view();
        view.rows = rows;
        // The last tile is a call of its own and adds to what is there.
        const auto matmul = kernels.matmul[static_cast<int>(m.format)];
        matmul(m, 0, m.tiles() - 1, view, out.data(), stride, false);
        matmul(m, m.tiles() - 1, m.tiles(), view, out.data() + stride - tile_rows, stride, true);
        record.add(name + "." + std::to_string(rows), out.data(), out.size());
    }
}

void run_rms_norm(const Kernels& kernels, Record& record) {
    constexpr int n = 176, rows = 8;
    Random random("rms_norm");
    const std::vector<float> weight = random.numbers(n, 2.0f);
    std::vector<float> out(n * rows);
    for (int r = 0; r < rows; ++r) {
        constexpr float sizes[rows] = {1.0f, 100.0f, 1e-3f, 1e-22f, 1e19f, 3.0f, 3.0f, 0.0f};
        std::vector<float> x = random.numbers(n, sizes[r]);
        if (r == 5) x[31] = nan_value;
        if (r == 6) x[32] = -infinity;
        kernels.rms_norm(x.data(), weight.data(), n, 1e-5f, out.data() + r * n);
    }
    record.add("rms_norm", out.data(), out.size());
}

// Blocks whose largest value is 127, so that the others fall on the ties between two integers.
std::vector<float> tie_blocks() {
    std::vector<float> x;
    for (int i = 0; i < 256; ++i) {
        if (i % (block_k - 1) == 0) x.push_back(i % 2 ? 127.0f : -127.0f);
        x.push_back(static_cast<float>(i) - 127.5f);
    }
    x.resize(x.size() / block_k * block_k);
    return x;
}

void run_quantize(const Kernels& kernels, Record& record) {
    Random random("quantize");
    std::vector<float> x = tie_blocks();
    for (const float size : {0.0f, 1.0f, 1e-3f, 1e30f, 3e38f, 1e-30f, 1e-38f, 1e-40f, 1e-45f}) {
        const auto block = random.numbers(2 * block_k, size);
        x.insert(x.end(), block.begin(), block.end());
    }
    for (int i = 0; i < 4 * block_k; ++i) x.push_back(random.any_finite());
    for (const float special : {nan_value, -nan_value, infinity, -infinity, -0.0f}) {
        for (const int place : {0, 15, 16, 31}) {
            auto block = random.numbers(block_k, 1.0f);
            block[static_cast<size_t>(place)] = special;
            x.insert(x.end(), block.begin(), block.end());
        }
        x.insert(x.end(), block_k, special);
    }
    const size_t blocks = x.size() / block_k;
    std::vector<int8_t> q(x.size());
    std::vector<float> d(blocks), d_sum(blocks);
    std::vector<int32_t> sum(blocks);
    kernels.quantize(x.data(), static_cast<int>(x.size()), q.data(), d.data(), d_sum.data(),
                     sum.data());
    record.add("quantize.q", q.data(), q.size());
    record.add("quantize.d", d.data(), d.size());
    record.add("quantize.d_sum", d_sum.data(), d_sum.size());
    record.add("quantize.sum", sum.data(), sum.size());
}

void run_rope(const Kernels& kernels, Record& record) {
    for (const int half : {16, 48, 128}) {
        const std::string name = "rope." + std::to_string(half);
        Random random(name);
        const auto n = static_cast<size_t>(half);
        std::vector<float> x = random.numbers(2 * n, 5.0f);
        const auto cosines = random.numbers(n, 1.0f);
        const auto sines = random.numbers(n, 1.0f);
        kernels.rope(x.data(), cosines.data(), sines.data(), half, 0.125f);
        record.add(name, x.data(), x.size());
    }
}

// Every half with its neighbours among the floats and the ties between two halves, then NaNs.
void run_to_half(const Kernels& kernels, Record& record) {
    std::vector<float> x;
    for (uint32_t half = 0; half < 65536; half += 3) {
        const float value = half_to_float(static_cast<uint16_t>(half));
        uint32_t word;
        std::memcpy(&word, &value, 4);
        for (const uint32_t step : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffffu}) {
            const uint32_t near = word + step;
            float other;
            std::memcpy(&other, &near, 4);
            x.push_back(other);
        }
    }
    Random random("to_half");
    while (x.size() % 256 != 0) x.push_back(random.any_finite());
    std::vector<uint16_t> out(x.size());
    kernels.to_half(x.data(), static_cast<int>(x.size()), out.data());
    record.add("to_half", out.data(), out.size());
}

void run_attend(const Kernels& kernels, int head_dim, int queries, Record& record) {
    const std::string name = "attend." + std::to_string(head_dim) + "." + std::to_string(queries);
    Random random(name);
    constexpr int cells = 64;
    const size_t size = static_cast<size_t>(cells) * static_cast<size_t>(head_dim);
    std::vector<uint16_t> keys(size), values(size);
    for (uint16_t& key : keys) key = float_to_half(random.number(2.0f));
    // Every half that is finite: subnormals too.
    for (uint16_t& value : values) {
        do value = static_cast<uint16_t>(random.bits());
        while ((value & 0x7c00) == 0x7c00);
    }
    constexpr size_t stride = cells;
    std::vector<float> scores(max_queries * stride), out(max_queries * head_dim);
    const auto query = random.numbers(max_queries * head_dim, 1.0f);
    Attention a{keys.data(), values.data(), head_dim, queries, {}, {}, {}, scores.data(), stride};
    constexpr int lengths[max_queries] = {37, 38, 64, 1};
    for (int i = 0; i < queries; ++i) {
        a.query[i] = query.data() + i * head_dim;
        a.out[i] = out.data() + i * head_dim;
        a.lengths[i] = lengths[(i + queries) % max_queries];
    }
    kernels.attend(a);
    record.add(name, out.data(), out.size());
}

// Gates over the whole range of exp and past both of its ends.
std::vector<float> wide_range(Random& random, size_t count) {
    std::vector<float> x;
    for (size_t i = 0; i < count; ++i) {
        x.push_back(i % 3 == 0 ? random.number(120.0f) : random.number(4.0f));
    }
    return x;
}

void run_swiglu(const Kernels& kernels, Record& record) {
    Random random("swiglu");
    auto gate = wide_range(random, 4096);
    gate[3] = nan_value;
    gate[40] = infinity;
    gate[50] = -infinity;
    const auto up = random.numbers(gate.size(), 3.0f);
    std::vector<float> out(gate.size());
    kernels.swiglu(gate.data(), up.data(), static_cast<int>(gate.size()), out.data());
    record.add("swiglu", out.data(), out.size());
}

void run_scores(const Kernels& kernels, Record& record) {
    Random random("scores");
    std::vector<float> sums, values;
    std::vector<int32_t> indices;
    for (const int n : {1, 5, 15, 16, 17, 31, 256, 250}) {
        for (int kind = 0; kind < 6; ++kind) {
            std::vector<float> x = wide_range(random, 256);
            const auto end = x.begin() + n;
            if (kind == 1) std::fill(x.begin(), end, 2.0f);
            if (kind == 2) std::fill(x.begin(), end, nan_value);
            if (kind == 3) std::fill(x.begin(), end, -infinity);
            if (kind == 4) x[static_cast<size_t>(n / 2)] = nan_value;
            if (kind == 5) x[static_cast<size_t>(n / 2)] = infinity;
            const Best best = kernels.argmax(x.data(), n);
            values.push_back(best.value);
            indices.push_back(best.index);
            sums.push_back(kernels.sum_exp(x.data(), n, kind == 0 ? best.value : 3.25f));
        }
    }
    record.add("argmax.value", values.data(), values.size());
    record.add("argmax.index", indices.data(), indices.size());
    record.add("sum_exp", sums.data(), sums.size());
}

}  // namespace

void run_kernels(const Kernels& kernels, const std::vector<GgmlType>& types, Record& record) {
    for (const GgmlType type : types) run_matmul(kernels, type, record);
    run_rms_norm(kernels, record);
    run_quantize(kernels, record);
    run_rope(kernels, record);
    run_to_half(kernels, record);
    for (const int head_dim : {32, 96, 128}) {
        for (int queries = 1; queries <= max_queries; ++queries) {
            run_attend(kernels, head_dim, queries, record);
        }
    }
    run_swiglu(kernels, record);
    run_scores(kernels, record);
}

}  // namespace drafthead::tests
