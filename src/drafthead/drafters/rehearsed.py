"""A drafter that knows the answer and errs on purpose, so that a self-test can force rejections."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from drafthead._native import KvCache
from drafthead.types import Draft

LONGEST_DRAFT = 8


class RehearsedDrafter:
    """Drafts a known answer: each draft is right for another number of tokens, then wrong.

    Drafts have up to 8 tokens, and the number of right ones goes round 0, 1 ... 8, so verify passes
    are cut at every row.
    D is the backbone's hidden size.
    """

    name = "rehearsed"

    def __init__(self, answer: Sequence[int], vocab_size: int) -> None:
        self.answer = list(answer)
        self.vocab_size = vocab_size
        self._done = self._drafts = 0

    def begin(self, tokens: Sequence[int], hidden_D: NDArray[np.float32], cache: KvCache) -> None:
        """One token of the answer is there."""
        self._done, self._drafts = 1, 0

    def propose(self, max_tokens: int) -> Draft:
        """As many right tokens as it is the turn of, then wrong ones up to `max_tokens`."""
        longest = min(max_tokens, LONGEST_DRAFT)
        right = self._drafts % (longest + 1)
        self._drafts += 1
        ahead = self.answer[self._done : self._done + longest]
        wrong = [(token + 1) % self.vocab_size for token in ahead[right:]]
        return Draft((*ahead[:right], *wrong))

    def observe(self, tokens: Sequence[int], hidden_D: NDArray[np.float32]) -> None:
        """Move on in the answer."""
        self._done += len(tokens)
