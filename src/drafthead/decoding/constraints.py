"""Where an answer ends by its tokens: end ids, a repeated window, the token limit, the context."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Literal

from drafthead.decoding.loops import LoopDetector
from drafthead.errors import CapacityError, RequestError

FinishReason = Literal["stop", "length", "looped"]


def token_limit(prompt_tokens: int, max_tokens: int, capacity: int) -> int:
    """How many tokens an answer can have at most.

    The last token of an answer is never fed, so a cache of C cells holds a prompt of P tokens and
    C - P + 1 more.

    Raises:
        RequestError: empty prompt, or max_tokens below 1 or no whole number.
        CapacityError: the prompt alone does not fit.
    """
    whole = isinstance(max_tokens, Integral) and not isinstance(max_tokens, bool)
    if not whole or max_tokens < 1:
        raise RequestError(f"max_tokens must be a whole number from 1, not {max_tokens!r}.")
    if prompt_tokens < 1:
        raise RequestError("The prompt is empty: at least one token is needed to answer.")
    if prompt_tokens > capacity:
        raise CapacityError(
            f"The prompt has {prompt_tokens} tokens but the context holds {capacity}: shorten it."
        )
    return min(max_tokens, capacity + 1 - prompt_tokens)


class EndRule:
    """Says of each token of one answer, in order, whether the answer ends with it."""

    def __init__(
        self, limit: int, stop_ids: frozenset[int] = frozenset(), cut_loops: bool = False
    ) -> None:
        self._left = limit
        self._stop_ids = stop_ids
        self._loops = LoopDetector() if cut_loops else None

    @property
    def left(self) -> int:
        """Tokens that may still come."""
        return self._left

    def push(self, token: int) -> FinishReason | None:
        """Take the next token; the reason where the answer ends with it."""
        self._left -= 1
        if token in self._stop_ids:
            return "stop"
        if self._loops is not None and self._loops.push(token):
            return "looped"
        return "length" if self._left == 0 else None

    def cut(self, tokens: Sequence[int]) -> tuple[list[int], FinishReason | None]:
        """Keep the tokens up to and with the one that ends the answer, and say why it ended."""
        for index, token in enumerate(tokens):
            reason = self.push(token)
            if reason is not None:
                return list(tokens[: index + 1]), reason
        return list(tokens), None
