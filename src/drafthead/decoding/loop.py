"""The decode loop: prefill, then draft, verify, accept, commit, roll back.

Speculative decoding (Leviathan et al., arXiv 2211.17192). It knows no drafter by name and not how
tokens are chosen, and plain decoding is the same loop with a drafter that proposes nothing. Between
passes the cache holds every token but the last: `cache.length == len(tokens) - 1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

from drafthead.backbone.handle import Backbone, KvCache, Pass, Segment, Want
from drafthead.decoding.acceptance import longest_match, usable_prefix
from drafthead.decoding.choosing import Chooser, GreedyChooser
from drafthead.decoding.constraints import EndRule, FinishReason, token_limit
from drafthead.decoding.policy import AsDrafted, Policy
from drafthead.decoding.scores import score, score_prompt
from drafthead.decoding.stats import count_pass
from drafthead.decoding.stops import TextPieces
from drafthead.drafters.base import Drafter, Watcher
from drafthead.errors import CancelledError, NumericsError
from drafthead.types import DecodeStats, Draft, ScoredToken, TokenEvent

PREFILL_ROWS = 512
# A cache with a sliding window can take back this many rows and more (native/runtime/kv_cache.h).
LONGEST_DRAFT = 128


class AnswerText(TextPieces, Protocol):
    """Text pieces that end where the text says so.  stopped: it has."""

    stopped: bool


@dataclass
class Request:
    """One request: what is asked, and what has come of it so far.

    chooser: chooses the tokens of this answer alone.  logprobs: score each token, with so many of
    the likeliest ones.  echo: score the prompt too.
    cached_tokens: leading tokens of the prompt, less than all, that the cache holds already.
    cancelled: set from any thread, it ends the reading of a prompt before its next chunk.
    tokens: the prompt and what was committed; the cache holds them, as far as it reaches.
    scored_prompt: its tokens with their scores, where they were asked for.
    """

    prompt: Sequence[int]
    max_tokens: int
    text: AnswerText
    stop_ids: frozenset[int] = frozenset()
    cut_loops: bool = False
    chooser: Chooser = field(default_factory=GreedyChooser)
    logprobs: int | None = None
    echo: bool = False
    cached_tokens: int = 0
    cancelled: bool = False
    finish_reason: FinishReason | None = None
    stats: DecodeStats = field(default_factory=DecodeStats)
    tokens: list[int] = field(init=False)
    scored_prompt: list[ScoredToken] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    def go_on(self) -> None:
        """Raise CancelledError where the request was cancelled."""
        if self.cancelled:
            raise CancelledError("The request was cancelled.")

    @property
    def want(self) -> Want:
        """What a pass must give beside hidden states: logits only where somebody reads them."""
        read = self.chooser.needs_logits or self.logprobs is not None
        return "logits" if read else "tokens"


def decode(
    request: Request, target: Backbone, cache: KvCache, drafter: Drafter,
    policy: Policy | None = None,
) -> Iterator[TokenEvent]:  # fmt: skip
    """Answer a request, one event a token, and leave reason and counts in it.

    Draft rooms are clipped so that no token past the limit is ever verified. A request may be
    abandoned at any event: the next one starts with a rollback and `begin`. The policy says when
    and how much to draft; where it is None the drafter does.

    Raises:
        RequestError, CapacityError: before anything is computed.
        NumericsError: the backbone gave no finite logit.
        CancelledError: the request was cancelled before its prompt had been read.
    """
    stats = request.stats
    limit = token_limit(len(request.prompt), request.max_tokens, cache.capacity)
    end = EndRule(limit, request.stop_ids, request.cut_loops)
    started = perf_counter()
    prefilled = read_prompt(request, target, cache)
    events = commit(request, end, request.chooser.choose(Draft(), prefilled), prefilled)
    tokens = request.tokens
    tokens += [event.token for event in events]
    drafter.begin(tokens, prefilled.hidden[-1], cache)
    policy = policy or AsDrafted()
    policy.begin(drafter)
    watcher = drafter if isinstance(drafter, Watcher) else None  # asked once: it takes 10 us
    stats.prefill_ms += 1000 * (perf_counter() - started)
    yield from events
    while request.finish_reason is None:
        assert cache.length == len(tokens) - 1, "a cache holds every token but the last"
        started = perf_counter()
        draft, dropped = propose(policy, drafter, end.left - 1, target.spec.vocab_size)
        proposed = perf_counter()
        segment = Segment(cache, [tokens[-1], *draft.tokens])
        verified = target.forward([segment], rows="all", want=request.want)
        passed = perf_counter()
        if watcher is not None:
            watcher.watch(verified.tokens)
        committed = request.chooser.choose(draft, verified)
        accepted = longest_match(draft.tokens, committed)
        events = commit(request, end, committed, verified, accepted, stats.passes + 1)
        # In this order: whatever interrupts it, the cells below len(tokens) are those of tokens.
        cache.rollback(len(tokens) - 1 + len(events))
        tokens += [event.token for event in events]
        if request.finish_reason is None:
            drafter.observe(tokens[-len(events) :], verified.hidden[accepted])
        stats.rested += policy.resting and not draft.tokens
        policy.learn(draft, accepted, 1000 * (proposed - started), 1000 * (passed - proposed))
        count_pass(stats, draft, accepted, len(events), dropped)
        stats.decode_ms += 1000 * (perf_counter() - started)
        yield from events


def read_prompt(request: Request, target: Backbone, cache: KvCache) -> Pass:
    """Feed a prompt, scored where that is asked for, and return its last row."""
    prompt, held = request.prompt, request.cached_tokens
    request.stats.cached_tokens = held
    if request.echo:
        top = request.logprobs or 0
        request.scored_prompt = score_prompt(target, cache, prompt, top, request.go_on)
        held = len(prompt) - 1
    return prefill(target, cache, prompt, held, request.want, request.go_on)


def prefill(
    target: Backbone, cache: KvCache, prompt: Sequence[int], cached: int = 0, want: Want = "tokens",
    between: Callable[[], None] = lambda: None,
) -> Pass:  # fmt: skip
    """Feed what of a prompt the cache does not hold yet, in chunks, and return its last row.

    The chunks are the same with and without drafting. `between` is called before each.
    """
    cache.rollback(cached)
    last = len(prompt) - 1 - (len(prompt) - 1 - cached) % PREFILL_ROWS
    for start in range(cached, last, PREFILL_ROWS):
        between()
        chunk = Segment(cache, prompt[start : start + PREFILL_ROWS])
        target.forward([chunk], rows="last", want="hidden")
    between()
    return target.forward([Segment(cache, prompt[last:])], rows="last", want=want)


def propose(policy: Policy, drafter: Drafter, room: int, vocab_size: int) -> tuple[Draft, int]:
    """Ask for a draft and keep what may reach the backbone; also how many tokens were dropped."""
    if room < 1:
        return Draft(), 0
    room = min(room, LONGEST_DRAFT)
    try:
        draft = policy.propose(drafter, room)
    except NumericsError:
        return Draft(), 1
    tokens = usable_prefix(draft, room, vocab_size)
    sure = draft.confidences[: len(tokens)]
    usable = replace(draft, tokens=tuple(tokens), confidences=sure)
    return usable, len(draft.tokens) - len(tokens)


def commit(
    request: Request,
    end: EndRule,
    tokens: Sequence[int],
    given: Pass,
    accepted: int = 0,
    pass_index: int = 0,
) -> list[TokenEvent]:
    """Turn the tokens of one pass into events, up to the one that ends the answer; set the reason.

    The token that ends an answer is one of its tokens; an end id is no part of the text, and of a
    token that completes a stop text neither the stop is nor what follows it. Where a grammar allows
    nothing more the answer ends too. "stop" goes before other reasons for the same token.
    """
    events = []
    for index, token in enumerate(tokens):
        piece = "" if token in request.stop_ids else request.text.push(token)
        reason = end.push(token)
        if request.chooser.ended and index == len(tokens) - 1:
            reason = "stop"
        if reason is not None:
            piece += request.text.flush()
        request.finish_reason = "stop" if request.text.stopped else reason
        event = TokenEvent(token, piece, index < accepted, pass_index)
        if request.logprobs is not None and given.logits is not None:
            scored = score(given.logits[index], token, request.logprobs)
            event = replace(event, logprob=scored.logprob, top=scored.top)
        events.append(event)
        if request.finish_reason is not None:
            break
    return events
