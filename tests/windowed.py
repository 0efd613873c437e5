"""Tiny random models with every choice of the decoder layer, straight into the native core."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from drafthead import _native
from drafthead.backbone.handle import Backbone, KvCache
from drafthead.gguf.model import Layer, ModelSpec, Rope, tensor_plan

SPEC = ModelSpec(
    architecture="tiny", n_layers=3, d_model=64, n_heads=4, n_kv_heads=2, head_dim=32, d_ff=96,
    vocab_size=272, context_length=4096, rms_eps=1e-5, tied_output=True, rope_interleaved=True,
    embedding_scale=8.0, gelu=True, qkv_bias=True, qk_norm=True, post_norms=True,
    attention_scale=0.3, attention_softcap=20.0, final_softcap=15.0, rope_factors=True,
    ropes=(Rope(1e6, 0.5), Rope(1e4, 1.0)), layers=(Layer(16, 1), Layer(0, 0), Layer(16, -1)),
)  # fmt: skip


def with_window(window: int) -> ModelSpec:
    """The model with its two windowed layers of that many cells."""
    return replace(SPEC, layers=(Layer(window, 1), Layer(0, 0), Layer(window, -1)))


def random_weights(spec: ModelSpec, seed: int = 0) -> dict[str, np.ndarray]:
    """By tensor name without `.weight`, in the file's order; what the core is given, exactly."""
    rng = np.random.default_rng(seed)
    weights = {}
    for tensor in tensor_plan(spec):
        values = rng.normal(size=(tensor.rows, tensor.columns)).astype(np.float32)
        if tensor.name == "rope_freqs.weight":
            values = 1 + np.abs(values)
        elif tensor.kind == "vector":
            values = 0.3 * values + (0 if tensor.name.endswith("bias") else 1)
        else:
            values /= np.sqrt(np.float32(tensor.columns))
            values = gguf.dequantize(gguf.quantize(values, Type.Q8_0), Type.Q8_0)
        values = values[0] if tensor.kind == "vector" else values
        weights[tensor.name.removesuffix(".weight")] = values
    return weights


def build(
    spec: ModelSpec, weights: dict[str, np.ndarray], threads: int = 2, kind: Type = Type.Q8_0
) -> Backbone:
    """Pack the weights, matrices as `kind`, in which they must be exact."""
    native = _native.Backbone(spec.native(), threads)
    for tensor in tensor_plan(spec):
        values = weights[tensor.name.removesuffix(".weight")]
        packed = Type.F32 if tensor.kind == "vector" else kind
        data = gguf.quantize(values, packed).view(np.uint8).reshape(-1)
        native.set_tensor(tensor.name, int(packed), tensor.rows, tensor.columns, data)
    native.finish()
    return Backbone(SimpleNamespace(path="tiny.gguf"), spec, native)


def seen_positions(backbone: Backbone, cache: KvCache, layer: int) -> np.ndarray:
    """What the row at the next position sees of a layer."""
    window = backbone.spec.layers[layer].window
    return np.arange(max(0, cache.length + 1 - window) if window else 0, cache.length)


def seen_cells(backbone: Backbone, cache: KvCache) -> list[np.ndarray]:
    """Keys and values of every layer that the next row sees, in ascending position."""
    cells = []
    for layer in range(backbone.spec.n_layers):
        at = seen_positions(backbone, cache, layer) % cache.cells(layer)
        cells.append(cache.key_view(layer)[:, at // 16, :, at % 16])
        cells.append(cache.value_view(layer)[:, at])
    return [np.ascontiguousarray(c).view(np.uint8) for c in cells]


def same_cells(backbone: Backbone, one: KvCache, other: KvCache) -> bool:
    pairs = zip(seen_cells(backbone, one), seen_cells(backbone, other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)
