"""Train a standalone drafter from end to end: the baseline of a head, from the same answers.

It sees what the head sees of the data: the same answers, held out alike, the same labels (those of
the head's first draft step), the same trainer and the same choice of weights and threshold by
decoding in the runtime. Its targets are the answers' tokens.

A run folder holds `run.json`, `costs.json`, `checkpoint.safetensors`, `best.safetensors`, curves
and, while it trains, `trial.gguf`. Calling it again resumes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drafthead.backbone.handle import Backbone
from drafthead.drafters.standalone import StandaloneDrafter, open_draft_model
from drafthead.errors import TrainingError
from drafthead.heads.config import MIN_CONFIDENCE
from drafthead.session import Session
from drafthead.training.answers import Answer
from drafthead.training.data import anchor_count, data_digest
from drafthead.training.draft_file import start_from_file, tokenizer_of, write_draft_model
from drafthead.training.draft_model import DraftModel, TextBatches, start_embeddings
from drafthead.training.draft_shape import DraftShape
from drafthead.training.inputs import Inputs
from drafthead.training.parallel import ALONE, Workers
from drafthead.training.pipeline import DTYPES, check_run, record
from drafthead.training.recipe import MeasureRecipe, Recipe, TrainRecipe
from drafthead.training.selection import Trials, acceptance, trial_answers
from drafthead.training.trainer import Report, Trainer
from drafthead.types import Draft

TRIAL = "trial.gguf"


@dataclass(frozen=True)
class Trained:
    """The file that was written. acceptance: of held-out answers, drafts of full length, or None.

    training: a record for people.
    """

    path: Path
    shape: DraftShape
    training: dict[str, object]
    acceptance: dict[str, Any] | None


class CountingStandalone(StandaloneDrafter):
    """Counts draft steps: a draft that ended early has paid for the token it was not sure of."""

    steps = 0

    def propose(self, max_tokens: int) -> Draft:
        """Draft as always."""
        draft = super().propose(max_tokens)
        self.steps += draft.made
        return draft


class StandaloneTrials(Trials):
    """Decodes with one state of a model after the other, from the file that it would become."""

    def __init__(
        self, session: Session, answers: Sequence[Answer], recipe: MeasureRecipe, folder: Path,
        write: Callable[[Path, float], None],
    ) -> None:  # fmt: skip
        """As Trials. write: the model with a threshold as a file."""
        super().__init__(session, answers, recipe, folder)
        self._write = write

    def _drafter(self, head: Any) -> CountingStandalone:
        path = self._folder / TRIAL
        self._write(path, MIN_CONFIDENCE)
        model = open_draft_model(self._session.backbone, path)
        return CountingStandalone(model, self._recipe.max_draft)


def for_tasks(inputs: Inputs, tasks: Sequence[str]) -> Inputs:
    """The answers of some tasks alone; all of them where none is named.

    Raises:
        TrainingError: there is none to train on; the tasks there are get named.
    """
    if not tasks:
        return inputs
    train, heldout = (
        [answer for answer in answers if answer.task in tasks]
        for answers in (inputs.train, inputs.heldout)
    )
    if not train:
        there = ", ".join(sorted({answer.task for answer in inputs.train}))
        raise TrainingError(f"No answer is of the task {', '.join(tasks)}; there are {there}.")
    return replace(inputs, train=train, heldout=heldout, digest=data_digest([*train, *heldout]))


def training_of(recipe: Recipe) -> TrainRecipe:
    """How the model is trained: as the head, but for what [standalone] says."""
    own = recipe.standalone
    return replace(
        recipe.train, unroll=1, loss="ce", lr=own.lr, start=own.start,
        batch_anchors=own.batch_anchors, evaluate_every=own.evaluate_every,
        checkpoint_every=own.checkpoint_every,
    )  # fmt: skip


def new_model(
    recipe: Recipe,
    shape: DraftShape,
    backbone: Backbone,
    inputs: Inputs,
    start: Path | None = None,
) -> DraftModel:
    """A model before training: a new one, or that of a file that was trained so."""
    torch.manual_seed(recipe.train.seed)
    model = DraftModel(shape, backbone.spec.rope_base)
    if start is not None:
        open_draft_model(backbone, start)  # refuses another vocabulary
        start_from_file(start, model)
    elif recipe.standalone.start == "backbone":
        ids = np.arange(backbone.spec.vocab_size, dtype=np.int32)
        start_embeddings(model, backbone.native.output_rows(ids), inputs.train)
    return model


def train_standalone(
    recipe: Recipe,
    session: Session,
    inputs: Inputs,
    model: DraftModel,
    run: Path,
    out: Path,
    on_report: Callable[[Report], None] = lambda _report: None,
    workers: Workers = ALONE,
) -> Trained | None:
    """Train a model and write it; None in all processes but the first.

    Args:
        recipe: of the head, with the table [standalone].
        session: the backbone.
        inputs: the answers to learn from.
        model: of `new_model`.
        run: folder of checkpoints.
        out: the GGUF file to write.
        on_report: told how it goes.
        workers: the processes.
    """
    backbone, shape = session.backbone, model.shape
    if workers.first:
        check_run(run, recipe, inputs)
    torch.set_num_threads(backbone.threads)
    train = training_of(recipe)
    tokenizer = tokenizer_of(backbone.path)
    name = f"{backbone.name} draft model of {shape.body_parameters / 1e6:.1f}M parameters"

    def write(path: Path, min_confidence: float) -> None:
        write_draft_model(
            path, model, tokenizer, backbone.spec.context_length, min_confidence, name
        )

    places = trial_answers(inputs.heldout, recipe.measure)
    answers = [inputs.heldout[place] for place in places]
    judge = StandaloneTrials(session, answers, recipe.measure, run, write) if answers else None
    counts = [anchor_count(len(a.prompt_tokens), len(a.answer)) for a in inputs.train]
    maker = TextBatches(inputs.train, shape.vocab_size, DTYPES[train.precision])
    maker = maker.to(workers.device)
    model.to(workers.device)
    trainer = Trainer(model, train, maker, counts, run, workers)
    progress = trainer.run(judge, on_report)
    if not workers.first:
        return None
    kept = trainer.keep_best()
    out.parent.mkdir(parents=True, exist_ok=True)
    write(out, kept.get("min_confidence", MIN_CONFIDENCE))
    found = acceptance(judge(model, thresholds=(0.0,)).stats) if judge else None
    (run / TRIAL).unlink(missing_ok=True)
    return Trained(out, shape, record(progress, kept, workers), found)
