"""What model a GGUF file holds: numbers from its metadata, checked against its tensor table.

An architecture is data: the metadata keys it reads, those that must be neutral, and its tensors.
A key or tensor that is not listed may change the mathematics, so it is refused by name and never
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

from drafthead.errors import GgufError, UnsupportedError
from drafthead.gguf.file import GgufFile, TensorInfo, quoted
from drafthead.gguf.types import F16, F32, Q4_1, Q8_0, type_name

MATRIX_TYPES = (F32, F16, Q4_1, Q8_0)
NORM_TYPES = (F32,)
COLUMN_MULTIPLE = 32  # activations are quantised in blocks of 32 along a row
HEAD_DIM_MULTIPLE = 32  # a head's output is quantised in blocks of 32
DEFAULT_ROPE_BASE = 10_000.0  # what a file without the key means

Kind = Literal["matrix", "norm"]
Size = Literal["one", "d_model", "d_ff", "query_width", "key_width", "vocab_size"]


class TensorPlan(NamedTuple):
    """A tensor that the model needs: rows of columns elements (a norm is one row)."""

    name: str
    columns: int
    rows: int
    kind: Kind


class _Tensor(NamedTuple):
    name: str
    columns: Size
    rows: Size
    kind: Kind


@dataclass(frozen=True)
class _Architecture:
    """How files of one architecture are read; keys are without the architecture's prefix.

    neutral: keys that would change the mathematics, with the values that do not.
    """

    rope_interleaved: bool
    read: frozenset[str]
    harmless: frozenset[str]
    neutral: Mapping[str, tuple[object, ...]]
    layer: tuple[_Tensor, ...]


_EMBEDDING = _Tensor("token_embd.weight", "d_model", "vocab_size", "matrix")
_OUTPUT_NORM = _Tensor("output_norm.weight", "d_model", "one", "norm")
_OUTPUT = _Tensor("output.weight", "d_model", "vocab_size", "matrix")

ARCHITECTURES: Mapping[str, _Architecture] = {
    "llama": _Architecture(
        rope_interleaved=True,
        read=frozenset(
            {
                "block_count",
                "context_length",
                "embedding_length",
                "feed_forward_length",
                "attention.head_count",
                "attention.head_count_kv",
                "attention.key_length",
                "attention.value_length",
                "attention.layer_norm_rms_epsilon",
                "rope.dimension_count",
                "rope.freq_base",
                "vocab_size",
            }
        ),
        harmless=frozenset({"rope.scaling.original_context_length", "rope.scaling.finetuned"}),
        neutral={
            "rope.scaling.type": ("none",),
            "rope.scaling.factor": (1.0,),
            "rope.scale_linear": (1.0,),
            "attention.sliding_window": (0,),
            "attention.causal": (True,),
            "expert_count": (0,),
            "expert_used_count": (0,),
        },
        layer=(
            _Tensor("attn_norm.weight", "d_model", "one", "norm"),
            _Tensor("attn_q.weight", "d_model", "query_width", "matrix"),
            _Tensor("attn_k.weight", "d_model", "key_width", "matrix"),
            _Tensor("attn_v.weight", "d_model", "key_width", "matrix"),
            _Tensor("attn_output.weight", "query_width", "d_model", "matrix"),
            _Tensor("ffn_norm.weight", "d_model", "one", "norm"),
            _Tensor("ffn_gate.weight", "d_model", "d_ff", "matrix"),
            _Tensor("ffn_up.weight", "d_model", "d_ff", "matrix"),
            _Tensor("ffn_down.weight", "d_ff", "d_model", "matrix"),
        ),
    ),
}


@dataclass(frozen=True)
class ModelSpec:
    """The numbers of a backbone.

    context_length counts positions. rope_interleaved: the q and k rows of the file pair neighbours
    (2i, 2i + 1), not halves (i, i + head_dim / 2). tied_output: the output uses the embedding rows.
    """

    architecture: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    vocab_size: int
    rms_eps: float
    rope_base: float
    rope_interleaved: bool
    context_length: int
    tied_output: bool

    def native(self) -> dict[str, int | float]:
        """Return every number by its name, for the native core; booleans are 0 or 1."""
        numbers = {k: v for k, v in asdict(self).items() if not isinstance(v, str)}
        return {k: int(v) if isinstance(v, bool) else v for k, v in numbers.items()}


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


def tensor_plan(spec: ModelSpec) -> list[TensorPlan]:
    """List the tensors of a model in the order of a forward pass; no output.weight if tied."""
    sizes: dict[Size, int] = {
        "one": 1,
        "d_model": spec.d_model,
        "d_ff": spec.d_ff,
        "query_width": spec.n_heads * spec.head_dim,
        "key_width": spec.n_kv_heads * spec.head_dim,
        "vocab_size": spec.vocab_size,
    }
    tensors = [_EMBEDDING]
    for layer in range(spec.n_layers):
        tensors += [
            t._replace(name=f"blk.{layer}.{t.name}") for t in ARCHITECTURES[spec.architecture].layer
        ]
    tensors += [_OUTPUT_NORM] if spec.tied_output else [_OUTPUT_NORM, _OUTPUT]
    return [TensorPlan(t.name, sizes[t.columns], sizes[t.rows], t.kind) for t in tensors]


def _refuse_unknown_keys(gguf: GgufFile, name: str, architecture: _Architecture) -> None:
    prefix = f"{name}."
    for key, value in gguf.metadata.items():
        if not key.startswith(prefix):
            continue
        bare = key[len(prefix) :]
        if bare in architecture.read or bare in architecture.harmless:
            continue
        neutral = architecture.neutral.get(bare, ())
        if isinstance(value, str | int | float) and value in neutral:
            continue
        expected = f" other than {neutral[0]!r}" if neutral else ""
        raise UnsupportedError(
            f"{gguf.path}: this version does not support {quoted(key)}{expected}, found "
            f"{quoted(value)}."
        )


def _read_numbers(gguf: GgufFile, name: str, architecture: _Architecture) -> ModelSpec:
    def integer(key: str, high: int, default: int | None = None) -> int:
        return gguf.integer(f"{name}.{key}", 1, high, default)

    embedding = gguf.tensors.get(_EMBEDDING.name)
    if embedding is None:
        raise GgufError(f"{gguf.path}: the tensor {_EMBEDDING.name} is missing.")
    d_model = integer("embedding_length", 1 << 16)
    n_heads = integer("attention.head_count", 1 << 10)
    head_dim = integer("attention.key_length", 1 << 9, max(1, d_model // n_heads))
    rows = embedding.shape[1] if len(embedding.shape) > 1 else 1
    return ModelSpec(
        architecture=name,
        n_layers=integer("block_count", 1 << 10),
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=integer("attention.head_count_kv", n_heads, n_heads),
        head_dim=head_dim,
        d_ff=integer("feed_forward_length", 1 << 20),
        vocab_size=integer("vocab_size", 1 << 24, rows),
        rms_eps=gguf.number(f"{name}.attention.layer_norm_rms_epsilon", 1e-12, 1e-2),
        rope_base=gguf.number(f"{name}.rope.freq_base", 1.0, 1e12, DEFAULT_ROPE_BASE),
        rope_interleaved=architecture.rope_interleaved,
        context_length=integer("context_length", 1 << 20),
        tied_output=_OUTPUT.name not in gguf.tensors,
    )


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
    types = MATRIX_TYPES if planned.kind == "matrix" else NORM_TYPES
    if tensor.ggml_type not in types:
        raise UnsupportedError(
            f"{gguf.path}: {tensor.name} is {type_name(tensor.ggml_type)}; this version computes "
            f"{', '.join(map(type_name, types))} there."
        )
