"""The cost of a pass is a pace times a curve, both learned from passes that are made anyway."""

import random
from itertools import pairwise

import pytest

from drafthead.drafters.pass_cost import BALANCES, PassCost, shape

# v(1) ... v(8) by `drafthead cost`, and of a machine that multiplies a row as slowly as it reads.
MEASURED = {
    "smollm2-135m, 35 GB/s": (1.0, 1.03, 1.10, 1.13, 1.15, 1.20, 1.24, 1.30),
    "qwen2.5-coder-1.5b, 35 GB/s": (1.0, 1.02, 1.02, 1.03, 1.05, 1.07, 1.12, 1.20),
    "qwen2.5-coder-1.5b, 60 GB/s": (1.0, 1.06, 1.24, 1.48, 1.72, 1.98, 2.27, 2.56),
    "every row a pass": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0),
}


def test_a_curve_goes_from_the_reading_to_the_multiplications():
    for balance in BALANCES:
        curve = [shape(balance, rows) for rows in range(1, 33)]
        steps = [longer - value for value, longer in pairwise(curve)]
        assert curve[0] == 1.0 and steps == pytest.approx(sorted(steps))
    assert shape(BALANCES[0], 4) < 1.01
    assert shape(BALANCES[-1], 8) == pytest.approx(8.0, rel=0.01)


@pytest.mark.parametrize("machine", MEASURED)
def test_a_machine_is_found_through_noise_and_pauses(machine):
    """Of all sizes, within an eighth, also those that were not seen."""
    draw, cost = random.Random(1), PassCost()
    for turn in range(400):
        rows = draw.choice([1, 1, 2, 3, 4, 6])
        ms = 5.0 * MEASURED[machine][rows - 1] * draw.uniform(0.95, 1.05)
        cost.add_pass(rows, ms * (20.0 if turn % 40 == 7 else 1.0))
    found = [cost.pass_ms(rows) / 5.0 for rows in range(1, 9)]
    assert found == pytest.approx(MEASURED[machine], rel=0.125)


def test_the_pace_follows_the_machine_and_keeps_the_balance():
    """A size that has not been seen since is slower too."""
    cost = PassCost()
    for rows in [1, 2, 4, 8] * 40:
        cost.add_pass(rows, 3.0 * shape(BALANCES[10], rows))
    for rows in [1, 2, 1] * 40:
        cost.add_pass(rows, 9.0 * shape(BALANCES[10], rows))
    assert cost.pace_ms == pytest.approx(9.0, rel=0.05)
    assert cost.pass_ms(8) == pytest.approx(9.0 * shape(BALANCES[10], 8), rel=0.15)


def test_one_size_alone_tells_the_pace_and_leaves_the_balance():
    cost = PassCost()
    before = cost.balance
    for _ in range(5000):
        cost.add_pass(5, 10.0)
    assert cost.balance == before
    assert cost.pass_ms(5) == pytest.approx(10.0)


def test_a_draft_step_is_a_median_of_what_drafts_took():
    cost = PassCost()
    for steps, ms in [(1, 0.5), (4, 2.0), (2, 1.0), (3, 90.0), (0, 7.0)]:
        cost.add_draft(steps, ms)
    assert cost.step_ms == pytest.approx(0.5)
