"""The vocabulary of a GGUF file, read once and checked, and which of its tokens are special.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (tokenizer.ggml.*).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drafthead.errors import GgufError
from drafthead.gguf.file import GgufFile, quoted

# tokenizer.ggml.token_type: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
_TEXT_TYPES = (NORMAL, USER_DEFINED, BYTE)  # every other type is a control token

# A file names one end-of-sequence id; chat models end a turn with others of its control tokens.
# The first are control tokens whatever type the file gives them; the others are markup in some
# vocabularies ("</s>" strikes text out in Gemma's), so there the type decides.
_TURN_ENDS = (
    "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>",
    "<end_of_turn>",
)  # fmt: skip
_SEQUENCE_ENDS = ("</s>", "<eos>")
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# What a SentencePiece file means that names none, as llama.cpp reads it.
_PIECE_IDS = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}


class Vocabulary(NamedTuple):
    """The tokens by id, their types, and the special ones.

    types: as in the file, shape (tokens,).  control_ids: tokens that no text produces.
    eos_ids: those of them that end an answer.  bos_id: None where the file names none.
    """

    tokens: list[str]
    types: NDArray[np.uint8]
    control_ids: frozenset[int]
    eos_ids: frozenset[int]
    bos_id: int | None

    def text_ids(self, kind: int) -> list[int]:
        """Return the ids of one type that are no control tokens, ascending."""
        ids: list[int] = np.flatnonzero(self.types == kind).tolist()
        return [i for i in ids if i not in self.control_ids]


def read_vocabulary(gguf: GgufFile) -> Vocabulary:
    """Read and check the tokens, their types and the special ids.

    Raises:
        GgufError: a key is missing, of a wrong type or length, or a token or type cannot be.
    """
    tokens = gguf.strings("tokenizer.ggml.tokens")
    kinds = np.array(gguf.integers("tokenizer.ggml.token_type"))
    if len(kinds) != len(tokens):
        raise GgufError(
            f"{gguf.path}: tokenizer.ggml.token_type has {len(kinds)} elements for {len(tokens)} "
            "tokens."
        )
    wrong = np.flatnonzero((kinds < NORMAL) | (kinds > BYTE))
    if wrong.size:
        raise GgufError(f"{gguf.path}: token {wrong[0]} of the vocabulary has an unknown type.")
    types = kinds.astype(np.uint8)
    names = _names(gguf, tokens)
    bos_id = special_id(gguf, "bos_token_id", len(tokens))
    keyed = (special_id(gguf, key, len(tokens)) for key in _END_KEYS)
    named = {tokens.index(name) for name in names.intersection(_TURN_ENDS)}
    marked = {tokens.index(name) for name in names.intersection(_SEQUENCE_ENDS)}
    named |= {i for i in marked if types[i] == CONTROL}
    eos_ids = frozenset(named.union(i for i in keyed if i is not None))
    special = np.flatnonzero(~np.isin(types, _TEXT_TYPES)).tolist()
    control_ids = eos_ids.union(special, () if bos_id is None else (bos_id,))
    return Vocabulary(tokens, types, control_ids, eos_ids, bos_id)


def special_id(gguf: GgufFile, key: str, vocab_size: int) -> int | None:
    """Return the id under tokenizer.ggml.<key>, or None where the file means none."""
    full = f"tokenizer.ggml.{key}"
    if full in gguf.metadata:
        return gguf.integer(full, 0, vocab_size - 1)
    usual = _PIECE_IDS.get(key) if gguf.string("tokenizer.ggml.model") == "llama" else None
    return usual if usual is not None and usual < vocab_size else None


def names_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds any of the names, the longest where several fit."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


class FixedTokens:
    """Tokens that are found in a text before anything is merged.  ids: by their names."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids = ids
        self._pattern = names_pattern(ids)

    def encode(self, text: str, encode_plain: Callable[[str, list[int]], None]) -> list[int]:
        """Encode a text; encode_plain appends the ids of what lies between these tokens."""
        ids: list[int] = []
        position = 0
        for match in self._pattern.finditer(text):
            encode_plain(text[position : match.start()], ids)
            ids.append(self.ids[match.group()])
            position = match.end()
        encode_plain(text[position:], ids)
        return ids


def _names(gguf: GgufFile, tokens: Sequence[str]) -> set[str]:
    """Return the tokens as a set; none is empty or there twice."""
    distinct = set(tokens)
    if "" in distinct:
        raise GgufError(
            f"{gguf.path}: token {tokens.index('')} of the vocabulary has an empty text."
        )
    if len(distinct) != len(tokens):
        first: dict[str, int] = {}
        twice = next(i for i, token in enumerate(tokens) if first.setdefault(token, i) != i)
        raise GgufError(
            f"{gguf.path}: the token {quoted(tokens[twice])} is in the vocabulary twice."
        )
    return distinct
