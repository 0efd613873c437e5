"""What a head is told about each draft token, over output rows that are never trained.

Legend: M rows that count, D hidden size, V draft vocabulary, A anchors, K draft steps.

q is the head's distribution over the draft vocabulary, y the token that the answer has there, and p
the backbone's own distribution at that place: the softmax over the draft vocabulary of the state
that gave y. That state is the hidden state of a later anchor of the same answer: draft step k of
anchor i is judged by h_{i+k}. The state that gave the last token of an answer is not kept; there p
is 1 at y.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from drafthead.training.modules import Batch, SequenceKv, with_learned

CHUNK_ROWS = 256  # logits of this many rows stay in the processor's cache
CE_SHARE = 0.1  # of the loss "tv"
LK_DECAY = 3.0  # of the loss "lk"

Judged = tuple[Tensor, Tensor]  # losses (M,) and slopes towards the logits (M, V)


def cross_entropy(log_q_MV: Tensor, labels_M: Tensor) -> Judged:
    """CE = -log q(y). Slope: q - onehot(y)."""
    losses = F.nll_loss(log_q_MV, labels_M, reduction="none")
    slopes = log_q_MV.exp()
    slopes[torch.arange(len(labels_M), device=labels_M.device), labels_M] -= 1.0
    return losses, slopes


def kl_divergence(log_q_MV: Tensor, p_MV: Tensor, entropy_M: Tensor) -> Judged:
    """KL(p || q) = sum_v p(v) (log p(v) - log q(v)). Slope: q - p.

    The soft targets of EAGLE-3 (arXiv 2503.01840), whose loss differs by the entropy of p.
    """
    losses = -(p_MV * log_q_MV).sum(-1) - entropy_M
    return losses, log_q_MV.exp() - p_MV


def total_variation(log_q_MV: Tensor, p_MV: Tensor) -> Judged:
    """TV = 1 - sum_v min(p(v), q(v)): the share of drafts that rejection sampling refuses.

    Slope: q(v) (m - [q(v) < p(v)]) with m = sum of q where q < p. It vanishes where p and q do not
    overlap, so that it cannot start a head alone.
    """
    q_MV = log_q_MV.exp()
    below_MV = (q_MV < p_MV).float()
    mass_M1 = (q_MV * below_MV).sum(-1, keepdim=True)
    return 1.0 - torch.minimum(p_MV, q_MV).sum(-1), q_MV * (mass_M1 - below_MV)


def cross_entropy_and_tv(log_q_MV: Tensor, labels_M: Tensor, p_MV: Tensor) -> Judged:
    """Both: 0.1 CE + 0.9 TV, the loss of the DSpark heads (deepseek-ai/DeepSpec, 2026)."""
    ce, tv = cross_entropy(log_q_MV, labels_M), total_variation(log_q_MV, p_MV)
    losses, slopes = (CE_SHARE * a + (1.0 - CE_SHARE) * b for a, b in zip(ce, tv, strict=True))
    return losses, slopes


def lk_hybrid(log_q_MV: Tensor, p_MV: Tensor, entropy_M: Tensor) -> Judged:
    """LK = w KL(p || q) + (1 - w) TV with w = exp(-3 (1 - TV)), held constant in the slope.

    From KL, while p and q hardly overlap, to TV (LK losses, arXiv 2602.23881).
    """
    kl, tv = kl_divergence(log_q_MV, p_MV, entropy_M), total_variation(log_q_MV, p_MV)
    weight_M = torch.exp(-LK_DECAY * (1.0 - tv[0]))
    losses = weight_M * kl[0] + (1.0 - weight_M) * tv[0]
    return losses, tv[1] + weight_M[:, None] * (kl[1] - tv[1])


# log q, labels, p, entropy of p; p is only computed for losses that take it
SOFT_LOSSES: Mapping[str, Callable[[Tensor, Tensor, Tensor, Tensor], Judged]] = {
    "kl": lambda log_q, _, p, entropy: kl_divergence(log_q, p, entropy),
    "tv": lambda log_q, labels, p, _: cross_entropy_and_tv(log_q, labels, p),
    "lk": lambda log_q, _, p, entropy: lk_hybrid(log_q, p, entropy),
}


class Teacher:
    """The backbone's own distributions over the draft vocabulary.

    Args:
        hidden_AD: states of the anchors of a batch.
        rows_VD: the backbone's output rows of the draft vocabulary.
        softcap: c of a backbone whose logits are c tanh(logit / c); 0 is none.
    """

    def __init__(self, hidden_AD: Tensor, rows_VD: Tensor, softcap: float = 0.0) -> None:
        self._hidden_AD, self._rows_VD, self._softcap = hidden_AD, rows_VD, softcap

    def __call__(self, targets_M: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """Each p (M, V), of state `targets_M` or below 0 of the label, and its entropy (M,).

        Neighbours with the same target share one product with the output rows.
        """
        wanted, place_M = targets_M.unique_consecutive(return_inverse=True)
        logits = (self._hidden_AD[wanted].to(self._rows_VD.dtype) @ self._rows_VD.T).float()
        if self._softcap:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        log_p = F.log_softmax(logits, -1)
        p = log_p.exp()
        entropy = -(p * log_p).sum(-1)
        known = wanted >= 0
        p_MV, entropy_M = p[place_M], (entropy * known)[place_M]
        alone = (~known)[place_M]
        p_MV[alone] = F.one_hot(labels_M[alone], p_MV.shape[1]).to(p_MV.dtype)
        return p_MV, entropy_M


Judge = Callable[[Tensor, Tensor, Tensor], Judged]  # of log q, labels and target states


def judge_of(name: str, teacher: Teacher) -> Judge:
    """The loss of this name."""
    if name == "ce":
        return lambda log_q, labels, _: cross_entropy(log_q, labels)
    return lambda log_q, labels, targets: SOFT_LOSSES[name](
        log_q, labels, *teacher(targets, labels)
    )


class _FrozenLoss(torch.autograd.Function):
    """The weighted sum of a loss of states against output rows, a chunk of rows at a time.

    A slope towards the logits is known in the forward pass, and with it both gradients: slope x W
    towards the states, slope^T x state towards the columns of W that learn, a Markov bias; all
    others are frozen. So the logits of the whole batch are never held.
    """

    @staticmethod
    def forward(
        ctx: Any, states_MD: Tensor, rows_VD: Tensor, learned_VB: Tensor | None, labels_M: Tensor,
        targets_M: Tensor, weights_M: Tensor, judge: Judge,
    ) -> Any:  # fmt: skip
        losses, choices, gradients = [], [], []
        slopes_VB = None if learned_VB is None else torch.zeros_like(learned_VB)
        if learned_VB is not None:
            rows_VD = with_learned(rows_VD, learned_VB)
        per_row = (states_MD, labels_M, targets_M, weights_M)
        chunks = (tensor.split(CHUNK_ROWS) for tensor in per_row)
        for states, labels, targets, weights in zip(*chunks, strict=True):
            logits = (states.to(rows_VD.dtype) @ rows_VD.T).float()
            choices.append(logits.argmax(-1))
            log_q = F.log_softmax(logits, -1)
            loss, slopes = judge(log_q, labels, targets)
            losses.append(loss * weights)
            slopes = slopes.to(rows_VD.dtype)
            gradients.append((slopes @ rows_VD).float() * weights[:, None])
            if slopes_VB is not None:
                inputs = weights[:, None] * states[:, -slopes_VB.shape[1] :]
                slopes = slopes[:, : len(slopes_VB)]
                slopes_VB += (slopes.T @ inputs.to(slopes.dtype)).float()
        ctx.save_for_backward(torch.cat(gradients), slopes_VB)
        choices_M = torch.cat(choices)
        ctx.mark_non_differentiable(choices_M)
        return torch.cat(losses).sum(), choices_M

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        gradients_MD, slopes_VB = ctx.saved_tensors
        learned = None if slopes_VB is None else slopes_VB * grads[0]
        return gradients_MD * grads[0], None, learned, *[None] * 4


def step_weights(steps: int, decay: float) -> list[float]:
    """decay**k normalised to sum 1 (FastMTP, equation 2: later steps matter less)."""
    raw = [decay**step for step in range(steps)]
    return [weight / sum(raw) for weight in raw]


def target_rows(sequences: Sequence[SequenceKv], steps: int) -> Tensor:
    """The anchor whose state gave the label of each step and anchor, (K, A); -1 where none did."""
    parts = []
    for sequence in sequences:
        device = sequence.keys_LGRH.device
        own = torch.arange(sequence.anchors.start, sequence.anchors.stop, device=device)
        later = own + torch.arange(1, steps + 1, device=device)[:, None]
        parts.append(torch.where(later < sequence.anchors.stop, later, -1))
    return torch.cat(parts, dim=1)


def unrolled_loss(
    states: Sequence[Tensor], rows_VD: Tensor, batch: Batch, decay: float, name: str = "ce",
    softcap: float = 0.0, divisors: Sequence[float] | None = None,
    learned_VB: Tensor | None = None,
) -> tuple[Tensor, list[int], list[int]]:  # fmt: skip
    """Weighted mean loss over draft steps; labels below 0 do not count.

    Args:
        states: the head's output of each step, (A, D), or (A, D + B) with learned rows.
        rows_VD: the backbone's output rows of the draft vocabulary.
        batch: labels, and the backbone's states.
        decay: weight of a step against the one before.
        name: "ce", or a soft loss: "kl", "tv", "lk".
        softcap: of the backbone's logits; 0 is none.
        divisors: of each step the labels that its mean is over, those of other processes too; None:
            the given ones alone.
        learned_VB: what the head itself adds to the output rows.

    Returns:
        The loss (0 without a label that counts), and for each step how many labels counted and how
        many of them the head would have chosen.
    """
    steps = len(states)
    targets_KA = target_rows(batch.sequences, steps)
    step_M, anchor_M = (batch.labels_KA >= 0).nonzero(as_tuple=True)
    order = targets_KA[step_M, anchor_M].argsort(stable=True)  # steps that share a state, together
    step_M, anchor_M = step_M[order], anchor_M[order]
    counts = torch.bincount(step_M, minlength=steps)
    if not len(step_M):
        return rows_VD.new_zeros((), dtype=torch.float32), [0] * steps, [0] * steps
    states_MD = torch.cat(list(states)).index_select(0, step_M * len(states[0]) + anchor_M)
    labels_M = batch.labels_KA[step_M, anchor_M]
    device = rows_VD.device
    means = counts if divisors is None else torch.tensor(divisors, device=device)
    weights_M = (torch.tensor(step_weights(steps, decay), device=device) / means)[step_M]
    teacher = Teacher(batch.hidden_AD[:, : rows_VD.shape[1]], rows_VD, softcap)
    loss, choices_M = _FrozenLoss.apply(
        states_MD, rows_VD, learned_VB, labels_M, targets_KA[step_M, anchor_M], weights_M,
        judge_of(name, teacher),
    )  # fmt: skip
    correct = torch.bincount(step_M[choices_M == labels_M], minlength=steps)
    return loss, counts.tolist(), correct.tolist()
