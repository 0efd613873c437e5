#include "models/decoder_layer.h"

#include <algorithm>
#include <cmath>

namespace drafthead {

size_t DecoderLayer::bytes() const {
    size_t total = attention_norm.bytes() + ff_norm.bytes();
    for (const Matrix* m : {&query, &key, &value, &output, &gate, &up, &down}) total += m->bytes();
    return total;
}

void Workspace::resize(int rows, const ModelSpec& spec, int ff_width, int threads, int longest) {
    const auto m = static_cast<size_t>(rows);
    x.grow(m * static_cast<size_t>(spec.width));
    normed.resize(rows, spec.width);
    attended.resize(rows, spec.query_width());
    hidden.resize(rows, ff_width);
    q.grow(m * static_cast<size_t>(spec.query_width()));
    k.grow(m * static_cast<size_t>(spec.kv_width()));
    v.grow(m * static_cast<size_t>(spec.kv_width()));
    gate.grow(m * static_cast<size_t>(ff_width));
    up.grow(m * static_cast<size_t>(ff_width));
    score_stride = (static_cast<size_t>(longest) + 15) / 16 * 16;
    scores.grow(static_cast<size_t>(threads) * max_queries * score_stride);
}

size_t Workspace::bytes() const {
    return x.bytes() + normed.bytes() + attended.bytes() + hidden.bytes() + q.bytes() + k.bytes() +
           v.bytes() + gate.bytes() + up.bytes() + scores.bytes();
}

void project(const Matrix& m, const Rows& rows, float* out, bool accumulate, const Kernels& kernels,
             const Team& team) {
    const auto [begin, end] = team.share(m.tiles());
    kernels.matmul[static_cast<int>(m.format)](m, begin, end, rows, out + begin * tile_rows,
                                               static_cast<size_t>(m.rows), accumulate);
}

void norm_rows(const float* weight, const PassContext& pass, Team& team) {
    const int width = pass.spec.width;
    const auto [begin, end] = team.share(static_cast<int>(pass.rows.size()));
    for (int r = begin; r < end; ++r) {
        pass.kernels.rms_norm(pass.work.x.data() + static_cast<size_t>(r) * width, weight, width,
                              pass.spec.rms_eps, pass.work.normed.row(r));
        pass.work.normed.quantize(pass.kernels, r, 0, width);
    }
    team.barrier();
}

namespace {

// Turns queries by their position and scales them; stores keys and values in the cache.
void place_heads(bool writes_cache, int kv_layer, const PassContext& pass, Team& team) {
    const ModelSpec& s = pass.spec;
    const int half = s.head_dim / 2;
    const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    const int per_row = s.heads + (writes_cache ? s.kv_heads : 0);
    const auto [begin, end] = team.share(static_cast<int>(pass.rows.size()) * per_row);
    alignas(64) uint16_t cell[max_head_dim];
    for (int item = begin; item < end; ++item) {
        const int r = item / per_row;
        const int head = item % per_row;
        const RowPlace& row = pass.rows[static_cast<size_t>(r)];
        const float* cosines = pass.rope.cosines(row.position);
        const float* sines = pass.rope.sines(row.position);
        if (head < s.heads) {
            float* q = pass.work.q.data() + static_cast<size_t>(r) * s.query_width();
            pass.kernels.rope(q + head * s.head_dim, cosines, sines, half, scale);
            continue;
        }
        const int kv_head = head - s.heads;
        const size_t at =
            static_cast<size_t>(r) * s.kv_width() + static_cast<size_t>(kv_head) * s.head_dim;
        pass.kernels.rope(pass.work.k.data() + at, cosines, sines, half, 1.0f);
        pass.kernels.to_half(pass.work.k.data() + at, s.head_dim, cell);
        row.cache->store_key(kv_layer, kv_head, row.position, cell);
        pass.kernels.to_half(
            pass.work.v.data() + at, s.head_dim,
            row.cache->values(kv_layer, kv_head) + static_cast<size_t>(row.position) * s.head_dim);
    }
    team.barrier();
}

// Queries in the order (key-value head, row, head of the group), so that neighbours share keys.
void attend_rows(int kv_layer, const PassContext& pass, Team& team) {
    const ModelSpec& s = pass.spec;
    const int rows = static_cast<int>(pass.rows.size());
    const int per_kv_head = rows * s.group();
    const auto [begin, end] = team.share(per_kv_head * s.kv_heads);
    float* scores = pass.work.scores.data() +
                    static_cast<size_t>(team.index) * max_queries * pass.work.score_stride;
    for (int item = begin; item < end;) {
        const int kv_head = item / per_kv_head;
        KvCache* cache = pass.rows[static_cast<size_t>(item % per_kv_head / s.group())].cache;
        Attention a{cache->keys(kv_layer, kv_head),
                    cache->values(kv_layer, kv_head),
                    s.head_dim,
                    0,
                    {},
                    {},
                    {},
                    scores,
                    pass.work.score_stride};
        int first_row[max_queries], column[max_queries];
        for (; item < end && a.queries < max_queries && item / per_kv_head == kv_head; ++item) {
            const int r = item % per_kv_head / s.group();
            const RowPlace& row = pass.rows[static_cast<size_t>(r)];
            if (row.cache != cache) break;
            const int head = kv_head * s.group() + item % s.group();
            const int i = a.queries++;
            first_row[i] = r;
            column[i] = head * s.head_dim;
            a.query[i] = pass.work.q.data() + static_cast<size_t>(r) * s.query_width() + column[i];
            a.out[i] = pass.work.attended.row(r) + column[i];
            a.lengths[i] = row.visible;
        }
        pass.kernels.attend(a);
        for (int i = 0; i < a.queries; ++i) {
            pass.work.attended.quantize(pass.kernels, first_row[i], column[i], s.head_dim);
        }
    }
    team.barrier();
}

// hidden = silu(gate) * up with its int8 form, in pieces of 32 columns.
void activate(int ff_width, const PassContext& pass, Team& team) {
    const int pieces = ff_width / block_k;
    const auto [begin, end] = team.share(static_cast<int>(pass.rows.size()) * pieces);
    for (int item = begin; item < end;) {
        const int r = item / pieces;
        const int first = item % pieces;
        const int count = std::min(end - item, pieces - first);
        const size_t at = static_cast<size_t>(r) * ff_width + static_cast<size_t>(first) * block_k;
        pass.kernels.swiglu(pass.work.gate.data() + at, pass.work.up.data() + at, count * block_k,
                            pass.work.hidden.row(r) + first * block_k);
        pass.work.hidden.quantize(pass.kernels, r, first * block_k, count * block_k);
        item += count;
    }
    team.barrier();
}

}  // namespace

void run_layer(const DecoderLayer& layer, int kv_layer, const PassContext& pass, Team& team) {
    Workspace& w = pass.work;
    const bool writes_cache = layer.key.rows > 0;

    norm_rows(layer.attention_norm.data(), pass, team);
    project(layer.query, w.normed.view(), w.q.data(), false, pass.kernels, team);
    if (writes_cache) {
        project(layer.key, w.normed.view(), w.k.data(), false, pass.kernels, team);
        project(layer.value, w.normed.view(), w.v.data(), false, pass.kernels, team);
    }
    team.barrier();
    place_heads(writes_cache, kv_layer, pass, team);
    attend_rows(kv_layer, pass, team);
    project(layer.output, w.attended.view(), w.x.data(), true, pass.kernels, team);
    team.barrier();

    norm_rows(layer.ff_norm.data(), pass, team);
    project(layer.gate, w.normed.view(), w.gate.data(), false, pass.kernels, team);
    project(layer.up, w.normed.view(), w.up.data(), false, pass.kernels, team);
    team.barrier();
    activate(layer.gate.rows, pass, team);
    project(layer.down, w.hidden.view(), w.x.data(), true, pass.kernels, team);
    team.barrier();
}

}  // namespace drafthead
