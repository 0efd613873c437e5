"""A tiny random llama as a GGUF file."""

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
    tokenizer: dict[str, tuple] | None = None,
) -> dict[str, np.ndarray]:
    """Write the file; returns its weights as a reader dequantises them.

    tokenizer: its keys, each with value, type and the type of an array's elements.
    """
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
    for key, (value, kind, element) in (tokenizer or {}).items():
        writer.add_key_value(key, value, kind, element)
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
