"""A decoder-only transformer in plain float64 numpy, written from the papers' formulas.

Legend: M positions, D hidden size, H heads, G key-value heads, E head size.
"""

from __future__ import annotations

import numpy as np

from drafthead.gguf.model import Layer, ModelSpec


def reference_logits(
    weights: dict[str, np.ndarray], spec: ModelSpec, tokens: list[int], cache: str = "f16"
) -> np.ndarray:
    """(M, V) logits; cache is the type that keys and values are rounded to, f16 or f32.

    weights: by tensor name without `.weight`, rows in the file's order.
    """
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    x = w["token_embd"][tokens] * spec.embedding_scale
    for i, layer in enumerate(spec.layers):
        at = f"blk.{i}."
        y = rms_norm(x, w[at + "attn_norm"], spec)
        out = attention(y, at, w, spec, layer, cache)
        x = x + (rms_norm(out, w[at + "post_attention_norm"], spec) if spec.post_norms else out)
        y = rms_norm(x, w[at + "ffn_norm"], spec)
        gate, up = y @ w[at + "ffn_gate"].T, y @ w[at + "ffn_up"].T
        out = (gelu(gate) if spec.gelu else silu(gate)) * up @ w[at + "ffn_down"].T
        x = x + (rms_norm(out, w[at + "post_ffw_norm"], spec) if spec.post_norms else out)
    x = rms_norm(x, w["output_norm"], spec)
    return softcap(x @ w["token_embd" if spec.tied_output else "output"].T, spec.final_softcap)


def attention(
    y: np.ndarray, at: str, w: dict[str, np.ndarray], spec: ModelSpec, layer: Layer, cache: str
) -> np.ndarray:
    """What attention and its output matrix give for normed rows, (M, D)."""

    def heads(name: str, count: int) -> np.ndarray:
        bias = w[f"{at}attn_{name}.bias"] if spec.qkv_bias else 0.0
        rows = y @ w[f"{at}attn_{name}"].T + bias
        rows = rows.reshape(len(y), count, spec.head_dim)
        if name == "v":
            return rows
        if spec.qk_norm:
            rows = rms_norm(rows, w[f"{at}attn_{name}_norm"], spec)
        return rows if layer.rope < 0 else turn(rows, w, spec, layer.rope)

    q = heads("q", spec.n_heads)
    kept = np.float16 if cache == "f16" else np.float32
    group = spec.n_heads // spec.n_kv_heads
    k, v = (
        np.repeat(heads(name, spec.n_kv_heads).astype(kept).astype(np.float64), group, 1)
        for name in "kv"
    )
    scores = q.transpose(1, 0, 2) @ k.transpose(1, 2, 0) * spec.attention_scale
    scores = softcap(scores, spec.attention_softcap)
    back = np.arange(len(y))[:, None] - np.arange(len(y))
    seen = (back >= 0) & ((back < layer.window) | (layer.window == 0))
    scores = np.where(seen, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    mixed = (p @ v.transpose(1, 0, 2)).transpose(1, 0, 2)
    return mixed.reshape(len(y), -1) @ w[at + "attn_output"].T


def turn(x: np.ndarray, w: dict[str, np.ndarray], spec: ModelSpec, index: int) -> np.ndarray:
    """(M, heads, E) turned by position, in the pairs of the file's row order."""
    rope, half = spec.ropes[index], spec.head_dim // 2
    frequencies = rope.base ** (-np.arange(half) / half)
    if spec.rope_factors and index == 0:
        frequencies /= w["rope_freqs"]
    angles = np.arange(len(x))[:, None, None] * rope.scale * frequencies
    first = slice(0, None, 2) if spec.rope_interleaved else slice(None, half)
    second = slice(1, None, 2) if spec.rope_interleaved else slice(half, None)
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)
    out = np.empty_like(x)
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


def rms_norm(x: np.ndarray, weight: np.ndarray, spec: ModelSpec) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + spec.rms_eps) * weight


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    """The tanh form."""
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softcap(x: np.ndarray, cap: float) -> np.ndarray:
    return cap * np.tanh(x / cap) if cap else x
