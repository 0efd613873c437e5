"""A head that begins as a piece of the backbone, seen through a lens.

A head layer reads the keys and values of one backbone layer, and that layer's own queries know how
to use them: where it holds induction heads (Olsson et al., arXiv 2209.11895), they find what
followed the same token before. So a head layer starts as a copy of the layer it reads. But what
leaves a layer in the middle is not what the output rows understand. The *lens* is the linear map
from the one to the other, fitted by ridge regression (the tuned lens: Belrose et al., arXiv
2303.08112), and the head works behind it from the start: with x what enters or leaves a layer,

    projection in front   = lens . (inputs -> x of the first layer, by ridge regression)
    queries               = (norm(lens . x) -> the layer's own queries, by ridge regression)
    output projection     = lens . the layer's own
    gate, up              = the layer's own . (norm(lens . x) -> norm(x), by ridge regression)
    down                  = lens . the layer's own

so that before any training the head's state is the lens's guess of the next hidden state. A layer
without attention starts at random; a head of such layers alone needs no lens. Norms of
a branch, which a head has not, go into its last matrix with their mean divisor; of a wider
feed-forward part the neurons that move the state most are kept; GELU becomes SiLU by
gelu(x) ~ silu(1.702 x) / 1.702 (Hendrycks and Gimpel, arXiv 1606.08415).

Legend: A anchors, D hidden size, F feed-forward size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from drafthead.backbone.handle import Backbone
from drafthead.gguf.model import ModelSpec
from drafthead.heads.config import read_layers
from drafthead.training.answers import Answer
from drafthead.training.batching import BatchMaker
from drafthead.training.host import TorchHost
from drafthead.training.modules import FrozenMtpHead, HeadLayer

FIT_ANCHORS = 12000
RIDGE = 0.03  # of the inputs' mean square, which is made 1
GELU_SLOPE = 1.702

Values = Callable[[str], Tensor]


@dataclass(frozen=True)
class ReadLayer:
    """A backbone layer at the positions after the anchors, (A, D) each.

    attended: what its output projection gave, before any norm of the branch.
    """

    entering: Tensor
    attended: Tensor
    leaving: Tensor


@dataclass(frozen=True)
class Samples:
    """What to fit on: anchors of answers spread over all.

    inputs_AI: what the projection in front is given.  states_AD: the backbone's final state at the
    position after the anchor, which the head's state is to be.  layers: the layers that are read.
    """

    inputs_AI: Tensor
    states_AD: Tensor
    layers: tuple[ReadLayer, ...]


@torch.no_grad()
def start_from_backbone(
    head: FrozenMtpHead, kv_layers: Sequence[int], backbone: Backbone, maker: BatchMaker,
    answers: Sequence[Answer],
) -> None:  # fmt: skip
    """Give a new head the layers it reads, behind a lens on the backbone's final state."""
    read = read_layers(kv_layers)
    host = TorchHost(backbone, max(read, default=0) + 1, maker.rows_VD.dtype)
    fit(head, read, backbone.spec, host.values, samples(head, host, read, maker, answers))


