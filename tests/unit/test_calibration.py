"""From a head's confidences to what the runtime accepts."""

import random

import numpy as np
import pytest

from drafthead.evaluation.calibration import THRESHOLDS, best_threshold, calibrate
from drafthead.heads.calibration import (
    LEAST_TESTED,
    VerifiedDraft,
    calibrated,
    compared_tokens,
    fit,
    reliability,
)
from drafthead.types import Reliability

TRUE = ((1.6, 0.8), (0.8, 1.2), (1.0, 0.0))


def drawn(count, calibration=TRUE, seed=0):
    """Drafts of three tokens that are accepted as the calibration says."""
    draw, drafts = random.Random(seed), []
    for _ in range(count):
        sure = tuple(draw.uniform(0.02, 0.98) for _ in range(3))
        accepted = 0
        while accepted < 3:
            likely = calibrated(np.array([sure[accepted]]), calibration, accepted)[0]
            if draw.random() >= likely:
                break
            accepted += 1
        drafts.append(VerifiedDraft(sure, accepted))
    return drafts


def test_the_numbers_of_each_step_are_found():
    for found, true in zip(fit(drawn(20000)), TRUE, strict=True):
        assert found[0] == pytest.approx(true[0], rel=0.1)
        assert found[1] == pytest.approx(true[1], abs=0.1)


def test_the_expected_calibration_error_falls_on_drafts_that_were_not_seen():
    found, unseen = fit(drawn(3000)), drawn(3000, seed=1)
    assert reliability(unseen).error > 0.1
    assert reliability(unseen, found).error < 0.04


def test_a_step_counts_where_all_before_it_were_accepted():
    drafts = [VerifiedDraft((0.1, 0.2, 0.3), 1), VerifiedDraft((0.4,), 1), VerifiedDraft((), 0)]
    assert [a.tolist() for a in compared_tokens(drafts, 0)] == [[0.1, 0.4], [1.0, 1.0]]
    assert [a.tolist() for a in compared_tokens(drafts, 1)] == [[0.2], [0.0]]
    assert compared_tokens(drafts, 2)[0].size == 0
    assert sum(reliability(drafts).tested) == 3


def test_too_few_tokens_leave_the_confidences_as_they_are():
    assert fit(drawn(LEAST_TESTED - 1)) == ()
    values = np.array([0.0, 0.3, 1.0])
    assert calibrated(values, (), 3) is values


def test_steps_that_were_tested_too_little_go_on_as_the_last_one():
    drafts = [VerifiedDraft(draft.confidences[:1], min(draft.accepted, 1)) for draft in drawn(300)]
    found = fit(drafts)
    assert len(found) == 1
    sure = [calibrated(np.array([0.4]), found, step)[0] for step in (0, 1, 5)]
    assert sure[0] == sure[1] == sure[2] != 0.4


def test_one_sided_outcomes_give_numbers_that_are_finite():
    for accepted in (0, 1):
        ((temperature, shift),) = fit([VerifiedDraft((0.5,), accepted)] * 200)
        assert 0.05 <= temperature <= 20 and abs(shift) <= 5
        assert (shift > 0) == bool(accepted)


def test_the_error_is_the_gap_between_promise_and_acceptance():
    """By hand: 4 tokens at 0.85 of which 2 come, 1 at 0.15 that does not."""
    found = Reliability()
    for accepted in (True, True, False, False):
        found.add(0.85, accepted)
    found.add(0.15, False)
    assert found.error == pytest.approx((abs(2 - 3.4) + 0.15) / 5)
    found.join(found)
    assert found.error == pytest.approx((abs(2 - 3.4) + 0.15) / 5)
    assert Reliability().error is None


def test_the_threshold_is_the_one_with_the_most_tokens_a_ms():
    """Rows that cost nothing are all taken; rows that cost a pass each, hardly any."""
    drafts = drawn(2000, ())
    cheap = best_threshold(drafts, (), [1.0] * 4, 0.0)
    dear = best_threshold(drafts, (), [1.0, 2.0, 3.0, 4.0], 0.1)
    assert cheap == THRESHOLDS[0] and dear >= 0.4
    assert calibrate(drafts, [1.0] * 4, 0.0).min_confidence == THRESHOLDS[0]
