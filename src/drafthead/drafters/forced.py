"""Drafts what a grammar forces, for free; elsewhere another drafter drafts, within the grammar.

D is the backbone's hidden size, M the rows of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from drafthead._native import KvCache
from drafthead.drafters.base import Drafter, Watcher
from drafthead.types import Draft

GRAMMAR = "grammar"


class Guide(Protocol):
    """Knows what must come and what may, after the committed tokens of one answer."""

    def push(self, tokens: Sequence[int]) -> None:
        """Go on by committed tokens."""

    def forced(self) -> list[int]:
        """The tokens that must come next, as far as there is no choice."""

    def legal(self, tokens: Sequence[int]) -> int:
        """How many of the tokens may come one after the other."""


class ForcedDrafter:
    """Asks a drafter where the guide leaves a choice, and cuts its draft where that is illegal.

    floors: where the wrapped drafter has them, those that it drafts with.
    """

    def __init__(self, inner: Drafter, guide: Guide) -> None:
        """Wrap a drafter for one answer.

        Args:
            inner: asked only where nothing is forced; sees every committed token.
            guide: of this answer alone.
        """
        self.inner = inner
        self._guide = guide
        self._asked = False
        self._forced: list[int] | None = None  # asked of the guide once a pass
        self._steered: Any = inner if hasattr(inner, "floors") else None
        if self._steered is not None:  # else this one is not to be steered either
            self.floors: Any = None

    @property
    def name(self) -> str:
        """That of the wrapped drafter."""
        return self.inner.name

    def begin(self, tokens: Sequence[int], hidden_D: NDArray[np.float32], cache: KvCache) -> None:
        """The last of the tokens is the first one of the answer."""
        self._go_on(tokens[-1:])
        self.inner.begin(tokens, hidden_D, cache)

    def certain(self, max_tokens: int) -> Draft:
        """What is forced."""
        if self._forced is None:
            self._forced = self._guide.forced()
        return Draft(tuple(self._forced[:max_tokens]), source=GRAMMAR)

    def propose(self, max_tokens: int) -> Draft:
        """What is forced, or else a draft of the wrapped drafter.

        A draft that was drawn is not cut: what follows a drawn token that is rejected has another
        distribution than what follows no draft.
        """
        forced = self.certain(max_tokens)
        if forced.tokens:
            return forced
        self._asked = True
        if self._steered is not None:
            self._steered.floors = self.floors
        draft = self.inner.propose(max_tokens)
        source = draft.source or self.inner.name
        legal = len(draft.tokens) if draft.proposals else self._guide.legal(draft.tokens)
        tokens, confidences = draft.tokens[:legal], draft.confidences[:legal]
        return replace(
            draft, tokens=tokens, confidences=confidences, source=source, steps=draft.made
        )

    def watch(self, choices_M: NDArray[np.int32]) -> None:
        """Show the rows of its own draft to the wrapped drafter; of another's only the first."""
        if isinstance(self.inner, Watcher):
            self.inner.watch(choices_M if self._asked else choices_M[:1])

    def observe(self, tokens: Sequence[int], hidden_D: NDArray[np.float32]) -> None:
        """Go on."""
        self._go_on(tokens)
        self.inner.observe(tokens, hidden_D)

    def _go_on(self, tokens: Sequence[int]) -> None:
        self._asked, self._forced = False, None
        self._guide.push(tokens)
