"""Laws of the losses: plain formulas over rows that count, nothing from rows that do not."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from drafthead.training import losses
from drafthead.training.losses import Teacher, step_weights, target_rows, unrolled_loss
from drafthead.training.modules import Batch, SequenceKv

WORDS, SIZE = 50, 8
NO_KV = torch.zeros(1, 1, 1, 1)


def random_case(rows=37, steps=1, sequences=1, seed=0):
    """Head states of each step, a table, and a batch with random labels and backbone states."""
    generator = torch.Generator().manual_seed(seed)
    states = [torch.randn(rows, SIZE, generator=generator) for _ in range(steps)]
    table = torch.randn(WORDS, SIZE, generator=generator)
    ends = [rows * (part + 1) // sequences for part in range(sequences)]
    parts = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
    batch = Batch(
        hidden_AD=torch.randn(rows, SIZE, generator=generator),
        embeddings_KAD=torch.zeros(steps, rows, SIZE),
        inputs_KA=torch.zeros(steps, rows, dtype=torch.int64),
        labels_KA=torch.randint(0, WORDS, (steps, rows), generator=generator),
        positions_A=torch.arange(rows),
        sequences=[SequenceKv(part, NO_KV, NO_KV) for part in parts],
        rows_VD=table,
    )
    return [state.requires_grad_() for state in states], table, batch


def plain_target(batch, table, step, row, softcap=0.0):
    """p of one label by the definition: softmax of the state `step` anchors later, or one-hot."""
    end = next(s.anchors.stop for s in batch.sequences if s.anchors.start <= row < s.anchors.stop)
    if row + step >= end:
        return F.one_hot(batch.labels_KA[step - 1, row], WORDS).float()
    logits = batch.hidden_AD[row + step] @ table.T
    return (softcap * (logits / softcap).tanh() if softcap else logits).softmax(-1)


def plain_loss(name, logits, label, p):
    """The formulas of the papers, for autograd."""
    q = logits.softmax(-1)
    kl = torch.where(p > 0, p * (p.clamp_min(1e-30).log() - q.log()), torch.zeros(())).sum()
    tv = (p - q).abs().sum() / 2
    weight = torch.exp(-3 * torch.minimum(p, q).sum()).detach()
    ce = -q[label].log()
    return {
        "ce": ce, "kl": kl, "tv": 0.1 * ce + 0.9 * tv, "lk": weight * kl + (1 - weight) * tv
    }[name]  # fmt: skip


@pytest.mark.parametrize(("learned", "known"), [(0, WORDS), (3, WORDS), (3, WORDS - 16)])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("name", ["ce", "kl", "tv", "lk"])
def test_loss_and_gradient_are_those_of_the_plain_formula(
    monkeypatch, name, softcap, learned, known
):
    """Towards the states, and towards the columns of the output rows that learn; those of tokens
    behind the draft vocabulary, of the text, are zero."""
    monkeypatch.setattr(losses, "CHUNK_ROWS", 10)
    states, table, batch = random_case(rows=17, steps=3, sequences=2)
    batch.labels_KA[1, 4:9] = -1
    wide, rows_of_head = table, None
    if learned:
        generator = torch.Generator().manual_seed(1)
        rows_of_head = torch.randn(known, learned, generator=generator).requires_grad_()
        more = torch.randn(3, 17, learned, generator=generator)
        states = [torch.cat(pair, 1) for pair in zip(states, more, strict=True)]
        behind = torch.zeros(WORDS - known, learned)
        wide = torch.cat([table, torch.cat([rows_of_head, behind])], 1)
    got, counted, correct = unrolled_loss(
        states, table, batch, 0.6, name, softcap, learned_VB=rows_of_head
    )
    expected = torch.zeros(())
    right = [0, 0, 0]
    for k, (state, weight) in enumerate(zip(states, step_weights(3, 0.6), strict=True)):
        rows = [row for row in range(17) if batch.labels_KA[k, row] >= 0]
        for row in rows:
            p, label = plain_target(batch, table, k + 1, row, softcap), batch.labels_KA[k, row]
            logits = state[row] @ wide.T
            expected = expected + weight / len(rows) * plain_loss(name, logits, label, p)
            right[k] += int(logits.argmax() == label)
    torch.testing.assert_close(got, expected)
    towards = [*states, rows_of_head] if learned else states
    mine, theirs = torch.autograd.grad(got, towards), torch.autograd.grad(expected, towards)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert counted == [17, 12, 17] and correct == right


def test_a_label_is_judged_by_the_state_that_gave_it_within_its_own_answer():
    parts = [SequenceKv(part, NO_KV, NO_KV) for part in (slice(0, 4), slice(4, 6))]
    assert target_rows(parts, 3).tolist() == [
        [1, 2, 3, -1, 5, -1],
        [2, 3, -1, -1, -1, -1],
        [3, -1, -1, -1, -1, -1],
    ]


def test_steps_that_share_a_state_share_its_product():
    products = []

    class Counted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function in (torch.Tensor.matmul, torch.Tensor.__matmul__):
                products.append(len(args[0]))
            return super().__torch_function__(function, types, args, kwargs or {})

    _, table, batch = random_case()
    teacher = Teacher(batch.hidden_AD.as_subclass(Counted), table)
    p, _ = teacher(torch.tensor([3, 3, 3, 4, 4, 9]), torch.zeros(6, dtype=torch.long))
    assert products == [3]
    torch.testing.assert_close(
        p.as_subclass(torch.Tensor)[4], (batch.hidden_AD[4] @ table.T).softmax(-1)
    )


@pytest.mark.parametrize("name", ["kl", "tv", "lk"])
def test_the_backbones_own_states_have_no_soft_loss_and_no_slope_but_that_of_its_choice(name):
    _, table, batch = random_case(rows=9)
    label = (batch.hidden_AD @ table.T).argmax(-1)
    batch.labels_KA[0, :-1], batch.labels_KA[0, -1] = label[1:], -1
    state = torch.cat([batch.hidden_AD[1:], torch.zeros(1, SIZE)]).requires_grad_()
    loss, counted, correct = unrolled_loss([state], table, batch, 0.8, name)
    assert counted == correct == [8]
    ce = F.cross_entropy(state[:-1] @ table.T, batch.labels_KA[0, :-1])
    share = 0.1 if name == "tv" else 0.0
    torch.testing.assert_close(loss, share * ce, atol=1e-6, rtol=1e-5)
    (mine,) = torch.autograd.grad(loss, state)
    (theirs,) = torch.autograd.grad(share * ce, state)
    torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


def test_step_weights_sum_to_one_and_decay():
    weights = step_weights(3, 0.6)
    assert sum(weights) == pytest.approx(1)
    assert [round(weight, 2) for weight in weights] == [0.51, 0.31, 0.18]


@pytest.mark.parametrize("name", ["ce", "kl", "tv", "lk"])
def test_labels_that_are_ignored_give_no_loss_and_no_gradient(name):
    states, table, batch = random_case(steps=2)
    batch.labels_KA[:, ::2] = -1
    loss, counted, _ = unrolled_loss(states, table, batch, 0.8, name)
    for gradient in torch.autograd.grad(loss, states):
        assert (gradient[::2] == 0).all() and (gradient[1::2] != 0).any(dim=1).all()
    assert counted == [18, 18]


@pytest.mark.parametrize("name", ["ce", "kl"])
def test_a_batch_without_labels_has_loss_zero(name):
    states, table, batch = random_case()
    batch.labels_KA[:] = -1
    loss, counted, correct = unrolled_loss(states, table, batch, 0.8, name)
    assert loss.item() == 0 and counted == correct == [0]
