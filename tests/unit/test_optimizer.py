"""Laws of the optimizer: which weights move how, and what their average is."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from drafthead.errors import TrainingError
from drafthead.training.optimizer import HeadOptimizer
from drafthead.training.recipe import TrainRecipe

RECIPE = TrainRecipe(steps=9, lr=0.01, muon_lr=0.02, weight_decay=0.1)


class Part(nn.Module):
    """A matrix, a norm and a bias."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.matrix = nn.Linear(6, 4)
        self.norm = nn.Parameter(torch.ones(6))


def gradients(part, seed):
    generator = torch.Generator().manual_seed(seed)
    for weight in part.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator)


def trained(steps, rate=1.0, **changes):
    """The part, its optimizer, and the weights after each step."""
    part, seen = Part(), []
    optimizer = HeadOptimizer(part, dataclasses.replace(RECIPE, **changes))
    optimizer.set_rate(rate)
    for step in range(steps):
        gradients(part, step)
        optimizer.step(step)
        seen.append({name: weight.detach().clone() for name, weight in part.named_parameters()})
    return part, optimizer, seen


def test_muon_moves_matrices_and_adamw_the_rest():
    adamw, muon = trained(3)[2][-1], trained(3, optimizer="muon")[2][-1]
    for name, value in adamw.items():
        assert torch.equal(value, muon[name]) == (name != "matrix.weight"), name
    part = Part()
    before = part.matrix.weight.detach().clone()
    theirs = torch.optim.Muon(
        [part.matrix.weight], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(3):
        gradients(part, step)
        theirs.step()
    assert torch.equal(part.matrix.weight, muon["matrix.weight"])
    assert not torch.equal(part.matrix.weight, before)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_rate_is_a_share_of_each_peak_and_only_matrices_decay(name):
    start = dict(Part().named_parameters())
    assert all(torch.equal(start[key], value) for key, value in trained(1, 0.0)[2][0].items())
    part = Part()
    optimizer = HeadOptimizer(part, dataclasses.replace(RECIPE, optimizer=name))
    optimizer.set_rate(0.5)
    for weight in part.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step(0)
    peak = 0.02 if name == "muon" else 0.01
    torch.testing.assert_close(part.matrix.weight, start["matrix.weight"] * (1 - 0.5 * peak * 0.1))
    assert torch.equal(part.norm, start["norm"])
    assert torch.equal(part.matrix.bias, start["matrix.bias"])


@pytest.mark.parametrize(("share", "weights"), [(1.0, [1, 1, 1, 1]), (0.5, [1, 2, 3, 4, 5])])
def test_the_average_is_that_of_its_weights_on_the_way(share, weights):
    part, optimizer, seen = trained(len(weights), average=share)
    last = {name: weight.detach().clone() for name, weight in part.named_parameters()}
    total = sum(weights)
    with optimizer.averaged():
        for name, weight in part.named_parameters():
            expected = sum(
                w / total * values[name] for w, values in zip(weights, seen, strict=True)
            )
            torch.testing.assert_close(weight.detach(), expected)
    for name, weight in part.named_parameters():
        assert torch.equal(weight, last[name])
    optimizer.use_average()
    assert not torch.equal(part.matrix.weight, last["matrix.weight"])


def test_without_averages_the_weights_are_the_trained_ones():
    part, optimizer, seen = trained(3)
    with optimizer.averaged():
        assert torch.equal(part.matrix.weight, seen[-1]["matrix.weight"])
    optimizer.use_average()
    assert torch.equal(part.matrix.weight, seen[-1]["matrix.weight"])


def test_muon_without_a_torch_that_has_it_is_refused(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(TrainingError, match=r"torch 2\.9"):
        HeadOptimizer(Part(), dataclasses.replace(RECIPE, optimizer="muon"))
