"""What model a GGUF file holds: numbers from its metadata, checked against its tensor table.

An architecture is data (architectures.py). A key or tensor that is not listed there may change the
mathematics, so it is refused by name and never ignored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from drafthead.errors import GgufError, UnsupportedError
from drafthead.gguf import types
from drafthead.gguf.architectures import (
    ARCHITECTURES,
    ATTENTION_SOFTCAP,
    COMMON_KEYS,
    FINAL_SOFTCAP,
    HARMLESS_KEYS,
    NEUTRAL_VALUES,
    Architecture,
)
from drafthead.gguf.file import GgufFile, TensorInfo, quoted
from drafthead.gguf.layers import read_layers
from drafthead.gguf.model import (
    EMBEDDING,
    OUTPUT,
    ROPE_FACTORS,
    ModelSpec,
    TensorPlan,
    tensor_plan,
)
from drafthead.gguf.types import BF16, F16, F32, type_name

__all__ = ["ModelSpec", "TensorPlan", "model_spec", "tensor_plan", "vector_values"]

MATRIX_TYPES = (
    types.F32, types.F16, types.BF16,
    types.Q4_0, types.Q4_1, types.Q5_0, types.Q5_1, types.Q8_0,
    types.Q2_K, types.Q3_K, types.Q4_K, types.Q5_K, types.Q6_K,
    types.IQ4_NL, types.IQ4_XS,
)  # fmt: skip
VECTOR_TYPES = (F32, F16, BF16)
COLUMN_MULTIPLE = 32  # activations are quantised in blocks of 32 along a row
HEAD_DIM_MULTIPLE = 32  # a head's output is quantised in blocks of 32
ROPE_FACTOR_RANGE = (1.0, 1e6)  # they slow turns down: no angle is larger than without them


def model_spec(gguf: GgufFile) -> ModelSpec:
    """Describe the model in a file, after checking its keys and every tensor it needs.

    Raises:
        GgufError: a key or tensor is missing, of a wrong type or shape, or out of range.
        UnsupportedError: an architecture, key, tensor or tensor type this version does not have.
    """
    name = gguf.string("general.architecture")
    if name not in ARCHITECTURES:
        raise UnsupportedError(
            f"{gguf.path} holds the architecture {quoted(name)}; this version runs "
            f"{', '.join(sorted(ARCHITECTURES))}."
        )
    architecture = ARCHITECTURES[name]
    _refuse_unknown_keys(gguf, name, architecture)
    spec = _read_numbers(gguf, name, architecture)
    _check_numbers(gguf, spec)
    _check_tensors(gguf, spec)
    return spec


def vector_values(gguf: GgufFile, name: str) -> NDArray[np.float32]:
    """Return the elements of a vector, of any type of VECTOR_TYPES, as float32."""
    data = gguf.data(name)
    if gguf.tensors[name].ggml_type == BF16:
        return (data.view("<u2").astype("<u4") << 16).view(np.float32)
    dtype = "<f2" if gguf.tensors[name].ggml_type == F16 else "<f4"
    return data.view(dtype).astype(np.float32)


def _refuse_unknown_keys(gguf: GgufFile, name: str, architecture: Architecture) -> None:
    prefix = f"{name}."
    known = COMMON_KEYS | architecture.keys | HARMLESS_KEYS
    for key, value in gguf.metadata.items():
        if not key.startswith(prefix) or key[len(prefix) :] in known:
            continue
        neutral = NEUTRAL_VALUES.get(key[len(prefix) :], ())
        if isinstance(value, str | int | float) and value in neutral:
            continue
        expected = f" other than {neutral[0]!r}" if neutral else ""
        raise UnsupportedError(
            f"{gguf.path}: this version does not support {quoted(key)}{expected}, found "
            f"{quoted(value)}."
        )


def _read_numbers(gguf: GgufFile, name: str, architecture: Architecture) -> ModelSpec:
    def integer(key: str, high: int, default: int | None = None) -> int:
        return gguf.integer(f"{name}.{key}", 1, high, default)

    def softcap(key: str, default: float) -> float:
        return gguf.number(f"{name}.{key}", 0.0, 1e6, default)

    embedding = gguf.tensors.get(EMBEDDING)
    if embedding is None:
        raise GgufError(f"{gguf.path}: the tensor {EMBEDDING} is missing.")
    n_layers = integer("block_count", 1 << 10)
    d_model = integer("embedding_length", 1 << 16)
    n_heads = integer("attention.head_count", 1 << 10)
    head_dim = integer("attention.key_length", 1 << 9, max(1, d_model // n_heads))
    rows = embedding.shape[1] if len(embedding.shape) > 1 else 1
    ropes, layers = read_layers(gguf, name, architecture, n_layers)
    query_size = d_model // n_heads if n_layers == architecture.wide_scale_layers else head_dim
    return ModelSpec(
        architecture=name,
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=integer("attention.head_count_kv", n_heads, n_heads),
        head_dim=head_dim,
        d_ff=integer("feed_forward_length", 1 << 20),
        vocab_size=integer("vocab_size", 1 << 24, rows),
        context_length=integer("context_length", 1 << 20),
        rms_eps=gguf.number(f"{name}.attention.layer_norm_rms_epsilon", 1e-12, 1e-2),
        tied_output=OUTPUT not in gguf.tensors or OUTPUT not in architecture.optional,
        rope_interleaved=architecture.rope_interleaved,
        embedding_scale=_root(d_model) if architecture.embedding_scaled else 1.0,
        attention_scale=float(np.float32(1) / np.float32(_root(max(1, query_size)))),
        gelu=architecture.gelu,
        qkv_bias=architecture.qkv_bias,
        qk_norm=architecture.qk_norm,
        post_norms=architecture.post_norms,
        attention_softcap=softcap(ATTENTION_SOFTCAP, architecture.attention_softcap),
        final_softcap=softcap(FINAL_SOFTCAP, architecture.final_softcap),
        rope_factors=ROPE_FACTORS in gguf.tensors and ROPE_FACTORS in architecture.optional,
        ropes=ropes,
        layers=layers,
    )


def _root(size: int) -> float:
    """Return the square root rounded to float32, as the reference readers have it."""
    return float(np.sqrt(np.float32(size)))


def _check_numbers(gguf: GgufFile, spec: ModelSpec) -> None:
    name = spec.architecture
    if spec.n_heads % spec.n_kv_heads:
        raise GgufError(
            f"{gguf.path}: {name}.attention.head_count must be a multiple of head_count_kv, found "
            f"{spec.n_heads} and {spec.n_kv_heads}."
        )
    for key in ("attention.value_length", "rope.dimension_count"):
        value = gguf.integer(f"{name}.{key}", 1, 1 << 16, spec.head_dim)
        if value != spec.head_dim:
            raise UnsupportedError(
                f"{gguf.path}: this version needs {name}.{key} equal to the {spec.head_dim} "
                f"dimensions of a head, found {value}."
            )
    for what, value, multiple in (
        ("embedding_length", spec.d_model, COLUMN_MULTIPLE),
        ("feed_forward_length", spec.d_ff, COLUMN_MULTIPLE),
        ("attention.head_count times the head dimension", spec.n_heads * spec.head_dim,
         COLUMN_MULTIPLE),
        ("head dimension", spec.head_dim, HEAD_DIM_MULTIPLE),
    ):  # fmt: skip
        if value % multiple:
            raise UnsupportedError(
                f"{gguf.path}: this version needs the {name} {what} in multiples of {multiple}, "
                f"found {value}."
            )
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) != spec.vocab_size:
        raise GgufError(
            f"{gguf.path}: the tokenizer has {len(tokens)} tokens, the model {spec.vocab_size}."
        )


def _check_tensors(gguf: GgufFile, spec: ModelSpec) -> None:
    plan = tensor_plan(spec)
    for planned in plan:
        tensor = gguf.tensors.get(planned.name)
        if tensor is None:
            raise GgufError(
                f"{gguf.path}: the tensor {planned.name} is missing; a {spec.architecture} model "
                f"of {spec.n_layers} layers needs it."
            )
        _check_tensor(gguf, tensor, planned)
    if spec.rope_factors:
        _check_rope_factors(gguf)
    unexpected = gguf.tensors.keys() - {planned.name for planned in plan}
    if unexpected:
        raise UnsupportedError(
            f"{gguf.path}: this version does not know what the {spec.architecture} tensor "
            f"{quoted(min(unexpected))} does."
        )


def _check_tensor(gguf: GgufFile, tensor: TensorInfo, planned: TensorPlan) -> None:
    expected = (planned.columns, planned.rows)
    found = tensor.shape + (1,) * (2 - len(tensor.shape))
    if found != expected:
        raise GgufError(
            f"{gguf.path}: {tensor.name} must have {expected[0]} columns and {expected[1]} rows, "
            f"found the shape {tensor.shape}."
        )
    allowed = MATRIX_TYPES if planned.kind == "matrix" else VECTOR_TYPES
    if tensor.ggml_type not in allowed:
        raise UnsupportedError(
            f"{gguf.path}: {tensor.name} is {type_name(tensor.ggml_type)}; this version computes "
            f"{', '.join(map(type_name, allowed))} there."
        )


def _check_rope_factors(gguf: GgufFile) -> None:
    low, high = ROPE_FACTOR_RANGE
    factors = vector_values(gguf, ROPE_FACTORS)
    if not ((factors >= low) & (factors <= high)).all():  # a NaN is in no range
        raise GgufError(
            f"{gguf.path}: {ROPE_FACTORS} must hold factors from {low:g} to {high:g}, found "
            f"{factors.min():g} to {factors.max():g}."
        )
