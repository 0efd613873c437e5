"""The decode loop: prefill, then draft, verify, accept, commit, roll back.

Greedy speculative decoding (Leviathan et al., arXiv 2211.17192). It knows no drafter by name, and
plain decoding is the same loop with a drafter that proposes nothing. Between passes the cache holds
every token but the last: `cache.length == len(tokens) - 1`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from drafthead.backbone.handle import Backbone, KvCache, Pass, Segment
from drafthead.decoding.acceptance import longest_match, usable_prefix
from drafthead.decoding.constraints import EndRule, FinishReason, token_limit
from drafthead.decoding.stats import count_pass
from drafthead.drafters.base import Drafter, Watcher
from drafthead.errors import NumericsError
from drafthead.types import DecodeStats, TokenEvent

PREFILL_ROWS = 512
# A cache with a sliding window can take back this many rows and more (native/runtime/kv_cache.h).
LONGEST_DRAFT = 128


class TextPieces(Protocol):
    """Turns token ids into text piece by piece, never splitting a character."""

    def push(self, token_id: int) -> str:
        """The text that became complete with this token."""

    def flush(self) -> str:
        """The text left over at the end."""


@dataclass
class Request:
    """One request: what is asked, and what has come of it so far.

    cached_tokens: leading tokens of the prompt, less than all, that the cache holds already.
    tokens: the prompt and what was committed; the cache holds them, as far as it reaches.
    """

    prompt: Sequence[int]
    max_tokens: int
    text: TextPieces
    stop_ids: frozenset[int] = frozenset()
    cut_loops: bool = False
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stats: DecodeStats = field(default_factory=DecodeStats)
    tokens: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)


def decode(
    request: Request, target: Backbone, cache: KvCache, drafter: Drafter
) -> Iterator[TokenEvent]:
    """Answer a request, one event a token, and leave reason and counts in it.

    Draft rooms are clipped so that no token past the limit is ever verified. A request may be
    abandoned at any event: the next one starts with a rollback and `begin`.

    Raises:
        RequestError, CapacityError: before anything is computed.
        NumericsError: the backbone gave no finite logit.
    """
    stats = request.stats
    limit = token_limit(len(request.prompt), request.max_tokens, cache.capacity)
    end = EndRule(limit, request.stop_ids, request.cut_loops)
    started = perf_counter()
    stats.cached_tokens = request.cached_tokens
    prefilled = prefill(target, cache, request.prompt, request.cached_tokens)
    first = [int(prefilled.tokens[-1])]
    tokens = request.tokens
    tokens += first
    drafter.begin(tokens, prefilled.hidden[-1], cache)
    events = commit(request, end, first, accepted=0, pass_index=0)
    stats.prefill_ms += 1000 * (perf_counter() - started)
    yield from events
    while request.finish_reason is None:
        assert cache.length == len(tokens) - 1, "a cache holds every token but the last"
        started = perf_counter()
        draft, dropped, source = propose(drafter, end.left - 1, target.spec.vocab_size)
        segment = Segment(cache, [tokens[-1], *draft])
        verified = target.forward([segment], rows="all", want="tokens")
        if isinstance(drafter, Watcher):
            drafter.watch(verified.tokens)
        accepted = longest_match(draft, verified.tokens)
        committed = [*draft[:accepted], int(verified.tokens[accepted])]
        events = commit(request, end, committed, accepted, stats.passes + 1)
        # In this order: whatever interrupts it, the cells below len(tokens) are those of tokens.
        cache.rollback(len(tokens) - 1 + len(events))
        tokens += [event.token for event in events]
        if request.finish_reason is None:
            drafter.observe(tokens[-len(events) :], verified.hidden[accepted])
        count_pass(stats, len(draft), accepted, len(events), dropped, source)
        stats.decode_ms += 1000 * (perf_counter() - started)
        yield from events


def prefill(target: Backbone, cache: KvCache, prompt: Sequence[int], cached: int = 0) -> Pass:
    """Feed what of a prompt the cache does not hold yet, in chunks, and return its last row.

    The chunks are the same with and without drafting.
    """
    cache.rollback(cached)
    last = len(prompt) - 1 - (len(prompt) - 1 - cached) % PREFILL_ROWS
    for start in range(cached, last, PREFILL_ROWS):
        chunk = Segment(cache, prompt[start : start + PREFILL_ROWS])
        target.forward([chunk], rows="last", want="hidden")
    return target.forward([Segment(cache, prompt[last:])], rows="last", want="tokens")


def propose(drafter: Drafter, room: int, vocab_size: int) -> tuple[list[int], int, str]:
    """Ask for a draft and keep what may reach the backbone; also how many tokens were dropped.

    Returns:
        The tokens, the number of dropped ones, and who made the draft, where it is told.
    """
    if room < 1:
        return [], 0, ""
    room = min(room, LONGEST_DRAFT)
    try:
        draft = drafter.propose(room)
    except NumericsError:
        return [], 1, ""
    tokens = usable_prefix(draft, room, vocab_size)
    return tokens, len(draft.tokens) - len(tokens), draft.source


def commit(
    request: Request, end: EndRule, tokens: Sequence[int], accepted: int, pass_index: int
) -> list[TokenEvent]:
    """Cut the tokens of one pass where the answer ends, and turn the rest into events.

    The end-of-sequence token is part of the answer's tokens and not of its text.
    """
    kept, request.finish_reason = end.cut(tokens)
    events = []
    for index, token in enumerate(kept):
        piece = "" if token in request.stop_ids else request.text.push(token)
        if request.finish_reason is not None and index == len(kept) - 1:
            piece += request.text.flush()
        events.append(TokenEvent(token, piece, index < accepted, pass_index))
    return events
