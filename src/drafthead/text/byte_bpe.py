"""Byte-level BPE (tokenizer.ggml.model "gpt2"): merges in their order, of the bytes of words.

Radford et al. 2019, section 2.2. What cuts a text into words is named by tokenizer.ggml.pre; each
rule here is what the tokenizer.json of the models of that name says, since that is what they were
trained on. "default" is the exception: no model's own, but what llama.cpp does by that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tokenizers import Regex
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as Chain

from drafthead.errors import GgufError, UnsupportedError
from drafthead.gguf.file import GgufFile, quoted
from drafthead.text.merging import merge, remembering
from drafthead.text.vocabulary import USER_DEFINED, FixedTokens, Vocabulary

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_NFC = NFC()
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Rule(NamedTuple):
    """How a family cuts and reads text.

    splits: patterns, each applied to the pieces of the one before.  digits: each digit alone,
    first of all.  nfc: text is composed (Unicode NFC) before.  whole_words: a word that is a token
    is that token, whatever its merges say.  adds_bos: what a file without add_bos_token means.
    """

    splits: tuple[str, ...]
    digits: bool = False
    nfc: bool = False
    whole_words: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        """Build the chain that ends in the byte alphabet."""
        first = [Digits(individual_digits=True)] if self.digits else []
        splits = [Split(Regex(pattern), "isolated") for pattern in self.splits]
        return Chain([*first, *splits, ByteLevel(add_prefix_space=False, use_regex=False)])


RULES = {
    "gpt-2": Rule((_GPT2,)),
    "smollm": Rule((_GPT2,), digits=True),
    "qwen2": Rule((_LLAMA3.replace("{1,3}", ""),), nfc=True),
    "llama-bpe": Rule((_LLAMA3,), whole_words=True, adds_bos=True),
    "smaug-bpe": Rule((_LLAMA3,), whole_words=True),
    "default": Rule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}


class ByteBpe:
    """Text to ids.  adds_bos: what a file without add_bos_token means."""

    def __init__(self, gguf: GgufFile, vocabulary: Vocabulary) -> None:
        pre = gguf.string("tokenizer.ggml.pre")
        if pre not in RULES:
            raise UnsupportedError(
                f"{gguf.path}: tokenizer.ggml.pre is {quoted(pre)}; this version has "
                f"{', '.join(RULES)}."
            )
        if gguf.boolean("tokenizer.ggml.add_space_prefix", False):
            raise UnsupportedError(
                f"{gguf.path}: this version does not support tokenizer.ggml.add_space_prefix in "
                "byte-level BPE."
            )
        self._rule = RULES[pre]
        self.adds_bos = self._rule.adds_bos
        self._words = self._rule.pre_tokenizer()
        control_ids, tokens = vocabulary.control_ids, vocabulary.tokens
        self._tokens = tokens
        self._ids = {token: i for i, token in enumerate(tokens) if i not in control_ids}
        self._ranks = _ranks(gguf, self._ids)
        fixed = vocabulary.text_ids(USER_DEFINED)
        self._fixed = FixedTokens({tokens[i]: i for i in fixed})
        self._word_ids = remembering(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """Encode text; bytes that the vocabulary lacks are dropped."""
        return self._fixed.encode(text, self._encode_plain)

    def token_bytes(self, token_id: int, first: bool) -> bytes:
        """Return the bytes of a text token; the first of a text is like any other here."""
        token = self._tokens[token_id]
        if token in self._fixed.ids or not _ALPHABET.keys() >= set(token):
            return token.encode()  # stands for itself
        return bytes([_ALPHABET[character] for character in token])

    def _encode_plain(self, text: str, ids: list[int]) -> None:
        if self._rule.nfc:
            text = _NFC.normalize_str(text)
        for word, _ in self._words.pre_tokenize_str(text):
            ids += self._word_ids(word)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        if self._rule.whole_words and word in self._ids:
            return (self._ids[word],)
        known = [character for character in word if character in self._ids]
        return tuple(self._ids[part] for part in merge(known, self._rank))

    def _rank(self, left: str, right: str) -> int | None:
        return self._ranks.get(f"{left} {right}")


def _ranks(gguf: GgufFile, ids: Mapping[str, int]) -> dict[str, int]:
    """Check the merges and number them in their order."""
    merges = gguf.strings("tokenizer.ggml.merges")
    for pair in merges:
        left, _, right = pair.partition(" ")
        if not (left in ids and right in ids and left + right in ids):
            raise GgufError(
                f"{gguf.path}: a merge must be two text tokens and one space, and its result a "
                f"text token; found {quoted(pair)}."
            )
    return {pair: rank for rank, pair in enumerate(merges)}


def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes are themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_ALPHABET = _byte_of_character()
