"""A token drawn from logits, by random numbers that depend on seed, position and token alone.

A token wins where its log-weight plus its own Gumbel noise is the largest, which it is as often as
the softmax says (Maddison et al., arXiv 1411.0030). Noise that belongs to a token rather than to a
draw has two uses: what may come can be narrowed without moving the others, and whoever drafts
could add the same noise to its own guess.

V is the vocabulary size.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from drafthead.decoding.candidates import REACHES, Candidates, everything, likely, narrowed
from drafthead.decoding.options import DecodeOptions
from drafthead.rng import uniforms


class Sampler:
    """Chooses the token of a position from its logits, of which the largest is finite.

    At temperature 0 that is the likeliest one, of several the lowest id.
    """

    def __init__(self, options: DecodeOptions) -> None:
        """options: with a seed, where the temperature is not 0."""
        self._options = options
        self._seed = options.seed or 0

    def token(self, logits_V: NDArray[np.float32], position: int) -> int:
        """The token of a position."""
        options = self._options
        if not options.draws:
            return int(np.argmax(logits_V))
        for reach in REACHES:
            few = narrowed(likely(logits_V, options.temperature, reach), options)
            if few is None:
                continue
            if few.rest and self._rest_wins(few, position):
                every = everything(logits_V, options.temperature)
                others = np.isin(every.ids_N, few.ids_N, assume_unique=True, invert=True)
                return self.draw(every.keep(np.flatnonzero(others)), position)
            return self.draw(few, position)
        return self.draw(self.candidates(logits_V), position)

    def candidates(self, logits_V: NDArray[np.float32]) -> Candidates:
        """All that may come, one by one."""
        may_come = narrowed(everything(logits_V, self._options.temperature), self._options)
        assert may_come is not None, "nothing is left to the rest"
        return may_come

    def draw(self, may_come: Candidates, position: int) -> int:
        """One of the tokens that are weighed one by one, as often as their weights say."""
        return int(may_come.ids_N[np.argmax(self._noisy(may_come, position))])

    def _rest_wins(self, few: Candidates, position: int) -> bool:
        """Whether it is none of the likely ones: together the others have one weight, one noise."""
        noise = gumbel(uniforms(np.zeros(1, np.int64), self._seed, "rest", position))[0]
        return bool(math.log(few.rest) + noise > self._noisy(few, position).max())

    def _noisy(self, may_come: Candidates, position: int) -> NDArray[np.float64]:
        numbers_N = uniforms(may_come.ids_N, self._seed, "token", position)
        return may_come.weights_N + gumbel(numbers_N)


def gumbel(numbers_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gumbel noise from uniform numbers in (0, 1)."""
    return -np.log(-np.log(numbers_N))
