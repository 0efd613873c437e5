"""Text that streams out of token ids without ever splitting a character."""

from __future__ import annotations

import codecs

from drafthead.text.tokenizer import Tokenizer


class StreamDecoder:
    """Turns ids into text pieces; the pieces joined equal Tokenizer.decode of all ids.

    Bytes of an unfinished UTF-8 character are held back until the character is complete or proves
    invalid; invalid bytes become U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Return the text that became complete with this token; it may be empty."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """Return U+FFFD where the text ends inside a character, else nothing; then start anew."""
        return self._decoder.decode(b"", final=True)
