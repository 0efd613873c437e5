// The rotary tables of a model: one for each base it uses, as long as its longest cache.
#pragma once

#include <algorithm>
#include <vector>

#include "models/model_spec.h"
#include "ops/rope_table.h"
#include "runtime/thread_pool.h"

namespace drafthead {

class Rotary {
public:
    struct Angles {
        const float* cosines;  // (head_dim / 2)
        const float* sines;
    };

    explicit Rotary(const ModelSpec& spec)
        : ones_(static_cast<size_t>(spec.head_dim / 2)), zeros_(ones_.size()) {
        std::fill_n(ones_.data(), ones_.size(), 1.0f);
        for (const RopeSpec& rope : spec.ropes) {
            tables_.emplace_back(rope.base, rope.scale, spec.head_dim / 2);
        }
    }

    // factors: (head_dim / 2), before the first grow.
    void divide_frequencies(const float* factors) { tables_.front().divide_frequencies(factors); }

    // Makes positions 0 .. positions - 1 ready. Not during a pass: it runs a job of its own.
    void grow(int positions, ThreadPool& pool) {
        for (RopeTable& table : tables_) {
            const int known = table.positions();
            if (positions <= known) continue;
            table.reserve(positions);
            pool.run([&](Team& team) {
                const auto [begin, end] = team.share(table.positions() - known);
                table.fill(known + begin, known + end);
            });
        }
    }

    // rope: an index of the spec's ropes, or -1 for angle zero.
    Angles at(int rope, int position) const {
        if (rope < 0) return {ones_.data(), zeros_.data()};
        const RopeTable& table = tables_[static_cast<size_t>(rope)];
        return {table.cosines(position), table.sines(position)};
    }

private:
    std::vector<RopeTable> tables_;
    Aligned<float> ones_, zeros_;
};

}  // namespace drafthead
