"""Drafts by the backbone's own parallel passes: no weights, and no text but the model's own.

Greedy decoding is a system of equations, each token the model's choice after those before it, and
can be iterated like one (Jacobi iteration: Santilli et al., arXiv 2305.10427): guess some tokens,
let one pass choose after each of them, take the choices as the next guess. Rows behind a rejected
token still give guesses that way. Alone this gains little, since a guess is seldom right in its
place. Lookahead decoding (Fu et al., arXiv 2402.02057) therefore keeps what the iteration has said,
wherever it was, and drafts it when the text comes to the same tokens. Its passes have a mask of
their own; here a pass is a chain as in all verification, so iteration and verification share rows.

D is the backbone's hidden size, M the rows of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from drafthead._native import KvCache
from drafthead.types import Draft

# Acceptance falls fast behind the first tokens, and every row costs: docs/decisions.md.
MAX_DRAFT_TOKENS = 2


class JacobiDrafter:
    """Remembers what the backbone chose after each token and each pair of tokens, in any row.

    The latest choice counts. Where there is none, the choices of the last pass behind the committed
    tokens are the guess, which is Jacobi's iteration; to begin it, the last token is guessed again.
    """

    name = "jacobi"

    def __init__(self, max_draft_tokens: int = MAX_DRAFT_TOKENS) -> None:
        """max_draft_tokens: longest draft."""
        self.max_draft_tokens = max_draft_tokens
        self._chosen: dict[tuple[int, ...], int] = {}
        self._tail: tuple[int, ...] = ()
        self._draft: tuple[int, ...] = ()
        self._choices: list[int] = []
        self._guess: list[int] = []

    def begin(self, tokens: Sequence[int], hidden_D: NDArray[np.float32], cache: KvCache) -> None:
        """Forget the request before: another text is seldom continued alike."""
        self._chosen = {}
        self._tail = tuple(tokens[-2:])
        self._draft, self._choices, self._guess = (), [], []

    def propose(self, max_tokens: int) -> Draft:
        """At least one token, so that every pass has a row to guess with."""
        drafted: list[int] = []
        tail = self._tail
        for step in range(min(max_tokens, self.max_draft_tokens)):
            token = self._said_after(tail)
            if token is None and step < len(self._guess):
                token = self._guess[step]
            if token is None and step > 0:
                break
            drafted.append(tail[-1] if token is None else token)
            tail = (*tail, drafted[-1])[-2:]
        self._draft = tuple(drafted)
        return Draft(self._draft)

    def watch(self, choices_M: NDArray[np.int32]) -> None:
        """Remember the choice of each row; those of committed rows, which come first, overrule."""
        self._choices = choices_M.tolist()
        text, first = (*self._tail, *self._draft), len(self._tail)
        for row in reversed(range(len(self._choices))):
            end = first + row
            self._chosen[text[max(0, end - 2) : end]] = self._choices[row]
            self._chosen[text[end - 1 : end]] = self._choices[row]

    def observe(self, tokens: Sequence[int], hidden_D: NDArray[np.float32]) -> None:
        """The choices behind what was committed are the next guess."""
        self._guess = self._choices[len(tokens) :]
        self._tail = (*self._tail, *tokens)[-2:]
        self._draft = ()

    def _said_after(self, tail: tuple[int, ...]) -> int | None:
        return self._chosen.get(tail, self._chosen.get(tail[-1:]))
