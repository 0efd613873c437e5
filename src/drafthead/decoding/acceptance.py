"""Acceptance rules: pure functions from a draft and the target's tokens to what is kept.

G is the draft's length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from drafthead.common_start import common_start
from drafthead.types import Draft


def longest_match(draft: Sequence[int], target_tokens: NDArray[np.int32] | Sequence[int]) -> int:
    """How many drafted tokens the target would have chosen itself, before the first other one.

    The greedy case of speculative decoding (Leviathan et al., arXiv 2211.17192, algorithm 1 with
    one-hot distributions): token i is accepted where it equals the target's choice after
    everything before it.

    Args:
        draft: G proposed tokens, G may be 0.
        target_tokens: the target's choices, shape (G + 1,); the last follows the whole draft. Fewer
            where it chose no more.

    Returns:
        The accepted count a, 0..G. `target_tokens[a]`, where it is there, is the next token: the
        correction where a < G, the bonus where a == G.
    """
    return common_start(draft, target_tokens)


def keeps(target: float, drafted: float, number: float) -> bool:
    """Whether rejection sampling keeps a drafted token (Leviathan et al., algorithm 1).

    It is kept with the probability min(1, target / drafted). With `residual` for those that are
    not, tokens have the target's distribution.

    Args:
        target: the target's probability of the token.
        drafted: the probability with which it was drafted, above 0.
        number: a random one in [0, 1).
    """
    return number * drafted < target


def residual(target_N: NDArray[np.float64], drafted_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a token is drawn from after a rejection, up to a factor: the target's surplus, (N,).

    Where rounding has left none, the two are equal and it is the target itself.
    """
    surplus_N = np.maximum(target_N - drafted_N, 0.0)
    return surplus_N if surplus_N.any() else target_N


def usable_prefix(draft: Draft, room: int, vocab_size: int) -> list[int]:
    """The part of a draft that may reach the backbone.

    A draft is a chain, so it ends before its first token that is outside the vocabulary or whose
    confidence is not finite, and after `room` tokens.
    """
    tokens: list[int] = []
    for index, token in enumerate(draft.tokens[:room]):
        finite = index >= len(draft.confidences) or math.isfinite(draft.confidences[index])
        if not finite or not 0 <= token < vocab_size:
            break
        tokens.append(int(token))
    return tokens