def samples(
    head: FrozenMtpHead, host: TorchHost, kv_layers: Sequence[int], maker: BatchMaker,
    answers: Sequence[Answer],
) -> Samples:  # fmt: skip
    """Run answers through the backbone's layers until there are anchors enough."""
    inputs, states = list[Tensor](), list[Tensor]()
    insides: list[list[tuple[Tensor, ...]]] = [[] for _ in kv_layers]
    stride = max(1, len(answers) * 40 // FIT_ANCHORS)
    for index in range(0, len(answers), stride):
        batch = maker([index])
        after = batch.positions_A[1:]  # of all anchors but the last: its next state is not kept
        inside = host.inside([*answers[index].prompt_tokens, *answers[index].answer])
        inputs.append(head.joined(batch.embeddings_KAD[0], batch.hidden_AD)[:-1])
        states.append(batch.hidden_AD[1:, : host.spec.d_model])
        for layer, found in zip(kv_layers, insides, strict=True):
            parts = (inside.entering[layer], inside.attended[layer], inside.entering[layer + 1])
            found.append(tuple(part[after] for part in parts))
        if sum(map(len, states)) >= FIT_ANCHORS:
            break
    layers = tuple(ReadLayer(*map(torch.cat, zip(*found, strict=True))) for found in insides)
    return Samples(torch.cat(inputs), torch.cat(states), layers)


@torch.no_grad()
def fit(
    head: FrozenMtpHead, kv_layers: Sequence[int], spec: ModelSpec, values: Values, found: Samples
) -> None:
    """Set a head's weights from samples and the backbone's tensors, which `values` names."""
    head.model.norm.weight.fill_(float(rms(found.states_AD.flatten())))
    if not found.layers:
        head.pre_projection.weight.copy_(ridge(found.inputs_AI, found.states_AD, RIDGE))
        return
    first, last = found.layers[0], found.layers[-1]
    lens_DD = ridge(last.leaving, found.states_AD, RIDGE)
    head.pre_projection.weight.copy_(lens_DD @ ridge(found.inputs_AI, first.entering, RIDGE))
    seen_AD = head.pre_projection(found.inputs_AI)
    attending = [layer for layer in head.model.layers if layer.self_attn is not None]
    for layer, source, inside in zip(attending, kv_layers, found.layers, strict=True):
        assert isinstance(layer, HeadLayer)
        x_AD = seen_AD + (inside.entering - first.entering) @ lens_DD.T
        _Copy(layer, source, spec, values, lens_DD).fit(x_AD, inside)


class _Copy:
    """Fits one head layer to one backbone layer."""

    def __init__(
        self, layer: HeadLayer, source: int, spec: ModelSpec, values: Values, lens_DD: Tensor
    ) -> None:
        self._layer, self._spec, self._lens_DD = layer, spec, lens_DD
        self._named, self._at = values, f"blk.{source}."

    def _values(self, name: str, kind: str = "weight") -> Tensor:
        return self._named(f"{self._at}{name}.{kind}")

    def fit(self, x_AD: Tensor, inside: ReadLayer) -> None:
        """Attention, then feed-forward. x_AD: what the head has where the layer has `entering`."""
        branch_AD = self._attention(x_AD, inside)
        self._feed_forward(x_AD + branch_AD @ self._lens_DD.T, inside.entering + branch_AD)

    def _attention(self, x_AD: Tensor, inside: ReadLayer) -> Tensor:
        attention, values = self._layer.self_attn, self._values
        assert attention is not None and self._layer.input_layernorm is not None
        true_AD = unit(inside.entering) * values("attn_norm")
        self._layer.input_layernorm.weight.fill_(1.0)
        attention.q_proj.weight.copy_(ridge(unit(x_AD), true_AD @ values("attn_q").T, RIDGE))
        if self._spec.qkv_bias:
            attention.q_proj.bias.copy_(values("attn_q", "bias"))
        if attention.q_norm is not None:
            attention.q_norm.weight.copy_(values("attn_q_norm"))
        output, branch_AD = values("attn_output"), inside.attended
        if self._spec.post_norms:
            norm = values("post_attention_norm")
            output = norm[:, None] * output / rms(branch_AD).mean()
            branch_AD = unit(branch_AD) * norm
        attention.o_proj.weight.copy_(self._lens_DD @ output)
        return branch_AD

    def _feed_forward(self, x_AD: Tensor, true_AD: Tensor) -> None:
        layer, values = self._layer, self._values
        layer.pre_feedforward_layernorm.weight.fill_(1.0)
        normed_AD = unit(true_AD) * values("ffn_norm")
        gate, up, down = values("ffn_gate"), values("ffn_up"), values("ffn_down")
        gelu = self._spec.gelu
        gated_AF = normed_AD @ gate.T
        active_AF = F.gelu(gated_AF, approximate="tanh") if gelu else F.silu(gated_AF)
        active_AF = active_AF * (normed_AD @ up.T)
        if self._spec.post_norms:
            norm = values("post_ffw_norm")
            down = norm[:, None] * down / rms(active_AF @ down.T).mean()
        down = self._lens_DD @ down
        if gelu:
            gate, down = GELU_SLOPE * gate, down / GELU_SLOPE
        count = min(layer.mlp.gate_proj.weight.shape[0], len(gate))
        moved = active_AF.pow(2).mean(0).sqrt() * down.norm(dim=0)
        kept = moved.argsort(descending=True, stable=True)[:count].sort().values
        back_DD = ridge(unit(x_AD), normed_AD, RIDGE)
        layer.mlp.gate_proj.weight[:count] = gate[kept] @ back_DD
        layer.mlp.up_proj.weight[:count] = up[kept] @ back_DD
        layer.mlp.down_proj.weight.zero_()
        layer.mlp.down_proj.weight[:, :count] = down[:, kept]


def rms(x: Tensor) -> Tensor:
    """Root mean square of each row, (..., 1)."""
    return x.pow(2).mean(-1, keepdim=True).sqrt()


def unit(x: Tensor) -> Tensor:
    """Each row at RMS 1."""
    return x / rms(x).clamp_min(1e-12)


def ridge(inputs_AI: Tensor, targets_AO: Tensor, strength: float) -> Tensor:
    """W (O, I) that minimises |X W^T - Y|^2 / A + strength mean(X^2) |W|^2."""
    x, y = inputs_AI.double(), targets_AO.double()
    penalty = strength * len(x) * x.pow(2).mean()
    gram = x.T @ x + penalty * torch.eye(x.shape[1], dtype=torch.float64)
    return torch.linalg.solve(gram, x.T @ y).T.float()
