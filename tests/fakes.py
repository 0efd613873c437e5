"""Stand-ins for the backbone, the tokenizer and the drafters; nothing here needs the core.

V is the vocabulary size, D the hidden size, M the rows of a pass.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from drafthead.backbone.handle import Pass, Segment
from drafthead.drafters.base import NoDrafter
from drafthead.drafting import DrafterState
from drafthead.errors import NumericsError
from drafthead.session import Session
from drafthead.text.template import Part
from drafthead.types import Draft

NextToken = Callable[[Sequence[int]], int]


class FakeCache:
    """Cells of token ids. A cell that was rolled back must never be read before it is rewritten."""

    rollback_floor = 0

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.cells: list[int | None] = [None] * capacity
        self.length = 0

    def append(self, token: int) -> None:
        assert self.length < self.capacity, "a token past the last cell was fed"
        self.cells[self.length] = token
        self.length += 1

    def rollback(self, length: int) -> None:
        assert 0 <= length <= self.length, f"rollback({length}) of a cache of {self.length}"
        # The real cache keeps the stale bytes; here they become None so that a read shows.
        self.cells[length : self.length] = [None] * (self.length - length)
        self.length = length

    def history(self) -> tuple[int, ...]:
        cells = self.cells[: self.length]
        assert None not in cells, "a rolled-back cell was read"
        return tuple(cells)


def hashed_next(vocab_size: int, seed: int = 0) -> NextToken:
    """A deterministic language: the next token depends on the whole history, every cell of it."""

    def next_token(history: Sequence[int]) -> int:
        state = 2166136261 ^ seed
        for token in history:
            state = (state ^ (token + 1)) * 16777619 & 0xFFFFFFFF
            state ^= state >> 13
        return state % vocab_size

    return next_token


def scripted_next(prompt: Sequence[int], answer: Sequence[int], vocab_size: int) -> NextToken:
    """Answers `prompt` with `answer`; any other history gets a hashed token."""
    script = tuple(prompt) + tuple(answer)
    otherwise = hashed_next(vocab_size, seed=99)

    def next_token(history: Sequence[int]) -> int:
        size = len(history)
        if size < len(script) and tuple(history) == script[:size]:
            return script[size]
        return otherwise(history)

    return next_token


@dataclass
class ScriptedBackbone:
    """Passes over FakeCaches. Hidden state of a row: [position, token fed, token chosen]."""

    next_token: NextToken
    vocab_size: int = 64
    rows_fed: list[int] = field(default_factory=list)
    name, path, fingerprint, threads, kv = "scripted", "scripted.gguf", "f" * 64, 1, "f16"
    weight_bytes = pass_bytes = 1_000_000
    kv_bytes_per_token = 100

    def __post_init__(self) -> None:
        self.spec = SimpleNamespace(
            architecture="llama",
            vocab_size=self.vocab_size,
            context_length=1 << 20,
            d_model=3,
            layers=(SimpleNamespace(window=0),),
        )

    def new_cache(self, capacity: int) -> FakeCache:
        return FakeCache(capacity)

    def forward(self, segments, *, rows="all", want="hidden") -> Pass:
        hidden, tokens = [], []
        for segment in segments:
            outputs = []
            for token in segment.tokens:
                assert 0 <= token < self.vocab_size, f"id {token} reached the backbone"
                segment.cache.append(token)
                chosen = self.next_token(segment.cache.history())
                outputs.append(([segment.cache.length - 1, token, chosen], chosen))
            kept = outputs if rows == "all" else outputs[-1:]
            hidden += [row for row, _ in kept]
            tokens += [chosen for _, chosen in kept]
        self.rows_fed.append(sum(len(segment.tokens) for segment in segments))
        chosen = np.array(tokens if want != "hidden" else [], np.int32)
        logits = np.eye(self.vocab_size, dtype=np.float32)[tokens] if want == "logits" else None
        return Pass(np.array(hidden, np.float32), chosen, logits)


class MarkovBackbone(ScriptedBackbone):
    """A language of which everything is known: the logits depend on the last token alone."""

    def __init__(self, logits_VV: np.ndarray) -> None:
        self.logits_VV = logits_VV.astype(np.float32)
        super().__init__(lambda history: int(logits_VV[history[-1]].argmax()), len(logits_VV))

    def forward(self, segments, *, rows="all", want="hidden") -> Pass:
        given = super().forward(segments, rows=rows, want=want)
        fed = [t for s in segments for t in (s.tokens if rows == "all" else s.tokens[-1:])]
        return Pass(given.hidden, given.tokens, self.logits_VV[fed] if want == "logits" else None)


class ScriptedPeer:
    """A peer that answers as a session's scripted backbone does, with the checks of its cache."""

    name, version, build, threads = "llama.cpp", "binding 1.0", "CPU : AVX = 1 | NEON = 0", 1

    def __init__(self, session, context=4096):
        self.backbone, self.context = session.backbone, context
        self.cache = self.backbone.new_cache(context)

    def rollback(self, length):
        self.cache.rollback(length)

    def choose(self, tokens):
        return int(self.choose_rows(tokens)[-1])

    def choose_rows(self, tokens):
        return self.backbone.forward([Segment(self.cache, tokens)], want="tokens").tokens


