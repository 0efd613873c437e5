"""Laws of choosing weights by speed: counts times measured times, on few prompts of every task."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from drafthead.decoding.stats import count_pass
from drafthead.training.answers import Answer
from drafthead.training.recipe import MeasureRecipe
from drafthead.training.selection import (
    TRIAL_TOKENS,
    Costs,
    CountingDrafter,
    Trial,
    passes_by_rows,
    trial_answers,
)
from drafthead.types import DecodeStats, Draft


def test_speed_is_what_each_pass_and_each_step_takes():
    drafts = [(0, 0), (2, 1), (3, 3), (0, 0), (2, 2)]  # drafted, accepted
    rows_ms, step_ms = [10.0, 11.0, 13.0, 16.0], 2.0
    stats, spent = DecodeStats(), 0.0
    for drafted, accepted in drafts:
        count_pass(stats, Draft((0,) * drafted), accepted, accepted + 1)
        spent += rows_ms[drafted] + step_ms * (drafted + 1)
    trial = Trial(stats, sum(drafted + 1 for drafted, _ in drafts), Costs(rows_ms, step_ms))
    assert passes_by_rows(stats) == [2, 0, 2, 1]
    assert trial.tok_s == pytest.approx(1000 * (5 + 6) / spent)
    assert trial.speedup == pytest.approx((5 + 6) * 10.0 / spent)


def test_plain_decoding_is_expected_to_be_as_fast_as_plain_decoding():
    trial = Trial(DecodeStats(passes=7, committed=7), 0, Costs([12.5, 13], 1))
    assert trial.speedup == 1.0


def test_nothing_decoded_has_no_speed():
    assert Trial(DecodeStats(), 0, Costs([10.0], 1.0)).tok_s == 0.0


class HeadOf:
    """Drafts as many tokens as it is sure of, one it doubts after them; counts its steps."""

    positions, prompt_tokens = 1, False

    def __init__(self, sure):
        self.sure, self.steps = iter(sure), 0

    def draft(self, _cache, _token, _hidden, max_tokens, _floors, _calibration, _more):
        sure = next(self.sure)
        count = min(sure + 1, max_tokens)
        self.steps += count
        confidences = [1.0] * min(sure, count) + [0.1] * (count - min(sure, count))
        return np.arange(count, dtype=np.int32), np.array(confidences, np.float32)


def test_the_steps_of_doubted_tokens_are_counted_too():
    sure, rooms = [0, 1, 3, 4, 9, 2, 1], [5, 5, 5, 5, 5, 2, 1]
    head = HeadOf(sure)
    drafter = CountingDrafter(head, max_draft_tokens=4, min_confidence=0.4)
    drafter.begin([1], np.zeros(1, np.float32), "cache")
    for room in rooms:
        drafter.propose(room)
    assert drafter.steps == head.steps == 1 + 2 + 4 + 4 + 4 + 2 + 1


def test_a_pass_of_several_positions_is_paid_in_full():
    head = HeadOf([0, 3, 1, 0])
    head.positions = 3
    drafter = CountingDrafter(head, max_draft_tokens=4, min_confidence=0.4)
    drafter.begin([1], np.zeros(1, np.float32), "cache")
    for room in (5, 5, 5, 2):
        drafter.propose(room)
    assert drafter.steps == 3 + 3 + 3 + 2  # no more rows than there is room for


def heldout(counts):
    """Answers of so many tokens, of each task."""
    return [
        Answer(f"{task}{place}", task, (1,), tuple(range(count)), "stop")
        for task, sizes in counts.items()
        for place, count in enumerate(sizes)
    ]


def test_tasks_take_turns_and_each_gives_at_most_what_the_recipe_says():
    answers = heldout({"a": [9, 9, 9, 9], "b": [1, 9], "c": [9, 9]})
    chosen = trial_answers(answers, MeasureRecipe(per_task=2))
    assert [answers[place].id for place in chosen] == ["a0", "b1", "c0", "a1", "c1"]


def test_sampled_answers_are_not_decoded_again():
    answers = heldout({"a": [9, 9, 9]})
    answers[1] = dataclasses.replace(answers[1], temperature=0.8)
    assert trial_answers(answers, MeasureRecipe(per_task=3)) == [0, 2]


def test_an_evaluation_decodes_few_tokens_but_always_something():
    answers = heldout({"a": [5000] * 90, "b": [5000] * 90})
    for longest in (100, 4096):
        chosen = trial_answers(answers, MeasureRecipe(per_task=90, max_tokens=longest))
        assert len(chosen) == max(1, TRIAL_TOKENS // longest)
    assert trial_answers([], MeasureRecipe()) == []
