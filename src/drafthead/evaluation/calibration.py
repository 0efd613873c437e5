"""Fits a head's confidences to what the runtime accepts, and finds the threshold that pays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

import numpy as np
from numpy.typing import NDArray

from drafthead._native import MtpHead
from drafthead.drafters.mtp import MtpDrafter
from drafthead.evaluation.metrics import rounded
from drafthead.evaluation.prompts import end_ids
from drafthead.heads.calibration import VerifiedDraft, calibrated, fit, reliability
from drafthead.heads.config import HeadConfig
from drafthead.session import Session
from drafthead.types import Draft

# Drafts go on far below what pays, so that doubtful tokens are tested too.
UNLIKELY = 0.01
THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.55)


class RecordingDrafter(MtpDrafter):
    """Remembers each draft that was verified, with its confidences as the head gives them."""

    def __init__(self, head: MtpHead, max_draft_tokens: int) -> None:
        super().__init__(head, max_draft_tokens, UNLIKELY)
        self.tested: list[VerifiedDraft] = []
        self._last = Draft()

    def propose(self, max_tokens: int) -> Draft:
        """Draft as always."""
        self._last = super().propose(max_tokens)
        return self._last

    def observe(self, tokens: Sequence[int], hidden_D: NDArray[np.float32]) -> None:
        """A pass has told how many of them were right."""
        self.tested.append(VerifiedDraft(self._last.confidences, len(tokens) - 1))
        super().observe(tokens, hidden_D)


def verified_drafts(
    session: Session, head: MtpHead, prompts: Iterable[Sequence[int]], max_tokens: int, longest: int
) -> list[VerifiedDraft]:
    """Decode prompts, loops cut, with drafts of up to `longest` tokens; all that were verified."""
    drafter = RecordingDrafter(head, longest)
    testing = session.using(drafter)
    for prompt in prompts:
        testing.forget()
        for _ in testing.stream_ids(prompt, max_tokens, end_ids(testing), cut_loops=True):
            pass
    return drafter.tested


@dataclass(frozen=True)
class Calibrated:
    """What the confidences of a head need, and what it did for them.

    error_before, error_after: expected calibration error of these drafts.
    """

    calibration: tuple[tuple[float, float], ...]
    min_confidence: float
    drafts: int
    error_before: float | None
    error_after: float | None

    def applied(self, config: HeadConfig) -> HeadConfig:
        """The config of a calibrated head; its record tells the errors."""
        told = {
            "drafts": self.drafts,
            "error_before": rounded(self.error_before),
            "error_after": rounded(self.error_after),
        }
        return replace(
            config,
            calibration=self.calibration,
            min_confidence=self.min_confidence,
            training={**config.training, "calibration": told},
        )


def calibrate(
    drafts: Sequence[VerifiedDraft], rows_ms: Sequence[float], step_ms: float
) -> Calibrated:
    """Fit, and choose a threshold; times as for `best_threshold`."""
    found = fit(drafts)
    errors = [reliability(drafts, pairs).error for pairs in ((), found)]
    least = best_threshold(drafts, found, rows_ms, step_ms)
    return Calibrated(found, least, len(drafts), errors[0], errors[1])


def best_threshold(
    drafts: Sequence[VerifiedDraft],
    calibration: Sequence[tuple[float, float]],
    rows_ms: Sequence[float],
    step_ms: float,
) -> float:
    """Of THRESHOLDS the one with the most tokens a second, had these drafts ended by it.

    rows_ms: of a pass by its rows, from 1 on, for all lengths of draft.  step_ms: of a draft step.
    """
    sure = [_products(draft, calibration) for draft in drafts]

    def tokens_a_ms(threshold: float) -> float:
        tokens, spent_ms = 0, 0.0
        for draft, products in zip(drafts, sure, strict=True):
            kept = sum(product >= threshold for product in products)
            tokens += min(draft.accepted, kept) + 1
            spent_ms += rows_ms[kept] + step_ms * min(kept + 1, len(products))
        return tokens / spent_ms if spent_ms else 0.0

    return max(THRESHOLDS, key=tokens_a_ms)


def _products(draft: VerifiedDraft, calibration: Sequence[tuple[float, float]]) -> list[float]:
    sure = [
        float(calibrated(np.array([confidence]), calibration, step)[0])
        for step, confidence in enumerate(draft.confidences)
    ]
    return list(accumulate(sure, mul))
