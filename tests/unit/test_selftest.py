"""The self-test finds a machine that does not keep the contract."""

from __future__ import annotations

import numpy as np
import pytest

from drafthead import _native
from drafthead.backbone.handle import Pass
from drafthead.drafters.rehearsed import RehearsedDrafter
from drafthead.errors import RequestError
from drafthead.evaluation import selftest
from drafthead.evaluation.selftest import CHECKS, Check, bits, run_selftest
from tests import fakes


class Unfaithful(fakes.ScriptedBackbone):
    """Adds one unit in the last place where `when(rows of the pass, segments)` says so."""

    when = staticmethod(lambda rows, segments: False)

    def forward(self, segments, **how):
        done = super().forward(segments, **how)
        if self.when(self.rows_fed[-1], segments):
            hidden = np.nextafter(done.hidden, np.float32(np.inf))
            return Pass(hidden, done.tokens, done.logits)
        return done


def report_of(monkeypatch, when):
    session = fakes.session(eos_ids=())
    backbone = Unfaithful(fakes.hashed_next(256), 256)
    backbone.spec.context_length = 4096
    backbone.when = when
    session.backbone = backbone
    monkeypatch.setattr(selftest.Backbone, "open", lambda *how: backbone)
    return run_selftest(session, quick=True)


def mismatched(report):
    return [check["name"] for check in report["checks"] if check["mismatches"]]


def test_a_faithful_backbone_is_exact(monkeypatch):
    report = report_of(monkeypatch, lambda rows, segments: False)
    assert report["exact"] is True
    assert [check["name"] for check in report["checks"]] == list(CHECKS)
    assert all(check["cases"] > 0 for check in report["checks"])
    assert report["isa"] == _native.active_isa()


@pytest.mark.parametrize(
    ("when", "found"),
    [
        (lambda rows, segments: rows == 3, ["rows", "strangers"]),
        (lambda rows, segments: rows == 32, ["chunks"]),
        (lambda rows, segments: len(segments) > 1, ["strangers"]),
        (lambda rows, segments: rows > 1, CHECKS[:6]),
    ],
)
def test_one_bit_of_difference_is_found(monkeypatch, when, found):
    """A1, A3: one unit in the last place in passes of some size is enough."""
    report = report_of(monkeypatch, when)
    assert report["exact"] is False
    assert set(found) <= set(mismatched(report))


@pytest.mark.parametrize("width", range(1, 18))
def test_no_verify_width_escapes_the_check_of_rows(monkeypatch, width):
    """A2: one unit in the last place, in passes of that many rows alone."""
    report = report_of(monkeypatch, lambda rows, segments: rows == width)
    assert "rows" in mismatched(report)


def test_zeros_of_either_sign_and_nans_are_compared_as_bits():
    check = Check("x")
    zero, minus = (np.array([value], np.float32) for value in (0.0, -0.0))
    nan = np.array([np.nan], np.float32)
    check.compare([bits(zero), bits(nan)], [bits(minus), bits(nan.copy())])
    assert (check.cases, check.mismatches) == (2, 1)


def test_a_missing_row_is_an_error_of_the_test_and_not_a_pass():
    with pytest.raises(ValueError, match="zip"):
        Check("x").compare([bits(np.zeros(1, np.float32))], [])


def test_an_answer_longer_than_the_context_is_refused():
    with pytest.raises(RequestError, match="4096 tokens does not fit the context of 4096"):
        session = fakes.session(eos_ids=())
        session.backbone.spec.context_length = 4096
        run_selftest(session, tokens=4096)


def test_rehearsed_drafts_are_cut_at_every_row():
    """Right tokens go round 0, 1, 2, 3 and the rest of the draft is wrong."""
    drafter = RehearsedDrafter([7] * 20, vocab_size=64)
    drafter.begin([1, 7], np.zeros(3, np.float32), fakes.FakeCache(1))
    drafts = [drafter.propose(3).tokens for _ in range(5)]
    assert drafts == [(8, 8, 8), (7, 8, 8), (7, 7, 8), (7, 7, 7), (8, 8, 8)]
    drafter.observe([7] * 18, np.zeros(3, np.float32))
    assert drafter.propose(3).tokens == (7,)


def test_a_rollback_that_spoils_a_cell_is_found(monkeypatch):
    """B1: a cell lost with rejected ones changes the answer."""
    session = fakes.session(eos_ids=())
    backbone = fakes.ScriptedBackbone(fakes.hashed_next(256), 256)
    backbone.spec.context_length = 4096
    session.backbone = backbone
    monkeypatch.setattr(selftest.Backbone, "open", lambda *how: backbone)
    whole = fakes.FakeCache.rollback

    def loses_one(cache, length):
        rejected = length < cache.length
        whole(cache, length)
        if rejected and 70 <= length < 90:
            cache.cells[length - 1] ^= 1

    monkeypatch.setattr(fakes.FakeCache, "rollback", loses_one)
    report = run_selftest(session, quick=True, tokens=64)
    assert "rejections" in mismatched(report)
