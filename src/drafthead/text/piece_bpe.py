"""SentencePiece BPE (tokenizer.ggml.model "llama"): pieces merged in the order of their scores.

Kudo and Richardson 2018, section 3.1. Of two neighbours that together are a piece, those with the
highest score are joined first, the leftmost of equals. A space is written as U+2581; a character
that no piece covers becomes the tokens of its UTF-8 bytes; user-defined pieces are found first
and never merged.

Words are remembered, so ordinary text costs a look-up a word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from drafthead.errors import GgufError, UnsupportedError
from drafthead.gguf.file import GgufFile
from drafthead.text.merging import merge, remembering
from drafthead.text.vocabulary import (
    BYTE,
    NORMAL,
    USER_DEFINED,
    FixedTokens,
    Vocabulary,
    names_pattern,
)

SPACE = "\u2581"
_WORD = re.compile(f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+")
_WORD_BOUNDARY = re.compile(f"[^{SPACE}]{SPACE}")
_BYTE_NAME = re.compile("<0x([0-9A-Fa-f]{2})>")
_MOST_SPANNING = 256  # a longer list costs more than the words save


class PieceBpe:
    """Text to ids.  adds_bos: what a file without add_bos_token means."""

    adds_bos = True

    def __init__(self, gguf: GgufFile, vocabulary: Vocabulary) -> None:
        for key in ("precompiled_charsmap", "remove_extra_whitespaces"):
            if gguf.metadata.get(f"tokenizer.ggml.{key}", False) is not False:
                raise UnsupportedError(
                    f"{gguf.path}: this version does not support tokenizer.ggml.{key}."
                )
        self._space_prefix = gguf.boolean("tokenizer.ggml.add_space_prefix", True)
        tokens = vocabulary.tokens
        self._tokens = tokens
        self._scores = _scores(gguf, len(tokens))
        self._bytes = _byte_ids(gguf, vocabulary)
        self._byte_of = {i: byte for byte, i in enumerate(self._bytes)}
        self._ids = {tokens[i]: i for i in vocabulary.text_ids(NORMAL)}
        fixed = vocabulary.text_ids(USER_DEFINED)
        self._fixed = FixedTokens({tokens[i].replace(" ", SPACE): i for i in fixed})
        self._fixed_ids = frozenset(fixed)
        self._spanning = _spanning(self._ids)
        self._word_ids = remembering(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """Encode text."""
        return self._fixed.encode(text.replace(" ", SPACE), self._encode_plain)

    def token_bytes(self, token_id: int, first: bool) -> bytes:
        """Return the bytes of a text token; of a text's first without the space before it."""
        if token_id in self._byte_of:
            return bytes([self._byte_of[token_id]])
        piece = self._tokens[token_id].replace(SPACE, " ")
        if first and self._space_prefix and token_id not in self._fixed_ids:
            piece = piece.removeprefix(" ")
        return piece.encode()

    def _encode_plain(self, text: str, ids: list[int]) -> None:
        """Encode a stretch without user-defined pieces; each has its own space before it."""
        if not text:
            return
        if self._space_prefix:
            text = SPACE + text
        whole = self._spanning.search(text) is not None
        for word in [text] if whole else _WORD.findall(text):
            ids += self._word_ids(word)

    def _rank(self, left: str, right: str) -> float | None:
        token = self._ids.get(left + right)
        return None if token is None else -self._scores[token]

    def _encode_word(self, word: str) -> tuple[int, ...]:
        ids: list[int] = []
        for piece in merge(word, self._rank):
            if piece in self._ids:
                ids.append(self._ids[piece])
            else:
                ids += [self._bytes[byte] for byte in piece.encode()]
        return tuple(ids)


def _scores(gguf: GgufFile, count: int) -> memoryview:
    key = "tokenizer.ggml.scores"
    scores = gguf.metadata.get(key)
    if not isinstance(scores, np.ndarray) or scores.dtype.kind != "f":
        found = "nothing" if scores is None else "another type"
        raise GgufError(f"{gguf.path}: {key} must be an array of floats, found {found}.")
    if len(scores) != count:
        raise GgufError(f"{gguf.path}: {key} has {len(scores)} elements for {count} tokens.")
    wrong = np.flatnonzero(~np.isfinite(scores))
    if wrong.size:
        raise GgufError(f"{gguf.path}: {key} must be finite, found {scores[wrong[0]]}.")
    return scores.astype(np.float64).data


def _byte_ids(gguf: GgufFile, vocabulary: Vocabulary) -> list[int]:
    """Return the id of each byte's token, in byte order."""
    ids: dict[int, int] = {}
    for i in vocabulary.text_ids(BYTE):
        name = _BYTE_NAME.fullmatch(vocabulary.tokens[i])
        if name is not None:
            ids[int(name.group(1), 16)] = i
    missing = next((byte for byte in range(256) if byte not in ids), None)
    if missing is not None:
        raise GgufError(
            f"{gguf.path}: the vocabulary must have a token of type {BYTE} for each byte, and "
            f"<0x{missing:02X}> is not there."
        )
    return [ids[byte] for byte in range(256)]


def _spanning(ids: Mapping[str, int]) -> re.Pattern[str]:
    """Find the pieces that reach over a word's end; text with one of them is merged as a whole.

    Everywhere else no merge can cross from a character to a space after it.
    """
    pieces = [p for p in ids if p.rfind(SPACE) > 0 and _WORD_BOUNDARY.search(p)]
    return names_pattern(pieces) if len(pieces) <= _MOST_SPANNING else re.compile("")
