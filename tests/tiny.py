"""A tiny random llama as a GGUF file, and the same model in plain float64 numpy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type


@dataclass(frozen=True)
class TinySpec:
    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ff: int = 96
    vocab: int = 272
    context: int = 640
    eps: float = 1e-5
    rope_base: float = 10000.0
    tied: bool = True

    def with_(self, **changes) -> TinySpec:
        return replace(self, **changes)


# One type a tensor kind, so that a file mixes them as real files do.
MIXED = {
    "token_embd": Type.Q8_0,
    "output": Type.Q8_0,
    "attn_q": Type.Q4_1,
    "attn_k": Type.Q8_0,
    "attn_v": Type.F16,
    "attn_output": Type.Q4_1,
    "ffn_gate": Type.F32,
    "ffn_up": Type.Q4_1,
    "ffn_down": Type.Q8_0,
}
FLOAT = dict.fromkeys(MIXED, Type.F32)


def random_weights(spec: TinySpec, seed: int = 0) -> dict[str, np.ndarray]:
    """(rows, columns) float32 in the file's (interleaved) row order; norms are vectors."""
    rng = np.random.default_rng(seed)
    query, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, 1 / np.sqrt(columns), (rows, columns)).astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + 0.1 * rng.normal(size=spec.width)).astype(np.float32)

    weights = {"token_embd": matrix(spec.vocab, spec.width) * 4, "output_norm": norm()}
    if not spec.tied:
        weights["output"] = matrix(spec.vocab, spec.width)
    for i in range(spec.layers):
        weights |= {
            f"blk.{i}.attn_norm": norm(),
            f"blk.{i}.attn_q": matrix(query, spec.width) * 2,
            f"blk.{i}.attn_k": matrix(kv, spec.width) * 2,
            f"blk.{i}.attn_v": matrix(kv, spec.width),
            f"blk.{i}.attn_output": matrix(spec.width, query),
            f"blk.{i}.ffn_norm": norm(),
            f"blk.{i}.ffn_gate": matrix(spec.ff, spec.width),
            f"blk.{i}.ffn_up": matrix(spec.ff, spec.width),
            f"blk.{i}.ffn_down": matrix(spec.width, spec.ff),
        }
    return weights


def write_tiny_llama(
    path: Path,
    spec: TinySpec | None = None,
    types: dict[str, Type] | None = None,
    weights: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Write the file; returns its weights as a reader dequantises them."""
    spec, types = spec or TinySpec(), types or MIXED
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(spec.layers)
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.width)
    writer.add_feed_forward_length(spec.ff)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.eps)
    writer.add_rope_freq_base(spec.rope_base)
    writer.add_rope_dimension_count(spec.head_dim)
    exact = {}
    for name, values in (weights or random_weights(spec)).items():
        kind = types.get(name.split(".")[-1], Type.F32)
        packed = gguf.quantize(values, kind)
        exact[name] = gguf.dequantize(packed, kind).reshape(values.shape)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return exact


def reference_logits(
    weights: dict[str, np.ndarray], spec: TinySpec, tokens: list[int]
) -> np.ndarray:
    """(M, V) logits in float64, written from the papers' formulas with interleaved rotary pairs.

    Keys and values are rounded to half precision, as the cache holds them.
    """
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    positions = np.arange(len(tokens))

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + spec.eps) * weight

    def rope(x: np.ndarray) -> np.ndarray:  # (M, heads, head_dim)
        i = np.arange(spec.head_dim // 2)
        angle = positions[:, None] * spec.rope_base ** (-2 * i / spec.head_dim)
        turn = np.exp(1j * angle)[:, None, :]
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        out = np.empty_like(x)
        out[..., 0::2], out[..., 1::2] = turned.real, turned.imag
        return out

    x = w["token_embd"][tokens]
    mask = np.where(positions[None, :] > positions[:, None], -np.inf, 0)
    for i in range(spec.layers):
        at = f"blk.{i}."
        y = norm(x, w[at + "attn_norm"])
        q = rope((y @ w[at + "attn_q"].T).reshape(len(tokens), spec.heads, spec.head_dim))
        k = rope((y @ w[at + "attn_k"].T).reshape(len(tokens), spec.kv_heads, spec.head_dim))
        v = (y @ w[at + "attn_v"].T).reshape(len(tokens), spec.kv_heads, spec.head_dim)
        group = spec.heads // spec.kv_heads
        k, v = (np.repeat(x.astype(np.float16).astype(np.float64), group, 1) for x in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(spec.head_dim) + mask
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        attended = np.einsum("hqk,khd->qhd", p, v).reshape(len(tokens), -1)
        x = x + attended @ w[at + "attn_output"].T
        y = norm(x, w[at + "ffn_norm"])
        gate = y @ w[at + "ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w[at + "ffn_up"].T)) @ w[at + "ffn_down"].T
    return norm(x, w["output_norm"]) @ w["token_embd" if spec.tied else "output"].T
