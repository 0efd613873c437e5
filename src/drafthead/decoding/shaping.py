"""Rules that change logits before a token is chosen: penalties for what was said, and biases.

Each sees every committed token before the place it shapes, accepted drafts too, because the rows
of a pass are chosen one after the other.

V is the vocabulary size, K the number of biased tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from drafthead.decoding.options import DecodeOptions


class Rule(Protocol):
    """Shapes the logits of one place after the other."""

    def apply(self, logits_V: NDArray[np.float32]) -> None:
        """Change the logits of the next place."""

    def push(self, token: int) -> None:
        """Take the token that was chosen for it."""


class RepetitionPenalty:
    """Divides the positive logits of tokens in prompt or answer and multiplies their others.

    From CTRL (Keskar et al., arXiv 1909.05858, section 4.1), with the sign seen to.
    """

    def __init__(self, penalty: float, prompt: Sequence[int], vocab_size: int) -> None:
        self._penalty = penalty
        self._seen_V = np.zeros(vocab_size, bool)
        self._seen_V[list(prompt)] = True

    def apply(self, logits_V: NDArray[np.float32]) -> None:
        """Make what was seen less likely, or with a penalty below 1 likelier."""
        seen = np.flatnonzero(self._seen_V)
        of_seen, penalty = logits_V[seen], self._penalty
        logits_V[seen] = np.where(of_seen > 0, of_seen / penalty, of_seen * penalty)

    def push(self, token: int) -> None:
        """Remember it."""
        self._seen_V[token] = True


class CountPenalty:
    """Takes from a token's logit for each time, and once, that the answer has it."""

    def __init__(self, frequency: float, presence: float, vocab_size: int) -> None:
        self._frequency, self._presence = frequency, presence
        self._counts_V = np.zeros(vocab_size)

    def apply(self, logits_V: NDArray[np.float32]) -> None:
        """Make what the answer has less likely, or with a negative penalty likelier."""
        said = np.flatnonzero(self._counts_V)
        logits_V[said] -= self._frequency * self._counts_V[said] + self._presence

    def push(self, token: int) -> None:
        """Count it."""
        self._counts_V[token] += 1


class Bias:
    """Adds a number to the logits of some tokens."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._ids_K = np.array(list(bias), np.int64)
        self._bias_K = np.array(list(bias.values()), np.float32)

    def apply(self, logits_V: NDArray[np.float32]) -> None:
        """Add them."""
        logits_V[self._ids_K] += self._bias_K

    def push(self, token: int) -> None:
        """A bias forgets."""


def make_rules(options: DecodeOptions, prompt: Sequence[int], vocab_size: int) -> list[Rule]:
    """The rules that the options ask for, in the order in which they apply."""
    rules: list[Rule] = []
    if options.repetition_penalty != 1:
        rules.append(RepetitionPenalty(options.repetition_penalty, prompt, vocab_size))
    if options.frequency_penalty or options.presence_penalty:
        penalties = options.frequency_penalty, options.presence_penalty
        rules.append(CountPenalty(*penalties, vocab_size))
    if options.logit_bias:
        rules.append(Bias(options.logit_bias))
    return rules
