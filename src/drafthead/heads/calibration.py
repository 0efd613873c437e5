"""From how sure a head is of a drafted token to how often such tokens are accepted.

The log-odds of a confidence are divided by a temperature and shifted, both of the draft step:
temperature scaling (Guo et al., arXiv 1706.04599, section 4.2) with the bias of Platt's. A head
spreads its belief over its draft vocabulary alone and answers a target that takes the likeliest, so
the shift matters more than the temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drafthead.types import Reliability

# A step that was tested less shares the numbers of the step before it.
LEAST_TESTED = 60
MOST_STEPS = 8
# The fit starts from the confidences as they are, and is held there as if by so many tokens.
PRIOR_TOKENS = 10.0
NEWTON_STEPS = 25
LEAST_ODDS = 1e-6


class VerifiedDraft(NamedTuple):
    """A draft that was verified: the head's own confidences, and how many tokens were accepted."""

    confidences: tuple[float, ...]
    accepted: int


def fit(drafts: Sequence[VerifiedDraft]) -> tuple[tuple[float, float], ...]:
    """Temperature and shift of each step that was tested enough; none where no step was."""
    found: list[tuple[float, float]] = []
    for step in range(MOST_STEPS):
        sure_N, accepted_N = compared_tokens(drafts, step)
        if len(sure_N) < LEAST_TESTED:
            break
        slope, shift = _logistic(_log_odds(sure_N), accepted_N)
        found.append((round(1.0 / slope, 4), round(shift, 4)))
    return tuple(found)


def compared_tokens(
    drafts: Sequence[VerifiedDraft], step: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Confidences of a step's tokens that were compared, and 1 for those accepted, both (N,)."""
    tested = [draft for draft in drafts if step < len(draft.confidences[: draft.accepted + 1])]
    sure = [draft.confidences[step] for draft in tested]
    return np.array(sure, float), np.array([step < draft.accepted for draft in tested], float)


def reliability(
    drafts: Sequence[VerifiedDraft], calibration: Sequence[tuple[float, float]] = ()
) -> Reliability:
    """Counts by calibrated confidence."""
    found = Reliability()
    for step in range(max((len(draft.confidences) for draft in drafts), default=0)):
        sure_N, accepted_N = compared_tokens(drafts, step)
        for confidence, accepted in zip(calibrated(sure_N, calibration, step), accepted_N):  # noqa: B905
            found.add(float(confidence), bool(accepted))
    return found


def calibrated(
    confidences_N: NDArray[np.float64], calibration: Sequence[tuple[float, float]], step: int
) -> NDArray[np.float64]:
    """What the core makes of a step's confidences, (N,); the last step's numbers go on."""
    if not calibration:
        return confidences_N
    temperature, shift = calibration[min(step, len(calibration) - 1)]
    odds = _log_odds(confidences_N) / temperature + shift
    return np.asarray(1.0 / (1.0 + np.exp(-odds)))


def _log_odds(confidences_N: NDArray[np.float64]) -> NDArray[np.float64]:
    inside_N = np.clip(confidences_N, LEAST_ODDS, 1.0 - LEAST_ODDS)
    return np.asarray(np.log(inside_N) - np.log1p(-inside_N))


def _logistic(odds_N: NDArray[np.float64], accepted_N: NDArray[np.float64]) -> tuple[float, float]:
    """Slope and shift of the likeliest logistic curve, by Newton's method."""
    inputs_N2 = np.stack([odds_N, np.ones_like(odds_N)], 1)
    start = np.array([1.0, 0.0])
    held = PRIOR_TOKENS * np.eye(2) / 4.0
    weights = start.copy()
    for _ in range(NEWTON_STEPS):
        sure_N = 1.0 / (1.0 + np.exp(-inputs_N2 @ weights))
        slope = inputs_N2.T @ (sure_N - accepted_N) + held @ (weights - start)
        curve = (inputs_N2.T * (sure_N * (1.0 - sure_N))) @ inputs_N2 + held
        weights = weights - np.linalg.solve(curve, slope)
    return max(0.1, float(weights[0])), float(np.clip(weights[1], -5.0, 5.0))
