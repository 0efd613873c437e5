"""The training loop: batches by seed and step, AdamW, checkpoints, the fastest weights kept.

With `steps` in the recipe a training that was stopped and resumed gives the same bits as one that
was not. With `minutes` the learning rate follows the seconds spent, so it is only close. Several
processes (parallel.py) share each batch; the first one evaluates, writes and reports.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from drafthead.decoding.stats import accept_at, tau
from drafthead.errors import TrainingError
from drafthead.evaluation.metrics import rounded
from drafthead.training import checkpoint
from drafthead.training.curves import Curves
from drafthead.training.data import batches
from drafthead.training.losses import unrolled_loss
from drafthead.training.modules import Batch
from drafthead.training.optimizer import HeadOptimizer
from drafthead.training.parallel import ALONE, Workers
from drafthead.training.recipe import TrainRecipe
from drafthead.training.schedule import lr_share
from drafthead.training.selection import Trial

CHECKPOINT, BEST = "checkpoint.safetensors", "best.safetensors"
MAX_BAD_IN_ROW = 3
REPORT_EVERY = 20


@dataclass
class Progress:
    """Where a training stands. Counts are of the whole training, resumed parts included.

    skipped: steps without an update for a loss or gradient that was not finite.  empty: steps
    without any label that counts.  best_*: of the evaluation with the most tokens a second so far.
    """

    step: int = 0
    seconds: float = 0.0
    anchors: int = 0
    skipped: int = 0
    empty: int = 0
    bad_in_row: int = 0
    best_step: int = 0
    best_tau: float = 0.0
    best_tok_s: float = 0.0


@dataclass
class Report:
    """What is shown while training. accuracy: teacher-forced, per draft step, since the last one.

    loss: the mean since the last report; None before the first step.
    tau, accept_at, tok_s and speedup are of the held-out prompts decoded in the runtime, and None
    between evaluations.
    """

    progress: Progress
    share: float
    loss: float | None
    accuracy: list[float | None]
    anchors_per_s: float
    tau: float | None = None
    accept_at: list[float | None] = field(default_factory=list)
    tok_s: float | None = None
    speedup: float | None = None


class Trainee(Protocol):
    """A torch module that drafts: a head, or a small model of its own."""

    @property
    def learned_rows(self) -> Tensor | None:
        """What it adds to the output rows of a batch, as columns behind them."""

    def __call__(self, batch: Any) -> Sequence[Tensor]:
        """Its state at each anchor, for each draft step."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """As of any module."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As of any module."""

    def state_dict(self) -> dict[str, Tensor]:
        """As of any module."""

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> object:
        """As of any module."""


class Maker(Protocol):
    """Turns answers, by their places, into a batch. softcap: of the backbone's logits."""

    softcap: float

    def __call__(self, indices: Sequence[int]) -> Batch:
        """The batch of the anchors of these answers."""


Evaluate = Callable[[Any], Trial]


class _Window:
    """Sums since the last report."""

    def __init__(self, steps: int) -> None:
        self.loss, self.steps, self.anchors, self.seconds = 0.0, 0, 0, 0.0
        self.counted, self.correct = [0] * steps, [0] * steps

    def accuracy(self) -> list[float | None]:
        pairs = zip(self.correct, self.counted, strict=True)
        return [correct / counted if counted else None for correct, counted in pairs]


def report_row(report: Report) -> dict[str, Any]:
    """What the curves keep of a report; numbers that do not depend on the clock."""
    return {
        "step": report.progress.step, "loss": report.loss, "accuracy": report.accuracy,
        "tau": report.tau, "accept_at": report.accept_at, "speedup": report.speedup,
    }  # fmt: skip


