"""Copies from the text where that is expected to gain more than the head's draft, else the head.

A draft of k tokens is worth its expected commit, accepted tokens and the next one, over the time
that it takes: its making and a pass of k + 1 rows. The times are those of the passes and drafts
just seen, so nothing is measured beforehand and nobody waits; the expectations are the shares of
right tokens by length of match, and what the head's drafts have given so far.

D is the backbone's hidden size, M the rows of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from math import inf, isfinite
from operator import mul
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from drafthead._native import KvCache
from drafthead.drafters.base import Drafter, Floors, SteeredDrafter
from drafthead.drafters.pass_cost import PassCost
from drafthead.types import Draft

TEXT, HEAD = "ngram", "mtp"
# What the head's drafts gave is forgotten by this factor a draft: some hundred of them count.
KEPT = 0.99
# The head's confidences are believed as if so many of its tokens had come out as they promise.
BELIEF_TOKENS = 8.0
SAID_ROWS = (1, 2, 4, 8)


class NgramMtpDrafter:
    """Asks the text first, which costs nothing; then perhaps the head; the better draft wins.

    While no draft of the head has been seen, nothing is known of it, and it is asked.
    """

    name = "ngram+mtp"

    def __init__(
        self, text: Drafter, head: SteeredDrafter, clock: Callable[[], float] = perf_counter
    ) -> None:
        """Wrap two drafters.

        Args:
            text: copies; its drafts carry confidences, and go on far below what pays.
            head: drafts with confidences.
            clock: seconds.
        """
        self.text = text
        self.head = head
        self.cost = PassCost()
        self._clock = clock
        self._head_tokens = self._head_ms = 0.0
        self._promised = self._kept = BELIEF_TOKENS
        self._turn()

    def _turn(self) -> None:
        """Nothing has been drafted for the next pass."""
        self._draft = Draft()
        self._asked_ms: float | None = None
        self._started: float | None = None

    @property
    def floors(self) -> Floors | None:
        """Where drafts of the head end; those of the text end where they gain most."""
        return self.head.floors

    @floors.setter
    def floors(self, floors: Floors | None) -> None:
        self.head.floors = floors

    def begin(self, tokens: Sequence[int], hidden_D: NDArray[np.float32], cache: KvCache) -> None:
        """Both begin; what was learned of times and gains stays."""
        self._turn()
        self.text.begin(tokens, hidden_D, cache)
        self.head.begin(tokens, hidden_D, cache)

    def propose(self, max_tokens: int) -> Draft:
        """The draft with the larger expected gain.

        The head is asked where its drafts have gained more than the text's would now. Then its time
        is spent whichever draft is taken, and its confidences speak for it.
        """
        copied, gain = self._best_cut(self.text.propose(max_tokens))
        if not copied.tokens or gain < self._head_gain():
            drafted = self._ask_head(max_tokens)
            belief = self._kept / self._promised
            commit = 1.0 + belief * sum(accumulate(drafted.confidences, mul))
            copied = replace(copied, steps=drafted.made)
            if not copied.tokens or gain * self._pass_ms(drafted) < commit:
                copied = drafted
        self._draft = copied
        self._started = self._clock()
        return copied

    def watch(self, choices_M: NDArray[np.int32]) -> None:
        """A pass has just ended: take its time, where it was this drafter's turn before it."""
        if self._started is not None:
            self.cost.add_pass(len(choices_M), 1000 * (self._clock() - self._started))

    def observe(self, tokens: Sequence[int], hidden_D: NDArray[np.float32]) -> None:
        """Learn what the head's drafts give, for their time, and how far to believe it."""
        if self._asked_ms is not None:
            spent_ms = self._asked_ms + self._pass_ms(self._draft)
            self._head_tokens = KEPT * self._head_tokens + len(tokens)
            self._head_ms = KEPT * self._head_ms + spent_ms
        promised = sum(accumulate(self._draft.confidences, mul))
        if self._draft.source == HEAD and isfinite(promised):
            self._promised += promised
            self._kept += len(tokens) - 1
        self.text.observe(tokens, hidden_D)
        self.head.observe(tokens, hidden_D)
        self._turn()

    def explain(self) -> str:
        """What the choice rests on, in one sentence."""
        per_ms = self._head_tokens / self._head_ms if self._head_ms else 0.0
        passes = " / ".join(f"{self.cost.pass_ms(rows):.2f}" for rows in SAID_ROWS)
        return (
            f"passes of {' / '.join(map(str, SAID_ROWS))} rows take {passes} ms, the head takes "
            f"{self.cost.step_ms:.2f} ms to draft a token, and its drafts commit {per_ms:.2f} "
            "tokens a ms"
        )

    def _ask_head(self, max_tokens: int) -> Draft:
        started = self._clock()
        drafted = self.head.propose(max_tokens)
        self.cost.add_draft(drafted.made, 1000 * (self._clock() - started))
        self._asked_ms = self.cost.step_ms * drafted.made
        return replace(drafted, source=HEAD)

    def _best_cut(self, copied: Draft) -> tuple[Draft, float]:
        """The start of a copied draft with the largest expected commit a ms, and that gain."""
        best, gain, commit = 0, 0.0, 1.0
        for count, likely in enumerate(accumulate(copied.confidences, mul), 1):
            commit += likely
            pass_ms = self.cost.pass_ms(count + 1)
            if pass_ms and commit / pass_ms > gain:
                best, gain = count, commit / pass_ms
        return Draft(copied.tokens[:best], copied.confidences[:best], TEXT, steps=0), gain

    def _pass_ms(self, draft: Draft) -> float:
        return self.cost.pass_ms(len(draft.tokens) + 1)

    def _head_gain(self) -> float:
        return self._head_tokens / self._head_ms if self._head_ms else inf
