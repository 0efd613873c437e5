"""Structured output: answers that a JSON schema, a regular expression or a grammar allows.

llguidance compiles the grammar and says for each place which tokens may come. Whoever chooses
tokens and whoever drafts them hold a matcher each: that of the chooser is asked for the same masks
after the same tokens whatever is drafted.

V is the vocabulary size, E the number of end tokens.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from drafthead.decoding.options import Structure
from drafthead.errors import NumericsError, RequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher

KEPT_GRAMMARS = 16
# Without free white space most of a schema's text is forced, and no model can loop in blanks. It is
# what json.dumps writes; a schema's "x-guidance" overrules it.
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_SHOWN_CHARACTERS = 200
# How the library says that every token of the vocabulary is wrong.
_DEAD_END, _DEAD_END_SAID = "NoExtension", "no token of the vocabulary goes on with a legal text"
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\)")


class Words(Protocol):
    """A vocabulary as llguidance knows it (text/grammar_words.py).

    eos_token_id: of the end of a text, one after the last token.  control_ids: tokens that are no
    text.  spaced_ids: tokens that lose their space at the start of a text.  compiled: for matchers.
    """

    eos_token_id: int
    control_ids: frozenset[int]
    spaced_ids: list[int]

    @property
    def compiled(self) -> Any:
        """See above."""


class GrammarRule:
    """Lets only those tokens come that go on with a text of the grammar.

    finished: nothing may follow the last token. An end token may come where the text is whole.
    """

    def __init__(
        self, matcher: LLMatcher, words: Words, ends: Collection[int], continues: bool
    ) -> None:
        """Start a text.

        Args:
            matcher: of this text alone.
            words: of the tokenizer.
            ends: tokens that end the answer.
            continues: the text goes on in another one, so that its first space is part of it.
        """
        self.finished = False
        self._matcher = matcher
        self._words = words
        self._ends_E = np.array(sorted(ends), np.int64)
        self._starts = not continues
        self._look()
        if self.finished:
            raise RequestError("The grammar allows no text but the empty one.")

    def apply(self, logits_V: NDArray[np.float32]) -> None:
        """Leave the logits of tokens that may come, whatever was added to others."""
        logits_V[~self._allowed_V] = -np.inf
        if logits_V.max() == -np.inf:
            raise NumericsError("No token that the grammar allows has a finite logit.")

    def push(self, token: int) -> None:
        """Go on by the token that was chosen."""
        if token in self._ends_E:
            self.finished = True
            return
        self._starts = self._starts and token in self._words.control_ids
        self._matcher.consume_token(token)
        self._look()

    def _look(self) -> None:
        """Find the tokens that may come next.

        Raises:
            RequestError: the matcher has given up, as where a grammar becomes too complex, or
                only tokens are left that would lose their space.
        """
        size = self._words.eos_token_id
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise RequestError(f"The grammar cannot be followed: {_reason(self._matcher)}.")
        mask = np.unpackbits(bits, count=size + 1, bitorder="little").view(np.bool_)
        self._allowed_V = mask[:size]
        self.finished = not self._allowed_V.any()
        if self._starts and not self.finished:
            self._allowed_V[self._words.spaced_ids] = False
            if not self._allowed_V.any():
                raise RequestError(
                    "The grammar wants a space first, which this tokenizer drops at the start of a "
                    "text: leave it out."
                )
        self._allowed_V[self._ends_E] |= mask[size]


class GrammarGuide:
    """Tells a drafter what a grammar forces and forbids after the committed tokens."""

    def __init__(self, matcher: LLMatcher, words: Words, ends: Collection[int]) -> None:
        """matcher: for drafts alone; ends: tokens that end the answer."""
        self._matcher: LLMatcher | None = matcher
        self._whole = words.eos_token_id
        self._ends = frozenset(ends)

    def push(self, tokens: Sequence[int]) -> None:
        """Go on by committed tokens."""
        if self._matcher is not None and not self._matcher.consume_tokens(list(tokens)):
            self._matcher = None  # the answer has ended, or the grammar is too complex

    def forced(self) -> list[int]:
        """The tokens that must come next, as far as there is no choice."""
        if self._matcher is None:
            return []
        forced: list[int] = self._matcher.compute_ff_tokens()
        return forced[: forced.index(self._whole)] if self._whole in forced else forced

    def legal(self, tokens: Sequence[int]) -> int:
        """How many of the tokens may come one after the other."""
        if self._matcher is None:
            return len(tokens)
        known = list(takewhile(lambda token: 0 <= token < self._whole, tokens))
        legal: int = self._matcher.validate_tokens(
            [self._whole if token in self._ends else token for token in known]
        )
        return legal


class Grammar(NamedTuple):
    """A grammar at the start of one answer: a rule for its chooser, a guide for its drafter."""

    rule: GrammarRule
    guide: GrammarGuide


class GrammarMaker:
    """Compiles grammars for one vocabulary, and remembers the last ones."""

    def __init__(self, read_words: Callable[[], Words]) -> None:
        """read_words: gives the vocabulary, once, when the first grammar is asked for."""
        self._read_words = read_words
        self._compiled: OrderedDict[Structure, LLMatcher] = OrderedDict()

    def make(self, structure: Structure, ends: Collection[int], continues: bool) -> Grammar:
        """The grammar of an answer.

        Args:
            structure: which texts are allowed.
            ends: tokens that end the answer.
            continues: the answer goes on in a text, so that its first space is part of it.

        Raises:
            RequestError: llguidance is not installed or cannot compile the structure, or no text
                or only the empty one is allowed.
        """
        matcher = self._matcher(structure)
        rule = GrammarRule(matcher.deep_copy(), self._words, ends, continues)
        return Grammar(rule, GrammarGuide(matcher.deep_copy(), self._words, ends))

    def _matcher(self, structure: Structure) -> LLMatcher:
        if structure not in self._compiled:
            self._compiled[structure] = self._compile(structure)
            if len(self._compiled) > KEPT_GRAMMARS:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(structure)
        return self._compiled[structure]

    def _compile(self, structure: Structure) -> LLMatcher:
        kind, text = structure
        tokenizer = self._words.compiled
        from llguidance import LLMatcher as Matcher

        if kind == "json_schema":
            grammar = Matcher.grammar_from_json_schema(text, defaults=_JSON_STYLE)
        elif kind == "regex":
            grammar = Matcher.grammar_from_regex(text)
        else:
            grammar = Matcher.grammar_from_lark(text)
        matcher: LLMatcher = Matcher(tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise RequestError(f"The {kind} cannot be used: {_reason(matcher)}.")
        return matcher

    @cached_property
    def _words(self) -> Words:
        return self._read_words()


def _reason(matcher: LLMatcher) -> str:
    """What the library says, as part of a sentence: its first line, or what is wrong in a regex."""
    lines = matcher.get_error().splitlines()
    said = next((line for line in lines if line.startswith("error: ")), lines[0] if lines else "")
    if said.startswith(_DEAD_END):
        return _DEAD_END_SAID
    said = _PLACE.sub(r"line \1, column \2", said.removeprefix("error: ").rstrip("."))
    return said if len(said) <= _SHOWN_CHARACTERS else f"{said[:_SHOWN_CHARACTERS]}…"
