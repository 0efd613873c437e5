"""Text that streams out of token ids without ever splitting a character."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drafthead.text.tokenizer import Tokenizer


class StreamDecoder:
    """Turns ids into text pieces; the pieces joined are the text of all ids.

    Bytes of an unfinished UTF-8 character are held back until the character is complete or proves
    invalid; invalid bytes become U+FFFD. Where the tokenizer puts a space before a text, the space
    is dropped again at the very start, unless the ids continue a text that is already there.
    """

    def __init__(self, tokenizer: Tokenizer, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = not continues

    def push(self, token_id: int) -> str:
        """Return the text that became complete with this token; it may be empty."""
        raw = self._tokenizer.token_bytes(token_id, self._first)
        self._first = self._first and token_id in self._tokenizer.control_ids
        return self._decoder.decode(raw)

    def flush(self) -> str:
        """Return U+FFFD where the text ends inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)
