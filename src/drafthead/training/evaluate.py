"""The last word on a head: prompts decoded in the runtime beside plain decoding, not replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from drafthead.drafters.base import Drafter, NoDrafter
from drafthead.drafters.mtp import MtpDrafter
from drafthead.evaluation.metrics import Answer, arm_lines
from drafthead.evaluation.prompts import PromptRow
from drafthead.evaluation.runner import run_arms
from drafthead.heads.package import HeadPackage
from drafthead.session import Session
from drafthead.training.recipe import MeasureRecipe


def measure(
    session: Session,
    package: HeadPackage,
    rows: Sequence[PromptRow],
    recipe: MeasureRecipe,
    on_answer: Callable[[Answer], None] = lambda _answer: None,
) -> list[dict[str, object]]:
    """Decode prompts with a head and plainly; see `compare`."""
    drafter = MtpDrafter(
        package.build(session.backbone),
        recipe.max_draft,
        package.config.min_confidence,
        package.config.calibration,
    )
    return compare(session, drafter, rows, recipe, on_answer)


def compare(
    session: Session,
    drafter: Drafter,
    rows: Sequence[PromptRow],
    recipe: MeasureRecipe,
    on_answer: Callable[[Answer], None] = lambda _answer: None,
) -> list[dict[str, object]]:
    """Decode prompts drafting and plainly, loops cut; the lines of `bench`, by arm and task."""
    arms = {"plain": session.using(NoDrafter()), drafter.name: session.using(drafter)}
    return arm_lines(run_arms(arms, rows, recipe.max_tokens, on_answer=on_answer))
