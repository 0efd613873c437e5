// A ModelSpec from whatever holds it by name: a dict of Python, a file of the tests.
#pragma once

#include "models/model_spec.h"

namespace drafthead {

// Source: integer(key), number(key), ropes() and layers(), which throw where something is missing.
template <class Source>
ModelSpec read_spec(const Source& from) {
    const auto flag = [&](const char* key) { return from.integer(key) != 0; };
    const auto number = [&](const char* key) { return static_cast<float>(from.number(key)); };
    ModelSpec s;
    s.layers = from.integer("n_layers");
    s.width = from.integer("d_model");
    s.heads = from.integer("n_heads");
    s.kv_heads = from.integer("n_kv_heads");
    s.head_dim = from.integer("head_dim");
    s.ff_width = from.integer("d_ff");
    s.vocabulary = from.integer("vocab_size");
    s.context = from.integer("context_length");
    s.rms_eps = number("rms_eps");
    s.tied = flag("tied_output");
    s.rope_interleaved = flag("rope_interleaved");
    s.rope_factors = flag("rope_factors");
    s.gelu = flag("gelu");
    s.qkv_bias = flag("qkv_bias");
    s.qk_norm = flag("qk_norm");
    s.post_norms = flag("post_norms");
    s.embedding_scale = number("embedding_scale");
    s.attention_scale = number("attention_scale");
    s.attention_softcap = number("attention_softcap");
    s.final_softcap = number("final_softcap");
    s.ropes = from.ropes();
    s.layer_specs = from.layers();
    return s;
}

}  // namespace drafthead
