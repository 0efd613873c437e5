"""One training from end to end: answers, features, training, export.

A run folder holds everything of one training: `run.json` (which recipe and data), `features/`,
`costs.json`, `checkpoint.safetensors`, `best.safetensors`, `curves.jsonl` and `curves.svg`. Calling
it again resumes it. Every process of a training runs all of it; the first one alone writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from drafthead.backbone.handle import Backbone
from drafthead.errors import TrainingError
from drafthead.evaluation.metrics import rounded
from drafthead.heads.blocks import INT4, INT8
from drafthead.heads.config import HeadConfig
from drafthead.heads.package import HeadPackage
from drafthead.session import Session
from drafthead.training.answers import write_atomic
from drafthead.training.batching import BatchMaker
from drafthead.training.data import anchor_count
from drafthead.training.export import export
from drafthead.training.features import FeatureStore, Source
from drafthead.training.head_shape import head_config
from drafthead.training.inputs import Inputs
from drafthead.training.modules import FrozenMtpHead
from drafthead.training.parallel import ALONE, Workers
from drafthead.training.recipe import Recipe
from drafthead.training.replay import replay
from drafthead.training.selection import Judge, Trial, acceptance, numpy_weights, trial_answers
from drafthead.training.trainer import CHECKPOINT, Progress, Report, Trainer
from drafthead.training.warm_start import start_from_backbone

RUN = "run.json"
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


def feature_store(
    recipe: Recipe, backbone: Backbone, inputs: Inputs, folder: Path, source: Source | None = None
) -> FeatureStore:
    """The features of all answers, not computed yet; by the engine where no source is given."""
    head = recipe.head
    return FeatureStore(folder, backbone, inputs.answers, head.read_layers, head.taps, source)


def check_run(folder: Path, recipe: Recipe, inputs: Inputs) -> None:
    """Begin a run folder, or refuse to resume one of another recipe, other data or start."""
    wanted = {
        "recipe_digest": recipe.digest, "data_digest": inputs.digest,
        "start_digest": inputs.start.digest if inputs.start else None,
    }  # fmt: skip
    path = folder / RUN
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
        for name, value in wanted.items():
            if found.get(name) != value:
                raise TrainingError(
                    f"The run in {folder} was begun with another {name}; use another --run folder."
                )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(wanted, indent=2) + "\n")


@dataclass(frozen=True)
class Outcome:
    """The exported head, and what it accepts of the held-out answers that choose the weights.

    acceptance: drafts of full length, "f32" replayed in torch before quantisation, and decoded in
    the runtime after it by each form that was tried, "int8", "int4"; None where no answer is held
    out.
    """

    package: HeadPackage
    acceptance: dict[str, dict[str, Any]] | None


class _Makers:
    """Batches of the answers, by place in `inputs.answers`, for a number of draft steps."""

    def __init__(
        self, session: Session, inputs: Inputs, features: FeatureStore, prompt_tokens: bool
    ) -> None:
        self._backbone, self._inputs, self._features = session.backbone, inputs, features
        self._prompt_tokens = prompt_tokens

    def __call__(self, steps: int, dtype: torch.dtype) -> BatchMaker:
        inputs, backbone = self._inputs, self._backbone
        return BatchMaker(
            backbone.native, self._features, inputs.answers, inputs.vocabulary, steps, dtype,
            backbone.spec.final_softcap, self._prompt_tokens,
        )  # fmt: skip


def train(
    recipe: Recipe,
    session: Session,
    inputs: Inputs,
    features: FeatureStore,
    run: Path,
    out: Path,
    on_report: Callable[[Report], None] = lambda _report: None,
    workers: Workers = ALONE,
) -> Outcome | None:
    """Train a head to the end of its recipe and export it; None in all processes but the first."""
    backbone, start = session.backbone, inputs.start
    config = head_config(recipe, backbone, inputs)
    if start is not None:
        config = start.going_on(config)
    if workers.first:
        check_run(run, recipe, inputs)
    torch.manual_seed(recipe.train.seed)
    torch.set_num_threads(backbone.threads)
    head = FrozenMtpHead(config)
    makers = _Makers(session, inputs, features, config.prompt_tokens)
    maker = makers(recipe.train.unroll, DTYPES[recipe.train.precision])
    new = workers.first and not (run / CHECKPOINT).is_file()
    grown = start is None or start.grows(config.kv_layers)
    if new and grown and recipe.train.start == "backbone":
        start_from_backbone(head, config.kv_layers, backbone, maker, inputs.train)
    if new and start is not None:
        start.load_into(head, config.kv_layers)
    judged = trial_answers(inputs.heldout, recipe.measure)
    judge = None
    if judged:
        answers = [inputs.heldout[place] for place in judged]
        ids = inputs.vocabulary.token_ids
        judge = Judge(session, config, ids, answers, recipe.measure, run)
    counts = [anchor_count(len(a.prompt_tokens), len(a.answer)) for a in inputs.train]
    head.to(workers.device)
    maker = maker.to(workers.device)
    trainer = Trainer(head, recipe.train, maker, counts, run, workers)
    progress = trainer.run(judge, on_report, judge_start=start is not None)
    if not workers.first:
        return None
    kept = trainer.keep_best()
    config = replace(
        config,
        min_confidence=kept.get("min_confidence", config.min_confidence),
        training={**config.training, **record(progress, kept, workers)},
    )
    judges = {config.blocks.short: judge} if judge is not None else {}
    if judge is not None and recipe.head.quantization == "auto":
        judges[INT4.short] = judge.as_blocks(INT4)
        config = in_faster_blocks(config, kept, judges[INT4.short](head))
    if judge is not None:
        config = judges[config.blocks.short].calibrate(head).applied(config)
    package = export(out, config, numpy_weights(head), inputs.vocabulary.token_ids)
    if judge is None:
        return Outcome(package, None)
    longest = recipe.measure.max_draft
    drafted = min(longest, config.longest_draft or longest)
    exact = makers(drafted, torch.float32).to(workers.device)
    places = [[len(inputs.train) + place] for place in judged]
    before = replay(head, exact, places, False, recipe.measure.max_tokens)
    after = {name: judge(head, (0.0,)).stats for name, judge in judges.items()}
    found = {"f32": before, **after}
    return Outcome(package, {name: acceptance(stats) for name, stats in found.items()})


def in_faster_blocks(config: HeadConfig, kept: Mapping[str, Any], trial: Trial) -> HeadConfig:
    """The config of a head in int4 where that decodes faster; what was tried is recorded.

    Args:
        config: of the head in int8.
        kept: the evaluation of its weights.
        trial: of the same weights in int4.
    """
    speeds = {INT8.short: kept["expected_tok_s"], INT4.short: rounded(trial.tok_s)}
    config = replace(config, training={**config.training, "expected_tok_s": speeds})
    if speeds[INT4.short] <= speeds[INT8.short]:
        return config
    return replace(config, quantization=INT4.name, min_confidence=trial.min_confidence)


def record(progress: Progress, kept: Mapping[str, Any], workers: Workers) -> dict[str, object]:
    """What the package tells of its training. kept: the evaluation whose weights they are."""
    done: dict[str, object] = {
        "steps": progress.step, "minutes": round(progress.seconds / 60, 1),
        "anchors": progress.anchors, "processes": workers.size,
    }  # fmt: skip
    return {**done, "kept": dict(kept)} if kept else done
