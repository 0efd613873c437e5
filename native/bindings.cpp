// The only file that knows Python: checks shapes, releases the GIL, calls the core.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>

#include "models/backbone.h"
#include "models/mtp_head.h"
#include "models/probes.h"
#include "models/read_spec.h"
#include "runtime/dispatch.h"
#include "runtime/fp_env.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace drafthead {
namespace {

template <class T>
using Vector = nb::ndarray<const T, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T, int N>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<N>>;

template <class T, int N>
Array<T, N> owned(T* data, std::initializer_list<size_t> shape) {
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return Array<T, N>(data, shape, owner);
}

template <class T>
T* room(size_t count) {
    return new T[count > 0 ? count : 1]();
}

// What ModelSpec.native() gives.
struct SpecDict {
    const nb::dict& d;

    int integer(const char* key) const { return nb::cast<int>(d[key]); }
    double number(const char* key) const { return nb::cast<double>(d[key]); }
    std::vector<RopeSpec> ropes() const {
        std::vector<RopeSpec> all;
        for (const nb::handle rope : d["ropes"]) {
            all.push_back({nb::cast<double>(rope["base"]), nb::cast<double>(rope["scale"])});
        }
        return all;
    }
    std::vector<LayerSpec> layers() const {
        std::vector<LayerSpec> all;
        for (const nb::handle layer : d["layers"]) {
            all.push_back({nb::cast<int>(layer[0]), nb::cast<int>(layer[1])});
        }
        return all;
    }
};

// Calls read, which takes values from a description; one that is absent or of a wrong type is the
// caller's mistake like any other.
template <class F>
auto described(const F& read) {
    try {
        return read();
    } catch (const std::bad_cast&) {
        throw std::invalid_argument("a value of the model's description has a wrong type");
    } catch (const nb::python_error& error) {
        throw std::invalid_argument(std::string("the model's description is incomplete: ") +
                                    error.what());
    }
}

// A cache keeps its backbone alive; nothing points back. No other backbone can read it.
struct Cache {
    std::shared_ptr<Backbone> backbone;
    std::unique_ptr<KvCache> kv;

