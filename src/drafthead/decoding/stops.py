"""Texts that end an answer: found wherever tokens part them, and never shown, not even in part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TextPieces(Protocol):
    """Turns token ids into text piece by piece, never splitting a character."""

    def push(self, token_id: int) -> str:
        """The text that became complete with this token."""

    def flush(self) -> str:
        """The text left over at the end."""


class StopText:
    """Text pieces up to the first stop.

    What could still become a stop is held back until it has or has not. The stop that is complete
    first counts, of two that are complete with one character the longer one; so where tokens part
    the text changes nothing. `stopped` tells that one was found.
    """

    def __init__(self, pieces: TextPieces, stops: Sequence[str] = ()) -> None:
        self.stopped = False
        self._pieces = pieces
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=1)
        self._held = ""

    def push(self, token_id: int) -> str:
        """The text that can be shown with this token."""
        return self._shown(self._pieces.push(token_id))

    def flush(self) -> str:
        """The text left over at the end: what was held back is no stop any more."""
        shown = self._shown(self._pieces.flush())
        left, self._held = self._held, ""
        return shown + left

    def _shown(self, piece: str) -> str:
        if self.stopped:
            return ""
        text = self._held + piece
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        size = self._beginning_of_a_stop(text)
        self._held = text[len(text) - size :]
        return text[: len(text) - size]

    def _beginning_of_a_stop(self, text: str) -> int:
        """How long the longest end of the text is with which a stop begins."""
        for size in range(min(len(text), self._longest - 1), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
