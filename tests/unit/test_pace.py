"""Laws of plan and pace: what can be counted is exact, and the rest follows from what was seen."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import trainee

from drafthead.evaluation.prompts import PromptRow
from drafthead.training.features import FeatureFiles, FeatureSizes
from drafthead.training.pace import Lengths, Pace
from drafthead.training.plan import fit, make_plan
from drafthead.training.regen import Regenerator, RegenSettings, regenerate

SETTINGS = RegenSettings(max_tokens=12, capacity=64, keep_loops=True)
PROMPTS = [
    PromptRow(f"p{n}", ("chat", "math")[n % 2], ({"role": "user", "content": f"{n}"},))
    for n in range(40)
]


def encode(asked):
    """Ten tokens; of p13 too many."""
    number = int(asked.id[1:])
    return [2 + number, *range(10, 69 if number == 13 else 19)]


def worker(features=None, sequences=4):
    """Every answer is as long as it may be."""
    return Regenerator(
        trainee.TinyBackbone(ends=False), encode, frozenset({trainee.EOS}), SETTINGS, sequences,
        features,
    )  # fmt: skip


def test_answers_that_are_still_written_count_in_the_mean():
    lengths = Lengths(100)
    assert lengths.mean("chat") == 100  # nothing is known
    for task in ("chat", "math"):
        lengths.add(task, 10)
    assert lengths.mean("chat") == 10
    assert lengths.having([("chat", 30), ("math", 30)]).mean("chat") == 40
    assert lengths.mean("chat") == 10
    lengths.add("chat", 1000)
    assert lengths.mean("math") == 100 * 4 / 5 + 10 / 5  # drawn towards all, which is capped


def test_many_answers_of_a_task_outweigh_the_others():
    lengths = Lengths(500)
    for _ in range(100):
        lengths.add("short", 10)
        lengths.add("long", 210)
    assert lengths.mean("short") == pytest.approx(10 + 100 * 4 / 104)
    assert lengths.mean("unseen") == 110


def test_what_is_done_and_what_is_left_add_up_and_the_time_goes_with_the_tokens():
    now, in_flight = [0.0], set()
    regenerator = worker(sequences=30)  # more prompt tokens than one pass reads
    pace = Pace(regenerator, SETTINGS, clock=lambda: now[0])
    total = 39 * (10 + 12)
    for answer in regenerator.answers(PROMPTS):
        now[0] += 1.5
        pace.add(answer)
        done, left = pace.tokens()
        expected = total if regenerator.counts.skipped else total + 22
        assert done + left == expected
        in_flight.add(len(regenerator.running))
        assert pace.seconds_left() == pytest.approx(left * now[0] / done)
    assert pace.tokens() == (total, 0)
    assert max(in_flight) > 1


def test_a_line_goes_through_the_passes_and_never_below_zero():
    assert np.allclose(fit([(8, 0.3), (16, 0.5), (264, 6.7)]), (0.1, 0.025))
    assert fit([(1, 1.0), (2, 4.0)]) == (0.0, 5 / 3)
    assert fit([(4, 2.0), (4, 2.0)])[1] >= 0


def test_a_plan_counts_exactly_what_the_run_then_takes(tmp_path):
    regenerate(worker(), PROMPTS[:7], tmp_path / "out", SETTINGS)
    held = list(worker().answers(PROMPTS[:7]))
    files = FeatureFiles(tmp_path / "features", FeatureSizes.of(trainee.TinyBackbone()), (1,))
    sizes = files.bytes_per_anchor, files.bytes_per_row
    before = sorted(tmp_path.rglob("*"))
    plan = make_plan(worker(), SETTINGS, PROMPTS, held, 4, sizes)
    assert sorted(tmp_path.rglob("*")) == before
    assert (plan.prompts, plan.held, plan.skipped) == (32, 7, 1)
    regenerator = worker(files)
    answers = list(regenerator.answers(PROMPTS[7:]))
    assert plan.prompt_tokens == sum(len(answer.prompt_tokens) for answer in answers)
    assert plan.answer_tokens == sum(len(answer.answer) for answer in answers)
    assert plan.feature_bytes == files.nbytes
    assert plan.seconds > 0


def test_a_plan_of_nothing_left_takes_no_time():
    held = list(worker().answers(PROMPTS))
    plan = make_plan(worker(), SETTINGS, PROMPTS, held, 4)
    assert (plan.prompts, plan.held, plan.rows, plan.seconds) == (0, 39, 0, 0)
    assert plan.feature_bytes is None


def test_one_step_feeds_every_free_slot():
    regenerator, waiting = worker(), deque(PROMPTS[:6])
    regenerator.step(waiting)
    assert [prompt.id for prompt, _, _ in regenerator.running] == ["p0", "p1", "p2", "p3"]
    assert [asked.id for asked in waiting] == ["p4", "p5"]
