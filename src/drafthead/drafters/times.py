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
        self._curve: tuple[list[int], list[float]] = [], []  # sizes and shape

    def add(self, size: int, ms: float) -> None:
        """Take one time. That of a new size tells nothing of the pace, but for the very first.

        Wherever Ctrl-C falls, what is kept is sound.
        """
        known = self.ms(size) / self._pace_ms if size in self._ratios else 0.0
        if known or not self._pace_ms:
            self._paces.append(ms / (known or 1.0))
            self._pace_ms = median(self._paces)
        if self._pace_ms:
            ratios = self._ratios.get(size, deque(maxlen=KEPT))
            ratios.append(ms / self._pace_ms)
            self._ratios[size] = ratios
            seen = sorted(self._ratios.items())
            shape = rising([(median(ratios), len(ratios)) for _, ratios in seen])
            self._curve = [size for size, _ in seen], shape

    def ms(self, size: int) -> float:
        """The time of a size; 0 where nothing has been measured."""
        sizes, shape = self._curve
        if len(sizes) < 2 or size <= sizes[0]:
            return self._pace_ms * shape[0] if sizes else 0.0
        right = min(bisect_left(sizes, size), len(sizes) - 1)
        # Past the largest size the mean rise goes on: the last step alone is often noise.
        left = right - 1 if size <= sizes[right] else 0
        rise = shape[right] - shape[left]
        share = (size - sizes[left]) / (sizes[right] - sizes[left])
        return self._pace_ms * (shape[left] + rise * share)


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
