"""Laws of the break-even."""

from __future__ import annotations

import pytest

from drafthead.errors import CapacityError, RequestError
from drafthead.evaluation.cost import (
    acceptance_for_tau,
    break_even,
    cost_report,
    expected_tau,
    measure_cost,
)
from tests import fakes


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
    assert break_even({"1": 10.0, "2": 15.0}, None) == {}


def test_report_has_the_promised_fields_and_always_one_row():
    report = cost_report(fakes.session(), rows=(4, 2), context=10)
    assert list(report["rows_ms"]) == ["1", "2", "4"]
    assert list(report["v"]) == ["2", "4"]
    assert report["draft_step_ms"] is None
    assert report["bytes_per_pass"] == 1_000_000
    share = 1e6 / (report["rows_ms"]["1"] / 1000) / 1e9 / report["memory_read_gb_s"]
    assert report["bandwidth_share"] == pytest.approx(share, rel=0.1, abs=2e-4)


@pytest.mark.parametrize(
    ("rows", "context", "error"),
    [((0,), 10, RequestError), ((2,), 0, RequestError), ((8,), 60, CapacityError)],
)
def test_sizes_that_do_not_fit_are_refused(rows, context, error):
    with pytest.raises(error):
        measure_cost(fakes.session(context=64), rows, context)
