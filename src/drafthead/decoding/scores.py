"""Log-probabilities: how likely the backbone itself found each token, before anything shaped it.

They are the log-softmax of a row's logits. A row's logits have the same bits whatever drafted and
whatever shared the pass, and each row is scored alone, so scores have too.

V is the vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from drafthead.backbone.handle import Backbone, KvCache, Segment
from drafthead.decoding.candidates import everything, largest, likely
from drafthead.types import ScoredToken

ECHO_ROWS = 32  # logits of as many rows are held at once: 32 MB for a vocabulary of 256k


def score(logits_V: NDArray[np.float32], token: int, top: int) -> ScoredToken:
    """The log-probability of a token, and the `top` likeliest ones; of equal ones the lowest id."""
    sound_V = np.fmax(logits_V, np.float32(-np.inf))  # NaN never comes
    best = float(sound_V.max())
    shown = likely(sound_V, 1.0)
    total = float(np.log(np.exp(shown.weights_N).sum() + shown.rest))
    if len(shown.ids_N) < top:
        shown = everything(sound_V, 1.0)
    places = largest(shown.weights_N, top) if top else ()
    alternatives = (
        ScoredToken(int(shown.ids_N[at]), float(shown.weights_N[at]) - total) for at in places
    )
    return ScoredToken(token, float(sound_V[token]) - best - total, tuple(alternatives))


def score_prompt(
    target: Backbone, cache: KvCache, prompt: Sequence[int], top: int,
    between: Callable[[], None] = lambda: None,
) -> list[ScoredToken]:  # fmt: skip
    """Score every token of a prompt; the cache then holds all of it but the last token.

    It starts cold: what an earlier request left in the cache has no logits any more. `between` is
    called before each chunk.
    """
    cache.rollback(0)
    scored = [ScoredToken(int(prompt[0]), None)]
    for start in range(0, len(prompt) - 1, ECHO_ROWS):
        between()
        end = min(start + ECHO_ROWS, len(prompt) - 1)
        given = target.forward([Segment(cache, prompt[start:end])], rows="all", want="logits")
        assert given.logits is not None
        rows = zip(given.logits, prompt[start + 1 : end + 1], strict=True)
        scored += [score(logits_V, int(token), top) for logits_V, token in rows]
    return scored
