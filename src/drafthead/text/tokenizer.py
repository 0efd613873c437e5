"""Byte-level BPE built from the vocabulary and merges of a GGUF file.

Control tokens are no part of the BPE vocabulary, so no text can produce their ids: they come from
the chat template alone (template.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tokenizers import AddedToken
from tokenizers import Tokenizer as BpeTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer
from tokenizers.pre_tokenizers import Sequence as Chain

from drafthead.errors import GgufError, RequestError, UnsupportedError
from drafthead.gguf.file import GgufFile, quoted

# tokenizer.ggml.token_type: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
_NORMAL, _USER_DEFINED = 1, 4
_TOKEN_TYPES = range(1, 7)
TEXT_TYPES = frozenset({_NORMAL, _USER_DEFINED})  # every other type is a control token

# A file names one end-of-sequence id; chat models end a turn with others of its control tokens.
END_TOKENS = frozenset(
    {
        "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>",
        "</s>", "<eos>", "<end_of_turn>",
    }
)  # fmt: skip
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def _smollm() -> PreTokenizer:
    """Each digit alone, the rest split as GPT-2 does."""
    byte_level = ByteLevel(add_prefix_space=False, use_regex=True)
    return Chain([Digits(individual_digits=True), byte_level])


PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {"smollm": _smollm}


class _Vocabulary(NamedTuple):
    tokens: list[str]
    types: list[int]
    merges: list[str]
    pre: str
    ids: dict[str, int | None]  # special id by metadata key, None where the file has none
    add_bos: bool


class Tokenizer:
    """Text to ids and back, as the model's own tokenizer does it.

    control_ids: tokens that only the engine or the chat template produce; control_tokens gives them
    by name, and control_pattern finds the names, the longest first.  eos_ids: every id that
    ends an answer.  bos_id: None where the file names none.  add_bos: a prompt starts with bos_id.
    fingerprint: SHA-256 (hex) of every tokenizer key of the file.
    """

    def __init__(self, vocabulary: _Vocabulary, bpe: BpeTokenizer, fingerprint: str) -> None:
        self._bpe = bpe
        self.fingerprint = fingerprint
        self.vocab_size = len(vocabulary.tokens)
        self.control_ids, self.eos_ids = _special_ids(vocabulary)
        self.control_tokens = {vocabulary.tokens[i]: i for i in sorted(self.control_ids)}
        self.control_pattern = names_pattern(self.control_tokens)
        self.bos_id = vocabulary.ids["bos_token_id"]
        self.add_bos = vocabulary.add_bos and self.bos_id is not None
        self._tokens, self._types = vocabulary.tokens, vocabulary.types

    @classmethod
    def from_gguf(cls, gguf: GgufFile) -> Tokenizer:
        """Build the tokenizer of a file.

        Raises:
            GgufError: a tokenizer key is missing, of a wrong type, or inconsistent.
            UnsupportedError: a tokenizer model or pre-tokenizer this version does not have.
        """
        vocabulary = _read_vocabulary(gguf)
        control_ids, _ = _special_ids(vocabulary)
        bpe = _build_bpe(gguf, vocabulary, control_ids)
        return cls(vocabulary, bpe, gguf.tokenizer_fingerprint())

    def encode(self, text: str) -> list[int]:
        """Encode plain text; the names of control tokens in it are ordinary text.

        Bytes that the vocabulary lacks are dropped, as the model's own tokenizer drops them. No
        begin or end token is added.

        Raises:
            RequestError: the text holds half of a surrogate pair, which is no character.
        """
        try:
            ids: list[int] = self._bpe.encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError):
            raise RequestError(
                "The text holds half of a surrogate pair, which is no character: remove it."
            ) from None
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes a token stands for.

        They are b"" for control tokens, and part of a character for some others.

        Raises:
            RequestError: the id is not in the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size:
            raise RequestError(f"Token id {token_id} is not in 0..{self.vocab_size - 1}.")
        token = self._tokens[token_id]
        if token_id in self.control_ids:
            return b""
        if self._types[token_id] == _USER_DEFINED or not _ALPHABET.keys() >= set(token):
            return token.encode()  # stands for itself
        return bytes([_ALPHABET[character] for character in token])

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; what is no whole UTF-8 character becomes U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")


def names_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds any of the names, the longest where several fit."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _read_vocabulary(gguf: GgufFile) -> _Vocabulary:
    model = gguf.string("tokenizer.ggml.model")
    if model != "gpt2":
        raise UnsupportedError(
            f"{gguf.path}: tokenizer.ggml.model is {quoted(model)}; this version has gpt2 "
            "(byte-level BPE)."
        )
    pre = gguf.string("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"{gguf.path}: tokenizer.ggml.pre is {quoted(pre)}; this version has "
            f"{', '.join(PRE_TOKENIZERS)}."
        )
    if gguf.boolean("tokenizer.ggml.add_space_prefix", False):
        raise UnsupportedError(
            f"{gguf.path}: this version does not support tokenizer.ggml.add_space_prefix."
        )
    tokens = gguf.strings("tokenizer.ggml.tokens")
    types = gguf.integers("tokenizer.ggml.token_type")
    _check_tokens(gguf, tokens, types)
    ids = {key: _special_id(gguf, key, len(tokens)) for key in ("bos_token_id", *_END_KEYS)}
    add_bos = gguf.boolean("tokenizer.ggml.add_bos_token", False)
    return _Vocabulary(tokens, types, gguf.strings("tokenizer.ggml.merges"), pre, ids, add_bos)


def _check_tokens(gguf: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> None:
    if len(types) != len(tokens):
        raise GgufError(
            f"{gguf.path}: tokenizer.ggml.token_type has {len(types)} elements for {len(tokens)} "
            "tokens."
        )
    for name, wrong in (
        ("an empty token", next((i for i, token in enumerate(tokens) if not token), None)),
        ("an unknown type", next((i for i, t in enumerate(types) if t not in _TOKEN_TYPES), None)),
    ):
        if wrong is not None:
            raise GgufError(f"{gguf.path}: token {wrong} of the vocabulary has {name}.")
    if len(set(tokens)) != len(tokens):
        first: dict[str, int] = {}
        twice = next(i for i, token in enumerate(tokens) if first.setdefault(token, i) != i)
        raise GgufError(
            f"{gguf.path}: the token {quoted(tokens[twice])} is in the vocabulary twice."
        )


def _special_id(gguf: GgufFile, key: str, vocab_size: int) -> int | None:
    full = f"tokenizer.ggml.{key}"
    return gguf.integer(full, 0, vocab_size - 1) if full in gguf.metadata else None


def _special_ids(vocabulary: _Vocabulary) -> tuple[frozenset[int], frozenset[int]]:
    """Return (control ids, end-of-sequence ids); the second are among the first."""
    special = {i for i, t in enumerate(vocabulary.types) if t not in TEXT_TYPES}
    ends = {vocabulary.ids[key] for key in _END_KEYS} - {None}
    ends |= {i for i, token in enumerate(vocabulary.tokens) if token in END_TOKENS}
    named = {i for i in vocabulary.ids.values() if i is not None}
    eos_ids = frozenset(i for i in ends if i is not None)
    return frozenset(special | named | eos_ids), eos_ids


def _build_bpe(
    gguf: GgufFile, vocabulary: _Vocabulary, control_ids: frozenset[int]
) -> BpeTokenizer:
    vocab = {t: i for i, t in enumerate(vocabulary.tokens) if i not in control_ids}
    merges = [_merge(gguf, merge, vocab) for merge in vocabulary.merges]
    bpe = BpeTokenizer(BPE(vocab=vocab, merges=merges))
    bpe.pre_tokenizer = PRE_TOKENIZERS[vocabulary.pre]()
    user_defined = [
        AddedToken(token, normalized=False, special=False)
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind == _USER_DEFINED and i not in control_ids
    ]
    bpe.add_tokens(user_defined)
    return bpe


def _merge(gguf: GgufFile, merge: str, vocab: Mapping[str, int]) -> tuple[str, str]:
    """Split and check a merge: the library crashes on parts or results it does not know."""
    left, _, right = merge.partition(" ")
    if left in vocab and right in vocab and left + right in vocab:
        return left, right
    raise GgufError(
        f"{gguf.path}: a merge must be two text tokens and one space, and its result a text token; "
        f"found {quoted(merge)}."
    )


def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes are themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_ALPHABET = _byte_of_character()
