"""The native head's formulas in float64, and heads of random weights to hold against them."""

from __future__ import annotations

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from drafthead import _native
from drafthead.backbone.handle import Backbone, Segment
from tests.own_head import native_head
from tests.reference import softcap
from tests.tiny import TinySpec

SPEC = TinySpec()
D, FF, QUERY = SPEC.width, 128, SPEC.heads * SPEC.head_dim
DRAFT_IDS = np.concatenate([np.arange(16 * t, 16 * t + 16) for t in (0, 2, 3, 7, 16)])
KV_LAYERS = [1, 0]
TOKENS = [int(t) for t in np.random.default_rng(11).integers(0, 272, 90)]


def head_weights(
    seed: int = 2,
    kv_layers: list[int] = KV_LAYERS,
    markov_rank: int = 0,
    taps: int = 0,
    positions: int = 1,
    words: int = len(DRAFT_IDS),
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, 1.5 / np.sqrt(columns), (rows, columns)).astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + 0.1 * rng.normal(size=D)).astype(np.float32)

    weights = {
        "embedding_norm.weight": norm(),
        "hidden_norm.weight": norm(),
        "pre_projection.weight": matrix(D, (2 + taps) * D),
        "model.norm.weight": norm(),
    }
    for i, read in enumerate(kv_layers):
        at = f"model.layers.{i}."
        weights |= {
            at + "input_layernorm.weight": norm(),
            at + "pre_feedforward_layernorm.weight": norm(),
            at + "self_attn.q_proj.weight": matrix(QUERY, D),
            at + "self_attn.o_proj.weight": matrix(D, QUERY),
            at + "mlp.gate_proj.weight": matrix(FF, D),
            at + "mlp.up_proj.weight": matrix(FF, D),
            at + "mlp.down_proj.weight": matrix(D, FF),
        }
        if read < 0:
            for name in ("input_layernorm", "self_attn.q_proj", "self_attn.o_proj"):
                del weights[f"{at}{name}.weight"]
    weights |= {f"tap_norms.{i}.weight": norm() for i in range(taps)}
    weights |= {f"position_embeddings.{i}": norm() - 1 for i in range(positions - 1)}
    for name in ("previous", "next") if markov_rank else ():
        weights[f"markov.{name}.weight"] = 4 * matrix(words, markov_rank)
    return weights


def build(
    backbone: Backbone,
    weights: dict[str, np.ndarray],
    ids: np.ndarray = DRAFT_IDS,
    kv_layers: list[int] = KV_LAYERS,
    **variant: int,
) -> _native.MtpHead:
    return native_head(backbone, FF, kv_layers, ids, weights, **variant)


def prefilled(backbone: Backbone, tokens: list[int]):
    cache = backbone.new_cache(SPEC.context)
    result = backbone.forward([Segment(cache, tokens)], rows="last")
    return cache, result.hidden[-1], int(result.tokens[-1])


def reference_attention(w, at, backbone, cache, layer, x):
    """What a head layer's attention adds to the residual stream, in float64."""
    n, spec, half = cache.length, backbone.spec, SPEC.head_dim // 2
    q = (w[at + "self_attn.q_proj.weight"] @ rms_norm(x, w[at + "input_layernorm.weight"])).reshape(
        SPEC.heads, SPEC.head_dim
    )
    window, rope = spec.layers[layer]
    angle = 0 * np.arange(half)
    if rope >= 0:
        base, scale = spec.ropes[rope]
        angle = n * scale * base ** (-2 * np.arange(half) / SPEC.head_dim)
    a, b = q[:, :half], q[:, half:]
    q = np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], 1
    )
    seen = np.arange(max(0, n + 1 - window) if window else 0, n) % cache.cells(layer)
    blocks = cache.key_view(layer).astype(np.float64)
    k = blocks.transpose(0, 1, 3, 2).reshape(SPEC.kv_heads, -1, SPEC.head_dim)[:, seen]
    v = cache.value_view(layer).astype(np.float64)[:, seen]
    out = []
    for h in range(SPEC.heads):
        kv = h // (SPEC.heads // SPEC.kv_heads)
        s = softcap(k[kv] @ q[h] * spec.attention_scale, spec.attention_softcap)
        p = np.exp(s - s.max())
        out.append(p @ v[kv] / p.sum())
    return w[at + "self_attn.o_proj.weight"] @ np.concatenate(out)


def rms_norm(x, weight):
    return x / np.sqrt((x**2).mean() + SPEC.eps) * weight


def reference_state(w, backbone, cache, joined, kv_layers):
    """The head's state from what its projection takes."""
    x = w["pre_projection.weight"] @ np.concatenate(joined)
    for i, layer in enumerate(kv_layers):
        at = f"model.layers.{i}."
        if layer >= 0:
            x = x + reference_attention(w, at, backbone, cache, layer, x)
        y = rms_norm(x, w[at + "pre_feedforward_layernorm.weight"])
        gate = w[at + "mlp.gate_proj.weight"] @ y
        hidden_ff = gate / (1 + np.exp(-gate)) * (w[at + "mlp.up_proj.weight"] @ y)
        x = x + w[at + "mlp.down_proj.weight"] @ hidden_ff
    return rms_norm(x, w["model.norm.weight"])


def reference_steps(
    backbone, weights, cache, token, hidden, steps, kv_layers=KV_LAYERS, positions=1
):
    """The head's formulas in float64, with Q8_0 weights and no rounding of activations."""
    w = {
        name: v.astype(np.float64)
        if v.ndim == 1
        else gguf.dequantize(gguf.quantize(v, Type.Q8_0), Type.Q8_0).reshape(v.shape)
        for name, v in weights.items()
    }
    rows = backbone.native.output_rows(DRAFT_IDS.astype(np.int32)).astype(np.float64)
    hidden = hidden.astype(np.float64)
    states = hidden.reshape(-1, D)
    taps = [rms_norm(x, w[f"tap_norms.{i}.weight"]) for i, x in enumerate(states[1:])]
    state, first, tokens, confidences = states[0], token, [], []
    for step in range(steps):
        newest = first if positions > 1 else token
        embedded = backbone.native.embed(np.array([newest], np.int32))[0].astype(np.float64)
        embedded = rms_norm(embedded, w["embedding_norm.weight"])
        if positions > 1 and step:
            state, embedded = states[0], embedded + w[f"position_embeddings.{step - 1}"]
        joined = [embedded, rms_norm(state, w["hidden_norm.weight"]), *taps]
        state = reference_state(w, backbone, cache, joined, kv_layers)
        logits = rows @ state
        if "markov.next.weight" in w and token in DRAFT_IDS:
            place = DRAFT_IDS.tolist().index(token)
            logits += w["markov.next.weight"] @ w["markov.previous.weight"][place]
        logits = softcap(logits, backbone.spec.final_softcap)
        p = np.exp(logits - logits.max())
        tokens.append(int(DRAFT_IDS[logits.argmax()]))
        confidences.append(p.max() / p.sum())
        token = tokens[-1]
    return tokens, confidences
