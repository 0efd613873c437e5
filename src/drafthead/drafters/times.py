"""How long things of different sizes take, learned from what is being measured anyway."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from statistics import median

# The pace follows a change within five times; the four before that do not bend a median of nine.
KEPT = 9


class TimeCurve:
    """The time of a pass by its rows, or of a draft by its tokens: a shape, times a pace.

    The pace is how the machine runs now: another program, or a longer context, makes all sizes
    slower alike, also those that were seen long ago. The shape is what one size takes beside
    another at the same pace. Both are medians of the last few times, since a pause of the machine
    makes some times much too long. Between seen sizes the shape is a straight line.
    """

    def __init__(self) -> None:
        self._paces: deque[float] = deque(maxlen=KEPT)
        self._ratios: dict[int, deque[float]] = {}
        self._pace_ms = 0.0
        self._sizes: list[int] = []
        self._shape: list[float] = []

    def add(self, size: int, ms: float) -> None:
        """Take one time. That of a new size tells nothing of the pace, but for the very first."""
        known = self.ms(size) / self._pace_ms if size in self._ratios else 0.0
        if known or not self._paces:
            self._paces.append(ms / (known or 1.0))
            self._pace_ms = median(self._paces)
        if self._pace_ms:
            self._ratios.setdefault(size, deque(maxlen=KEPT)).append(ms / self._pace_ms)
            self._sizes = sorted(self._ratios)
            self._shape = rising(
                [(median(self._ratios[at]), len(self._ratios[at])) for at in self._sizes]
            )

    def ms(self, size: int) -> float:
        """The time of a size; 0 where nothing has been measured."""
        if len(self._sizes) < 2 or size <= self._sizes[0]:
            return self._pace_ms * self._shape[0] if self._sizes else 0.0
        right = min(bisect_left(self._sizes, size), len(self._sizes) - 1)
        # Past the largest size the mean rise goes on: the last step alone is often noise.
        left = right - 1 if size <= self._sizes[right] else 0
        rise = self._shape[right] - self._shape[left]
        share = (size - self._sizes[left]) / (self._sizes[right] - self._sizes[left])
        return self._pace_ms * (self._shape[left] + rise * share)


def rising(points: list[tuple[float, int]]) -> list[float]:
    """The nearest sequence that never falls, to values with weights: more never takes less.

    Pool adjacent violators (Ayer et al., Annals of Mathematical Statistics 26, 1955): neighbours
    that fall are given their mean.
    """
    pools: list[tuple[float, int, int]] = []
    for value, weight in points:
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, light, some), (high, heavy, more) = pools.pop(), pools.pop()
            mean = (low * light + high * heavy) / (light + heavy)
            pools.append((mean, light + heavy, some + more))
    return [value for value, _, size in pools for _ in range(size)]
