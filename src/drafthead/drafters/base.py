"""What the decode loop asks of anything that drafts, and the drafter that never does.

D is the backbone's hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from drafthead._native import KvCache
from drafthead.types import Draft


class Drafter(Protocol):
    """Proposes tokens that the target then verifies; its mistakes cost time, never output.

    The loop calls `begin` once a request and then `propose` and `observe` in turn; a request may
    be abandoned at any point, and the next `begin` starts afresh.
    """

    @property
    def name(self) -> str:
        """What reports call it."""

    def begin(self, tokens: Sequence[int], hidden_D: NDArray[np.float32], cache: KvCache) -> None:
        """Start a request.

        Args:
            tokens: the prompt and the first answer token.
            hidden_D: post-final-norm hidden state of the prompt's last token, shape (D,).
            cache: the backbone's cache; it holds all of `tokens` but the last.
        """

    def propose(self, max_tokens: int) -> Draft:
        """Propose at most `max_tokens` (>= 1) tokens to follow the last committed one."""

    def observe(self, tokens: Sequence[int], hidden_D: NDArray[np.float32]) -> None:
        """Take what a pass committed.

        Args:
            tokens: the accepted tokens and the next token.
            hidden_D: hidden state of the position that chose the next token, shape (D,).
        """


@runtime_checkable
class Watcher(Protocol):
    """A drafter that also learns from rows whose token was rejected; to watch is all it can do."""

    def watch(self, choices_M: NDArray[np.int32]) -> None:
        """See a pass before `observe` tells what it committed.

        Args:
            choices_M: the target's choice after the last committed token and after each token of
                the draft, shape (M,). Those behind a rejected token follow a text that is not so.
        """


@runtime_checkable
class Certain(Protocol):
    """A drafter that sometimes knows what must come: no policy has to weigh that."""

    def certain(self, max_tokens: int) -> Draft:
        """At most `max_tokens` tokens that will all be accepted; the empty draft if it must ask."""


@dataclass(frozen=True)
class Floors:
    """Where a draft ends, by the products of its confidences, its own guess that all is accepted.

    One value for each step; the last one counts for all steps behind it.

    go_on: after a token with a smaller product no further one is made.
    keep: a token with a smaller product is no part of the draft; at most `go_on`.
    """

    go_on: tuple[float, ...]
    keep: tuple[float, ...]

    @classmethod
    def of(cls, least: float) -> Floors:
        """One threshold for all: a draft ends before the token that falls below."""
        return cls((least,), (least,))

    def goes_on(self, product: float, step: int) -> bool:
        """Whether another token is made after that of a step, counted from 0."""
        return product >= self.go_on[min(step, len(self.go_on) - 1)]

    def keeps(self, product: float, step: int) -> bool:
        """Whether the token of a step stays; one that is not a number is left to be counted."""
        return not product < self.keep[min(step, len(self.keep) - 1)]


@runtime_checkable
class Steered(Protocol):
    """A drafter with confidences, whose drafts end where it is told.

    floors: where; its own ones where None.
    """

    floors: Floors | None


class SteeredDrafter(Drafter, Steered, Protocol):
    """Both."""


class NoDrafter:
    """Never drafts: the loop is then plain decoding, one row a pass."""

    name = "none"

    def begin(self, tokens: Sequence[int], hidden_D: NDArray[np.float32], cache: KvCache) -> None:
        """Nothing to remember."""

    def propose(self, max_tokens: int) -> Draft:
        """The empty draft."""
        return Draft()

    def observe(self, tokens: Sequence[int], hidden_D: NDArray[np.float32]) -> None:
        """Nothing to learn."""
