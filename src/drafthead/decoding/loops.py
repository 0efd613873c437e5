"""When an answer has begun to repeat itself.

Small models loop under greedy decoding, and loops flatter every drafter. The rule, used by
`bench` and `regen` alike: an answer ends where its last 8 tokens have occurred before in it.
"""

from __future__ import annotations

from collections import deque

LOOP_WINDOW = 8


class LoopDetector:
    """Watches one answer token by token, in constant time a token."""

    def __init__(self, window: int = LOOP_WINDOW) -> None:
        self._recent: deque[int] = deque(maxlen=window)
        self._seen: set[tuple[int, ...]] = set()

    def push(self, token: int) -> bool:
        """Take the next token of the answer; True where the window it ends occurred before."""
        self._recent.append(token)
        if len(self._recent) < (self._recent.maxlen or 0):
            return False
        window = tuple(self._recent)
        looped = window in self._seen
        self._seen.add(window)
        return looped