class Trainer:
    """Trains one head, or one standalone drafter, in one run folder."""

    def __init__(
        self,
        head: Trainee,
        recipe: TrainRecipe,
        maker: Maker,
        anchor_counts: Sequence[int],
        folder: Path,
        workers: Workers = ALONE,
    ) -> None:
        self.head = head
        self._workers = workers
        self.progress = Progress()
        self._recipe, self._maker, self._folder = recipe, maker, folder
        self._counts = list(anchor_counts)
        if not sum(self._counts):
            raise TrainingError("No answer has two tokens or more: there is nothing to train on.")
        self._optimizer = HeadOptimizer(head, recipe)

    @property
    def share(self) -> float:
        """How much of the training is done, 0 .. 1."""
        if self._recipe.steps:
            return min(1.0, self.progress.step / self._recipe.steps)
        return min(1.0, self.progress.seconds / (60.0 * self._recipe.minutes))

    def run(
        self,
        evaluate: Evaluate | None = None,
        on_report: Callable[[Report], None] = lambda _report: None,
        stop_at: int | None = None,
        judge_start: bool = False,
    ) -> Progress:
        """Train to the end of the recipe, or to step `stop_at`; resumes from the folder.

        Args:
            evaluate: decodes held-out prompts with the head; the fastest weights are kept.
            on_report: told how it goes, in the first process alone.
            stop_at: stop early, as if interrupted.
            judge_start: evaluate before the first step too, so that training never loses.

        Raises:
            TrainingError: three steps in a row were not finite, or the checkpoint is of another
                head.
        """
        self._resume()
        if self._workers.from_first(self.progress.step) != self.progress.step:
            raise TrainingError(
                f"Process {self._workers.rank} does not find the checkpoint of the first one in "
                f"{self._folder}; all of them need the same run folder."
            )
        self._workers.copy_first(self.head.parameters())
        curves = Curves(self._folder, self.progress.step)
        recipe = self._recipe
        window = _Window(recipe.unroll)
        if judge_start and self.progress.step == 0 and evaluate and self._workers.first:
            on_report(self._report(window, evaluate))
        for indices in self._batches():
            if self.share >= 1.0 or self.progress.step == stop_at:
                break
            self._timed_step(indices, window)
            due = self.progress.step % recipe.evaluate_every == 0 or self.share >= 1.0
            if due or self.progress.step % REPORT_EVERY == 0:
                if self._workers.first:
                    with self._optimizer.averaged():
                        report = self._report(window, evaluate if due else None)
                    curves.add(report_row(report), due)
                    on_report(report)
                window = _Window(recipe.unroll)
            if self.progress.step % recipe.checkpoint_every == 0:
                self._save()
        self._save()
        self._workers.wait()
        return self.progress

    def keep_best(self) -> Mapping[str, Any]:
        """Load the weights of the fastest evaluation and tell about it; empty without any.

        Without one, the averaged weights where the recipe asks for averages.
        """
        path = self._folder / BEST
        if not path.is_file():
            self._optimizer.use_average()
            return {}
        weights, state = checkpoint.load(path)
        self.head.load_state_dict(weights)
        return state

    def _batches(self) -> Iterator[list[int]]:
        """Batches from the current step on, epoch after epoch."""
        epoch, ahead = 0, self.progress.step
        while True:
            packed = batches(self._counts, self._recipe.batch_anchors, self._recipe.seed, epoch)
            yield from packed[ahead:]
            ahead = max(0, ahead - len(packed))
            epoch += 1

    def _timed_step(self, indices: list[int], window: _Window) -> None:
        start = time.perf_counter()
        anchors = sum(self._counts[index] for index in indices)
        self._step(indices, window)
        elapsed = self._workers.from_first(time.perf_counter() - start)
        self.progress.step += 1
        self.progress.seconds += elapsed
        self.progress.anchors += anchors
        window.steps += 1
        window.anchors += anchors
        window.seconds += elapsed

    def _step(self, indices: list[int], window: _Window) -> None:
        recipe = self._recipe
        share = lr_share(self._schedule_place(), recipe.warmup, recipe.schedule)
        self._optimizer.set_rate(share)
        self._optimizer.zero_grad()
        mine = self._workers.share(indices, self._counts)
        batch = self._maker(mine) if mine else None
        labels = [0.0] * recipe.unroll
        if batch is not None:
            labels = (batch.labels_KA >= 0).sum(1).tolist()
        counted = self._workers.sum(labels)
        if not sum(counted):
            self.progress.empty += 1
            return
        loss, correct = torch.zeros((), device=self._workers.device), [0] * recipe.unroll
        if batch is not None:
            loss, correct = self._loss(batch, counted)
        value, *hits = self._workers.sum([loss.item(), *correct])
        if self._update(loss, value, indices):
            window.loss += value
            for step in range(recipe.unroll):
                window.counted[step] += int(counted[step])
                window.correct[step] += int(hits[step])

    def _loss(self, batch: Batch, counted: Sequence[float]) -> tuple[Tensor, list[int]]:
        """This process's part of the mean over all labels, and how often the head was right."""
        device, mixed = self._workers.device.type, self._recipe.precision == "bf16"
        with torch.autocast(device, torch.bfloat16, enabled=mixed):
            states = self.head(batch)
        loss, _, correct = unrolled_loss(
            states, batch.rows_VD, batch, self._recipe.step_decay, self._recipe.loss,
            self._maker.softcap, counted, self.head.learned_rows,
        )  # fmt: skip
        return loss, correct

    def _schedule_place(self) -> float:
        """Progress in the middle of the coming step, so that neither end wastes one at rate 0."""
        half = 0.5 / self._recipe.steps if self._recipe.steps else 0.0
        return min(1.0, self.share + half)

    def _update(self, loss: Tensor, value: float, indices: list[int]) -> bool:
        """Apply one step; False where the loss of all processes or its gradient is not finite."""
        finite = math.isfinite(value)
        if finite:
            if loss.requires_grad:
                loss.backward()
            self._workers.sum_gradients(self.head.parameters())
            norm = nn.utils.clip_grad_norm_(self.head.parameters(), self._recipe.grad_clip)
            finite = bool(torch.isfinite(norm))
        if finite:
            self._optimizer.step(self.progress.step)
            self.progress.bad_in_row = 0
            return True
        self.progress.skipped += 1
        self.progress.bad_in_row += 1
        if self.progress.bad_in_row >= MAX_BAD_IN_ROW:
            raise TrainingError(
                f"{MAX_BAD_IN_ROW} steps in a row were not finite, the last one with answers "
                f'{indices[:8]}; lower lr or use precision = "f32".'
            )
        return False

    def _report(self, window: _Window, evaluate: Evaluate | None) -> Report:
        report = Report(
            self.progress, self.share, window.loss / window.steps if window.steps else None,
            window.accuracy(), window.anchors / max(window.seconds, 1e-9),
        )  # fmt: skip
        if evaluate is None:
            return report
        trial = evaluate(self.head)
        report.tau, report.accept_at = tau(trial.stats), accept_at(trial.stats)
        report.tok_s, report.speedup = trial.tok_s, trial.speedup
        if trial.tok_s > self.progress.best_tok_s:
            self._keep(report, trial.min_confidence)
        return report

    def _keep(self, report: Report, min_confidence: float) -> None:
        progress = self.progress
        progress.best_step, progress.best_tau = progress.step, report.tau or 0.0
        progress.best_tok_s = report.tok_s or 0.0
        state = {
            "min_confidence": min_confidence,
            "step": progress.step, "tau": rounded(report.tau),
            "accept_at": [rounded(rate) for rate in report.accept_at],
            "expected_tok_s": rounded(report.tok_s), "expected_speedup": rounded(report.speedup),
        }  # fmt: skip
        checkpoint.save(self._folder / BEST, self.head.state_dict(), state)

    def _save(self) -> None:
        if not self._workers.first:
            return
        weights = {"weight/" + name: weight for name, weight in self.head.named_parameters()}
        tensors = {**weights, **self._optimizer.tensors()}
        checkpoint.save(self._folder / CHECKPOINT, tensors, asdict(self.progress))

    def _resume(self) -> None:
        path = self._folder / CHECKPOINT
        if not path.is_file():
            return
        tensors, state = checkpoint.load(path)
        for name, weight in self.head.named_parameters():
            saved = tensors.pop("weight/" + name, None)
            if saved is None or saved.shape != weight.shape:
                raise TrainingError(
                    f"{path} is of another head: {name} differs; use another --run."
                )
            weight.data.copy_(saved)
        self._optimizer.load(tensors)
        try:
            self.progress = Progress(**state)
        except TypeError as error:
            raise TrainingError(
                f"{path} was written by another version ({error}); use another --run."
            ) from error
