"""The backbone answers prompts, many at once, through the engine that will verify.

Continuous batching: a pass holds one row for every running answer and a chunk of each prompt that
is still being read. A row's bits do not depend on its company, so an answer is the same whatever
else ran beside it, and the same that `generate` gives.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from drafthead.backbone.cells import keep
from drafthead.backbone.handle import Backbone, KvCache, Segment, Want
from drafthead.decoding.constraints import EndRule, FinishReason
from drafthead.decoding.options import DecodeOptions
from drafthead.decoding.sampling import Sampler
from drafthead.errors import TrainingError
from drafthead.evaluation.prompts import PromptRow, end_ids, prompt_ids
from drafthead.session import Session
from drafthead.training.answers import Answer, AnswerStore
from drafthead.training.data import common_prefix
from drafthead.training.features import FeatureFiles
from drafthead.training.prompts import digest
from drafthead.training.sampling import answer_seed, is_sampled
from drafthead.training.tally import tally

PREFILL_ROWS = 256  # prompt rows a pass may carry beside the running answers
LOOK_AHEAD = 64  # waiting prompts among which a slot looks for the task that it did last
FINISHES: tuple[FinishReason, ...] = ("stop", "length", "looped")


@dataclass(frozen=True)
class RegenSettings:
    """What decides the content of an answer, and so must not change within a folder.

    sampled: share of the prompts, chosen by the seed, that are answered by sampling at
    `temperature`; all others are answered greedily.
    """

    max_tokens: int = 256
    capacity: int = 1024
    keep_loops: bool = False
    seed: int = 0
    temperature: float = 1.0
    sampled: float = 0.0


@dataclass
class RegenCounts:
    """What happened so far in this run.

    resumed: answers that the folder held already.  skipped: prompts too long for the capacity.
    left: prompts by task that are neither answered nor skipped.
    """

    resumed: int = 0
    answers: int = 0
    answer_tokens: int = 0
    prompt_tokens: int = 0
    rows: int = 0
    passes: int = 0
    skipped: int = 0
    left: Counter[str] = field(default_factory=Counter)
    finishes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHES, 0))


class _Slot:
    """One cache and the answer that is being written into it."""

    def __init__(self, cache: KvCache) -> None:
        self.cache = cache
        self.prompt_tokens: list[int] = []
        self.task: str | None = None  # of the last prompt

    def take(self, waiting: deque[PromptRow]) -> PromptRow:
        """The first waiting prompt, or a near one of the last one's task: they may begin alike."""
        for place, prompt in enumerate(islice(waiting, LOOK_AHEAD)):
            if prompt.task == self.task:
                del waiting[place]
                return prompt
        return waiting.popleft()

    def start(
        self, prompt: PromptRow, tokens: list[int], end: EndRule, sampler: Sampler | None
    ) -> None:
        """Begin another prompt; what it shares with the last one (a system text) stays cached.

        sampler: of a sampled answer.
        """
        keep(self.cache, common_prefix(self.prompt_tokens, tokens[:-1]))
        self.prompt, self.prompt_tokens, self.end, self.sampler = prompt, tokens, end, sampler
        self.task = prompt.task
        self.answer: list[int] = []
        self.states_AD: list[NDArray[np.float32]] = []

    @property
    def unread(self) -> int:
        """PromptRow tokens that are not in the cache yet."""
        return max(0, len(self.prompt_tokens) - self.cache.length)

    def next_rows(self, budget: int) -> list[int]:
        """The tokens this slot feeds in the next pass; empty where the budget is spent."""
        if self.unread:
            return self.prompt_tokens[self.cache.length : self.cache.length + budget]
        return self.answer[-1:]

    def push(
        self, token: int, state_D: NDArray[np.float32], logits_V: NDArray[np.float32] | None
    ) -> FinishReason | None:
        """Take the target's next token and its state; why the answer ends with it, or None.

        token: the greedy one, which a sampled answer replaces by one drawn from the logits.
        """
        if self.sampler is not None and logits_V is not None:
            token = self.sampler.token(logits_V, len(self.prompt_tokens) + len(self.answer))
        self.answer.append(token)
        self.states_AD.append(state_D)
        return self.end.push(token)


