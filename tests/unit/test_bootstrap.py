"""Laws of the intervals: prompts are drawn with what both arms did, and the seed is fixed."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from drafthead.evaluation.bootstrap import (
    DRAWS,
    Pairs,
    draws,
    median_interval,
    pooled_interval,
    task_mean_interval,
)
from drafthead.evaluation.metrics import Answer, arm_lines, task_means
from drafthead.types import DecodeStats


def pairs(values):
    """One prompt for each (tokens, ms, tokens, ms)."""
    return Pairs.of([str(index) for index in range(len(values))], values)


def of_ratios(ratios):
    """Prompts of 100 tokens whose speeds have these ratios."""
    return pairs([(100, 100 / ratio, 100, 100) for ratio in ratios])


def answer(drafter, prompt_id, committed, decode_ms, task="t"):
    counts = DecodeStats(passes=committed, committed=committed, decode_ms=decode_ms)
    return Answer(drafter, task, prompt_id, (1,), "stop", counts, 1.0, 0.1, None)


def test_equal_prompts_leave_no_doubt():
    for ratio in (0.5, 1.0, 3.25):
        same = of_ratios([ratio] * 7)
        assert median_interval(same) == pooled_interval(same) == [ratio, ratio]
        assert task_mean_interval([same, same]) == [ratio, ratio]


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_prompts_say_nothing(count):
    few = of_ratios([2.0] * count)
    assert median_interval(few) is pooled_interval(few) is None
    assert task_mean_interval([few, of_ratios([1.0, 2.0])]) is task_mean_interval([]) is None


def test_two_prompts_give_their_own_range():
    """A draw is both, or one of them twice: each with a quarter of the chance."""
    assert median_interval(of_ratios([1.0, 2.0])) == [1.0, 2.0]


def test_the_same_answers_give_the_same_interval():
    ratios = np.random.default_rng(5).uniform(1, 3, 40)
    assert median_interval(of_ratios(ratios)) == median_interval(of_ratios(ratios))
    assert (draws(9) == draws(9)).all()
    assert (draws(9) != draws(9, 1)).any()


def test_a_known_distribution_gives_its_known_interval():
    """The pooled ratio of equal times is a mean: its interval is the mean's, 1.96 s/sqrt(n) wide.

    The width of an end found by B draws has a standard error of sqrt(q (1 - q) / B) / density, for
    a normal at q = 0.025 about 2.67 / sqrt(B) standard errors; four of these are allowed.
    """
    tokens = np.random.default_rng(1).normal(300, 60, 400)
    normal = pairs([(value, 100, 150, 100) for value in tokens])
    mean, error = tokens.mean() / 150, tokens.std() / 150 / sqrt(len(tokens))
    low, high = pooled_interval(normal)
    allowed = 4 * 2.67 / sqrt(DRAWS) * error
    assert low == pytest.approx(mean - 1.96 * error, abs=allowed)
    assert high == pytest.approx(mean + 1.96 * error, abs=allowed)


def test_pairs_stay_pairs():
    """Prompts of very different speeds, but with one ratio, are no reason for doubt."""
    speeds = [10, 100, 1000, 5, 7]
    paired = pairs([(100, 50 / speed, 100, 100 / speed) for speed in speeds])
    assert median_interval(paired) == [2.0, 2.0]
    assert pooled_interval(paired) == [2.0, 2.0]


def test_repeats_of_a_prompt_are_drawn_together():
    """Repeating a run adds nothing to what is known of other prompts."""
    once = of_ratios([1.0, 2.0, 4.0, 1.5])
    values = [(100, 100 / ratio, 100, 100) for ratio in (1.0, 2.0, 4.0, 1.5)]
    thrice = Pairs.of([str(i % 4) for i in range(12)], values * 3)
    assert thrice.prompts == 4
    assert median_interval(thrice) == median_interval(once)
    assert pooled_interval(thrice) == pooled_interval(once)


def test_an_answer_without_a_speed_is_left_out_of_the_ratios():
    """I6: one token alone has no decode time; its prompt is neither 0 nor infinitely fast."""
    with_idle = pairs([(100, 50, 100, 100), (100, 50, 100, 100), (0, 0, 0, 0)])
    assert median_interval(with_idle) == pooled_interval(with_idle) == [2.0, 2.0]
    some = Pairs.of(["a", "b", "a"], [(100, 50, 100, 100), (9, 9, 18, 9), (0, 0, 0, 0)])
    assert median_interval(some) == [0.5, 2.0]
    assert pooled_interval(pairs([(0, 0, 0, 0)] * 3)) is None


def test_lines_carry_intervals_against_plain_and_against_each_other():
    answers = [answer("plain", f"p{i}", 100, 100) for i in range(6)]
    answers += [answer("mtp", f"p{i}", 100, 50) for i in range(6)]
    answers += [answer("other", f"p{i}", 100, 80) for i in range(6)]
    lines = {(line["drafter"], line["task"]): line for line in arm_lines(answers)}
    mtp = lines["mtp", "all"]
    assert mtp["speedup_vs_plain"] == {
        "median": 2.0, "p10": 2.0, "p90": 2.0, "pooled": 2.0, "ci95": [2.0, 2.0],
        "pooled_ci95": [2.0, 2.0],
    }  # fmt: skip
    assert mtp["speedup_vs"].keys() == {"other"}
    assert mtp["speedup_vs"]["other"]["pooled"] == 1.6
    assert lines["other", "t"]["speedup_vs"]["mtp"]["ci95"] == [0.625, 0.625]
    assert lines["plain", "all"]["speedup_vs"] == {}
    assert mtp["acceptance"] is None


def test_the_two_intervals_of_a_line_are_of_the_median_and_of_the_pooled_ratio():
    """One long slow prompt among short fast ones moves the pooled ratio and hardly the median."""
    made = [(10, 10, 5)] * 8 + [(1000, 1000, 1000)]
    answers = [answer("plain", f"p{i}", n, base) for i, (n, base, _) in enumerate(made)]
    answers += [answer("mtp", f"p{i}", n, ms) for i, (n, _, ms) in enumerate(made)]
    ratio = next(x for x in arm_lines(answers) if x["drafter"] == "mtp")["speedup_vs_plain"]
    paired = pairs([(n, ms, n, base) for n, base, ms in made])
    assert ratio["ci95"] == median_interval(paired) == [2.0, 2.0]
    assert ratio["pooled_ci95"] == pooled_interval(paired)
    assert ratio["pooled_ci95"][0] < 1.05


def test_tasks_are_drawn_one_without_the_other():
    """The extremes of three tasks of two prompts seldom meet: one draw in 64."""
    low, high = task_mean_interval([of_ratios([1.0, 2.0])] * 3)
    assert 1.0 < low < high < 2.0


def test_every_task_weighs_the_same_in_the_mean_over_tasks():
    """A task of long answers does not drown one of short ones, as it does in the pooled ratio."""
    answers = []
    for task, tokens, ratio in (("long", 1000, 1.0), ("short", 10, 3.0)):
        for i in range(3):
            answers.append(answer("plain", f"{task}{i}", tokens, tokens, task))
            answers.append(answer("mtp", f"{task}{i}", tokens, tokens / ratio, task))
    means = task_means(answers)
    assert means == {"mtp": {"plain": {"mean": 2.0, "ci95": [2.0, 2.0]}}}
    answers.append(answer("plain", "idle", 0, 0, "third"))
    answers.append(answer("mtp", "idle", 0, 0, "third"))
    assert task_means(answers)["mtp"]["plain"] == {"mean": None, "ci95": None}
