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

import numpy as np
import torch

from drafthead.backbone.handle import Backbone
from drafthead.errors import TrainingError
from drafthead.gguf.spec import ModelSpec
from drafthead.heads.config import HeadConfig, TargetId
from drafthead.heads.package import BLOCK, HeadPackage
from drafthead.session import Session
from drafthead.training.answers import Answer, AnswerStore, write_atomic
from drafthead.training.batching import BatchMaker
from drafthead.training.data import (
    DraftVocabulary,
    anchor_count,
    data_digest,
    select_vocabulary,
    split,
)
from drafthead.training.export import export
from drafthead.training.features import FeatureStore, Source
from drafthead.training.modules import FrozenMtpHead
from drafthead.training.parallel import ALONE, Workers
from drafthead.training.recipe import Recipe
from drafthead.training.replay import replay
from drafthead.training.selection import Judge, acceptance, numpy_weights, trial_answers
from drafthead.training.trainer import CHECKPOINT, Progress, Report, Trainer
from drafthead.training.warm_start import start_from_backbone

RUN = "run.json"
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


@dataclass(frozen=True)
class Inputs:
    """The answers of a training, split, with the draft vocabulary that follows from them."""

    train: list[Answer]
    heldout: list[Answer]
    vocabulary: DraftVocabulary
    digest: str

    @property
    def answers(self) -> list[Answer]:
        """All of them, held-out ones last."""
        return [*self.train, *self.heldout]


def read_inputs(
    recipe: Recipe, folder: Path, backbone: Backbone, eos_ids: frozenset[int]
) -> Inputs:
    """Read the answers of a folder and choose the draft vocabulary.

    Raises:
        TrainingError: no answers, or answers of another backbone.
    """
    store = AnswerStore(folder)
    manifest = store.manifest()
    if manifest is None:
        raise TrainingError(f"{folder} holds no answers; make some with `drafthead regen`.")
    for name in ("fingerprint", "tokenizer_fingerprint"):
        if manifest.get(name) != getattr(backbone, name):
            raise TrainingError(
                f"The answers in {folder} are by {manifest.get('backbone')}, whose {name} differs "
                f"from that of {backbone.name}; regenerate them with this backbone."
            )
    answers = sorted(store.rows(), key=lambda row: row.id)
    if recipe.data.max_answers:
        order = np.random.default_rng(recipe.train.seed).permutation(len(answers))
        answers = [answers[index] for index in sorted(order[: recipe.data.max_answers])]
    train, heldout = split(answers, recipe.data.heldout)
    if not train:
        raise TrainingError(f"{folder} holds no answer to train on; run `drafthead regen` first.")
    vocabulary = select_vocabulary(
        train, eos_ids, backbone.spec.vocab_size, recipe.head.draft_vocab, recipe.head.vocabulary
    )
    return Inputs(train, heldout, vocabulary, data_digest(answers))


def full_layers(spec: ModelSpec) -> list[int]:
    """Layers whose every position a head can read."""
    return [at for at, layer in enumerate(spec.layers) if not layer.window and layer.rope >= 0]


