"""Who chooses the tokens of a pass: the likeliest, or drawn and shaped ones.

A chooser takes a draft and what the target gave for its rows, and says what is committed. It sees
committed tokens only and sees them once, in order, whatever was drafted.

V is the vocabulary size, N the number of tokens that may come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from drafthead.backbone.handle import Pass
from drafthead.decoding.acceptance import keeps, longest_match, residual
from drafthead.decoding.candidates import Candidates
from drafthead.decoding.grammar import GrammarRule
from drafthead.decoding.options import DecodeOptions
from drafthead.decoding.sampling import Sampler
from drafthead.decoding.shaping import Rule, make_rules
from drafthead.rng import uniform
from drafthead.types import Draft


class Chooser(Protocol):
    """Turns a draft and its verification into the tokens of a pass.

    needs_logits: the rows' logits are read; else their greedy tokens alone.
    follows_drafts: which text comes depends on the drafts, though not its distribution.
    ended: nothing may follow the last token that was chosen.
    """

    @property
    def needs_logits(self) -> bool:
        """See above."""

    @property
    def follows_drafts(self) -> bool:
        """See above."""

    @property
    def ended(self) -> bool:
        """See above."""

    def choose(self, draft: Draft, given: Pass) -> list[int]:
        """The accepted tokens of the draft and the next one; the rows follow the draft.

        There is no next one where the answer has ended with an accepted token.
        """


class GreedyChooser:
    """The likeliest token of each row, which the core has found."""

    needs_logits = False
    follows_drafts = False
    ended = False

    def choose(self, draft: Draft, given: Pass) -> list[int]:
        """The longest matching prefix, and the correction or bonus."""
        accepted = longest_match(draft.tokens, given.tokens)
        return [*draft.tokens[:accepted], int(given.tokens[accepted])]


class LogitChooser:
    """Chooses row by row from logits, and stops at the first row that leaves the draft.

    Each row draws its own token by the random numbers of its position, and a drafted token is
    accepted where it is that one: so drafts change nothing but the number of passes.
    """

    needs_logits = True
    follows_drafts = False

    def __init__(
        self,
        sampler: Sampler,
        rules: Sequence[Rule],
        position: int,
        grammar: GrammarRule | None = None,
    ) -> None:
        """Start an answer.

        Args:
            sampler: draws the tokens.
            rules: of this answer alone, since they remember.
            position: of the answer's first token, which is the prompt's length.
            grammar: a rule of this answer that applies last, and may end it.
        """
        self._sampler = sampler
        self._rules = [*rules, grammar] if grammar else rules
        self._position = position
        self._grammar = grammar

    @property
    def ended(self) -> bool:
        """A grammar allows no token more."""
        return self._grammar is not None and self._grammar.finished

    def choose(self, draft: Draft, given: Pass) -> list[int]:
        """Row after row until a token is not the drafted one."""
        assert given.logits is not None
        chosen: list[int] = []
        for row, logits_V in enumerate(given.logits):
            shaped_V = np.fmax(logits_V, np.float32(-np.inf))  # a copy in which NaN never comes
            for rule in self._rules:
                rule.apply(shaped_V)
            token = self._choose_one(shaped_V, draft, row, self._position)
            for rule in self._rules:
                rule.push(token)
            self._position += 1
            chosen.append(token)
            if self.ended or row == len(draft.tokens) or token != draft.tokens[row]:
                break
        return chosen

    def _choose_one(
        self, logits_V: NDArray[np.float32], draft: Draft, row: int, position: int
    ) -> int:
        return self._sampler.token(logits_V, position)


class RejectingChooser(LogitChooser):
    """Keeps a drafted token as often as is due to it, and draws from what is left where not.

    Classical rejection sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv
    2302.01318): the distribution is the target's, and which text comes depends on the drafts.
    """

    follows_drafts = True

    def __init__(
        self,
        sampler: Sampler,
        rules: Sequence[Rule],
        position: int,
        seed: int,
        grammar: GrammarRule | None = None,
    ) -> None:
        """seed: of the numbers that decide on acceptance; else as above."""
        super().__init__(sampler, rules, position, grammar)
        self._seed = seed

    def _choose_one(
        self, logits_V: NDArray[np.float32], draft: Draft, row: int, position: int
    ) -> int:
        if row == len(draft.tokens):
            return super()._choose_one(logits_V, draft, row, position)
        may_come = self._sampler.candidates(logits_V)
        token, ids_N, target_N = draft.tokens[row], may_come.ids_N, may_come.probabilities()
        drafted_N: NDArray[np.float64] = (ids_N == token).astype(np.float64)
        if draft.proposals:
            drafted_N = draft.proposals[row][ids_N]
        number = uniform(self._seed, "accept", position)
        for place in np.flatnonzero(ids_N == token):  # one, or none where it may not come
            if keeps(float(target_N[place]), float(drafted_N[place]), number):
                return token
        left_N = residual(target_N, drafted_N)
        some = np.flatnonzero(left_N)
        return self._sampler.draw(Candidates(ids_N[some], np.log(left_N[some])), position)


def make_chooser(
    options: DecodeOptions,
    prompt: Sequence[int],
    vocab_size: int,
    grammar: GrammarRule | None = None,
) -> Chooser:
    """The chooser of one answer; options with a seed, where tokens are drawn."""
    rules = make_rules(options, prompt, vocab_size)
    if not options.draws and not rules and not grammar:
        return GreedyChooser()
    sampler = Sampler(options)
    if options.draws and options.accept == "rejection":
        return RejectingChooser(sampler, rules, len(prompt), options.seed or 0, grammar)
    return LogitChooser(sampler, rules, len(prompt), grammar)
