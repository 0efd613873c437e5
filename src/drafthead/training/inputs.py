"""The answers of a training, read, split, and the draft vocabulary that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from drafthead.errors import TrainingError
from drafthead.evaluation.prompts import end_ids
from drafthead.session import Session
from drafthead.training.answers import Answer, AnswerStore
from drafthead.training.data import DraftVocabulary, data_digest, select_vocabulary, split
from drafthead.training.recipe import Recipe

if TYPE_CHECKING:
    from drafthead.training.start_head import StartHead


@dataclass(frozen=True)
class Inputs:
    """The answers of a training, split, with the draft vocabulary that follows from them.

    start: the head that the training goes on from, whose vocabulary it is then.
    """

    train: list[Answer]
    heldout: list[Answer]
    vocabulary: DraftVocabulary
    digest: str
    start: StartHead | None = None

    @property
    def answers(self) -> list[Answer]:
        """All of them, held-out ones last."""
        return [*self.train, *self.heldout]


def read_inputs(
    recipe: Recipe, folder: Path, session: Session, start: StartHead | None = None
) -> Inputs:
    """Read the answers of a folder by the session's backbone and choose the draft vocabulary.

    start: the head that the training goes on from; its draft vocabulary is kept as it is.

    Raises:
        TrainingError: no answers, or answers of another backbone.
    """
    store, backbone = AnswerStore(folder), session.backbone
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
    size = backbone.spec.vocab_size
    if start is not None:
        vocabulary = DraftVocabulary(start.token_ids, size)
    else:
        vocabulary = select_vocabulary(
            train, end_ids(session), size, recipe.head.draft_vocab, recipe.head.vocabulary
        )
    return Inputs(train, heldout, vocabulary, data_digest(answers), start)
