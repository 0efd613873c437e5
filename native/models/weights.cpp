#include "models/weights.h"

#include <cstring>
#include <stdexcept>

namespace drafthead {

namespace {

std::string shape(int rows, int columns) {
    return std::to_string(rows) + " x " + std::to_string(columns);
}

std::function<int(int)> or_as_they_lie(std::function<int(int)> order) {
    return order ? order : [](int row) { return row; };
}

}  // namespace

void WeightSlots::matrix(const std::string& name, Matrix* to, int rows, int columns,
                         std::function<int(int)> source_row) {
    slots_[name] = {to, nullptr, rows, columns, or_as_they_lie(std::move(source_row)), false};
}

void WeightSlots::vector(const std::string& name, Aligned<float>* to, int size,
                         std::function<int(int)> source_row) {
    slots_[name] = {nullptr, to, 1, size, or_as_they_lie(std::move(source_row)), false};
}

void WeightSlots::set(const std::string& name, GgmlType type, int rows, int columns,
                      const uint8_t* data, size_t bytes, bool mapped, ThreadPool& pool) {
    const auto found = slots_.find(name);
    if (found == slots_.end())
        throw std::invalid_argument("tensor '" + name + "' has no place in this model");
    Slot& slot = found->second;
    if (slot.filled) throw std::invalid_argument("tensor '" + name + "' was given twice");
    if (rows != slot.rows || columns != slot.columns) {
        throw std::invalid_argument("tensor '" + name + "' is " + shape(rows, columns) +
                                    ", expected " + shape(slot.rows, slot.columns));
    }
    const size_t expected = static_cast<size_t>(rows) * ggml_row_bytes(type, columns);
    if (bytes != expected) {
        throw std::invalid_argument("tensor '" + name + "' has " + std::to_string(bytes) +
                                    " bytes, expected " + std::to_string(expected));
    }
    if (slot.matrix != nullptr) {
        *slot.matrix = pack_matrix(type, rows, columns, data, mapped, slot.source_row, pool);
    } else {
        if (type != GgmlType::f32) throw std::invalid_argument("tensor '" + name + "' must be F32");
        slot.vector->reset(static_cast<size_t>(columns));
        for (int i = 0; i < columns; ++i) {
            std::memcpy(slot.vector->data() + i,
                        data + static_cast<size_t>(slot.source_row(i)) * sizeof(float),
                        sizeof(float));
        }
    }
    slot.filled = true;
}

void WeightSlots::require_all() const {
    for (const auto& [name, slot] : slots_) {
        if (!slot.filled) throw std::invalid_argument("tensor '" + name + "' is missing");
    }
}

}  // namespace drafthead
