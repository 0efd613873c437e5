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

const auto as_stored = [](int row) { return row; };

bool all_finite(const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

// Moderate numbers as a float type stores them.
void fill_floats(GgmlType type, Random& random, std::vector<uint8_t>& bytes) {
    const size_t size = type_info(type).bytes;
    for (size_t at = 0; at < bytes.size(); at += size) {
        const float value = random.number(2.0f);
        const uint16_t half = float_to_half(value);
        const auto* word = reinterpret_cast<const uint8_t*>(&value);
        const void* from = type == GgmlType::f32    ? word
                           : type == GgmlType::bf16 ? word + 2  // the upper half
                                                    : static_cast<const void*>(&half);
        std::memcpy(bytes.data() + at, from, size);
    }
}

// One row as a file might hold it. Quantised types take any bytes that stand for finite weights,
// so that every field of a block takes every value.
std::vector<uint8_t> weight_row(GgmlType type, int columns, ThreadPool& pool, Random& random) {
    std::vector<uint8_t> bytes(ggml_row_bytes(type, columns));
    std::vector<float> values(static_cast<size_t>(columns));
    do {
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.bits());
        if (!is_integer(type_info(type).format)) fill_floats(type, random, bytes);
        dequantize_row(pack_matrix(type, 1, columns, bytes.data(), false, as_stored, pool), 0,
                       values.data());
    } while (!all_finite(values));
    return bytes;
}

// Rows of every kind: ordinary ones, zero blocks, a NaN, an infinity, very large and very small.
std::vector<float> activation_rows(int rows, int columns, Random& random) {
    std::vector<float> values;
    for (int r = 0; r < rows; ++r) {
        const float size = r == 5 ? 1e30f : r == 6 ? 1e-30f : 3.0f;
        std::vector<float> x = random.numbers(static_cast<size_t>(columns), size);
        if (r == 2) std::fill_n(x.begin(), block_k, 0.0f);
        if (r == 7) x[static_cast<size_t>(random.below(columns))] = nan_value;
        if (r == 8) x[static_cast<size_t>(random.below(columns))] = infinity;
        values.insert(values.end(), x.begin(), x.end());
    }
    return values;
}

void run_matmul(const Kernels& kernels, GgmlType type, Record& record) {
    constexpr int outputs = 40, columns = 512, most_rows = 9;
    const std::string name = "matmul." + std::to_string(static_cast<int>(type));
    Random random(name);
    ThreadPool pool(1);
    std::vector<uint8_t> data;
    for (int r = 0; r < outputs; ++r) {
        const auto row = weight_row(type, columns, pool, random);
        data.insert(data.end(), row.begin(), row.end());
    }
    const Matrix m = pack_matrix(type, outputs, columns, data.data(), false, as_stored, pool);
    const auto x = activation_rows(most_rows, columns, random);
    const auto stride = static_cast<size_t>(m.tiles()) * tile_rows;
    const auto matmul = kernels.matmul[static_cast<int>(m.format)];
    for (int rows = 1; rows <= most_rows; ++rows) {
        Activations activations;
        activations.resize(rows, columns);
        std::copy_n(x.data(), rows * columns, activations.row(0));
        for (int r = 0; r < rows; ++r) activations.quantize(kernels, r, 0, columns);
        std::vector<float> out = random.numbers(static_cast<size_t>(rows) * stride, 1.0f);
        // The last tile is a call of its own and adds to what is there.
        matmul(m, 0, m.tiles() - 1, activations.view(), out.data(), stride, false);
        matmul(m, m.tiles() - 1, m.tiles(), activations.view(), out.data() + stride - tile_rows,
               stride, true);
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
    std::vector<int32_t> minus_sum(blocks), minus_half(2 * blocks);
    kernels.quantize(x.data(), static_cast<int>(x.size()),
                     {q.data(), d.data(), d_sum.data(), minus_sum.data(), minus_half.data(), 1});
    record.add("quantize.q", q.data(), q.size());
    record.add("quantize.d", d.data(), d.size());
    record.add("quantize.d_sum", d_sum.data(), d_sum.size());
    record.add("quantize.minus_sum", minus_sum.data(), minus_sum.size());
    record.add("quantize.minus_half", minus_half.data(), minus_half.size());
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

// A cell as a cache of either type holds it.
template <class T>
T cell(float value) {
    if constexpr (sizeof(T) == 2) {
        return float_to_half(value);
    } else {
        return value;
    }
}

// Queries with windows of their own over a ring that has wrapped; a soft cap on some.
template <class T>
void run_attend(const Kernels& kernels, KvType type, int head_dim, int queries, Record& record) {
    const std::string name = "attend." + std::to_string(8 * sizeof(T)) + "." +
                             std::to_string(head_dim) + "." + std::to_string(queries);
    Random random(name);
    constexpr int cells = 64;
    constexpr size_t stride = cells + 16;
    std::vector<T> keys(cells * head_dim), values(cells * head_dim);
    for (T& key : keys) key = cell<T>(random.number(2.0f));
    // Down to the subnormal halves.
    for (T& value : values) value = cell<T>(random.number(1.0f) * random.number(1e-4f));
    std::vector<float> scores(max_queries * stride), out(max_queries * head_dim);
    const auto query = random.numbers(max_queries * head_dim, 1.0f);
    Attention a{};
    a.keys = keys.data();
    a.values = values.data();
    a.cells = cells;
    a.head_dim = head_dim;
    a.softcap = queries == 2 ? 3.0f : 0.0f;
    a.scores = scores.data();
    a.score_stride = stride;
    a.queries = queries;
    constexpr int begins[max_queries] = {65, 58, 80, 99}, ends[max_queries] = {117, 118, 119, 100};
    for (int i = 0; i < queries; ++i) {
        a.query[i] = query.data() + i * head_dim;
        a.out[i] = out.data() + i * head_dim;
        a.begin[i] = begins[(i + queries) % max_queries];
        a.end[i] = ends[(i + queries) % max_queries];
    }
    kernels.attend[static_cast<int>(type)](a);
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

void run_gates(const Kernels& kernels, Record& record) {
    Random random("gates");
    auto gate = wide_range(random, 4096);
    gate[3] = nan_value;
    gate[40] = infinity;
    gate[50] = -infinity;
    const auto up = random.numbers(gate.size(), 3.0f);
    const auto n = static_cast<int>(gate.size());
    std::vector<float> out(gate.size());
    kernels.swiglu(gate.data(), up.data(), n, out.data());
    record.add("swiglu", out.data(), out.size());
    kernels.geglu(gate.data(), up.data(), n, out.data());
    record.add("geglu", out.data(), out.size());
    kernels.softcap(30.0f, n, gate.data());
    record.add("softcap", gate.data(), gate.size());
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
            run_attend<uint16_t>(kernels, KvType::f16, head_dim, queries, record);
            run_attend<float>(kernels, KvType::f32, head_dim, queries, record);
        }
    }
    run_gates(kernels, record);
    run_scores(kernels, record);
}

}  // namespace drafthead::tests
