"""A head that is right far more often than chance, without any training.

It is made of the backbone's own layers and reads the same keys and values, so that its first step
is the backbone's pass less the token's own key, and a little of the hidden state, which is noise
to it. What it drafts depends on every cell, on the position and on the state, and most of its first
steps are accepted.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from drafthead import _native
from drafthead.backbone.handle import Backbone
from drafthead.gguf.model import Layer, ModelSpec, Rope
from tests.windowed import SPEC, build, random_weights

WINDOW = 16
MODEL = replace(
    SPEC, n_layers=2, tied_output=False, rope_interleaved=False, embedding_scale=1.0, gelu=False,
    qkv_bias=False, qk_norm=False, post_norms=False, attention_scale=32**-0.5, final_softcap=0.0,
    attention_softcap=0.0, rope_factors=False, ropes=(Rope(1e4, 1.0),),
    layers=(Layer(WINDOW, 0), Layer(0, 0)),
)  # fmt: skip
TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.o_proj": "attn_output",
    "pre_feedforward_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def own_weights(spec: ModelSpec = MODEL, seed: int = 0) -> dict[str, np.ndarray]:
    """Embeddings of size 1, as a head's norm gives them, and queries that tell keys apart.

    With random output rows of their own, answers do not repeat themselves soon.
    """
    weights = random_weights(spec, seed)
    size = np.sqrt((weights["token_embd"].astype(np.float64) ** 2).mean(1, keepdims=True))
    weights["token_embd"] = q8_0((weights["token_embd"] / size).astype(np.float32))
    for i in range(spec.n_layers):
        weights[f"blk.{i}.attn_q"] *= 4
    return weights


def q8_0(values: np.ndarray) -> np.ndarray:
    """The values of a matrix after packing."""
    return gguf.dequantize(gguf.quantize(values, Type.Q8_0), Type.Q8_0).reshape(values.shape)


@lru_cache
def own_model(threads: int = 1) -> Backbone:
    return build(MODEL, own_weights(), threads)


def head_sizes(d_ff: int, **variant: int) -> dict[str, int]:
    """What the core is told of a head's shape: the plain one, but for what is named."""
    plain = {
        "attention_bias": 0,
        "qk_norm": 0,
        "markov_rank": 0,
        "taps": 0,
        "positions": 1,
        "prompt_tokens": 0,
    }
    return {"d_ff": d_ff, **plain, **variant}


def native_head(
    backbone: Backbone,
    d_ff: int,
    kv_layers: list[int],
    ids: np.ndarray,
    weights: dict[str, np.ndarray],
    **variant: int,
) -> _native.MtpHead:
    """A finished head; its matrices become Q8_0."""
    head = _native.MtpHead(
        backbone.native,
        head_sizes(d_ff, **variant),
        kv_layers,
        ids.astype(np.int32),
    )
    for name, values in weights.items():
        kind = Type.F32 if values.ndim == 1 else Type.Q8_0
        data = gguf.quantize(values, kind).view(np.uint8).reshape(-1)
        rows = 1 if values.ndim == 1 else len(values)
        head.set_tensor(name, int(kind), rows, values.shape[-1], data)
    head.finish()
    return head


def own_head(backbone: Backbone, seed: int = 1) -> _native.MtpHead:
    """The head of `own_model`."""
    own, d = own_weights(), MODEL.d_model
    noise = np.random.default_rng(seed).normal(0, 0.02, (d, d))
    weights = {
        "embedding_norm.weight": np.ones(d, np.float32),
        "hidden_norm.weight": np.ones(d, np.float32),
        "pre_projection.weight": np.concatenate([np.eye(d), noise], 1).astype(np.float32),
        "model.norm.weight": own["output_norm"],
    }
    for i in range(MODEL.n_layers):
        for name, of_backbone in TENSORS.items():
            weights[f"model.layers.{i}.{name}.weight"] = own[f"blk.{i}.{of_backbone}"]
    ids, layers = np.arange(MODEL.vocab_size, dtype=np.int32), list(range(MODEL.n_layers))
    return native_head(backbone, MODEL.d_ff, layers, ids, weights)
