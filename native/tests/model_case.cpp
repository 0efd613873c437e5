#include "tests/model_case.h"

#include <cfenv>
#include <fstream>
#include <map>
#include <memory>
#include <vector>

#include "models/backbone.h"
#include "models/mtp_head.h"
#include "models/read_spec.h"

namespace drafthead::tests {

namespace {

struct Tensor {
    std::string name;
    int type, rows, columns;
    std::vector<uint8_t> data;
};

// A model as its file tells it, one line an entry:
//
//   number KEY VALUE                         of the specification
//   rope BASE SCALE                          the next rope of it
//   layer WINDOW ROPE                        the next layer of it
//   tensor NAME TYPE ROWS COLUMNS BYTES      then the bytes
//   head NAME D_FF BIAS NORM RANK TAPS POSITIONS PROMPT_TOKENS
//                                            a head; its layers and tensors follow
//   reads KV_LAYER                           the next layer of it, -1 without attention
//   head_tensor NAME TYPE ROWS COLUMNS BYTES then the bytes
//   tokens, draft_tokens, groups, taps BYTES then int32 ids
struct HeadFile {
    std::string name;
    HeadShape shape;
    std::vector<Tensor> tensors;
};

struct ModelFile {
    std::map<std::string, double> numbers;
    std::vector<RopeSpec> rope_list;
    std::vector<LayerSpec> layer_list;
    std::vector<Tensor> tensors;
    std::vector<HeadFile> heads;
    std::map<std::string, std::vector<int32_t>> lists;

