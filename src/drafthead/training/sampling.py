"""Which answers are sampled, and how: by numbers that depend on the prompt and the place alone.

Legend: V vocabulary.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from drafthead.rng import uniform


def is_sampled(seed: int, digest: str, share: float) -> bool:
    """Whether a prompt belongs to the sampled share; a larger share holds a smaller one."""
    return uniform(seed, "share", digest) < share


def draw(logits_V: NDArray[np.float32], temperature: float, number: float) -> int:
    """The token whose part of the cumulated softmax holds `number`.

    Args:
        logits_V: finite, or -inf for what cannot come.
        temperature: above 0; the logits are divided by it.
        number: in [0, 1).
    """
    scaled_V = (logits_V.astype(np.float64) - float(logits_V.max())) / temperature
    cumulated_V = np.cumsum(np.exp(scaled_V))
    return int(np.searchsorted(cumulated_V[:-1], number * cumulated_V[-1], side="right"))


class Dice:
    """The numbers of one answer, one for each of its tokens."""

    def __init__(self, seed: int, digest: str, temperature: float) -> None:
        self.temperature = temperature
        self._key = (seed, digest)

    def token(self, logits_V: NDArray[np.float32], place: int) -> int:
        """The token at a place of the answer, counted from 0."""
        return draw(logits_V, self.temperature, uniform(*self._key, place))
