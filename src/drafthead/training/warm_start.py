"""A head that begins where a backbone layer is: it attends like that layer from the first step on.

A head layer reads the keys and values of one backbone layer, and that layer's own queries know how
to use them: where it holds induction heads (Olsson et al., arXiv 2209.11895), they find what
followed the same token before. So query, output and norm are the layer's own, and the projection in
front is the ridge regression from what the head is given, the newest token's embedding and the
state before it, to what enters that layer.

Legend: A anchors, D hidden size, L the first layer that is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from drafthead.backbone.handle import Backbone
from drafthead.training.answers import Answer
from drafthead.training.batching import BatchMaker
from drafthead.training.host import TorchHost
from drafthead.training.modules import FrozenMtpHead

FIT_ANCHORS = 8000  # about 7 for each input of SmolLM2-135M
RIDGE = 0.03  # of the inputs' mean square, which the norms make 1


@torch.no_grad()
def start_from_backbone(
    head: FrozenMtpHead, kv_layers: Sequence[int], backbone: Backbone, maker: BatchMaker,
    answers: Sequence[Answer],
) -> None:  # fmt: skip
    """Give a new head the attention of the layers it reads, and fit the projection before it."""
    host = TorchHost(backbone)
    inputs_A2D, states_AD = samples(head, host, kv_layers[0], maker, answers)
    head.pre_projection.weight.copy_(ridge(inputs_A2D, states_AD, RIDGE))
    for layer, source in zip(head.model.layers, kv_layers, strict=True):
        at = f"blk.{source}."
        layer.input_layernorm.weight.copy_(host.norm(at + "attn_norm"))
        layer.pre_feedforward_layernorm.weight.copy_(host.norm(at + "ffn_norm"))
        layer.self_attn.q_proj.weight.copy_(host.matrix(at + "attn_q"))
        layer.self_attn.o_proj.weight.copy_(host.matrix(at + "attn_output"))


def samples(
    head: FrozenMtpHead, host: TorchHost, layer: int, maker: BatchMaker, answers: Sequence[Answer]
) -> tuple[Tensor, Tensor]:
    """Pairs to fit on, from answers spread over all: (A, 2D) inputs and (A, D) states of unit RMS.

    The state is that of position i + 1, where the backbone reads the token an anchor i is given.
    """
    taken, inputs, states = 0, [], []
    stride = max(1, len(answers) * 40 // FIT_ANCHORS)
    for index in range(0, len(answers), stride):
        batch = maker([index])
        answer = answers[index]
        entering = host.residual([*answer.prompt_tokens, *answer.answer], layer)
        inputs.append(head.joined(batch.embeddings_KAD[0], batch.hidden_AD))
        states.append(entering[batch.positions_A + 1])
        taken += len(batch.positions_A)
        if taken >= FIT_ANCHORS:
            break
    states_AD = torch.cat(states)
    return torch.cat(inputs), states_AD / states_AD.pow(2).mean(-1, keepdim=True).sqrt()


def ridge(inputs_AI: Tensor, targets_AO: Tensor, strength: float) -> Tensor:
    """W (O, I) that minimises |X W^T - Y|^2 / A + strength |W|^2."""
    x, y = inputs_AI.double(), targets_AO.double()
    gram = x.T @ x + strength * len(x) * torch.eye(x.shape[1], dtype=torch.float64)
    return torch.linalg.solve(gram, x.T @ y).T.float()
