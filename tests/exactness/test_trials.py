"""What chooses the weights is what the runtime will do with them."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch

from drafthead.decoding.stats import pool
from drafthead.drafters.mtp import MtpDrafter
from drafthead.session import load
from drafthead.training import selection
from drafthead.training.answers import Answer
from drafthead.training.export import export
from drafthead.training.modules import FrozenMtpHead
from drafthead.training.recipe import MeasureRecipe
from drafthead.training.selection import THRESHOLDS, Judge, numpy_weights
from tests.random_head import config_for

QUESTIONS = ("Name three colours.", "What is 7 times 8?", "Hi!")
RECIPE = MeasureRecipe(max_tokens=24, max_draft=3)
COSTS = {"rows_ms": {"1": 10.0, "2": 11.0, "3": 12.0, "4": 13.0}, "draft_step_ms": 1.0}
COUNTS = ("passes", "drafted", "accepted", "committed", "drafted_at", "tested_at", "accepted_at")
pytestmark = pytest.mark.backbone


class Counted:
    """A native head that counts its steps."""

    def __init__(self, head):
        self.head, self.steps = head, 0
        self.prompt_tokens, self.positions = head.prompt_tokens, head.positions

    def draft(self, *how):
        tokens, confidences = self.head.draft(*how)
        self.steps += len(tokens)
        return tokens, confidences


@pytest.fixture(scope="module")
def session(backbone_path):
    return load(backbone_path, head="none", drafter="none", threads=1)


@pytest.fixture
def measured(monkeypatch):
    """The calls that measure costs."""
    calls = []
    monkeypatch.setattr(selection, "measure_cost", lambda *how: calls.append(how) or COSTS)
    return calls


def head_and_judge(session, folder):
    torch.manual_seed(5)
    config = config_for(session.backbone)
    head = FrozenMtpHead(config)
    answers = [Answer(text, "t", tuple(session.encode(text)), (1, 2), "stop") for text in QUESTIONS]
    ids = np.arange(config.draft_vocab_size)
    return head, config, Judge(session, config, ids, answers, RECIPE, folder)


@pytest.mark.parametrize("floor", [0.0, 0.02])
def test_the_trial_of_some_weights_is_the_decode_of_the_head_exported_from_them(
    session, tmp_path, measured, floor
):
    head, config, judge = head_and_judge(session, tmp_path)
    trial = judge(head, (floor,))
    package = export(
        tmp_path / "head", config, numpy_weights(head), np.arange(config.draft_vocab_size)
    )
    native = Counted(package.build(session.backbone))
    drafting = session.using(MtpDrafter(native, RECIPE.max_draft, floor))
    done = []
    for text in QUESTIONS:
        drafting.forget()
        answer = drafting.generate(text, max_tokens=RECIPE.max_tokens, cut_loops=True)
        done.append(answer.stats)
    expected = asdict(pool(done))
    assert expected["drafted"] > 0
    assert {name: asdict(trial.stats)[name] for name in COUNTS} == {
        name: expected[name] for name in COUNTS
    }
    assert trial.steps == native.steps


def test_the_threshold_of_the_fastest_trial_is_found(session, tmp_path, measured):
    head, _, judge = head_and_judge(session, tmp_path)
    each = {least: judge(head, (least,)) for least in THRESHOLDS}
    best = judge(head)
    assert best.tok_s == max(trial.tok_s for trial in each.values())
    assert best.steps == each[best.min_confidence].steps


def test_costs_are_measured_once_a_run_and_kept_for_one_that_resumes(session, tmp_path, measured):
    head, _, judge = head_and_judge(session, tmp_path)
    first = judge(head)
    again = head_and_judge(session, tmp_path)[2](head)
    assert len(measured) == 1 and list(measured[0][1]) == [1, 2, 3, 4]
    assert first.costs == again.costs
    assert (first.tok_s, first.speedup) == (again.tok_s, again.speedup)
