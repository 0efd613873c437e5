// Named slots that tensors are packed into, each set exactly once with the right size.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "quant/matrix.h"

namespace drafthead {

class WeightSlots {
public:
    void matrix(const std::string& name, Matrix* to, int rows, int columns,
                std::function<int(int)> source_row = nullptr);
    // Row r (or element r) of what is kept is source_row(r) of the file.
    void vector(const std::string& name, Aligned<float>* to, int size,
                std::function<int(int)> source_row = nullptr);

    // Packs on every thread of the pool, which must be free; mapped as in pack_matrix. Throws
    // std::invalid_argument for an unknown, repeated, wrong-sized or unsupported tensor.
    void set(const std::string& name, GgmlType type, int rows, int columns, const uint8_t* data,
             size_t bytes, bool mapped, ThreadPool& pool);
    // Throws std::invalid_argument naming a slot that is still empty.
    void require_all() const;

private:
    struct Slot {
        Matrix* matrix;
        Aligned<float>* vector;
        int rows, columns;
        std::function<int(int)> source_row;
        bool filled;
    };
    std::map<std::string, Slot> slots_;
};

}  // namespace drafthead
