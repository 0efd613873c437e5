"""What passes and drafts take on this machine now, learned from those that are made anyway.

A pass reads all weights, however many rows M it has, and multiplies them with each row: it takes
the longer of the two, and near their crossing somewhat more. With r the time of one row's
multiplications over that of the reading, a pass of M rows takes

    pace x ((1 + (r M)^3) / (1 + r^3))^(1/3)

the pace being the time of a one-row pass: the two sides of the roofline (Williams et al.,
Communications of the ACM 52, 2009), joined smoothly. Two numbers are learned, not one for each M:
a draft's end depends on differences between sizes, which noise would swallow. The pace is how the
machine runs now and changes with a longer context or another program beside; the balance r tells
its arithmetic from its memory. docs/decisions.md has measured curves.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from statistics import median

# Balances to choose from: rows that cost next to nothing, to rows that cost a pass each; a fit goes
# so many of them up or down at most, which keeps it short.
BALANCES = tuple(0.05 * 1.2**step for step in range(26))
REACH = 4
# The mean of backbones of 135M to 1.5B on two cores with AVX-512.
USUAL = 9
# A pause of the machine makes some times much too long: the pace is a median of so many, and no
# time counts for more than so many times what was expected.
KEPT, LONGEST = 9, 3.0
# Passes are forgotten by this factor each, and the balance is fitted anew after so many.
FORGET, FIT_EVERY = 0.99, 8


@cache
def shape(balance: float, rows: int) -> float:
    """A pass of so many rows over one of a single row."""
    return float(((1.0 + (balance * rows) ** 3) / (1.0 + balance**3)) ** (1 / 3))


# Held to as if so many passes of 1 and of 4 rows had shown it: one size alone tells no balance.
HELD = 0.3
BEFOREHAND = [(rows, (HELD, HELD * shape(BALANCES[USUAL], rows))) for rows in (1, 4)]


class PassCost:
    """The time of a pass by its rows, and of a draft by its steps.

    The balance is the one with the least squares over the last hundred passes or so.
    """

    def __init__(self) -> None:
        self._paces: deque[float] = deque(maxlen=KEPT)
        self._steps: deque[float] = deque(maxlen=KEPT)
        # By rows: how many passes, and how many paces of their time they took in all.
        self._seen: dict[int, tuple[float, float]] = {}
        self._to_fit = FIT_EVERY
        self.pace_ms = self.step_ms = 0.0
        self._place = USUAL

    @property
    def balance(self) -> float:
        """What multiplying one row takes over reading the weights."""
        return BALANCES[self._place]

    def add_pass(self, rows: int, ms: float) -> None:
        """A pass has been made."""
        usual = shape(self.balance, rows)
        paces = min(ms / self.pace_ms, LONGEST * usual) if self.pace_ms else usual
        count, total = self._seen.get(rows, (0.0, 0.0))
        self._seen[rows] = count + 1.0, total + paces
        self._to_fit -= 1
        if self._to_fit == 0:
            self._fit()
        self._paces.append(ms / shape(self.balance, rows))
        self.pace_ms = median(self._paces)

    def _fit(self) -> None:
        """Of paces = factor x shape what is left of the squares is least where this is largest."""

        def explained(balance: float) -> float:
            square = product = 0.0
            for rows, (count, total) in (*BEFOREHAND, *self._seen.items()):
                value = shape(balance, rows)
                square += count * value * value
                product += total * value
            return product * product / square

        near = range(max(0, self._place - REACH), min(len(BALANCES), self._place + REACH + 1))
        self._place = max(near, key=lambda place: explained(BALANCES[place]))
        kept = FORGET**FIT_EVERY
        self._seen = {rows: (kept * n, kept * total) for rows, (n, total) in self._seen.items()}
        self._to_fit = FIT_EVERY

    def add_draft(self, steps: int, ms: float) -> None:
        """A draft has been made, of `steps` steps; none is a look that found nothing to draft."""
        if steps:
            self._steps.append(ms / steps)
            self.step_ms = median(self._steps)

    def pass_ms(self, rows: int) -> float:
        """The time of a pass; 0 before the first one."""
        return self.pace_ms * shape(self.balance, rows)