    KvCache& of(const Backbone& reader) const {
        if (backbone.get() != &reader) {
            throw std::invalid_argument("the cache was made for another backbone");
        }
        return *kv;
    }
};

void set_tensor(WeightSlots& slots, Backbone& backbone, const std::string& name, int type, int rows,
                int columns, const Vector<uint8_t>& data, bool mapped) {
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(backbone.turn());  // packing takes the pool
    slots.set(name, static_cast<GgmlType>(type), rows, columns, data.data(), data.size(), mapped,
              backbone.pool());
}

nb::tuple forward(Backbone& self, const std::vector<Cache*>& caches, const std::vector<int>& counts,
                  const Vector<int32_t>& tokens, const Vector<int32_t>& outputs, int level,
                  const std::vector<int>& taps) {
    if (caches.size() != counts.size())
        throw std::invalid_argument("caches and counts differ in number");
    if (level < 0 || level > 2) throw std::invalid_argument("level must be 0, 1 or 2");
    std::vector<Segment> segments;
    size_t rows = 0;
    for (size_t i = 0; i < caches.size(); ++i) {
        if (caches[i] == nullptr) throw std::invalid_argument("a segment has no cache");
        segments.push_back({&caches[i]->of(self), counts[i]});
        rows += counts[i] > 0 ? static_cast<size_t>(counts[i]) : 0;
    }
    if (rows != tokens.size()) {
        throw std::invalid_argument("the segments hold " + std::to_string(rows) + " rows, but " +
                                    std::to_string(tokens.size()) + " tokens were given");
    }
    const std::vector<int> wanted(outputs.data(), outputs.data() + outputs.size());
    const size_t r = wanted.size();
    const size_t width = (1 + taps.size()) * static_cast<size_t>(self.spec().width);
    const auto vocabulary = static_cast<size_t>(self.spec().vocabulary);
    auto hidden = owned<float, 2>(room<float>(r * width), {r, width});
    nb::object token_array = nb::none();
    nb::object logit_array = nb::none();
    PassOutputs out{hidden.data(), nullptr, nullptr, taps};
    if (level >= 1) {
        out.tokens = room<int32_t>(r);
        token_array = nb::cast(owned<int32_t, 1>(out.tokens, {r}));
    }
    if (level == 2) {
        out.logits = room<float>(r * vocabulary);
        logit_array = nb::cast(owned<float, 2>(out.logits, {r, vocabulary}));
    }
    {
        const nb::gil_scoped_release release;
        self.forward(segments, tokens.data(), wanted, static_cast<Level>(level), out);
    }
    return nb::make_tuple(nb::cast(hidden), token_array, logit_array);
}

using RowReader = void (Backbone::*)(const int32_t*, int, float*) const;

Array<float, 2> rows_of(const Backbone& self, RowReader read, const Vector<int32_t>& tokens) {
    self.require_finished();
    for (size_t i = 0; i < tokens.size(); ++i) {
        if (tokens.data()[i] < 0 || tokens.data()[i] >= self.spec().vocabulary) {
            throw std::invalid_argument("token " + std::to_string(tokens.data()[i]) +
                                        " is outside the vocabulary");
        }
    }
    const auto width = static_cast<size_t>(self.spec().width);
    auto out = owned<float, 2>(room<float>(tokens.size() * width), {tokens.size(), width});
    const FloatEnvironment environment;
    (self.*read)(tokens.data(), static_cast<int>(tokens.size()), out.data());
    return out;
}

void check_layer(const Cache& cache, int layer) {
    if (layer < 0 || layer >= cache.kv->layers()) {
        throw std::invalid_argument("layer " + std::to_string(layer) + " of a cache with " +
                                    std::to_string(cache.kv->layers()));
    }
}

KvType kv_type(const std::string& name) {
    if (name == "f16") return KvType::f16;
    if (name == "f32") return KvType::f32;
    throw std::invalid_argument("a cache holds f16 or f32, not '" + name + "'");
}

// Half-precision buffers travel as uint16; the Python side views them as float16.
template <int N>
nb::object cells_view(nb::handle_t<Cache> self, void* data, std::initializer_list<size_t> shape) {
    if (nb::cast<Cache&>(self).kv->type() == KvType::f32) {
        return nb::cast(Array<float, N>(static_cast<float*>(data), shape, self));
    }
    return nb::cast(Array<uint16_t, N>(static_cast<uint16_t*>(data), shape, self))
        .attr("view")("float16");
}

nb::object key_view(nb::handle_t<Cache> self, int layer) {
    auto& cache = nb::cast<Cache&>(self);
    check_layer(cache, layer);
    const auto heads = static_cast<size_t>(cache.kv->kv_heads());
    const auto dim = static_cast<size_t>(cache.kv->head_dim());
    const auto blocks = static_cast<size_t>(cache.kv->cells(layer)) / 16;
    return cells_view<4>(self, cache.kv->keys(layer, 0), {heads, blocks, dim, 16});
}

nb::object value_view(nb::handle_t<Cache> self, int layer) {
    auto& cache = nb::cast<Cache&>(self);
    check_layer(cache, layer);
    const auto heads = static_cast<size_t>(cache.kv->kv_heads());
    const auto dim = static_cast<size_t>(cache.kv->head_dim());
    const auto cells = static_cast<size_t>(cache.kv->cells(layer));
    return cells_view<3>(self, cache.kv->values(layer, 0), {heads, cells, dim});
}

nb::tuple draft(MtpHead& self, const Cache& cache, int token, const Vector<float>& hidden,
                int max_tokens, const std::vector<float>& floors,
                const std::vector<std::pair<float, float>>& calibration,
                const std::vector<int>& more) {
    const auto width = static_cast<size_t>(self.backbone().spec().width);
    const size_t expected = (1 + static_cast<size_t>(self.taps())) * width;
    // Another head of the same backbone may have more taps: they come after this head's own.
    if (hidden.size() < expected || hidden.size() % width != 0) {
        throw std::invalid_argument("the hidden state has " + std::to_string(hidden.size()) +
                                    " values, expected " + std::to_string(expected));
    }
    const KvCache& kv = cache.of(self.backbone());
    max_tokens = std::clamp(max_tokens, 0, kv.capacity());  // no longer draft can be verified
    std::vector<int32_t> tokens(static_cast<size_t>(max_tokens));
    std::vector<float> confidences(static_cast<size_t>(max_tokens));
    const DraftEnd end{floors, calibration};
    size_t count;
    {
        const nb::gil_scoped_release release;
        count = static_cast<size_t>(self.draft(kv, token, hidden.data(), max_tokens, end, more,
                                               tokens.data(), confidences.data()));
    }
    auto token_array = owned<int32_t, 1>(room<int32_t>(count), {count});
    auto confidence_array = owned<float, 1>(room<float>(count), {count});
    std::copy_n(tokens.data(), count, token_array.data());
    std::copy_n(confidences.data(), count, confidence_array.data());
    return nb::make_tuple(nb::cast(token_array), nb::cast(confidence_array));
}

// The kernel of a pass on one matrix alone, for measuring it and for holding it against its
// reference.
Array<float, 2> multiply(
    const Matrix& self,
    const nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>& x) {
    const auto rows = static_cast<int>(x.shape(0));
    if (static_cast<int>(x.shape(1)) != self.columns) {
        throw std::invalid_argument("activations have " + std::to_string(x.shape(1)) +
                                    " columns, the matrix has " + std::to_string(self.columns));
    }
    const FloatEnvironment environment;
    Activations activations;
    activations.resize(rows, self.columns);
    for (int r = 0; r < rows; ++r) {
        std::copy_n(x.data() + static_cast<size_t>(r) * self.columns, self.columns,
                    activations.row(r));
        activations.quantize(kernels(), r, 0, self.columns);
    }
    const auto m = static_cast<size_t>(rows);
    const auto stride = static_cast<size_t>(self.tiles()) * tile_rows;
    std::vector<float> padded(m * stride);
    kernels().matmul[static_cast<int>(self.format)](self, 0, self.tiles(), activations.view(),
                                                    padded.data(), stride, false);
    const auto n = static_cast<size_t>(self.rows);
    auto out = owned<float, 2>(room<float>(m * n), {m, n});
    for (size_t r = 0; r < m; ++r) std::copy_n(padded.data() + r * stride, n, out.data() + r * n);
    return out;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "The native core of drafthead: tensor arithmetic and nothing else.";
    m.def("available_isas", &available_isas);
    m.def("active_isa", [] { return std::string(kernels().name); });
    m.def("set_isa", &set_isa, "name"_a);
    m.def("integer_peak", &integer_peak, "threads"_a, nb::call_guard<nb::gil_scoped_release>());

    nb::class_<MemoryReader>(m, "MemoryReader")
        .def(nb::init<size_t, int>(), "nbytes"_a, "threads"_a)
        .def("read", &MemoryReader::read, nb::call_guard<nb::gil_scoped_release>());

    nb::class_<Backbone>(m, "Backbone")
        .def(
            "__init__",
            [](Backbone* self, const nb::dict& spec, int threads) {
                if (threads < 1 || threads > 1024) {
                    throw std::invalid_argument("threads must be between 1 and 1024");
                }
                const ModelSpec described_spec =
                    described([&] { return read_spec(SpecDict{spec}); });
                new (self) Backbone(described_spec, threads);
            },
            "spec"_a, "threads"_a)
        .def(
            "set_tensor",
            [](Backbone& self, const std::string& name, int type, int rows, int columns,
               const Vector<uint8_t>& data, bool mapped) {
                set_tensor(self.slots(), self, name, type, rows, columns, data, mapped);
            },
            "name"_a, "ggml_type"_a, "rows"_a, "columns"_a, "data"_a, "mapped"_a = false)
        .def("finish", &Backbone::finish)
        .def("forward", &forward, "caches"_a, "counts"_a, "tokens"_a.noconvert(),
             "outputs"_a.noconvert(), "level"_a, "taps"_a = std::vector<int>{})
        .def(
            "embed",
            [](const Backbone& self, const Vector<int32_t>& tokens) {
                return rows_of(self, &Backbone::embed, tokens);
            },
            "tokens"_a.noconvert())
        .def(
            "output_rows",
            [](const Backbone& self, const Vector<int32_t>& tokens) {
                return rows_of(self, &Backbone::output_rows, tokens);
            },
            "tokens"_a.noconvert())
        .def_prop_ro("threads", [](Backbone& self) { return self.pool().size(); })
        .def_prop_ro("weight_bytes", &Backbone::weight_bytes)
        .def_prop_ro("pass_bytes", &Backbone::pass_bytes);

    nb::class_<Cache>(m, "KvCache")
        .def(
            "__init__",
            [](Cache* self, std::shared_ptr<Backbone> backbone, int capacity,
               const std::string& dtype) {
                const KvType type = kv_type(dtype);
                const nb::gil_scoped_release release;
                auto kv = backbone->new_cache(capacity, type);
                new (self) Cache{std::move(backbone), std::move(kv)};
            },
            "backbone"_a, "capacity"_a, "dtype"_a = "f16")
        .def_prop_ro("length", [](const Cache& self) { return self.kv->length(); })
        .def_prop_ro("capacity", [](const Cache& self) { return self.kv->capacity(); })
        .def_prop_ro("nbytes", [](const Cache& self) { return self.kv->bytes(); })
        .def_prop_ro("rollback_floor", [](const Cache& self) { return self.kv->rollback_floor(); })
        .def(
            "cells",
            [](const Cache& self, int layer) {
                check_layer(self, layer);
                return self.kv->cells(layer);
            },
            "layer"_a)
        .def(
            "rollback",
            [](Cache& self, int length) {
                // Not during a pass: it has its positions already.
                const nb::gil_scoped_release release;
                const std::lock_guard<std::mutex> lock(self.backbone->turn());
                self.kv->rollback(length);
            },
            "length"_a)
        .def(
            "adopt",
            [](Cache& self, int length, int floor) {
                const nb::gil_scoped_release release;
                const std::lock_guard<std::mutex> lock(self.backbone->turn());
                self.kv->adopt(length, floor);
            },
            "length"_a, "floor"_a)
        .def("key_view", &key_view, "layer"_a)
        .def("value_view", &value_view, "layer"_a);

    nb::class_<Matrix>(m, "Matrix")
        .def(
            "__init__",
            [](Matrix* self, int type, int rows, int columns, const Vector<uint8_t>& data) {
                const auto ggml_type = static_cast<GgmlType>(type);
                if (rows < 1 || columns < 1 ||
                    data.size() != static_cast<size_t>(rows) * ggml_row_bytes(ggml_type, columns)) {
                    throw std::invalid_argument("the data does not hold rows x columns weights");
                }
                ThreadPool pool(1);
                Arena arena;
                new (self) Matrix(pack_matrix(
                    ggml_type, rows, columns, data.data(), false, [](int row) { return row; },
                    arena, pool));
            },
            "ggml_type"_a, "rows"_a, "columns"_a, "data"_a)
        .def("multiply", &multiply, "x"_a)
        .def("time_products", &time_products, "rows"_a, "repeats"_a, "threads"_a,
             nb::call_guard<nb::gil_scoped_release>())
        .def("dequantize",
             [](const Matrix& self) {
                 const auto n = static_cast<size_t>(self.rows);
                 const auto k = static_cast<size_t>(self.columns);
                 auto out = owned<float, 2>(room<float>(n * k), {n, k});
                 const FloatEnvironment environment;
                 for (int r = 0; r < self.rows; ++r) {
                     dequantize_row(self, r, out.data() + static_cast<size_t>(r) * k);
                 }
                 return out;
             })
        .def_prop_ro("nbytes", &Matrix::bytes);

    nb::class_<MtpHead>(m, "MtpHead")
        .def(
            "__init__",
            [](MtpHead* self, std::shared_ptr<Backbone> backbone, const nb::dict& spec,
               const std::vector<int>& kv_layers, const Vector<int32_t>& draft_token_ids) {
                const HeadShape shape = described([&] {
                    const SpecDict of{spec};
                    return HeadShape{of.integer("d_ff"),
                                     kv_layers,
                                     of.integer("attention_bias") != 0,
                                     of.integer("qk_norm") != 0,
                                     of.integer("markov_rank"),
                                     of.integer("taps"),
                                     of.integer("positions"),
                                     of.integer("prompt_tokens") != 0};
                });
                new (self) MtpHead(
                    std::move(backbone), shape,
                    {draft_token_ids.data(), draft_token_ids.data() + draft_token_ids.size()});
            },
            "backbone"_a, "spec"_a, "kv_layers"_a, "draft_token_ids"_a.noconvert())
        .def(
            "set_tensor",
            [](MtpHead& self, const std::string& name, int type, int rows, int columns,
               const Vector<uint8_t>& data) {
                set_tensor(self.slots(), self.backbone(), name, type, rows, columns, data, false);
            },
            "name"_a, "ggml_type"_a, "rows"_a, "columns"_a, "data"_a)
        .def("finish", &MtpHead::finish)
        .def("draft", &draft, "cache"_a, "token"_a, "hidden"_a, "max_tokens"_a, "floors"_a,
             "calibration"_a = std::vector<std::pair<float, float>>{},
             "more_groups"_a = std::vector<int>{})
        .def_prop_ro("prompt_tokens", &MtpHead::prompt_tokens)
        .def_prop_ro("positions", &MtpHead::positions)
        .def_prop_ro("nbytes", &MtpHead::bytes)
        .def_prop_ro("step_bytes", &MtpHead::step_bytes)
        .def(
            "attended_addresses",
            [](const MtpHead& self, const Cache& cache) {
                std::vector<std::pair<uintptr_t, uintptr_t>> addresses;
                const KvCache& kv = cache.of(self.backbone());
                for (const int layer : self.kv_layers()) {
                    if (layer < 0) continue;
                    addresses.emplace_back(reinterpret_cast<uintptr_t>(kv.keys(layer, 0)),
                                           reinterpret_cast<uintptr_t>(kv.values(layer, 0)));
                }
                return addresses;
            },
            "cache"_a);
}

}  // namespace drafthead
