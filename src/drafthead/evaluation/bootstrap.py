"""How sure a ratio of speeds is: percentile bootstrap over prompts (Efron, Ann. Stat. 7, 1979).

Prompts are drawn with replacement, and each brings what both arms did with it, in every repeat: the
pairing stays, and so does what makes one prompt easy for both. The seed is fixed, so the same
answers give the same interval. Shapes: P prompts, R repeats, B draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
PERCENTILES = (2.5, 97.5)

Floats = NDArray[np.float64]
Interval = list[float] | None


@dataclass(frozen=True)
class Pairs:
    """What two arms did with the same prompts: tokens and decode times, (P, R), NaN where missing.

    An answer that ended with the prefill has no speed. Prompts whose every answer did are left out,
    for they add nothing.
    """

    tokens: Floats
    ms: Floats
    base_tokens: Floats
    base_ms: Floats

    @classmethod
    def of(
        cls, prompts: Sequence[str], values: Sequence[tuple[float, float, float, float]]
    ) -> Pairs:
        """Put each pair with those of its prompt.

        Args:
            prompts: the prompt of each pair.
            values: for each its tokens and ms, and those of the arm it is compared with.
        """
        by_prompt: dict[str, list[tuple[float, float, float, float]]] = {}
        for prompt, value in zip(prompts, values, strict=True):
            by_prompt.setdefault(prompt, []).append(value)
        repeats = max(map(len, by_prompt.values()), default=0)
        table = np.full((4, len(by_prompt), repeats), np.nan)
        for place, pairs in enumerate(by_prompt.values()):
            table[:, place, : len(pairs)] = np.array(pairs).T
        times = np.nansum(table[[1, 3]], axis=2)
        return cls(*table[:, (times > 0).all(axis=0)])

    @property
    def prompts(self) -> int:
        """P, those that have a speed."""
        return len(self.tokens)

    def ratios(self) -> Floats:
        """Speed over speed of each pair, (P, R); NaN where an arm has no speed."""
        sound = (self.ms > 0) & (self.base_ms > 0) & (self.tokens > 0) & (self.base_tokens > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (self.tokens / self.ms) / (self.base_tokens / self.base_ms)
        return np.where(sound, ratio, np.nan)

    def pooled(self, drawn: NDArray[np.int64]) -> Floats:
        """Total speed over total speed of each draw of prompts (B, P)."""
        sums = [
            np.nansum(part, axis=1)[drawn].sum(axis=1)
            for part in (self.tokens, self.ms, self.base_tokens, self.base_ms)
        ]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((sums[0] / sums[1]) / (sums[2] / sums[3]))


def draws(prompts: int, stream: int = 0) -> NDArray[np.int64]:
    """B draws of P prompts, with replacement; another stream gives independent ones."""
    random = np.random.default_rng([0, stream])
    return random.integers(0, prompts, (DRAWS, prompts))


def median_interval(pairs: Pairs) -> Interval:
    """95 % interval of the median over prompts and repeats of speed over speed."""
    ratios = pairs.ratios()
    # nanmedian goes row by row in Python: only where a repeat of a prompt has no speed.
    median = np.nanmedian if np.isnan(ratios).any() else np.median
    return interval(len(ratios), lambda drawn: np.asarray(median(ratios[drawn], axis=(1, 2))))


def pooled_interval(pairs: Pairs) -> Interval:
    """95 % interval of total speed over total speed."""
    return interval(pairs.prompts, pairs.pooled)


def task_mean_interval(tasks: Sequence[Pairs]) -> Interval:
    """95 % interval of the mean over tasks of their pooled ratios; prompts stay in their task."""
    if not tasks or min(pairs.prompts for pairs in tasks) < 2:
        return None
    drawn = [pairs.pooled(draws(pairs.prompts, place)) for place, pairs in enumerate(tasks)]
    return percentiles(np.mean(drawn, axis=0))


def interval(prompts: int, statistic: Callable[[NDArray[np.int64]], Floats]) -> Interval:
    """Percentiles of a statistic of the draws; None where fewer than two prompts can be drawn."""
    return None if prompts < 2 else percentiles(statistic(draws(prompts)))


def percentiles(values: Floats) -> Interval:
    """Lower and upper end; None where a draw has no value."""
    if not np.isfinite(values).all():
        return None
    return [round(float(end), 4) for end in np.percentile(values, PERCENTILES)]
