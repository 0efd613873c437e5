"""What may come next, and with which weight: logits narrowed by top-k, top-p and others.

A vocabulary is long and its likely part short. So the likely tokens are weighed one by one and all
others together, and the whole vocabulary is gone through only where that does not decide.

V is the vocabulary size, N the number of tokens that are weighed one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drafthead.decoding.options import DecodeOptions

# Tokens of at least e^-10 of the likeliest one's probability are weighed one by one, or e^-20.
REACHES = (10.0, 20.0)


class Candidates(NamedTuple):
    """Ascending token ids and their log-weights, (N,), the largest 0.

    rest: weight, not its logarithm, of all tokens that are not among the ids and may come too.
    """

    ids_N: NDArray[np.int64]
    weights_N: NDArray[np.float64]
    rest: float = 0.0

    def probabilities(self) -> NDArray[np.float64]:
        """The share of each token in all weight, (N,)."""
        mass_N: NDArray[np.float64] = np.exp(self.weights_N)
        mass_N /= mass_N.sum() + self.rest
        return mass_N

    def keep(self, places: NDArray[np.int64]) -> Candidates:
        """Those at these places, and none else."""
        places = np.sort(places)
        return Candidates(self.ids_N[places], self.weights_N[places])


def everything(logits_V: NDArray[np.float32], temperature: float) -> Candidates:
    """Every token that can come, one by one."""
    return _weighed(logits_V, np.flatnonzero(logits_V > -np.inf), temperature)


def likely(
    logits_V: NDArray[np.float32], temperature: float, reach: float = REACHES[0]
) -> Candidates:
    """The likely tokens one by one, and the weight of the rest.

    reach: how many nats below the likeliest one.  The rest is weighed in float32, which is exact
    enough for what is so light.
    """
    weights_V = (logits_V - logits_V.max()) / np.float32(temperature)
    ids_N = np.flatnonzero(weights_V >= -reach)
    mass_V = np.exp(weights_V)
    mass_V[ids_N] = 0
    return _weighed(logits_V, ids_N, temperature)._replace(rest=float(mass_V.sum(dtype=np.float64)))


def _weighed(
    logits_V: NDArray[np.float32], ids_N: NDArray[np.int64], temperature: float
) -> Candidates:
    weights_N = logits_V[ids_N].astype(np.float64) - float(logits_V.max())
    return Candidates(ids_N, weights_N / temperature)


def narrowed(may_come: Candidates, options: DecodeOptions) -> Candidates | None:
    """What top-k, typical-p, top-p and min-p leave, in this order, each of what is left before it.

    None where that cannot be told without the rest one by one.
    """
    if options.top_k:
        if options.top_k > len(may_come.ids_N) and may_come.rest:
            return None
        may_come = may_come.keep(largest(may_come.weights_N, options.top_k))
    if options.typical_p < 1:
        if may_come.rest:
            return None
        may_come = may_come.keep(holding(options.typical_p, may_come, -_oddness(may_come)))
        may_come = may_come._replace(weights_N=may_come.weights_N - may_come.weights_N.max())
    if options.top_p < 1:
        places = holding(options.top_p, may_come, may_come.weights_N)
        if may_come.rest and len(places) == len(may_come.ids_N):
            return None
        may_come = may_come.keep(places)
    if options.min_p:
        least = np.log(options.min_p)
        if may_come.rest and least < may_come.weights_N.min():
            return None
        may_come = may_come.keep(np.flatnonzero(may_come.weights_N >= least))
    return may_come


def largest(values_N: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The places of the largest values, the largest first; of equal ones the first places."""
    count = min(count, len(values_N))
    least = np.partition(values_N, -count)[-count]
    places = np.flatnonzero(values_N >= least)
    return places[np.argsort(-values_N[places], kind="stable")[:count]]


def holding(share: float, may_come: Candidates, order_N: NDArray[np.float64]) -> NDArray[np.int64]:
    """The places of the fewest tokens, the largest of `order_N` first, that have this share.

    All places where they do not have it.
    """
    places = largest(order_N, len(order_N))
    held = np.cumsum(may_come.probabilities()[places])
    return places[: int(np.searchsorted(held, share)) + 1]


def _oddness(may_come: Candidates) -> NDArray[np.float64]:
    """How far each token's surprise is from the one to be expected, in nats, (N,).

    Locally typical sampling (Meister et al., arXiv 2202.00666) takes the least odd ones.
    """
    probabilities_N = may_come.probabilities()
    mean = float((probabilities_N * may_come.weights_N).sum())
    return np.abs(may_come.weights_N - mean)
