"""What passes and drafts take on this machine now, learned from those that are made anyway.

A pass of M rows takes `pace x (1 + bend x extra(M))`: the pace, the time of a one-row pass, is how
the machine runs now, and changes with a longer context or another program beside; the bend tells
its arithmetic from its memory. Two numbers are learned, not one for each M: a draft's end depends
on differences between sizes, which noise would swallow. docs/decisions.md has measured curves.
"""

from __future__ import annotations

from collections import deque
from statistics import median

# What M - 1 rows add to one where the bend is 1, in one-row passes, for M from 1 on; more go on as
# the last. The mean of backbones of 135M to 1.5B on two cores.
EXTRA = (0.0, 0.07, 0.17, 0.33, 0.52, 0.75, 1.02, 1.32, 1.62)
# A pause of the machine makes some times much too long: the pace is a median of so many, and no
# time counts for more than so many times what was expected.
KEPT, LONGEST = 9, 3.0
# Passes are forgotten by this factor each; a bend of 1 is held to as if by so many.
FORGET, HELD = 0.99, 0.3
LOWEST_BEND, HIGHEST_BEND = 0.2, 4.0


def extra(rows: int) -> float:
    """Of EXTRA, for any number of rows."""
    beyond = max(0, rows - len(EXTRA))
    return EXTRA[rows - beyond - 1] + beyond * (EXTRA[-1] - EXTRA[-2])


class PassCost:
    """The time of a pass by its rows, and of a draft by its steps.

    The bend is fitted by least squares to the last hundred passes or so.
    """

    def __init__(self) -> None:
        self._paces: deque[float] = deque(maxlen=KEPT)
        self._steps: deque[float] = deque(maxlen=KEPT)
        self._sums = [0.0] * 5  # of 1, x, x x, y, x y with x = extra(rows) and y in ms
        self.pace_ms = self.step_ms = 0.0
        self.bend = 1.0

    def add_pass(self, rows: int, ms: float) -> None:
        """A pass has been made."""
        x = extra(rows)
        y = min(ms, LONGEST * self.pass_ms(rows)) if self.pace_ms else ms
        new = (1.0, x, x * x, y, x * y)
        self._sums = [FORGET * old + one for old, one in zip(self._sums, new, strict=True)]
        self.bend = self._fitted_bend()
        self._paces.append(ms / (1.0 + self.bend * x))
        self.pace_ms = median(self._paces)

    def _fitted_bend(self) -> float:
        """Of the line y = a + b x through the passes, held to b = a: b / a."""
        n, x, xx, y, xy = self._sums
        n, x, xx = n + HELD, x - HELD, xx + HELD
        a, b = y * xx - x * xy, n * xy - x * y
        return min(max(b / a, LOWEST_BEND), HIGHEST_BEND) if a > 0.0 else HIGHEST_BEND

    def add_draft(self, steps: int, ms: float) -> None:
        """A draft has been made, of `steps` steps; none is a look that found nothing to draft."""
        if steps:
            self._steps.append(ms / steps)
            self.step_ms = median(self._steps)

    def pass_ms(self, rows: int) -> float:
        """The time of a pass; 0 before the first one."""
        return self.pace_ms * (1.0 + self.bend * extra(rows))