class ByteTokenizer:
    """Token ids are bytes; ids from 256 on are control tokens, end-of-sequence ones by default."""

    def __init__(self, eos_ids: Iterable[int] = (256,), vocab_size: int = 260) -> None:
        self.eos_ids = frozenset(eos_ids)
        self.control_ids = frozenset(range(256, vocab_size))
        self.vocab_size = vocab_size
        self.control_pattern = re.compile("(?!)")
        self.control_tokens: dict[str, int] = {}
        self.bos_id, self.add_bos, self.fingerprint = None, False, "bytes"

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token_id: int, first: bool = False) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")


class PlainTemplate:
    """A chat template that prints "role:content;" for each message."""

    exists = True

    def render(self, messages, add_generation_prompt=True):
        return [Part(f"{m['role']}:{m['content']};", True) for m in messages]


def session(drafter=None, answer="", prompt="user:hi;", eos_ids=(256,), context=4096, **state):
    """A Session over doubles that answers `prompt` with the text `answer` and then id 256."""
    tokenizer = ByteTokenizer(eos_ids)
    script = scripted_next(tokenizer.encode(prompt), [*answer.encode(), 256], 256)
    backbone = ScriptedBackbone(script, tokenizer.vocab_size)
    backbone.spec.context_length = context
    drafter = drafter or NoDrafter()
    state = DrafterState(drafter.name, **{"active": True, **state})
    return Session(backbone, tokenizer, PlainTemplate(), drafter, state)


class Letters:
    """Text pieces for loop tests: token n becomes "n,"."""

    stopped = False

    def push(self, token_id: int) -> str:
        return f"{token_id},"

    def flush(self) -> str:
        return "."


@dataclass
class Double:
    """Base of the drafter doubles: keeps the committed tokens and checks what the loop tells it.

    With a ScriptedBackbone (`check_hidden`) the hidden state must be that of the position which
    chose the last token.
    """

    check_hidden: bool = True
    name = "double"
    tokens: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def begin(self, tokens, hidden_D, cache) -> None:
        self.tokens, self.cache = list(tokens), cache
        self._check(hidden_D)

    def observe(self, tokens, hidden_D) -> None:
        assert tokens, "a pass commits at least one token"
        self.tokens += tokens
        self._check(hidden_D)

    def propose(self, max_tokens: int) -> Draft:
        assert self.cache.length == len(self.tokens) - 1
        assert max_tokens >= 1
        self.asked.append(max_tokens)
        return Draft(tuple(self.draft(max_tokens)))

    def draft(self, max_tokens: int) -> Sequence[int]:
        raise NotImplementedError

    def _check(self, hidden_D) -> None:
        if not self.check_hidden:
            return
        position, fed, chosen = (int(value) for value in hidden_D)
        assert position == len(self.tokens) - 2, "hidden state of another position"
        assert (fed, chosen) == tuple(self.tokens[-2:]), "hidden state of another token"


@dataclass
class RandomDrafter(Double):
    """RANDOM: uniform ids."""

    k: int = 4
    vocab_size: int = 64
    seed: int = 0
    name = "RANDOM"

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def draft(self, max_tokens):
        return [self.random.randrange(self.vocab_size) for _ in range(min(self.k, max_tokens))]


@dataclass
class DrawingDrafter(Double):
    """DRAWING: draws each token from one distribution, and says so."""

    shares: Sequence[float] = ()
    k: int = 3
    seed: int = 0
    name = "DRAWING"

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def propose(self, max_tokens: int) -> Draft:
        count = min(self.k, max_tokens)
        tokens = self.random.choices(range(len(self.shares)), self.shares, k=count)
        return Draft(tuple(tokens), proposals=(np.array(self.shares),) * count)


@dataclass
class OracleDrafter(Double):
    """ORACLE: replays the plain answer. With `right` = k, ORACLE-k: k right tokens, then wrong."""

    answer: Sequence[int] = ()
    prompt_tokens: int = 0
    k: int = 4
    right: int | None = None
    vocab_size: int = 64
    name = "ORACLE"

    def draft(self, max_tokens):
        start = len(self.tokens) - self.prompt_tokens
        draft = list(self.answer[start : start + min(self.k, max_tokens)])
        if self.right is not None:
            draft[self.right :] = [(t + 1) % self.vocab_size for t in draft[self.right :]]
        return draft


@dataclass
class SkippingDrafter(OracleDrafter):
    """SKIPPING: drafts on every `every`-th step only."""

    every: int = 3
    step: int = 0
    name = "SKIPPING"

    def draft(self, max_tokens):
        self.step += 1
        return super().draft(max_tokens) if self.step % self.every == 0 else []


@dataclass
class NanDrafter(OracleDrafter):
    """NaN: a head with numerics trouble; by turns raises, loses its confidence, leaves the ids."""

    step: int = 0
    name = "NaN"

    def propose(self, max_tokens: int) -> Draft:
        self.step += 1
        good = tuple(self.draft(max_tokens))
        if self.step % 4 == 1:
            raise NumericsError("the head gave no finite logit")
        if self.step % 4 == 2:
            return Draft(good, (0.5, *[float("nan")] * (len(good) - 1))[: len(good)])
        if self.step % 4 == 3:
            return Draft((*good[:1], self.vocab_size, -1)[:max_tokens])
        return Draft((-1,))
