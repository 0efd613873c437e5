#include "models/decoder_layer.h"

#include <algorithm>
#include <cstdint>

namespace drafthead {

size_t DecoderLayer::bytes() const {
    size_t total = 0;
    for (const Matrix* m : {&query, &key, &value, &output, &gate, &up, &down}) total += m->bytes();
    for (const Aligned<float>* v : {&attention_norm, &ff_norm, &post_attention_norm, &post_ff_norm,
                                    &query_norm, &key_norm, &query_bias, &key_bias, &value_bias}) {
        total += v->bytes();
    }
    return total;
}

void Workspace::resize(int rows, const ModelSpec& spec, int ff_width, int threads, int longest) {
    const auto m = static_cast<size_t>(rows);
    x.grow(m * static_cast<size_t>(spec.width));
    if (spec.post_norms) branch.grow(m * static_cast<size_t>(spec.width));
    normed.resize(static_cast<size_t>(threads));
    const size_t copies = rows <= row_group ? normed.size() : 1;
    for (size_t i = 0; i < copies; ++i) normed[i].resize(rows, spec.width);
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
    size_t own = 0;
    for (const Activations& a : normed) own += a.bytes();
    return own + x.bytes() + branch.bytes() + attended.bytes() + hidden.bytes() + q.bytes() +
           k.bytes() + v.bytes() + gate.bytes() + up.bytes() + scores.bytes();
}

namespace {

void multiply_tiles(const Matrix& m, int begin, int end, const Rows& rows, float* out,
                    bool accumulate, const Kernels& kernels) {
    kernels.matmul[static_cast<int>(m.format)](m, begin, end, rows, out + begin * tile_rows,
                                               static_cast<size_t>(m.rows), accumulate);
}

}  // namespace

void project(const Matrix& m, const Rows& rows, float* out, bool accumulate, const Kernels& kernels,
             const Team& team) {
    const auto [begin, end] = team.share(m.tiles());
    multiply_tiles(m, begin, end, rows, out, accumulate, kernels);
}

namespace {

// to += x, one rounding an element: the same bits from any compiler and instruction set.
void add(const float* x, int n, float* to) {
    for (int i = 0; i < n; ++i) to[i] += x[i];
}

// norm(x) of all rows with its int8 form. Of a few rows each thread makes its own: to read what
// another core has just written costs more than to compute it, and a barrier besides. Of more, a
// thread takes whole groups: rows of a group share cache lines in the int8 form, so two threads on
// two of them would wait for each other at every block.
Rows norm_rows(const float* weight, const PassContext& pass, Team& team) {
    const int rows = static_cast<int>(pass.rows.size());
    const int width = pass.spec.width;
    const int groups = (rows + row_group - 1) / row_group;
    const bool alone = groups == 1;
    Activations& to = pass.work.normed[alone ? static_cast<size_t>(team.index) : 0];
    const auto [begin, end] = alone ? Team::Range{0, 1} : team.share(groups);
    for (int r = begin * row_group; r < std::min(end * row_group, rows); ++r) {
        pass.kernels.rms_norm(pass.work.x.data() + static_cast<size_t>(r) * width, weight, width,
                              pass.spec.rms_eps, to.row(r));
        to.quantize(pass.kernels, r, 0, width);
    }
    if (!alone) team.barrier();
    return to.view();
}

// x += m . rows, or x += norm(m . rows) where the branch has a norm of its own.
void join_branch(const Matrix& m, const Rows& rows, const Aligned<float>& post_norm,
                 const PassContext& pass, Team& team) {
    const bool normed = post_norm.size() > 0;
    Workspace& w = pass.work;
    project(m, rows, normed ? w.branch.data() : w.x.data(), !normed, pass.kernels, team);
    team.barrier();
    if (!normed) return;
    const int width = pass.spec.width;
    const auto [begin, end] = team.share(static_cast<int>(pass.rows.size()));
    for (int r = begin; r < end; ++r) {
        float* branch = w.branch.data() + static_cast<size_t>(r) * width;
        pass.kernels.rms_norm(branch, post_norm.data(), width, pass.spec.rms_eps, branch);
        add(branch, width, w.x.data() + static_cast<size_t>(r) * width);
    }
    team.barrier();
}

// Consecutive rows of a pass: [begin, end).
struct Span {
    int begin, end;
};

// The rows from `begin` on that can be worked off together: in a ring no row may overwrite a cell
// that an earlier one has yet to see.
Span next_span(int begin, int kv_layer, const std::vector<RowPlace>& rows) {
    int end = begin, first_of_cache = begin;
    for (; end < static_cast<int>(rows.size()); ++end) {
        const RowPlace& row = rows[static_cast<size_t>(end)];
        if (row.cache != rows[static_cast<size_t>(first_of_cache)].cache) first_of_cache = end;
        if (end - first_of_cache >= row.cache->rows_at_once(kv_layer)) break;
    }
    return {begin, end};
}

// One head of one row on its way into attention: + bias, norm, turn.
void place_head(float* x, const Aligned<float>& bias, int bias_at, const Aligned<float>& norm,
                Rotary::Angles angles, float scale, const PassContext& pass) {
    const int dim = pass.spec.head_dim;
    if (bias.size() > 0) add(bias.data() + bias_at, dim, x);
    if (norm.size() > 0) pass.kernels.rms_norm(x, norm.data(), dim, pass.spec.rms_eps, x);
    pass.kernels.rope(x, angles.cosines, angles.sines, dim / 2, scale);
}

void store_cell(const RowPlace& row, int kv_layer, int kv_head, const float* key,
                const float* value, const PassContext& pass) {
    if (row.cache->type() == KvType::f32) {
        row.cache->store(kv_layer, kv_head, row.position, key, value);
        return;
    }
    alignas(64) uint16_t key_half[max_head_dim], value_half[max_head_dim];
    pass.kernels.to_half(key, pass.spec.head_dim, key_half);
    pass.kernels.to_half(value, pass.spec.head_dim, value_half);
    row.cache->store(kv_layer, kv_head, row.position, key_half, value_half);
}

// Turns queries by their position and scales them; stores keys and values in the cache.
void place_heads(const DecoderLayer& layer, int kv_layer, Span rows, const PassContext& pass,
                 Team& team) {
    const ModelSpec& s = pass.spec;
    const int rope = s.layer_specs[static_cast<size_t>(kv_layer)].rope;
    // A unit is a query head, or the key and value of a head; a key-value head follows the queries
    // of its group. Neighbouring positions of a key share cache lines, so a unit's rows stay
    // together.
    const bool writes_cache = layer.key.rows > 0;
    const int group_units = s.group() + (writes_cache ? 1 : 0);
    const int count = rows.end - rows.begin;
    const auto [begin, end] = team.share(s.kv_heads * group_units * count);
    for (int item = begin; item < end; ++item) {
        const int r = rows.begin + item % count;
        const int kv_head = item / count / group_units;
        const int unit = item / count % group_units;
        const RowPlace& row = pass.rows[static_cast<size_t>(r)];
        const Rotary::Angles angles = pass.rotary.at(rope, row.position);
        if (unit < s.group()) {
            const int at = (kv_head * s.group() + unit) * s.head_dim;
            float* q = pass.work.q.data() + static_cast<size_t>(r) * s.query_width() + at;
            place_head(q, layer.query_bias, at, layer.query_norm, angles, s.attention_scale, pass);
            continue;
        }
        const int at = kv_head * s.head_dim;
        float* k = pass.work.k.data() + static_cast<size_t>(r) * s.kv_width() + at;
        float* v = pass.work.v.data() + static_cast<size_t>(r) * s.kv_width() + at;
        place_head(k, layer.key_bias, at, layer.key_norm, angles, 1.0f, pass);
        if (layer.value_bias.size() > 0) add(layer.value_bias.data() + at, s.head_dim, v);
        store_cell(row, kv_layer, kv_head, k, v, pass);
    }
    team.barrier();
}

// Attention of items [begin, end) of a span and one key-value head. An item is a row and a query
// head of the group, in the order (row, head), so that neighbours share keys.
void attend_items(int kv_layer, int kv_head, int first_row, int begin, int end,
                  const PassContext& pass, float* scores) {
    const ModelSpec& s = pass.spec;
    for (int item = begin; item < end;) {
        KvCache* cache = pass.rows[static_cast<size_t>(first_row + item / s.group())].cache;
        Attention a{};
        a.keys = cache->keys(kv_layer, kv_head);
        a.values = cache->values(kv_layer, kv_head);
        a.cells = cache->cells(kv_layer);
        a.head_dim = s.head_dim;
        a.softcap = s.attention_softcap;
        a.scores = scores;
        a.score_stride = pass.work.score_stride;
        const int first_item = item;
        for (; item < end && a.queries < max_queries; ++item, ++a.queries) {
            const int r = first_row + item / s.group();
            const RowPlace& row = pass.rows[static_cast<size_t>(r)];
            if (row.cache != cache) break;
            const int column = (kv_head * s.group() + item % s.group()) * s.head_dim;
            a.query[a.queries] =
                pass.work.q.data() + static_cast<size_t>(r) * s.query_width() + column;
            a.out[a.queries] = pass.work.attended.row(r) + column;
            // A head layer has no cell of its own, so a window of one would leave it none.
            a.begin[a.queries] = std::min(cache->first_seen(kv_layer, row.position), row.end - 1);
            a.end[a.queries] = row.end;
        }
        pass.kernels.attend[static_cast<int>(cache->type())](a);
        for (int i = first_item; i < item; ++i) {
            const int column = (kv_head * s.group() + i % s.group()) * s.head_dim;
            pass.work.attended.quantize(pass.kernels, first_row + i / s.group(), column,
                                        s.head_dim);
        }
    }
}

// A few rows are shared out evenly. Of many, later ones see more cells, so each thread takes one
// part from the front and its mirror image from the back.
void attend_rows(int kv_layer, Span rows, const PassContext& pass, Team& team) {
    constexpr int many = 32;
    const ModelSpec& s = pass.spec;
    const int items = (rows.end - rows.begin) * s.group();  // of a key-value head
    float* scores = pass.work.scores.data() +
                    static_cast<size_t>(team.index) * max_queries * pass.work.score_stride;
    if (rows.end - rows.begin < many) {
        const auto [begin, end] = team.share(items * s.kv_heads);
        for (int item = begin; item < end;) {
            const int head = item / items;
            const int stop = std::min(end, (head + 1) * items);
            attend_items(kv_layer, head, rows.begin, item - head * items, stop - head * items, pass,
                         scores);
            item = stop;
        }
    } else {
        const int parts = 2 * team.size;
        for (const int part : {team.index, parts - 1 - team.index}) {
            const auto begin = static_cast<int>(int64_t{items} * part / parts);
            const auto end = static_cast<int>(int64_t{items} * (part + 1) / parts);
            for (int head = 0; head < s.kv_heads; ++head) {
                attend_items(kv_layer, head, rows.begin, begin, end, pass, scores);
            }
        }
    }
    team.barrier();
}

void run_attention(const DecoderLayer& layer, int kv_layer, const PassContext& pass, Team& team) {
    Workspace& w = pass.work;
    const Rows normed = norm_rows(layer.attention_norm.data(), pass, team);
    project(layer.query, normed, w.q.data(), false, pass.kernels, team);
    if (layer.key.rows > 0) {
        project(layer.key, normed, w.k.data(), false, pass.kernels, team);
        project(layer.value, normed, w.v.data(), false, pass.kernels, team);
    }
    team.barrier();
    for (Span rows{0, 0}; rows.end < static_cast<int>(pass.rows.size());) {
        rows = next_span(rows.end, kv_layer, pass.rows);
        place_heads(layer, kv_layer, rows, pass, team);
        attend_rows(kv_layer, rows, pass, team);
    }
    join_branch(layer.output, w.attended.view(), layer.post_attention_norm, pass, team);
}

// hidden = silu(gate . norm(x)) * (up . norm(x)), or with gelu, and its int8 form. A thread gates
// the columns that it has multiplied itself, in pieces of 32, so nobody waits in between.
void gated_products(const DecoderLayer& layer, const PassContext& pass, Team& team) {
    constexpr int tiles = block_k / tile_rows;  // of a piece
    Workspace& w = pass.work;
    const int ff_width = layer.gate.rows;
    const auto [begin, end] = team.share(ff_width / block_k);
    const Rows rows = norm_rows(layer.ff_norm.data(), pass, team);
    multiply_tiles(layer.gate, begin * tiles, end * tiles, rows, w.gate.data(), false,
                   pass.kernels);
    multiply_tiles(layer.up, begin * tiles, end * tiles, rows, w.up.data(), false, pass.kernels);
    const auto gated = pass.spec.gelu ? pass.kernels.geglu : pass.kernels.swiglu;
    const int first = begin * block_k;
    const int count = (end - begin) * block_k;
    for (int r = 0; r < rows.rows; ++r) {
        const size_t at = static_cast<size_t>(r) * ff_width + first;
        gated(w.gate.data() + at, w.up.data() + at, count, w.hidden.row(r) + first);
        w.hidden.quantize(pass.kernels, r, first, count);
    }
    team.barrier();
}

}  // namespace

void run_layer(const DecoderLayer& layer, int kv_layer, const PassContext& pass, Team& team) {
    if (layer.query.rows > 0) run_attention(layer, kv_layer, pass, team);
    gated_products(layer, pass, team);
    join_branch(layer.down, pass.work.hidden.view(), layer.post_ff_norm, pass, team);
}

}  // namespace drafthead