class Regenerator:
    """Answers a list of prompts with a fixed number of sequences in flight."""

    def __init__(
        self,
        backbone: Backbone,
        encode: Callable[[PromptRow], list[int]],
        eos_ids: frozenset[int],
        settings: RegenSettings,
        sequences: int = 16,
        features: FeatureFiles | None = None,
    ) -> None:
        """Prepare the caches.

        features: where the states, keys and values that the answers come from are kept too.
        """
        self.features = features
        self._taps = features.taps if features is not None else ()
        self.backbone = backbone
        self.counts = RegenCounts()
        self._encode = encode
        self._eos_ids = eos_ids
        self._settings = settings
        self._free = [_Slot(backbone.new_cache(settings.capacity)) for _ in range(sequences)]
        self._busy: list[_Slot] = []

    @property
    def running(self) -> list[tuple[PromptRow, int, int]]:
        """Of each answer in flight: its prompt, tokens in its cache, answer tokens so far."""
        return [(slot.prompt, slot.cache.length, len(slot.answer)) for slot in self._busy]

    def answers(self, prompts: Iterable[PromptRow]) -> Iterable[Answer]:
        """Yield each answer when it is complete; order is that of completion."""
        waiting = deque(prompts)
        self.counts.left.update(prompt.task for prompt in waiting)
        while waiting or self._busy:
            yield from self.step(waiting)

    def tokens(self, prompt: PromptRow) -> list[int]:
        """The tokens of a prompt; none where it leaves no room for an answer."""
        tokens = self._encode(prompt)
        room = self._settings.capacity - self._settings.max_tokens
        return tokens if len(tokens) <= room else []

    def step(self, waiting: deque[PromptRow]) -> list[Answer]:
        """Let prompts into free slots, run one pass, and return the answers that it completed."""
        while waiting and self._free:
            slot = self._free[-1]
            prompt = slot.take(waiting)
            tokens = self.tokens(prompt)
            if not tokens:
                self.counts.skipped += 1
                self.counts.left[prompt.task] -= 1
                continue
            self._free.pop()
            end = EndRule(self._settings.max_tokens, self._eos_ids, not self._settings.keep_loops)
            slot.start(prompt, tokens, end, self._sampler(prompt))
            self._busy.append(slot)
        return self._one_pass() if self._busy else []

    def _sampler(self, prompt: PromptRow) -> Sampler | None:
        settings, key = self._settings, digest(prompt)
        if not is_sampled(settings.seed, key, settings.sampled):
            return None
        seed = answer_seed(settings.seed, key)
        return Sampler(DecodeOptions(temperature=settings.temperature, seed=seed))

    def _one_pass(self) -> list[Answer]:
        segments, slots, budget, drawing = [], [], PREFILL_ROWS, False
        for slot in self._busy:
            reading = slot.unread > 0
            rows = slot.next_rows(budget)
            if rows:
                budget -= len(rows) if reading else 0
                segments.append(Segment(slot.cache, rows))
                slots.append(slot)
                drawing |= slot.sampler is not None and len(rows) >= slot.unread
                self.counts.rows += len(rows)
        want: Want = "logits" if drawing else "tokens"
        result = self.backbone.forward(segments, rows="last", want=want, taps=self._taps)
        logits_RV = [None] * len(slots) if result.logits is None else result.logits
        self.counts.passes += 1
        done = []
        rows_R = zip(slots, result.tokens.tolist(), result.hidden, logits_RV, strict=True)
        for slot, token, state_D, logits_V in rows_R:
            finish = None if slot.unread else slot.push(token, state_D, logits_V)
            if finish is not None:
                done.append(self._complete(slot, finish))
        return done

    def _complete(self, slot: _Slot, finish: FinishReason) -> Answer:
        self._busy.remove(slot)
        self._free.append(slot)
        self.counts.left[slot.prompt.task] -= 1
        self.counts.answers += 1
        self.counts.answer_tokens += len(slot.answer)
        self.counts.prompt_tokens += len(slot.prompt_tokens)
        self.counts.finishes[finish] += 1
        prompt = slot.prompt
        answer = Answer(
            prompt.id, prompt.task, tuple(slot.prompt_tokens), tuple(slot.answer), finish,
            self._settings.temperature if slot.sampler else 0.0, prompt.lang,
        )  # fmt: skip
        if self.features is not None:  # the last token's state draws nothing: no anchor
            self.features.append(answer, np.stack(slot.states_AD)[:-1], slot.cache)
        return answer


def session_regenerator(
    session: Session, settings: RegenSettings, sequences: int = 16,
    features: FeatureFiles | None = None,
) -> Regenerator:  # fmt: skip
    """A regenerator of prompt rows as bench and training see them: chats, or worked examples."""
    return Regenerator(
        session.backbone, lambda prompt: prompt_ids(session, prompt), end_ids(session), settings,
        sequences, features,
    )  # fmt: skip


def check_same_run(manifest: dict[str, object] | None, wanted: dict[str, object]) -> None:
    """Refuse a folder of another backbone or other settings: TrainingError names what differs."""
    if manifest is None:
        return
    found = dict(manifest)
    if isinstance(found.get("settings"), dict):  # written before it had all of them
        found["settings"] = asdict(RegenSettings()) | found["settings"]  # type: ignore[operator]
    for key in ("backbone", "fingerprint", "tokenizer_fingerprint", "settings"):
        if found.get(key) != wanted[key]:
            raise TrainingError(
                f"The answers in this folder were made with {key} {found.get(key)!r}, this run "
                f"has {wanted[key]!r}; use another --out folder."
            )


def regenerate(
    regenerator: Regenerator,
    prompts: Sequence[PromptRow],
    out: Path,
    settings: RegenSettings,
    on_answer: Callable[[Answer, RegenCounts], None] = lambda _answer, _counts: None,
) -> dict[str, object]:
    """Answer every prompt that `out` does not hold yet and finish the folder.

    Stopped at any moment, the next call goes on where the last synced row ended.

    Returns:
        The manifest, as written.

    Raises:
        TrainingError: the folder belongs to another backbone or other settings.
    """
    backbone = regenerator.backbone
    manifest: dict[str, object] = {
        "format_version": 1,
        "backbone": backbone.name,
        "fingerprint": backbone.fingerprint,
        "tokenizer_fingerprint": backbone.tokenizer_fingerprint,
        "settings": asdict(settings),
        "complete": False,
    }
    store = AnswerStore(out)
    check_same_run(store.manifest(), manifest)
    store.write_manifest(manifest)
    store.repair()
    answered = {row.id for row in store.rows()}
    waiting = [prompt for prompt in prompts if prompt.id not in answered]
    regenerator.counts.resumed = len(prompts) - len(waiting)
    try:
        for answer in regenerator.answers(waiting):
            store.append(answer)
            on_answer(answer, regenerator.counts)
    finally:
        if regenerator.features is not None:
            regenerator.features.flush()
        store.flush()
    store.finish([prompt.id for prompt in prompts])
    manifest |= tally(store.rows())
    manifest |= {"complete": True, "skipped": regenerator.counts.skipped}
    store.write_manifest(manifest)
    return manifest
