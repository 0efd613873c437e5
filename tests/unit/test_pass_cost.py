"""The cost of a pass is a pace times a curve, both learned from passes that are made anyway."""

import random

import pytest

from drafthead.decoding.pass_cost import EXTRA, PassCost, extra


def test_a_curve_that_goes_on_beyond_its_table():
    steps = [extra(rows + 1) - extra(rows) for rows in range(1, 20)]
    assert extra(1) == 0.0 and extra(len(EXTRA)) == EXTRA[-1]
    assert steps == pytest.approx(sorted(steps))
    assert extra(len(EXTRA) + 3) == pytest.approx(EXTRA[-1] + 3 * (EXTRA[-1] - EXTRA[-2]))


@pytest.mark.parametrize("bend", [0.4, 1.0, 2.5])
def test_pace_and_bend_are_found_through_noise_and_pauses(bend):
    draw, cost = random.Random(1), PassCost()
    for turn in range(400):
        rows = draw.choice([1, 1, 2, 3, 4, 6])
        ms = 5.0 * (1.0 + bend * extra(rows)) * draw.uniform(0.95, 1.05)
        cost.add_pass(rows, ms * (20.0 if turn % 40 == 7 else 1.0))
    assert cost.pace_ms == pytest.approx(5.0, rel=0.1)
    assert cost.pass_ms(6) == pytest.approx(5.0 * (1.0 + bend * extra(6)), rel=0.2)


def test_the_pace_follows_the_machine_and_keeps_the_bend():
    cost = PassCost()
    for rows in [1, 2, 4] * 40:
        cost.add_pass(rows, 3.0 * (1.0 + 2.0 * extra(rows)))
    bend = cost.bend
    for rows in [1, 2, 4] * 4:
        cost.add_pass(rows, 9.0 * (1.0 + 2.0 * extra(rows)))
    assert cost.pace_ms == pytest.approx(9.0, rel=0.05)
    assert cost.bend == pytest.approx(bend, rel=0.25)


def test_one_size_alone_tells_the_pace_and_leaves_the_bend():
    cost = PassCost()
    for _ in range(50):
        cost.add_pass(5, 10.0)
    assert cost.bend == pytest.approx(1.0)
    assert cost.pass_ms(5) == pytest.approx(10.0)


def test_a_draft_step_is_a_median_of_what_drafts_took():
    cost = PassCost()
    for steps, ms in [(1, 0.5), (4, 2.0), (2, 1.0), (3, 90.0), (0, 7.0)]:
        cost.add_draft(steps, ms)
    assert cost.step_ms == pytest.approx(0.5)