def head_config(recipe: Recipe, backbone: Backbone, inputs: Inputs) -> HeadConfig:
    """The config of the head that a recipe asks for on a backbone.

    Raises:
        TrainingError: a layer that the backbone does not have, or sizes that do not fit it.
    """
    spec, head = backbone.spec, recipe.head
    for name, layers in (("kv_layers", head.kv_layers), ("taps", head.taps)):
        if max(layers, default=0) >= spec.n_layers:
            raise TrainingError(
                f"[head] {name}: {backbone.name} has layers 0 .. {spec.n_layers - 1}, found "
                f"{list(layers)}."
            )
    for name, size in (("d_ff", head.d_ff), ("markov_rank", head.markov_rank)):
        if size % BLOCK:
            raise TrainingError(f"[head] {name} must be a multiple of {BLOCK}, found {size}.")
    ropes = {spec.layers[layer].rope for layer in head.read_layers}
    windows = [layer for layer in head.read_layers if spec.layers[layer].window]
    if windows or len(ropes) > 1 or -1 in ropes:
        raise TrainingError(
            f"[head] kv_layers: a head reads layers without a sliding window and with one and the "
            f"same rotary embedding; {backbone.name} has them at {full_layers(spec)}."
        )
    target = TargetId(
        backbone.name, spec.architecture, backbone.fingerprint, backbone.tokenizer_fingerprint
    )
    return HeadConfig(
        d_model=spec.d_model,
        d_ff=head.d_ff,
        n_heads=spec.n_heads,
        n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        draft_vocab_size=len(inputs.vocabulary),
        kv_layers=head.kv_layers,
        rms_eps=spec.rms_eps,
        rope_base=spec.ropes[ropes.pop()].base if ropes else spec.rope_base,
        attention_bias=spec.qkv_bias,
        qk_norm=spec.qk_norm,
        trained_steps=recipe.train.unroll,
        markov_rank=head.markov_rank,
        taps=head.taps,
        positions=head.positions,
        prompt_tokens=head.prompt_tokens,
        target=target,
        training={
            "recipe": head.name,
            "recipe_digest": recipe.digest,
            "data_digest": inputs.digest,
            "answers": len(inputs.train),
            "answer_tokens": sum(len(answer.answer) for answer in inputs.train),
            "tokens_fed": "teacher_forced",
        },
    )


def feature_store(
    recipe: Recipe, backbone: Backbone, inputs: Inputs, folder: Path, source: Source | None = None
) -> FeatureStore:
    """The features of all answers, not computed yet; by the engine where no source is given."""
    head = recipe.head
    return FeatureStore(folder, backbone, inputs.answers, head.read_layers, head.taps, source)


def check_run(folder: Path, recipe: Recipe, inputs: Inputs) -> None:
    """Begin a run folder, or refuse to resume one of another recipe or other data."""
    wanted = {"recipe_digest": recipe.digest, "data_digest": inputs.digest}
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

    acceptance: drafts of full length, "f32" replayed in torch before quantisation, "int8" decoded
    in the runtime after it; None where no answer is held out.
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
    backbone = session.backbone
    config = head_config(recipe, backbone, inputs)
    if workers.first:
        check_run(run, recipe, inputs)
    torch.manual_seed(recipe.train.seed)
    torch.set_num_threads(backbone.threads)
    head = FrozenMtpHead(config)
    makers = _Makers(session, inputs, features, config.prompt_tokens)
    maker = makers(recipe.train.unroll, DTYPES[recipe.train.precision])
    new = workers.first and not (run / CHECKPOINT).is_file()
    if new and recipe.train.start == "backbone":
        start_from_backbone(head, config.kv_layers, backbone, maker, inputs.train)
    judged = trial_answers(inputs.heldout, recipe.measure)
    judge = None
    if judged:
        answers = [inputs.heldout[place] for place in judged]
        ids = inputs.vocabulary.token_ids
        judge = Judge(session, config, ids, answers, recipe.measure, run)
    counts = [anchor_count(len(a.prompt_tokens), len(a.answer)) for a in inputs.train]
    trainer = Trainer(head, recipe.train, maker, counts, run, workers)
    progress = trainer.run(judge, on_report)
    if not workers.first:
        return None
    kept = trainer.keep_best()
    config = replace(config, training={**config.training, **record(progress, kept, workers)})
    weights = numpy_weights(head)
    package = export(out, config, weights, inputs.vocabulary.token_ids)
    if judge is None:
        return Outcome(package, None)
    longest = recipe.measure.max_draft
    exact = makers(min(longest, config.longest_draft or longest), torch.float32)
    places = [[len(inputs.train) + place] for place in judged]
    before = replay(head, exact, places, False, recipe.measure.max_tokens)
    after = judge(head, min_confidence=0.0).stats
    return Outcome(package, {"f32": acceptance(before), "int8": acceptance(after)})


def record(progress: Progress, kept: Mapping[str, Any], workers: Workers) -> dict[str, object]:
    """What the package tells of its training. kept: the evaluation whose weights they are."""
    done: dict[str, object] = {
        "steps": progress.step, "minutes": round(progress.seconds / 60, 1),
        "anchors": progress.anchors, "processes": workers.size,
    }  # fmt: skip
    return {**done, "kept": dict(kept)} if kept else done