    double number(const char* key) const { return numbers.at(key); }
    int integer(const char* key) const { return static_cast<int>(numbers.at(key)); }
    const std::vector<int32_t>& list(const char* key) const { return lists.at(key); }
    const std::vector<RopeSpec>& ropes() const { return rope_list; }
    const std::vector<LayerSpec>& layers() const { return layer_list; }
};

void read_bytes(std::istream& in, void* to, size_t count) {
    in.get();  // the end of the line
    in.read(static_cast<char*>(to), static_cast<std::streamsize>(count));
    if (!in) throw std::runtime_error("the model file is cut short");
}

Tensor read_tensor(std::istream& in) {
    Tensor t;
    size_t bytes = 0;
    in >> t.name >> t.type >> t.rows >> t.columns >> bytes;
    t.data.resize(bytes);
    read_bytes(in, t.data.data(), bytes);
    return t;
}

std::vector<int32_t> read_ids(std::istream& in) {
    size_t bytes = 0;
    in >> bytes;
    std::vector<int32_t> ids(bytes / sizeof(int32_t));
    read_bytes(in, ids.data(), bytes);
    return ids;
}

HeadFile read_head(std::istream& in) {
    HeadFile head;
    HeadShape& s = head.shape;
    in >> head.name >> s.ff_width >> s.query_bias >> s.query_norm >> s.markov_rank >> s.taps >>
        s.positions >> s.prompt_tokens;
    return head;
}

ModelFile read_model(const char* path) {
    std::ifstream in(path, std::ios::binary);
    ModelFile m;
    for (std::string kind; in >> kind;) {
        std::string key;
        if (kind == "number" && in >> key) {
            in >> m.numbers[key];
        } else if (kind == "rope") {
            in >> m.rope_list.emplace_back().base >> m.rope_list.back().scale;
        } else if (kind == "layer") {
            in >> m.layer_list.emplace_back().window >> m.layer_list.back().rope;
        } else if (kind == "tensor") {
            m.tensors.push_back(read_tensor(in));
        } else if (kind == "head_tensor") {
            m.heads.back().tensors.push_back(read_tensor(in));
        } else if (kind == "head") {
            m.heads.push_back(read_head(in));
        } else if (kind == "reads") {
            in >> m.heads.back().shape.kv_layers.emplace_back();
        } else if (kind == "tokens" || kind == "draft_tokens" || kind == "groups" ||
                   kind == "taps") {
            m.lists[kind] = read_ids(in);
        } else {
            throw std::runtime_error("the model file has an unknown entry " + kind);
        }
    }
    return m;
}

void fill(WeightSlots& slots, const std::vector<Tensor>& tensors, ThreadPool& pool) {
    for (const Tensor& t : tensors) {
        slots.set(t.name, static_cast<GgmlType>(t.type), t.rows, t.columns, t.data.data(),
                  t.data.size(), false, pool);
    }
}

// All tokens, `chunk` rows a pass. Returns the hidden state of the last, and its taps.
std::vector<float> run_chunks(Backbone& backbone, KvCache& cache, const ModelFile& m, int chunk,
                              const std::string& name, Record& record) {
    const std::vector<int32_t>& tokens = m.list("tokens");
    const std::vector<int32_t>& taps = m.list("taps");
    const int total = static_cast<int>(tokens.size());
    const size_t width = static_cast<size_t>(backbone.spec().width) * (1 + taps.size());
    const auto vocabulary = static_cast<size_t>(backbone.spec().vocabulary);
    std::vector<float> logits(tokens.size() * vocabulary), hidden(tokens.size() * width);
    std::vector<int32_t> best(tokens.size());
    for (int begin = 0; begin < total; begin += chunk) {
        const int count = std::min(chunk, total - begin);
        std::vector<int> outputs;
        for (int r = 0; r < count; ++r) outputs.push_back(r);
        const auto at = static_cast<size_t>(begin);
        backbone.forward(
            {{&cache, count}}, tokens.data() + begin, outputs, Level::logits,
            {hidden.data() + at * width, best.data() + at, logits.data() + at * vocabulary, taps});
    }
    record.add(name + ".logits", logits.data(), logits.size());
    record.add(name + ".hidden", hidden.data(), hidden.size());
    record.add(name + ".tokens", best.data(), best.size());
    return {hidden.end() - static_cast<std::ptrdiff_t>(width), hidden.end()};
}

void run_draft(const std::shared_ptr<Backbone>& backbone, const KvCache& cache, const ModelFile& m,
               const HeadFile& file, const std::vector<float>& hidden, const std::string& name,
               Record& record) {
    constexpr int steps = 6;
    MtpHead head(backbone, file.shape, m.list("draft_tokens"));
    fill(head.slots(), file.tensors, backbone->pool());
    head.finish();
    std::vector<int32_t> tokens(steps);
    std::vector<float> confidences(steps);
    const auto count = static_cast<size_t>(
        head.draft(cache, m.list("tokens").front(), hidden.data(), steps, {{0.0f}, {}},
                   m.list("groups"), tokens.data(), confidences.data()));
    record.add(name + ".draft", tokens.data(), count);
    record.add(name + ".confidences", confidences.data(), count);
}

// What another library in the process may have left behind: rounding downward, subnormals flushed
// and, on Arm, one NaN for all and the other format of halves.
void spoil_float_environment() {
    std::fesetround(FE_DOWNWARD);
#if defined(__aarch64__)
    uint64_t fpcr;
    asm volatile("mrs %0, fpcr" : "=r"(fpcr));
    fpcr |= uint64_t{7} << 24;  // flush to zero, default NaN, alternative half precision
    asm volatile("msr fpcr, %0" ::"r"(fpcr));
#endif
}

}  // namespace

void run_model(const char* path, const std::vector<int>& chunks, Record& record) {
    const ModelFile m = read_model(path);
    for (const int threads : {1, 2}) {
        const auto backbone = std::make_shared<Backbone>(read_spec(m), threads);
        fill(backbone->slots(), m.tensors, backbone->pool());
        backbone->finish();
        for (const int chunk : chunks) {
            const auto cache =
                backbone->new_cache(static_cast<int>(m.list("tokens").size()), KvType::f16);
            const std::string name =
                "threads" + std::to_string(threads) + ".chunk" + std::to_string(chunk);
            std::fenv_t before;
            std::fegetenv(&before);
            if (threads == 2) spoil_float_environment();
            const auto hidden = run_chunks(*backbone, *cache, m, chunk, name, record);
            for (const HeadFile& head : m.heads) {
                run_draft(backbone, *cache, m, head, hidden, name + "." + head.name, record);
            }
            std::fesetenv(&before);
        }
    }
}

}  // namespace drafthead::tests
