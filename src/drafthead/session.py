"""What a program holds: a backbone, its text side, and a drafter that works or says why not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

from drafthead.backbone.handle import Backbone, KvType
from drafthead.backbone.registry import resolve
from drafthead.backbone.snapshot import read_snapshot, write_snapshot
from drafthead.decoding.choosing import make_chooser
from drafthead.decoding.constraints import FinishReason, token_limit
from drafthead.decoding.grammar import GrammarGuide, GrammarMaker
from drafthead.decoding.loop import Request, decode
from drafthead.decoding.options import DecodeOptions
from drafthead.decoding.policy import Adaptive, AsDrafted, Policy
from drafthead.decoding.prefix import PrefixCache
from drafthead.decoding.stops import StopText
from drafthead.drafters.base import Drafter, NoDrafter
from drafthead.drafters.forced import ForcedDrafter
from drafthead.drafting import (
    PLAIN_WANTED,
    Asked,
    DrafterMaker,
    DrafterState,
    Made,
    check_name,
    check_policy,
)
from drafthead.errors import RequestError
from drafthead.heads.package import HeadPackage
from drafthead.text.decoder import StreamDecoder
from drafthead.text.grammar_words import GrammarWords
from drafthead.text.template import ChatTemplate, encode_chat
from drafthead.text.tokenizer import Tokenizer
from drafthead.types import DecodeStats, ScoredToken, TokenEvent

SMALLEST_CACHE = 1024

Messages = Sequence[Mapping[str, str]]


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
        session: Session,
        request: Request,
        seed: int | None = None,
        guide: GrammarGuide | None = None,
    ) -> None:
        """guide: of the grammar that the answer follows, if any."""
        self.seed = seed
        self._guide = guide
        self._session = session
        self._request = request
        self._events = self._decode()
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
        session, state = self._session, self._session.drafter
        # Of a drafter that gave up on this text, or of one that does not pay here.
        reason = getattr(session.drafting, "reason", None) or session.policy.reason
        if not state.active or reason is None:
            return replace(state, warning=session.policy.warning)
        return replace(state, active=False, reason=reason, warning=session.policy.warning)

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

        What another thread is doing for the next event is finished first.
        """
        self._closed = True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> TokenEvent:
        if self._closed or self.finish_reason is not None:
            raise StopIteration
        held = self._session.held
        with held.turn:
            if self._came and held.request is not self._request:
                raise RequestError(
                    "This stream ended when the session began another request or was restored; "
                    "finish one before the next, or load a second session."
                )
            event = next(self._events)
            self._came += 1
        return event

    def _decode(self) -> Iterator[TokenEvent]:
        session, request = self._session, self._request
        cells = session.cells(request)
        cache = session.held.lend(session.backbone, request, cells, session.context)
        drafting, policy = session.drafting, session.policy
        if self._guide is not None:
            drafting = ForcedDrafter(drafting, self._guide)
        # A text that follows its drafts must not depend on how fast the machine is, and what a
        # grammar forces is worth drafting whatever the drafter gains.
        if request.chooser.follows_drafts or self._guide is not None:
            policy = AsDrafted()
        yield from decode(request, session.backbone, cache, drafting, policy)


