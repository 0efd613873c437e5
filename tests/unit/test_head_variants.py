"""Laws of the head's variants in torch: every part learns, and what is outside adds nothing."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from drafthead.training.losses import unrolled_loss
from drafthead.training.modules import Batch, FrozenMtpHead, MarkovBias, SequenceKv
from tests.unit.test_trainer import CONFIG

D, H, V, ANCHORS, STEPS = CONFIG.d_model, CONFIG.head_dim, CONFIG.draft_vocab_size, 24, 2
VARIANTS = {
    "no attention": {"kv_layers": (-1,)},
    "attention in the second layer": {"kv_layers": (-1, 2)},
    "markov bias": {"markov_rank": 32},
    "taps": {"taps": (0, 1)},
    "two positions": {"positions": 2},
    "all of it": {"kv_layers": (2, -1), "markov_rank": 32, "taps": (0,), "positions": 2},
}


def random_batch(taps: int) -> Batch:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    places = torch.randint(0, V, (2, STEPS, ANCHORS), generator=generator)
    cells = normal(2, 1, 1, ANCHORS, H)
    return Batch(
        hidden_AD=normal(ANCHORS, (1 + taps) * D), embeddings_KAD=normal(STEPS, ANCHORS, D),
        inputs_KA=places[0], labels_KA=places[1], positions_A=torch.arange(ANCHORS),
        sequences=[SequenceKv(slice(0, ANCHORS), cells[0], cells[1])], rows_VD=normal(V, D),
    )  # fmt: skip


@pytest.mark.parametrize("loss", ["ce", "kl"])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_part_of_a_variant_learns(variant, loss):
    config = dataclasses.replace(CONFIG, **variant)
    torch.manual_seed(0)
    head, batch = FrozenMtpHead(config), random_batch(len(config.taps))
    named = config.matrices() | {name: (size,) for name, size in config.vectors().items()}
    assert {name: tuple(w.shape) for name, w in head.named_parameters()} == named
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-3)
    before = {name: weight.detach().clone() for name, weight in head.named_parameters()}
    values = []
    for _ in range(12):
        optimizer.zero_grad()
        value, *_ = unrolled_loss(
            head(batch), batch.rows_VD, batch, 0.8, loss, learned_VB=head.learned_rows
        )  # fmt: skip
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < 0.8 * values[0]
    for name, weight in head.named_parameters():
        assert not torch.equal(weight, before[name]), name


def test_a_token_outside_the_draft_vocabulary_has_no_markov_bias():
    bias = MarkovBias(V, 32)
    found = bias(torch.tensor([4, -1, 0]))
    assert torch.equal(found[1], torch.zeros(32))
    assert torch.equal(found[[0, 2]], bias.previous.weight[[4, 0]])
