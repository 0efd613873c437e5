"""Which weights of a training are kept: those that decode fastest in the runtime.

Acceptance can fall while the loss still does, and a higher one may cost more than it saves. So at
each evaluation the weights become a head of the native core, quantised as they would be exported,
and decode held-out prompts. Speed is counted, not clocked: passes by their number of rows and draft
steps, times what each of them took when `drafthead cost` measured them at the first evaluation, so
that a busy machine cannot choose the weights.

    tokens a second = tau / (draft steps a pass x c + v(rows)), in units of one-row passes
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from drafthead.decoding.stats import accept_at, pool, tau
from drafthead.drafters.base import Drafter
from drafthead.drafters.mtp import MtpDrafter
from drafthead.evaluation.calibration import Calibrated, calibrate, verified_drafts
from drafthead.evaluation.cost import measure_cost
from drafthead.evaluation.metrics import rounded
from drafthead.evaluation.prompts import end_ids
from drafthead.heads.blocks import BlockKind
from drafthead.heads.config import MIN_CONFIDENCE, HeadConfig
from drafthead.heads.package import HeadPackage
from drafthead.session import Session
from drafthead.training.answers import Answer, write_atomic
from drafthead.training.export import package_tensors
from drafthead.training.modules import FrozenMtpHead
from drafthead.training.recipe import MeasureRecipe
from drafthead.types import DecodeStats, Draft

COSTS = "costs.json"
TRIAL_TOKENS = 768  # answer tokens of one evaluation, at most, decoded once for each threshold
# Heads differ in how sure they are, by their loss and their training, so the threshold belongs to
# the weights.
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.55)


@dataclass(frozen=True)
class Costs:
    """rows_ms: time of a pass by its number of rows, from 1 on.  step_ms: of one draft step."""

    rows_ms: Sequence[float]
    step_ms: float


@dataclass(frozen=True)
class Trial:
    """What a head did on the held-out prompts, with drafts that end below min_confidence.

    steps: draft steps, with those of doubted tokens.
    """

    stats: DecodeStats
    steps: int
    costs: Costs
    min_confidence: float = MIN_CONFIDENCE

    @property
    def tok_s(self) -> float:
        """Expected tokens a second, prefill excluded; 0 where nothing was decoded."""
        expected_ms = self.steps * self.costs.step_ms
        for passes, rows_ms in zip(passes_by_rows(self.stats), self.costs.rows_ms):  # noqa: B905
            expected_ms += passes * rows_ms
        return 1000.0 * self.stats.committed / expected_ms if expected_ms else 0.0

    @property
    def speedup(self) -> float:
        """Expected speed over that of plain decoding, one row a pass."""
        return self.tok_s * self.costs.rows_ms[0] / 1000.0


def passes_by_rows(stats: DecodeStats) -> list[int]:
    """How many verify passes had 1, 2, ... rows: the draft and the token before it."""
    at_least = [stats.passes, *stats.drafted_at, 0]
    return [here - longer for here, longer in pairwise(at_least)]


class CountingDrafter(MtpDrafter):
    """Counts draft steps: a draft that ended early has paid for the token it was not sure of."""

    steps = 0

    def propose(self, max_tokens: int) -> Draft:
        """Draft as always."""
        draft = super().propose(max_tokens)
        self.steps += draft.made
        return draft


def trial_answers(heldout: Sequence[Answer], recipe: MeasureRecipe) -> list[int]:
    """Places of the held-out answers to decode again: tasks in turn, within the recipe's numbers.

    Greedy ones of at least two tokens, since those are what decoding gives and drafting can speed.
    """
    by_task: dict[str, list[int]] = {}
    for place, answer in enumerate(heldout):
        if len(answer.answer) > 1 and not answer.temperature:
            by_task.setdefault(answer.task, []).append(place)
    chosen: list[int] = []
    tokens = 0
    for place in _in_turn([places[: recipe.per_task] for places in by_task.values()]):
        tokens += min(len(heldout[place].answer), recipe.max_tokens)
        if chosen and tokens > TRIAL_TOKENS:
            break
        chosen.append(place)
    return chosen


def _in_turn(lists: Sequence[Sequence[int]]) -> Iterator[int]:
    for turn in range(max(map(len, lists), default=0)):
        yield from (places[turn] for places in lists if turn < len(places))


class Counting(Drafter, Protocol):
    """A drafter that counts its steps and can be told when to stop."""

    steps: int
    min_confidence: float


class Trials:
    """Decodes the same held-out prompts with one state of what is trained after the other."""

    def __init__(
        self, session: Session, answers: Sequence[Answer], recipe: MeasureRecipe, folder: Path
    ) -> None:
        """Prepare.

        Args:
            session: the backbone.
            answers: whose prompts are decoded, not empty.
            recipe: longest answer and longest draft.
            folder: of the run; keeps the costs, so that a resumed one judges alike.
        """
        self._session, self._answers = session, answers
        self._recipe, self._folder = recipe, folder

    def _drafter(self, head: Any) -> Counting:
        """What is trained as it would be exported, in the core."""
        raise NotImplementedError

    def __call__(self, head: Any, thresholds: Sequence[float] = THRESHOLDS) -> Trial:
        """Decode all prompts, loops cut, with each threshold; the trial of the fastest."""
        drafter = self._drafter(head)
        return max((self._trial(drafter, least) for least in thresholds), key=lambda t: t.tok_s)

    def _trial(self, drafter: Counting, min_confidence: float) -> Trial:
        drafter.min_confidence = min_confidence
        session = self._session.using(drafter)
        costs = self._costs(session)
        drafter.steps = 0
        done = []
        for answer in self._answers:
            session.forget()
            stream = session.stream_ids(
                answer.prompt_tokens, self._recipe.max_tokens, end_ids(session), cut_loops=True
            )
            for _ in stream:
                pass
            done.append(stream.stats)
        return Trial(pool(done), drafter.steps, costs, min_confidence)

    def _costs(self, session: Session) -> Costs:
        """Times of passes and draft steps: measured once a run."""
        path = self._folder / COSTS
        if not path.is_file():
            rows = range(1, self._recipe.max_draft + 2)
            found = measure_cost(session, rows)
            costs = Costs([found["rows_ms"][str(size)] for size in rows], found["draft_step_ms"])
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(asdict(costs)) + "\n")
        return Costs(**json.loads(path.read_text(encoding="utf-8")))


class Judge(Trials):
    """Decodes with a head of one state of the weights after the other."""

    def __init__(
        self,
        session: Session,
        config: HeadConfig,
        token_ids: NDArray[np.int64],
        answers: Sequence[Answer],
        recipe: MeasureRecipe,
        folder: Path,
    ) -> None:
        """As Trials; config and token_ids, the draft vocabulary, are the head's."""
        super().__init__(session, answers, recipe, folder)
        self._config, self._ids = config, token_ids

    def _drafter(self, head: FrozenMtpHead) -> CountingDrafter:
        """The weights as they would be exported, in the core."""
        tensors = package_tensors(self._config, numpy_weights(head), self._ids)
        package = HeadPackage(Path("trial"), self._config, tensors)
        built = package.build(self._session.backbone)
        return CountingDrafter(built, self._recipe.max_draft)

    def calibrate(self, head: FrozenMtpHead) -> Calibrated:
        """Fit the confidences to what the runtime accepts of the same prompts."""
        drafter = self._drafter(head)
        costs = self._costs(self._session.using(drafter))
        prompts = [answer.prompt_tokens for answer in self._answers]
        drafts = verified_drafts(
            self._session, drafter.head, prompts, self._recipe.max_tokens, self._recipe.max_draft
        )
        return calibrate(drafts, costs.rows_ms, costs.step_ms)

    def as_blocks(self, kind: BlockKind) -> Judge:
        """The same trials of the weights in another form."""
        config = replace(self._config, quantization=kind.name)
        return _OtherBlocks(
            self._session, config, self._ids, self._answers, self._recipe, self._folder
        )


class _OtherBlocks(Judge):
    """Judges the weights in another form than the run's own.

    Of its costs the draft step alone is timed anew, against a pass of one row, so that both forms
    are judged by the same passes.
    """

    def _costs(self, session: Session) -> Costs:
        costs = super()._costs(session)
        path = self._folder / f"costs-{self._config.blocks.short}.json"
        if not path.is_file():
            found = measure_cost(session, (1,))
            step_ms = costs.rows_ms[0] * found["draft_step_ms"] / found["rows_ms"]["1"]
            write_atomic(path, json.dumps({"step_ms": step_ms}) + "\n")
        step_ms = json.loads(path.read_text(encoding="utf-8"))["step_ms"]
        return replace(costs, step_ms=step_ms)


def numpy_weights(head: FrozenMtpHead) -> dict[str, NDArray[np.float32]]:
    """The weights of a head by the names of the package."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in head.state_dict().items()}


def acceptance(stats: DecodeStats) -> dict[str, Any]:
    """tau, and the acceptance of each draft step, for people and scripts."""
    return {"tau": rounded(tau(stats)), "accept_at": [rounded(rate) for rate in accept_at(stats)]}
