"""One answer: its events as they come, and the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from drafthead.decoding.constraints import FinishReason
from drafthead.decoding.loop import Request
from drafthead.decoding.prefix import PrefixCache
from drafthead.drafting import DrafterState
from drafthead.errors import CancelledError, RequestError
from drafthead.types import DecodeStats, ScoredToken, TokenEvent


@dataclass(frozen=True)
class Result:
    """A finished answer. `tokens` ends with the end-of-sequence token where one ended it.

    drafter: whether it still drafted at the end, and why not.
    seed: of its random numbers, None where there were none.  prompt_logprobs: the prompt's tokens
    with their log-probabilities, where they were asked for.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stats: DecodeStats
    prompt_tokens: int
    drafter: DrafterState
    events: tuple[TokenEvent, ...] = field(repr=False)
    seed: int | None = None
    prompt_logprobs: tuple[ScoredToken, ...] = field(default=(), repr=False)


class Stream(Iterator[TokenEvent]):
    """The events of one answer as they come; may be abandoned or closed at any time.

    `finish_reason` is None until the last event has come, and stays so where nothing but its user
    ended the stream; `stats` counts what has been done so far. `seed` is that of its random
    numbers, None where there are none. In a `with` statement it is closed at the end.

    Raises:
        RequestError: at an event, where the session went on with something else since the one
            before, or is at work in another thread.
        NumericsError: the backbone gave no finite logit.
    """

    def __init__(
        self,
        request: Request,
        events: Iterator[TokenEvent],
        held: PrefixCache,
        drafter: Callable[[], DrafterState],
        seed: int | None = None,
    ) -> None:
        """What a session gives for a request.

        Args:
            request: what is asked; not begun.
            events: of its answer; they leave reason and counts in the request.
            held: the cache that they work with.
            drafter: tells which drafter drafts now.
            seed: of its random numbers.
        """
        self.seed = seed
        self._request = request
        self._events = events
        self._held = held
        self._drafter = drafter
        self._came = 0
        self._closed = False

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended."""
        last = self._came == len(self._request.tokens) - len(self._request.prompt)
        return self._request.finish_reason if last else None

    @property
    def stats(self) -> DecodeStats:
        """Counts and times."""
        return self._request.stats

    @property
    def drafter(self) -> DrafterState:
        """Which drafter drafts now, and why not where none does."""
        return self._drafter()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, template included."""
        return len(self._request.prompt)

    @property
    def prompt_logprobs(self) -> tuple[ScoredToken, ...]:
        """The prompt's tokens with their log-probabilities, from the first event on."""
        return tuple(self._request.scored_prompt)

    def close(self) -> None:
        """Let no more events come: at any time, from any thread, more than once.

        What another thread is doing for the next event is finished first, of a prompt the chunk
        that it reads.
        """
        self._closed = self._request.cancelled = True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> TokenEvent:
        if self._closed or self.finish_reason is not None:
            raise StopIteration
        with self._held.turn:
            if self._came and self._held.request is not self._request:
                raise RequestError(
                    "This stream ended when the session began another request or was restored; "
                    "finish one before the next, or load a second session."
                )
            try:
                event = next(self._events)
            except CancelledError:
                raise StopIteration from None
            self._came += 1
        return event


def finish(stream: Stream) -> Result:
    """Run a stream to its end."""
    events = tuple(stream)
    assert stream.finish_reason is not None
    return Result(
        text="".join(event.text for event in events),
        tokens=tuple(event.token for event in events),
        finish_reason=stream.finish_reason,
        stats=stream.stats,
        prompt_tokens=stream.prompt_tokens,
        drafter=stream.drafter,
        events=events,
        seed=stream.seed,
        prompt_logprobs=stream.prompt_logprobs,
    )
