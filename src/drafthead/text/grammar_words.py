"""A tokenizer as llguidance wants it: the bytes of every token, and a text cut into tokens."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from drafthead.errors import RequestError
from drafthead.text.tokenizer import Tokenizer

# No piece of any vocabulary has this character beside others, so nothing is merged across it.
_MARK = "\x02"


class GrammarWords:
    """What llguidance reads of a tokenizer, and asks of it where a grammar forces a text.

    The end of the text has an id of its own, one after the vocabulary's last. The vocabulary's end
    tokens are control tokens like others then: whether one may come is the request's to say.

    control_ids: tokens that are no text.  spaced_ids: tokens that lose their space at the start of
    a text, and so are another text there.  tokens: the bytes of each, of control tokens the name.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Read the vocabulary.

        Raises:
            RequestError: llguidance is not installed.
        """
        try:
            import llguidance
        except ImportError:
            raise RequestError(
                "Structured output (json_schema, regex, grammar) needs llguidance: run "
                "`pip install 'drafthead[structured]'`."
            ) from None
        self._library = llguidance
        self.control_ids = tokenizer.control_ids
        self.eos_token_id = size = tokenizer.vocab_size
        self.special_token_ids = [*sorted(tokenizer.control_ids), size]
        names = {token: name.encode() for name, token in tokenizer.control_tokens.items()}
        names |= {token: b"<|%d|>" % token for token in self.control_ids - names.keys()}
        self.tokens = [names.get(i) or tokenizer.token_bytes(i) for i in range(size)]
        self.spaced_ids = [
            token
            for token, raw in enumerate(self.tokens)
            if raw.startswith(b" ") and tokenizer.token_bytes(token, first=True) != raw
        ]
        self.tokens.append(b"<|end of the text|>")
        self._tokenizer = tokenizer

    @cached_property
    def compiled(self) -> Any:
        """The library's tokenizer, which takes about a second for a long vocabulary."""
        wrapped = self._library.TokenizerWrapper(self)
        return self._library.LLTokenizer(wrapped, n_vocab=len(self.tokens))

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text in the middle of another one, with exactly its bytes.

        They are those of `encode`, unless it puts a space before a text or composes characters:
        then those behind a mark, or at last the longest that fit.
        """
        exact = text.encode()
        ids = self._tokenizer.encode(text)
        if self._bytes(ids) == exact:
            return ids
        ids = self._tokenizer.encode(_MARK + text)
        marks = [at for at, token in enumerate(ids) if self.tokens[token] == _MARK.encode()]
        ids = ids[marks[0] + 1 :] if marks else []
        if self._bytes(ids) == exact:
            return ids
        longest: list[int] = self.compiled.greedy_tokenize(text)
        return longest

    def _bytes(self, ids: list[int]) -> bytes:
        return b"".join(self.tokens[token] for token in ids)
