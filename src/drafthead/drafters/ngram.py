"""Drafts what followed when the text last ended like this: no weights, no training.

Prompt lookup decoding (Saxena, Prompt Lookup Decoding, 2023) takes the last few tokens and searches
the text for them. Here a suffix automaton finds the longest ending that has been there before, over
prompt and answer alike (SAM-Decoding, arXiv 2411.10666). The longer the match, the likelier is what
followed it; how likely is counted.

D is the backbone's hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from drafthead._native import KvCache
from drafthead.common_start import common_start
from drafthead.drafters.automaton import SuffixAutomaton
from drafthead.drafters.base import Floors
from drafthead.types import Draft

# Compared by replay of 600 answers of SmolLM2-135M of ten task classes: docs/decisions.md.
MAX_DRAFT_TOKENS = 16
MIN_MATCH = 2
MIN_CONFIDENCE = 0.3

# Share of right tokens behind a match of 1, 2, ... 12 and more tokens, in the same answers.
SHARES = (0.25, 0.53, 0.67, 0.74, 0.77, 0.81, 0.82, 0.86, 0.88, 0.91, 0.92, 0.95)
# As many tokens of the own text weigh as much as those shares.
SHARES_WEIGHT = 50


class MatchShares:
    """How often the next token was right, by the length of the match; counted as decoding goes."""

    def __init__(self) -> None:
        self._tested = [SHARES_WEIGHT] * len(SHARES)
        self._right = [SHARES_WEIGHT * share for share in SHARES]

    def __getitem__(self, length: int) -> float:
        """The share behind a match of `length` >= 1 tokens."""
        index = min(length, len(SHARES)) - 1
        return self._right[index] / self._tested[index]

    def count(self, length: int, tested: int, right: int) -> None:
        """Add a draft behind a match: of its first `tested` tokens the first `right` were right.

        With each token that is right the match has become one longer.
        """
        for step in range(tested):
            index = min(length + step, len(SHARES)) - 1
            self._tested[index] += 1
            self._right[index] += step < right


class NgramDrafter:
    """Copies from the text, as far as what it copies is likely enough to be accepted.

    Only committed tokens enter the automaton, so a rejected draft leaves nothing to undo. A request
    starts with an automaton of its prompt; the shares are kept from one to the next.
    """

    name = "ngram"

    def __init__(
        self,
        max_draft_tokens: int = MAX_DRAFT_TOKENS,
        min_match: int = MIN_MATCH,
        min_confidence: float = MIN_CONFIDENCE,
    ) -> None:
        """Prepare.

        Args:
            max_draft_tokens: longest draft.
            min_match: nothing is drafted behind a shorter match.
            min_confidence: a draft ends before the token with which the product of the shares, the
                guess that all of it is accepted, falls below this; unless `floors` are set.
        """
        self.max_draft_tokens = max_draft_tokens
        self.min_match = min_match
        self.min_confidence = min_confidence
        self.floors: Floors | None = None
        self.shares = MatchShares()
        self._automaton = SuffixAutomaton()
        self._length, self._draft = 0, Draft()

    def begin(self, tokens: Sequence[int], hidden_D: NDArray[np.float32], cache: KvCache) -> None:
        """Index the prompt: some microseconds a token."""
        self._automaton = SuffixAutomaton(tokens)
        self._draft = Draft()

    def propose(self, max_tokens: int) -> Draft:
        """What followed the longest match, where there is one."""
        self._length = self._automaton.match.length
        confidences = self._confidences(min(max_tokens, self.max_draft_tokens))
        self._draft = Draft(tuple(self._automaton.following(len(confidences))), confidences)
        return self._draft

    def _confidences(self, count: int) -> tuple[float, ...]:
        floors = self.floors or Floors.of(self.min_confidence)
        confidences: list[float] = []
        product = 1.0
        for length in range(self._length, self._length + count):
            if length < self.min_match:
                break
            product *= self.shares[length]
            if not floors.keeps(product, len(confidences)):
                break
            confidences.append(self.shares[length])
        return tuple(confidences)

    def observe(self, tokens: Sequence[int], hidden_D: NDArray[np.float32]) -> None:
        """Append what was committed to the text, and count how much of it had been proposed.

        It counts what was proposed, also where another draft was verified in its place.
        """
        compared = min(len(self._draft.tokens), len(tokens))
        right = common_start(self._draft.tokens, tokens)
        self.shares.count(self._length, min(right + 1, compared), right)
        self._draft = Draft()
        self._automaton.extend(tokens)
