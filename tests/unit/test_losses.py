"""Laws of the loss: that of torch over rows that count, and nothing from rows that do not."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from drafthead.training import losses
from drafthead.training.losses import frozen_cross_entropy, step_weights, unrolled_loss


def random_case(rows=37, size=8, words=50, seed=0):
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(rows, size, generator=generator, requires_grad=True)
    table = torch.randn(words, size, generator=generator)
    labels = torch.randint(0, words, (rows,), generator=generator)
    return states, table, labels


def test_loss_choice_and_gradient_are_those_of_plain_cross_entropy(monkeypatch):
    monkeypatch.setattr(losses, "CHUNK_ROWS", 10)
    states, table, labels = random_case()
    mine, choices = frozen_cross_entropy(states, table, labels)
    weights = torch.linspace(0.1, 1.0, len(mine))
    (got,) = torch.autograd.grad((mine * weights).sum(), states)
    logits = states @ table.T
    theirs = F.cross_entropy(logits, labels, reduction="none")
    (expected,) = torch.autograd.grad((theirs * weights).sum(), states)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(got, expected)
    assert (choices == logits.argmax(-1)).all()


def test_step_weights_sum_to_one_and_decay():
    weights = step_weights(3, 0.6)
    assert sum(weights) == pytest.approx(1)
    assert [round(weight, 2) for weight in weights] == [0.51, 0.31, 0.18]


def test_labels_that_are_ignored_give_no_loss_and_no_gradient():
    states, table, labels = random_case()
    masked = labels.clone()
    masked[::2] = -1
    loss, counted, correct = unrolled_loss([states], table, masked[None], 0.8)
    (gradient,) = torch.autograd.grad(loss, states)
    assert (gradient[::2] == 0).all() and (gradient[1::2] != 0).any(dim=1).all()
    kept = states.detach()[1::2]
    torch.testing.assert_close(loss.detach(), F.cross_entropy(kept @ table.T, labels[1::2]))
    assert counted == [len(kept)]
    assert correct == [int(((kept @ table.T).argmax(-1) == labels[1::2]).sum())]


def test_steps_are_weighted_means_each_over_its_own_labels():
    states, table, labels = random_case()
    second = torch.where(torch.arange(len(labels)) < 5, labels, -1)
    loss, counted, _ = unrolled_loss([states, states], table, torch.stack([labels, second]), 0.5)
    parts = [F.cross_entropy(states[:n] @ table.T, labels[:n]) for n in (len(labels), 5)]
    torch.testing.assert_close(loss, parts[0] * 2 / 3 + parts[1] / 3)
    assert counted == [37, 5]


def test_a_batch_without_labels_has_loss_zero():
    states, table, labels = random_case()
    loss, counted, _ = unrolled_loss([states], table, torch.full_like(labels, -1)[None], 0.8)
    assert loss.item() == 0 and counted == [0]