class Session:
    """A loaded backbone with a drafter: `generate` and `stream`.

    One answer at a time; a stream that was not finished ends where the next request begins, and
    what another thread asks for while one is at work is refused. A request starts from the longest
    prefix of its prompt that the one before has left in the cache (`stats.cached_tokens`), which
    changes time and nothing else.
    """

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        drafting: Drafter,
        drafter: DrafterState,
        head: HeadPackage | None = None,
        context: int | None = None,
        maker: DrafterMaker | None = None,
    ) -> None:
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.template = template
        self.head = head
        self.drafter = drafter
        self.context = min(context or backbone.spec.context_length, backbone.spec.context_length)
        self.drafting = drafting
        self.maker = maker or DrafterMaker(backbone)
        self.policy: Policy = AsDrafted()
        self.held = PrefixCache()
        self.grammars = GrammarMaker(partial(GrammarWords, tokenizer))

    def using(self, drafting: Drafter, policy: Policy | None = None) -> Session:
        """A session with another drafter on the same backbone and the same cache.

        policy: when and how much it drafts; where None, it decides itself.
        """
        plain = isinstance(drafting, NoDrafter)
        state = DrafterState(drafting.name, not plain, PLAIN_WANTED if plain else None)
        return self._sharing(Made(drafting, state, self.head), policy or AsDrafted())

    def with_drafter(self, name: str) -> Session:
        """A session with the drafter of this name, on the same backbone and the same cache.

        Raises:
            RequestError: there is no such drafter.
            HeadError: it needs a head, and one that was named by its path cannot be used.
        """
        return self._sharing(self.maker.make(name), make_policy(self.maker.asked))

    def _sharing(self, made: Made, policy: Policy) -> Session:
        drafting, state, head = made
        other = Session(
            self.backbone, self.tokenizer, self.template, drafting, state, head, self.context,
            self.maker,
        )  # fmt: skip
        other.policy = policy
        other.held, other.grammars = self.held, self.grammars
        return other

    @property
    def tokens(self) -> list[int]:
        """The prompt and the answer of the last request."""
        return list(self.held.tokens)

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values that are kept between requests."""
        return self.held.nbytes

    def forget(self) -> None:
        """Start the next request cold."""
        with self.held.turn:
            self.held.forget()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what the last request has left, tokens, keys and values, to a file.

        Raises:
            RequestError: nothing has been answered yet.
            FileError: the file cannot be written; one that was there before stays.
        """
        held = self.held
        with held.turn:
            if held.cache is None or not held.cache.length or not held.tokens:
                raise RequestError("There is nothing to save: answer a prompt first.")
            write_snapshot(Path(path), self.backbone, held.cache, held.tokens)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Go on from a saved file: `tokens` are its tokens, and the next request starts from them.

        Raises:
            FileError: it is damaged, or of another backbone, version or kind of cache; the session
                stays as it was.
            CapacityError: it holds more tokens than the context.
        """
        with self.held.turn:
            self.held.take(*read_snapshot(Path(path), self.backbone, self.context))

    def cells(self, request: Request) -> int:
        """How many cache cells a request is given: what it can need, within the context."""
        needed = max(len(request.prompt) + request.max_tokens, SMALLEST_CACHE)
        return min(needed, self.context)

    def encode(
        self,
        prompt: str | Sequence[int] | None = None,
        messages: Messages | None = None,
        raw: bool = False,
        system: str | None = None,
    ) -> list[int]:
        """The token ids of a prompt.

        Args:
            prompt: text, wrapped by the chat template unless `raw`; or token ids, taken as is.
            messages: a conversation instead of a prompt: [{"role": ..., "content": ...}].
            raw: leave the chat template out.
            system: a system message to put first.

        Raises:
            RequestError: not exactly one of prompt and messages, or raw with messages or system.
        """
        if (prompt is None) == (messages is None):
            raise RequestError("Give either a prompt or messages.")
        if prompt is not None and not isinstance(prompt, str):
            return self.check_ids(prompt)
        if raw:
            if prompt is None or system is not None:
                raise RequestError("A raw prompt is text alone, without messages or system text.")
            start = [self.tokenizer.bos_id] if self.tokenizer.add_bos else []
            return [token for token in start if token is not None] + self.tokenizer.encode(prompt)
        if messages is not None and not isinstance(messages, Iterable):
            raise RequestError("The messages must be a list of role and content.")
        talk = list(messages) if messages is not None else [{"role": "user", "content": prompt}]
        if system is not None:
            talk = [{"role": "system", "content": system}, *talk]
        return encode_chat(self.tokenizer, self.template, talk)

    def check_ids(self, ids: Sequence[int]) -> list[int]:
        """The ids as a list; RequestError where they have no order, or one is no token."""
        if isinstance(ids, (bytes, Mapping)) or not hasattr(ids, "__getitem__"):
            raise RequestError(f"Token ids must be a list, not {type(ids).__name__}.")
        size = self.backbone.spec.vocab_size
        for token in ids:
            whole = isinstance(token, Integral) and not isinstance(token, bool)
            if not whole or not 0 <= token < size:
                raise RequestError(f"Token id {token} is outside the vocabulary of {size}.")
        return [int(token) for token in ids]

    def stream(
        self,
        prompt: str | Sequence[int] | None = None,
        messages: Messages | None = None,
        max_tokens: int = 256,
        raw: bool = False,
        system: str | None = None,
        ignore_eos: bool = False,
        cut_loops: bool = False,
        **options: Any,
    ) -> Stream:
        """Answer a prompt token by token; see `encode` for the first arguments.

        Args:
            prompt: text or token ids.
            messages: a conversation instead.
            max_tokens: at most so many tokens, end-of-sequence token included.
            raw: leave the chat template out.
            system: a system message to put first.
            ignore_eos: go on after end-of-sequence tokens.
            cut_loops: end where the last 8 tokens have occurred before in the answer.
            **options: how tokens are chosen, where the text stops and what is told about it: the
                fields of `decoding.options.DecodeOptions`, such as temperature, stop and regex.

        Raises:
            RequestError: nothing to answer, max_tokens below 1, or an option that is unknown or
                makes no sense.
            CapacityError: the prompt does not fit the context.
        """
        chosen = DecodeOptions.of(options)
        ids = self.encode(prompt, messages, raw, system)
        stop_ids = frozenset() if ignore_eos else self.tokenizer.eos_ids
        continues = raw or not (prompt is None or isinstance(prompt, str))
        return self.stream_ids(ids, max_tokens, stop_ids, cut_loops, continues, chosen)

    def stream_ids(
        self,
        ids: Sequence[int],
        max_tokens: int,
        stop_ids: frozenset[int],
        cut_loops: bool = False,
        continues: bool = True,
        options: DecodeOptions | None = None,
    ) -> Stream:
        """Answer token ids until one of `stop_ids`; errors as for `stream`.

        continues: the answer goes on in a text, so that its first space is part of it.
        """
        token_limit(len(ids), max_tokens, self.context)
        options = (options or DecodeOptions()).seeded()
        more = self.check_ids([*options.stop_ids, *options.logit_bias])[: len(options.stop_ids)]
        text = StopText(StreamDecoder(self.tokenizer, continues), options.stops)
        stop_ids = stop_ids.union(more)
        rule, guide = None, None
        if options.structure is not None:
            rule, guide = self.grammars.make(options.structure, stop_ids, continues)
        chooser = make_chooser(options, ids, self.backbone.spec.vocab_size, rule)
        request = Request(
            ids, max_tokens, text, stop_ids, cut_loops, chooser, options.logprobs,
            options.prompt_logprobs,
        )  # fmt: skip
        return Stream(self, request, options.seed if options.draws else None, guide)

    def generate(
        self,
        prompt: str | Sequence[int] | None = None,
        messages: Messages | None = None,
        max_tokens: int = 256,
        raw: bool = False,
        system: str | None = None,
        ignore_eos: bool = False,
        cut_loops: bool = False,
        **options: Any,
    ) -> Result:
        """Answer a prompt and return the whole; arguments and errors as for `stream`."""
        return finish(
            self.stream(prompt, messages, max_tokens, raw, system, ignore_eos, cut_loops, **options)
        )


def load(  # noqa: PLR0913 - the front door: each is one choice
    backbone: str | os.PathLike[str] = "smollm2-135m",
    head: str | os.PathLike[str] = "auto",
    drafter: str = "mtp",
    threads: int | None = None,
    max_draft: int | None = None,
    context: int | None = None,
    kv: KvType = "f16",
    draft_model: str | os.PathLike[str] | None = None,
    *,
    policy: str = "auto",
) -> Session:
    """Load a backbone and, where one fits, its head.

    Args:
        backbone: known name, path of a .gguf file, or hf:org/repo/file.gguf; none is downloaded.
        head: "auto" takes the shipped head of this backbone and decodes plainly where there is
            none; "none" takes none; a path is the folder of a head package, which must fit.
        drafter: "mtp" drafts with the head, "standalone" with a model of its own, "ngram" copies
            from the text, "ngram+mtp" does what gains more, "jacobi" drafts by the backbone's own
            passes, "none" decodes plainly.
        threads: compute threads; all usable cores where None.
        max_draft: longest draft; the drafter's own where None.
        context: cache cells at most; the backbone's own context length where None.
        kv: what a cell of the cache holds: "f16", or "f32" for twice the memory.
        draft_model: of a standalone drafter, named as a backbone; it must share the vocabulary.
        policy: "auto" drafts as many tokens as pay on this machine, none where drafting is slower;
            "threshold" as many as the drafter is sure of; "fixed" max_draft tokens in each pass.

    Raises:
        BackboneMissingError: a known backbone that was not pulled yet.
        FileError: a damaged file; HeadError: a named head is damaged or of another backbone.
        RequestError: an unknown drafter, a draft model that is not named or has another vocabulary,
            or a number below 1.
    """
    for name, value in (("threads", threads), ("max_draft", max_draft), ("context", context)):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and (not whole or value < 1):
            raise RequestError(f"{name} must be a whole number of at least 1, got {value!r}.")
    check_name(drafter)
    check_policy(policy)
    path = resolve(backbone)
    opened = Backbone.open(path, threads, kv)
    tokenizer = Tokenizer.from_gguf(opened.gguf)
    template = ChatTemplate.from_gguf(opened.gguf, tokenizer)
    maker = DrafterMaker(opened, Asked(head, max_draft, draft_model, policy))
    drafting, state, package = maker.make(drafter)
    session = Session(opened, tokenizer, template, drafting, state, package, context, maker)
    session.policy = make_policy(maker.asked)
    return session


def make_policy(asked: Asked) -> Policy:
    """The policy that was asked for; its drafter has been made for it."""
    return Adaptive() if asked.policy == "auto" else AsDrafted()


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
