"""The training loop: batches by seed and step, AdamW, checkpoints, replay on held-out answers.

With `steps` in the recipe a training that was stopped and resumed gives the same bits as one that
was not. With `minutes` the learning rate follows the seconds spent, so it is only close.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from drafthead.decoding.stats import accept_at, tau
from drafthead.errors import TrainingError
from drafthead.training import checkpoint
from drafthead.training.batching import BatchMaker
from drafthead.training.data import batches
from drafthead.training.losses import unrolled_loss
from drafthead.training.modules import FrozenMtpHead
from drafthead.training.optimizer import HeadOptimizer
from drafthead.training.recipe import TrainRecipe
from drafthead.training.replay import replay
from drafthead.training.schedule import lr_share

CHECKPOINT, BEST = "checkpoint.safetensors", "best.safetensors"
MAX_BAD_IN_ROW = 3
REPORT_EVERY = 20


@dataclass
class Progress:
    """Where a training stands. Counts are of the whole training, resumed parts included.

    skipped: steps without an update for a loss or gradient that was not finite.  empty: steps
    without any label that counts.  best_tau: highest replayed tokens a pass so far.
    """

    step: int = 0
    seconds: float = 0.0
    anchors: int = 0
    skipped: int = 0
    empty: int = 0
    bad_in_row: int = 0
    best_tau: float = 0.0


@dataclass
class Report:
    """What is shown while training. accuracy: teacher-forced, per draft step, since the last one.

    tau and accept_at are of the held-out replay and None between evaluations.
    """

    progress: Progress
    share: float
    loss: float
    accuracy: list[float | None]
    anchors_per_s: float
    tau: float | None = None
    accept_at: list[float | None] = field(default_factory=list)


class _Window:
    """Sums since the last report."""

    def __init__(self, steps: int) -> None:
        self.loss, self.steps, self.anchors, self.seconds = 0.0, 0, 0, 0.0
        self.counted, self.correct = [0] * steps, [0] * steps

    def accuracy(self) -> list[float | None]:
        pairs = zip(self.correct, self.counted, strict=True)
        return [correct / counted if counted else None for correct, counted in pairs]


class Trainer:
    """Trains one head in one run folder."""

    def __init__(
        self,
        head: FrozenMtpHead,
        recipe: TrainRecipe,
        maker: BatchMaker,
        anchor_counts: Sequence[int],
        folder: Path,
    ) -> None:
        self.head = head
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
        heldout: tuple[BatchMaker, Sequence[Sequence[int]]] | None = None,
        on_report: Callable[[Report], None] = lambda _report: None,
        stop_at: int | None = None,
    ) -> Progress:
        """Train to the end of the recipe, or to step `stop_at`; resumes from the folder.

        Raises:
            TrainingError: three steps in a row were not finite, or the checkpoint is of another
                head.
        """
        self._resume()
        recipe = self._recipe
        window = _Window(recipe.unroll)
        for indices in self._batches():
            if self.share >= 1.0 or self.progress.step == stop_at:
                break
            self._timed_step(indices, window)
            due = self.progress.step % recipe.evaluate_every == 0 or self.share >= 1.0
            if due or self.progress.step % REPORT_EVERY == 0:
                with self._optimizer.averaged():
                    on_report(self._report(window, heldout if due else None))
                window = _Window(recipe.unroll)
            if self.progress.step % recipe.checkpoint_every == 0:
                self._save()
        self._save()
        return self.progress

    def keep_best(self) -> None:
        """Load the weights of the evaluation with the most replayed tokens a pass, if any.

        Without one, the averaged weights where the recipe asks for averages.
        """
        path = self._folder / BEST
        if path.is_file():
            self.head.load_state_dict(checkpoint.load(path)[0])
        else:
            self._optimizer.use_average()

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
        elapsed = time.perf_counter() - start
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
        batch = self._maker(indices)
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bf16"):
            states = self.head(batch)
        loss, counted, correct = unrolled_loss(
            states, self._maker.rows_VD, batch, recipe.step_decay, recipe.loss, self._maker.softcap
        )
        if not sum(counted):
            self.progress.empty += 1
            return
        if self._update(loss, indices):
            window.loss += loss.item()
            for step in range(recipe.unroll):
                window.counted[step] += counted[step]
                window.correct[step] += correct[step]

    def _schedule_place(self) -> float:
        """Progress in the middle of the coming step, so that neither end wastes one at rate 0."""
        half = 0.5 / self._recipe.steps if self._recipe.steps else 0.0
        return min(1.0, self.share + half)

    def _update(self, loss: Tensor, indices: list[int]) -> bool:
        """Apply one step; False where the loss or its gradient is not finite."""
        finite = math.isfinite(loss.item())
        if finite:
            loss.backward()
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

    def _report(
        self, window: _Window, heldout: tuple[BatchMaker, Sequence[Sequence[int]]] | None
    ) -> Report:
        report = Report(
            self.progress, self.share, window.loss / max(window.steps, 1), window.accuracy(),
            window.anchors / max(window.seconds, 1e-9),
        )  # fmt: skip
        if heldout is None:
            return report
        stats = replay(self.head, *heldout, autocast=self._recipe.precision == "bf16")
        report.tau, report.accept_at = tau(stats), accept_at(stats)
        if report.tau is not None and report.tau > self.progress.best_tau:
            self.progress.best_tau = report.tau
            state = {"step": self.progress.step, "tau": report.tau}
            checkpoint.save(self._folder / BEST, self.head.state_dict(), state)
        return report

    def _save(self) -> None:
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
        self.progress = Progress(**state)
