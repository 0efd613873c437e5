"""The description of a model: its numbers and the tensors they call for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

EMBEDDING, OUTPUT, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"

Kind = Literal["matrix", "vector"]


class Rope(NamedTuple):
    """A rotary turn: position · scale · base^(-2i / head_dim) for pair i."""

    base: float
    scale: float


class Layer(NamedTuple):
    """What a layer attends to.

    window: positions that a query sees, its own included; 0: all.  rope: index of its rotary turn;
    -1: it has none.
    """

    window: int
    rope: int


class TensorPlan(NamedTuple):
    """A tensor that the model needs: rows of columns elements (a vector is one row)."""

    name: str
    columns: int
    rows: int
    kind: Kind


@dataclass(frozen=True)
class ModelSpec:
    """The numbers of a backbone.

    context_length counts positions. rope_interleaved: the q and k rows of the file pair neighbours
    (2i, 2i + 1), not halves (i, i + head_dim / 2). tied_output: the output uses the embedding rows.
    gelu: GELU (tanh form), not SiLU, on the gate. qk_norm: RMS norm of each query and key head
    before its turn. post_norms: RMS norm of what attention and feed-forward give, before they are
    added. A softcap c turns x into c · tanh(x / c); 0 is none. rope_factors: a tensor divides the
    frequencies of ropes[0].
    """

    architecture: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    vocab_size: int
    context_length: int
    rms_eps: float
    tied_output: bool
    rope_interleaved: bool
    embedding_scale: float
    gelu: bool
    qkv_bias: bool
    qk_norm: bool
    post_norms: bool
    attention_scale: float
    attention_softcap: float
    final_softcap: float
    rope_factors: bool
    ropes: tuple[Rope, ...]
    layers: tuple[Layer, ...]

    @property
    def rope_base(self) -> float:
        """Base of the rotary turn of the layers that see every position."""
        return self.ropes[0].base

    def native(self) -> dict[str, Any]:
        """Return what the native core takes: every number by its name, booleans as 0 or 1.

        ropes is a list of dictionaries, layers a list of tuples (window, rope).
        """
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "architecture"}
        values = {k: int(v) if isinstance(v, bool) else v for k, v in values.items()}
        ropes = [rope._asdict() for rope in self.ropes]
        return values | {"ropes": ropes, "layers": [tuple(layer) for layer in self.layers]}


def tensor_plan(spec: ModelSpec) -> list[TensorPlan]:
    """List the tensors of a model; no output.weight if tied."""
    d, head_dim = spec.d_model, spec.head_dim
    query, key = spec.n_heads * head_dim, spec.n_kv_heads * head_dim
    layer = [
        TensorPlan("attn_norm.weight", d, 1, "vector"),
        TensorPlan("attn_q.weight", d, query, "matrix"),
        TensorPlan("attn_k.weight", d, key, "matrix"),
        TensorPlan("attn_v.weight", d, key, "matrix"),
        TensorPlan("attn_output.weight", query, d, "matrix"),
        TensorPlan("ffn_norm.weight", d, 1, "vector"),
        TensorPlan("ffn_gate.weight", d, spec.d_ff, "matrix"),
        TensorPlan("ffn_up.weight", d, spec.d_ff, "matrix"),
        TensorPlan("ffn_down.weight", spec.d_ff, d, "matrix"),
    ]
    if spec.qkv_bias:
        sizes = {"attn_q.bias": query, "attn_k.bias": key, "attn_v.bias": key}
        layer += [TensorPlan(name, size, 1, "vector") for name, size in sizes.items()]
    if spec.qk_norm:
        names = ("attn_q_norm.weight", "attn_k_norm.weight")
        layer += [TensorPlan(name, head_dim, 1, "vector") for name in names]
    if spec.post_norms:
        names = ("post_attention_norm.weight", "post_ffw_norm.weight")
        layer += [TensorPlan(name, d, 1, "vector") for name in names]
    plan = [TensorPlan(EMBEDDING, d, spec.vocab_size, "matrix")]
    if spec.rope_factors:
        plan.append(TensorPlan(ROPE_FACTORS, head_dim // 2, 1, "vector"))
    for index in range(spec.n_layers):
        plan += [tensor._replace(name=f"blk.{index}.{tensor.name}") for tensor in layer]
    plan.append(TensorPlan("output_norm.weight", d, 1, "vector"))
    if not spec.tied_output:
        plan.append(TensorPlan(OUTPUT, d, spec.vocab_size, "matrix"))
    return plan
