"""Pearson's chi-square test, and how often it would cry wolf."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST_EXPECTED = 8.0  # of a cell; smaller cells are pooled


def false_alarm(observed: Sequence[int], shares: Sequence[float]) -> float:
    """How likely counts this far from the shares, or further, are where the shares are right.

    Cells with few expected counts are pooled into one. Counts where none can be give 0.
    """
    total = sum(observed)
    if any(count and not share for count, share in zip(observed, shares, strict=True)):
        return 0.0
    cells = sorted(zip(shares, observed, strict=True), reverse=True)
    expected = [(total * share, count) for share, count in cells if share]
    large = [cell for cell in expected if cell[0] >= LEAST_EXPECTED]
    small = [cell for cell in expected if cell[0] < LEAST_EXPECTED]
    if small:
        large.append((sum(e for e, _ in small), sum(c for _, c in small)))
    statistic = sum((count - mean) ** 2 / mean for mean, count in large)
    return upper_tail(len(large) - 1, statistic)


def upper_tail(degrees: int, statistic: float) -> float:
    """The chance that a chi-square variable exceeds the statistic; 1 without degrees of freedom."""
    if degrees == 0:
        return 1.0
    half = statistic / 2
    term = math.exp(-half) * (1.0 if degrees % 2 == 0 else math.sqrt(half) / math.gamma(1.5))
    tail = 0.0 if degrees % 2 == 0 else math.erfc(math.sqrt(half))
    for step in range(degrees // 2):
        tail += term
        term *= half / (step + (1.0 if degrees % 2 == 0 else 1.5))
    return tail
