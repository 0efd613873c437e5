"""Drafting rests where it does not pay, and is tried again at growing intervals."""

import pytest

from drafthead.decoding.gain import FIRST_REST, LONGEST_REST, TRIAL_PASSES, GainSwitch


def run(switch, gains):
    """Passes of these gains, while it is on; True for each with a draft."""
    seen = []
    for gain in gains:
        seen.append(switch.on)
        if switch.on:
            switch.drafted_pass(1, 1.0 / gain)
        else:
            switch.plain_pass()
    return seen


def rests(seen):
    """Lengths of the stretches without drafts."""
    text = "".join("d" if one else "-" for one in seen)
    return [len(part) for part in text.split("d") if part]


def test_a_gain_above_one_keeps_drafting():
    assert all(run(GainSwitch(), [1.05] * 500))


@pytest.mark.parametrize(("gain", "within"), [(0.5, 4), (0.8, 12), (0.95, 60)])
def test_a_loss_ends_drafting_the_sooner_the_larger_it_is(gain, within):
    seen = run(GainSwitch(), [gain] * 100)
    assert 1 < seen.index(False) <= within


def test_trials_come_at_intervals_that_double_up_to_a_limit():
    found = rests(run(GainSwitch(), [0.5] * 2000))
    expected = FIRST_REST
    for length in found[:-1]:
        assert length == expected
        expected = min(2 * expected, LONGEST_REST)
    assert expected == LONGEST_REST


def test_what_a_loss_costs_is_bounded():
    """Of 500 passes that gain 0.8 with a draft, at most 5 % have one more than would be best."""
    assert sum(run(GainSwitch(), [0.8] * 500)) <= 12 + 5 * TRIAL_PASSES


def test_a_trial_that_pays_turns_drafting_on_again():
    """A poem, then code: off, then on."""
    poem, code = [0.7] * 100, [1.8] * 400
    seen = run(GainSwitch(), poem + code)
    assert not all(seen[:100])
    back = len(seen) - 1 - seen[::-1].index(False)
    assert back < 100 + 2 * 64 and all(seen[back + 1 :])


def test_a_request_starts_with_drafting_on():
    switch = GainSwitch()
    while switch.on:
        run(switch, [0.3])
    switch.begin()
    assert switch.on and switch.gain > 1
