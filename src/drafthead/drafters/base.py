"""What the decode loop asks of anything that drafts, and the drafter that never does.

D is the backbone's hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
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
