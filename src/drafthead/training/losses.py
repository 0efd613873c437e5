"""Cross-entropy against the backbone's own tokens, over output rows that are never trained.

Legend: M rows that count, D hidden size, V draft vocabulary, K draft steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

CHUNK_ROWS = 256  # logits of this many rows stay in the processor's cache


class _FrozenCrossEntropy(torch.autograd.Function):
    """Cross-entropy of states against frozen output rows, a chunk of rows at a time.

    The rows do not learn, so the gradient (softmax - onehot) W is known in the forward pass and the
    logits of the whole batch are never held.
    """

    @staticmethod
    def forward(ctx: Any, states_MD: Tensor, rows_VD: Tensor, labels_M: Tensor) -> Any:
        states = states_MD.to(rows_VD.dtype)
        losses, choices, gradients = [], [], []
        for start in range(0, len(states), CHUNK_ROWS):
            labels = labels_M[start : start + CHUNK_ROWS]
            logits = (states[start : start + CHUNK_ROWS] @ rows_VD.T).float()
            choices.append(logits.argmax(-1))
            log_probs = F.log_softmax(logits, -1)
            losses.append(F.nll_loss(log_probs, labels, reduction="none"))
            slope = log_probs.exp_()
            slope[torch.arange(len(labels)), labels] -= 1.0
            gradients.append((slope.to(rows_VD.dtype) @ rows_VD).float())
        ctx.save_for_backward(torch.cat(gradients))
        choices_M = torch.cat(choices)
        ctx.mark_non_differentiable(choices_M)
        return torch.cat(losses), choices_M

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gradients_MD,) = ctx.saved_tensors
        return gradients_MD * grads[0][:, None], None, None


def frozen_cross_entropy(
    states_MD: Tensor, rows_VD: Tensor, labels_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss of each row and the place of its highest logit, both (M,)."""
    losses, choices = _FrozenCrossEntropy.apply(states_MD, rows_VD, labels_M)
    return losses, choices


def step_weights(steps: int, decay: float) -> list[float]:
    """decay**k normalised to sum 1 (FastMTP, equation 2: later steps matter less)."""
    raw = [decay**step for step in range(steps)]
    return [weight / sum(raw) for weight in raw]


def unrolled_loss(
    states: Sequence[Tensor], rows_VD: Tensor, labels_KA: Tensor, decay: float,
    divisors: Sequence[float] | None = None,
) -> tuple[Tensor, list[int], list[int]]:  # fmt: skip
    """Weighted mean cross-entropy over draft steps; labels below 0 do not count.

    Args:
        states: the head's output of each step, (A, D).
        rows_VD: the backbone's output rows of the draft vocabulary.
        labels_KA: place of each label in it.
        decay: weight of a step against the one before.
        divisors: of each step the labels that its mean is over, those of other processes too; the
            given ones alone where None.

    Returns:
        The loss (0 without a label that counts), and for each step how many labels counted and how
        many of them the head would have chosen.
    """
    total = torch.zeros(())
    counted, correct = [], []
    weights = step_weights(len(states), decay)
    for state_AD, labels_A, weight in zip(states, labels_KA, weights, strict=True):
        keep = (labels_A >= 0).nonzero()[:, 0]
        counted.append(len(keep))
        if not len(keep):
            correct.append(0)
            continue
        labels = labels_A[keep]
        losses, choices = frozen_cross_entropy(state_AD[keep], rows_VD, labels)
        divisor = len(keep) if divisors is None else divisors[len(counted) - 1]
        total = total + weight * losses.sum() / divisor
        correct.append(int((choices == labels).sum()))
    return total, counted, correct
