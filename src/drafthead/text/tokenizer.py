"""Text to ids and back, as the model's own tokenizer does it, from a GGUF file alone.

Control tokens are no part of what text is matched with, so no text can produce their ids: they
come from the chat template (template.py) or the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from drafthead.errors import RequestError, UnsupportedError
from drafthead.gguf.file import GgufFile, quoted
from drafthead.text.byte_bpe import ByteBpe
from drafthead.text.decoder import StreamDecoder
from drafthead.text.piece_bpe import PieceBpe
from drafthead.text.vocabulary import Vocabulary, names_pattern, read_vocabulary

_ENCODERS: dict[str, type[ByteBpe] | type[PieceBpe]] = {"gpt2": ByteBpe, "llama": PieceBpe}


class Tokenizer:
    """Text to ids and back.

    control_ids: tokens that only the engine or the chat template produce; control_tokens gives them
    by name.  eos_ids: every id that ends an answer.  bos_id: None where the file names none.
    add_bos: a prompt starts with bos_id.  fingerprint: SHA-256 (hex) of every tokenizer key.
    """

    def __init__(self, vocabulary: Vocabulary, encoder: ByteBpe | PieceBpe, gguf: GgufFile) -> None:
        self._encoder = encoder
        self.fingerprint = gguf.tokenizer_fingerprint()
        self.vocab_size = len(vocabulary.tokens)
        self.control_ids, self.eos_ids = vocabulary.control_ids, vocabulary.eos_ids
        self.control_tokens = {vocabulary.tokens[i]: i for i in sorted(self.control_ids)}
        self.bos_id = vocabulary.bos_id
        add_bos = gguf.boolean("tokenizer.ggml.add_bos_token", encoder.adds_bos)
        self.add_bos = add_bos and self.bos_id is not None

    @cached_property
    def control_pattern(self) -> re.Pattern[str]:
        """Finds the names of control tokens, the longest where several fit."""
        return names_pattern(self.control_tokens)

    @classmethod
    def from_gguf(cls, gguf: GgufFile) -> Tokenizer:
        """Build the tokenizer of a file.

        Raises:
            GgufError: a tokenizer key is missing, of a wrong type, or inconsistent.
            UnsupportedError: a tokenizer model or pre-tokenizer this version does not have.
        """
        model = gguf.string("tokenizer.ggml.model")
        if model not in _ENCODERS:
            raise UnsupportedError(
                f"{gguf.path}: tokenizer.ggml.model is {quoted(model)}; this version has gpt2 "
                "(byte-level BPE) and llama (SentencePiece)."
            )
        vocabulary = read_vocabulary(gguf)
        return cls(vocabulary, _ENCODERS[model](gguf, vocabulary), gguf)

    def encode(self, text: str) -> list[int]:
        """Encode plain text; the names of control tokens in it are ordinary text.

        No begin or end token is added.

        Raises:
            RequestError: the text holds half of a surrogate pair, which is no character.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RequestError(
                "The text holds half of a surrogate pair, which is no character: remove it."
            ) from None
        return self._encoder.encode(text)

    def token_bytes(self, token_id: int, first: bool = False) -> bytes:
        """Return the UTF-8 bytes a token stands for.

        They are b"" for control tokens, and part of a character for some others.

        Args:
            token_id: any id of the vocabulary.
            first: the token starts a text; a space that encode puts before a text is left out.

        Raises:
            RequestError: the id is not in the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size:
            raise RequestError(f"Token id {token_id} is not in 0..{self.vocab_size - 1}.")
        return b"" if token_id in self.control_ids else self._encoder.token_bytes(token_id, first)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; what is no whole UTF-8 character becomes U+FFFD."""
        decoder = StreamDecoder(self)
        return "".join([*map(decoder.push, ids), decoder.flush()])
