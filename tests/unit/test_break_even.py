"""Laws of break-even: what a draft costs, what it must bring, and the length that brings most."""

from __future__ import annotations

import pytest

from drafthead.evaluation.break_even import (
    ACCEPTANCES,
    acceptance_for_tau,
    best_draft,
    break_even,
    expected_tau,
)


def test_expected_tau_is_the_geometric_sum():
    """Leviathan et al., equation 1."""
    for acceptance in (0.0, 0.3, 0.9):
        closed = (1 - acceptance**5) / (1 - acceptance)
        assert expected_tau(acceptance, 4) == pytest.approx(closed)
    assert expected_tau(1.0, 4) == 5


def test_break_even_acceptance_reaches_the_needed_tau():
    for k in (1, 3, 7):
        for needed in (1.0, 1.2, 1.9):
            acceptance = acceptance_for_tau(needed, k)
            assert acceptance is not None
            assert expected_tau(acceptance, k) == pytest.approx(needed)


def test_where_certain_drafts_do_not_pay_there_is_no_break_even():
    """H3: a pass of two rows plus a draft that costs more than two passes never wins."""
    assert acceptance_for_tau(2.1, 1) is None
    lines = break_even({"1": 10.0, "2": 15.0, "4": 20.0}, step_ms=6.0)
    assert lines["1"] == {"tau": 2.1, "acceptance": None}
    assert lines["3"]["tau"] == 3.8
    assert 0.9 < lines["3"]["acceptance"] < 1.0


def test_without_a_head_there_is_nothing_to_break_even():
    rows_ms = {"1": 10.0, "2": 15.0}
    assert break_even(rows_ms, None) == best_draft(rows_ms, None) == {}


def test_the_best_draft_is_longer_the_more_is_accepted_and_as_long_as_can_be_for_nothing():
    """Brute force over the timed lengths, with drafts of a tenth of a pass."""
    rows_ms = {str(rows): 10.0 + 2.5 * (rows - 1) for rows in (1, 2, 3, 4, 6, 8)}
    found = best_draft(rows_ms, step_ms=1.0)
    lengths = [found[str(acceptance)]["draft_tokens"] for acceptance in ACCEPTANCES]
    assert lengths == sorted(lengths) == [1, 1, 2, 3, 5]
    for acceptance in ACCEPTANCES:
        gains = [expected_tau(acceptance, k) / (1 + 0.25 * k + 0.1 * k) for k in (0, 1, 2, 3, 5, 7)]
        assert found[str(acceptance)]["speedup"] == pytest.approx(max(gains), abs=5e-5)
    free = best_draft(dict.fromkeys(rows_ms, 10.0), step_ms=0.0)
    assert {best["draft_tokens"] for best in free.values()} == {7}


def test_where_no_draft_pays_the_best_is_none():
    """H4, H6: said before anybody drafts."""
    found = best_draft({"1": 10.0, "2": 20.0, "4": 40.0}, step_ms=5.0)
    assert set(map(str, found.values())) == {"{'draft_tokens': 0, 'speedup': 1.0}"}
