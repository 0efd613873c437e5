"""What a program holds: a backbone, its text side, and a drafter that works or says why not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

from drafthead.backbone.handle import Backbone, KvType
from drafthead.backbone.registry import resolve
from drafthead.backbone.snapshot import read_snapshot, write_snapshot
from drafthead.decoding.choosing import make_chooser
from drafthead.decoding.constraints import token_limit
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
from drafthead.stream import Result, Stream, finish
from drafthead.text.decoder import StreamDecoder
from drafthead.text.grammar_words import GrammarWords
from drafthead.text.template import ChatTemplate, encode_chat
from drafthead.text.tokenizer import Tokenizer
from drafthead.types import TokenEvent

SMALLEST_CACHE = 1024

Messages = Sequence[Mapping[str, str]]


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
        check_path("path", path)
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
        check_path("path", path)
        with self.held.turn:
            self.held.take(*read_snapshot(Path(path), self.backbone, self.context))

    def drafter_now(self) -> DrafterState:
        """Whether the drafter drafts now, and why not where it gave up or does not pay."""
        reason = getattr(self.drafting, "reason", None) or self.policy.reason
        state = replace(self.drafter, warning=self.policy.warning)
        if not state.active or reason is None:
            return state
        return replace(state, active=False, reason=reason)

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
        seed = options.seed if options.draws else None
        return Stream(request, self._answer(request, guide), self.held, self.drafter_now, seed)

    def _answer(self, request: Request, guide: GrammarGuide | None) -> Iterator[TokenEvent]:
        """The events of an answer, by a grammar's guide where it has one."""
        cache = self.held.lend(self.backbone, request, self.cells(request), self.context)
        drafting = self.drafting if guide is None else ForcedDrafter(self.drafting, guide)
        # A text that follows its drafts must not depend on how fast the machine is.
        policy = AsDrafted() if request.chooser.follows_drafts else self.policy
        yield from decode(request, self.backbone, cache, drafting, policy)

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
    for name, place in (("backbone", backbone), ("head", head), ("draft_model", draft_model or "")):
        check_path(name, place)
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


def check_path(name: str, value: object) -> None:
    """Refuse what is neither a name nor a path: RequestError."""
    if not isinstance(value, (str, os.PathLike)):
        raise RequestError(f"{name} must be a name or a path, got {value!r}.")


def make_policy(asked: Asked) -> Policy:
    """The policy that was asked for; its drafter has been made for it."""
    return Adaptive() if asked.policy == "auto" else AsDrafted()
