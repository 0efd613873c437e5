"""The answers of a training that was given none: the backbone answers the built-in prompts.

What training reads, states, keys and values, is kept on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from drafthead.evaluation.prompts import PromptRow, prompt_ids
from drafthead.session import Session
from drafthead.tasks import TASKS
from drafthead.training.answers import Answer, AnswerStore
from drafthead.training.features import FeatureFiles, FeatureSizes
from drafthead.training.prompts import built_in, choose
from drafthead.training.recipe import Recipe
from drafthead.training.regen import RegenCounts, RegenSettings, regenerate, session_regenerator


def built_in_prompts(count: int, seed: int) -> list[PromptRow]:
    """So many prompts of all tasks in turn, about the same number of each."""
    each = -(-count // len(TASKS))
    return choose(built_in([], each, seed), [], None, seed)[0][:count]


def unseen_prompts(
    session: Session, per_task: int, seed: int, answers: Iterable[Answer]
) -> list[PromptRow]:
    """Built-in prompts to measure on, none of them answered before."""
    known = {answer.prompt_tokens for answer in answers}
    left = dict.fromkeys(TASKS, per_task)
    rows = []
    for row in built_in_prompts(4 * per_task * len(TASKS), seed):
        if left[row.task] and tuple(prompt_ids(session, row)) not in known:
            left[row.task] -= 1
            rows.append(row)
    return rows


def complete(folder: Path) -> bool:
    """Whether a folder of answers has been finished."""
    manifest = AnswerStore(folder).manifest()
    return manifest is not None and manifest.get("complete") is True


def answer_prompts(
    session: Session, recipe: Recipe, prompts: Sequence[PromptRow], out: Path, features: Path,
    on_answer: Callable[[Answer, RegenCounts], None] = lambda _answer, _counts: None,
) -> None:  # fmt: skip
    """Fill a folder of answers and the features of them; what was stopped goes on."""
    settings = RegenSettings(max_tokens=recipe.answers.max_tokens, seed=recipe.train.seed)
    sizes = FeatureSizes.of(session.backbone)
    kept = FeatureFiles(features, sizes, recipe.head.read_layers, recipe.head.taps)
    worker = session_regenerator(session, settings, features=kept)
    regenerate(worker, prompts, out, settings, on_answer)
