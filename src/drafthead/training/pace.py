"""How far a regeneration is and how long the rest will take, in tokens and not in answers.

Answers differ in length by task, and the first to finish are the short ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

from drafthead.training.answers import Answer
from drafthead.training.regen import Regenerator, RegenSettings

PRIOR_ANSWERS = 4  # a task is taken for an average one until it has more answers than these


class Lengths:
    """Mean lengths by task.

    Answers that are still being written count with the tokens that they have: of the first ones
    to finish, all are short. This is the maximum-likelihood mean of censored exponential lengths.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._finished = Counter[str]()
        self._tokens = Counter[str]()

    def add(self, task: str, tokens: int, finished: bool = True) -> None:
        """Count one answer."""
        self._finished[task] += finished
        self._tokens[task] += tokens

    def having(self, others: Iterable[tuple[str, int]]) -> Lengths:
        """A copy that knows unfinished answers too, as (task, tokens)."""
        copy = Lengths(self._longest)
        copy._finished, copy._tokens = self._finished.copy(), self._tokens.copy()
        for task, tokens in others:
            copy.add(task, tokens, finished=False)
        return copy

    def mean(self, task: str) -> float:
        """The length to expect, drawn towards that of all tasks; the longest where none ended."""
        finished = sum(self._finished.values())
        overall = sum(self._tokens.values()) / finished if finished else float(self._longest)
        tokens = self._tokens[task] + PRIOR_ANSWERS * min(overall, self._longest)
        return min(tokens / (self._finished[task] + PRIOR_ANSWERS), self._longest)


class Pace:
    """What a run has done since it began, and the time that the rest will take at that pace."""

    def __init__(
        self, regenerator: Regenerator, settings: RegenSettings,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._regenerator, self._clock = regenerator, clock
        self._start = clock()
        self._prompts, self._answers = Lengths(settings.capacity), Lengths(settings.max_tokens)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock() - self._start

    def add(self, answer: Answer) -> None:
        """Count an answer of this run."""
        self._prompts.add(answer.task, len(answer.prompt_tokens))
        self._answers.add(answer.task, len(answer.answer))

    def tokens(self) -> tuple[float, float]:
        """Prompt and answer tokens that are done, and that are left."""
        running = self._regenerator.running
        answers = self._answers.having((prompt.task, written) for prompt, _, written in running)
        under_way = sum(cached for _, cached, _ in running)
        counts = self._regenerator.counts
        left = sum(
            count * (self._prompts.mean(task) + answers.mean(task))
            for task, count in counts.left.items()
        )
        return counts.prompt_tokens + counts.answer_tokens + under_way, max(0.0, left - under_way)

    def seconds_left(self) -> float:
        """At the pace so far."""
        done, left = self.tokens()
        return left * self.seconds / max(done, 1.0)
