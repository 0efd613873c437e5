"""A head that begins where a backbone layer is: it attends like that layer from the first step on.

A head layer reads the keys and values of one backbone layer, and that layer's own queries know how
to use them: where it holds induction heads (Olsson et al., arXiv 2209.11895), they find what
followed the same token before. So query, output and norm are the layer's own, and the projection in
front is the ridge regression from what the head is given, the newest token's embedding and the
state before it, to what enters that layer.

What enters it is fitted at unit RMS, whatever it is in the backbone; the norm in front of the
queries does not see the difference. What attention adds is divided by the same RMS, and where the
backbone norms it before it is added, that norm, which a head has not, goes into the output
projection with its mean divisor.

Legend: A anchors, T tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafthead.backbone.handle import Backbone
from drafthead.training.answers import Answer
from drafthead.training.batching import BatchMaker
from drafthead.training.host import TorchHost
from drafthead.training.modules import FrozenMtpHead, HeadLayer

FIT_ANCHORS = 8000  # about 7 for each input of SmolLM2-135M
RIDGE = 0.03  # of the inputs' mean square, which the norms make 1


@dataclass(frozen=True)
class Samples:
    """What to fit on: anchors of answers spread over all.

    inputs_A2D: what the projection in front is given.  states_AD: what enters the first layer that
    is read, at the position after the anchor, where the backbone reads the same token; of unit RMS.
    scales: for each read layer, what its attention's output is multiplied by on average: one over
    the RMS of what enters it, and over its own where the backbone norms it.
    """

    inputs_A2D: Tensor
    states_AD: Tensor
    scales: tuple[float, ...]


@torch.no_grad()
def start_from_backbone(
    head: FrozenMtpHead, kv_layers: Sequence[int], backbone: Backbone, maker: BatchMaker,
    answers: Sequence[Answer],
) -> None:  # fmt: skip
    """Give a new head the attention of the layers it reads, and fit the projection before it."""
    host = TorchHost(backbone, max(kv_layers) + 1, maker.rows_VD.dtype)
    found = samples(head, host, kv_layers, maker, answers)
    head.pre_projection.weight.copy_(ridge(found.inputs_A2D, found.states_AD, RIDGE))
    for layer, source, scale in zip(head.model.layers, kv_layers, found.scales, strict=True):
        assert isinstance(layer, HeadLayer)
        _copy_attention(layer, host, f"blk.{source}.", scale)


def _copy_attention(layer: HeadLayer, host: TorchHost, at: str, scale: float) -> None:
    attention, output = layer.self_attn, host.values(at + "attn_output.weight")
    layer.input_layernorm.weight.copy_(host.values(at + "attn_norm.weight"))
    layer.pre_feedforward_layernorm.weight.copy_(host.values(at + "ffn_norm.weight"))
    attention.q_proj.weight.copy_(host.values(at + "attn_q.weight"))
    if host.spec.qkv_bias:
        attention.q_proj.bias.copy_(host.values(at + "attn_q.bias"))
    if attention.q_norm is not None:
        attention.q_norm.weight.copy_(host.values(at + "attn_q_norm.weight"))
    if host.spec.post_norms:
        output = host.values(at + "post_attention_norm.weight")[:, None] * output
    attention.o_proj.weight.copy_(scale * output)


def samples(
    head: FrozenMtpHead, host: TorchHost, kv_layers: Sequence[int], maker: BatchMaker,
    answers: Sequence[Answer],
) -> Samples:  # fmt: skip
    """Run answers through the backbone's layers until there are anchors enough."""
    inputs, states = list[Tensor](), list[Tensor]()
    factors: list[list[Tensor]] = [[] for _ in kv_layers]
    stride = max(1, len(answers) * 40 // FIT_ANCHORS)
    for index in range(0, len(answers), stride):
        batch = maker([index])
        at = batch.positions_A + 1
        host.run([*answers[index].prompt_tokens, *answers[index].answer])
        inputs.append(head.joined(batch.embeddings_KAD[0], batch.hidden_AD))
        states.append(host.entering(kv_layers[0])[at])
        for layer, found in zip(kv_layers, factors, strict=True):
            factor = 1 / rms(host.entering(layer)[at])
            if host.spec.post_norms:
                factor = factor / rms(host.attended(layer)[at])
            found.append(factor)
        if sum(map(len, states)) >= FIT_ANCHORS:
            break
    scales = tuple(float(torch.cat(found).mean()) for found in factors)
    states_AD = torch.cat(states)
    return Samples(torch.cat(inputs), states_AD / rms(states_AD), scales)


def rms(x: Tensor) -> Tensor:
    """Root mean square of each row, (..., 1)."""
    return x.pow(2).mean(-1, keepdim=True).sqrt()


def ridge(inputs_AI: Tensor, targets_AO: Tensor, strength: float) -> Tensor:
    """W (O, I) that minimises |X W^T - Y|^2 / A + strength |W|^2."""
    x, y = inputs_AI.double(), targets_AO.double()
    gram = x.T @ x + strength * len(x) * torch.eye(x.shape[1], dtype=torch.float64)
    return torch.linalg.solve(gram, x.T @ y).T.float()
