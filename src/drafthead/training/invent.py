"""Prompts that the backbone invents itself: its chat template's user turn, opened and let run.

A chat model whose template is cut where the user would speak says what its users said in training
(Magpie, arXiv 2406.08464). Its end of turn ends the prompt. Each is sampled by numbers of its own,
so that the same seed gives the same prompts and a longer list begins with a shorter one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from drafthead.errors import RequestError
from drafthead.evaluation.prompts import PromptRow
from drafthead.session import Session
from drafthead.text.template import encode_opened_turn
from drafthead.training.answers import Answer, AnswerStore, write_atomic
from drafthead.training.regen import RegenCounts, Regenerator, RegenSettings, regenerate

TASK = "invented"
FOLDER = "invented"
LONGEST_TOKENS = 192


def opened_turn(session: Session) -> list[int]:
    """The tokens of a chat up to where its user begins to speak.

    Raises:
        RequestError: a base model, which has no chat template.
    """
    if not session.template.exists:
        raise RequestError(
            f"{session.backbone.name} is a base model without a chat template: it has no user turn "
            "to invent prompts in; give --prompts instead of --invent."
        )
    return encode_opened_turn(session.tokenizer, session.template)


def invent(
    session: Session,
    out: Path,
    count: int,
    seed: int,
    temperature: float,
    sequences: int,
    on_answer: Callable[[Answer, RegenCounts], None] = lambda _answer, _counts: None,
) -> list[PromptRow]:
    """Let the backbone invent `count` prompts, in the folder `invented` of `out`; resumes.

    Those that do not end, begin to loop, are empty or hold control tokens are left out; they stay
    in the folder.

    Raises:
        RequestError: a base model.
        TrainingError: the folder belongs to another backbone or other settings.
    """
    turn = opened_turn(session)
    settings = RegenSettings(
        LONGEST_TOKENS, len(turn) + LONGEST_TOKENS, seed=seed, temperature=temperature, sampled=1.0
    )
    # Each is asked for by its number alone, which is what its random numbers come from.
    names = [f"{TASK}-{seed}-{index:06d}" for index in range(count)]
    asked = [PromptRow(name, TASK, ({"role": "user", "content": name},)) for name in names]
    worker = Regenerator(
        session.backbone, lambda _: turn, session.tokenizer.eos_ids, settings, sequences
    )
    regenerate(worker, asked, out / FOLDER, settings, on_answer)
    wanted = set(names)
    rows = [row for row in AnswerStore(out / FOLDER).rows() if row.id in wanted]
    return [prompt for row in rows if (prompt := as_prompt(session, row)) is not None]


def as_prompt(session: Session, row: Answer) -> PromptRow | None:
    """The prompt that an invented turn makes, or None."""
    said = row.answer[:-1]
    if row.finish != "stop" or session.tokenizer.control_ids.intersection(said):
        return None
    text = session.tokenizer.decode(said).strip()
    if not text or "\ufffd" in text:
        return None
    return PromptRow(row.id, TASK, ({"role": "user", "content": text},))


def write_prompts(path: Path, prompts: Iterable[PromptRow]) -> None:
    """Write prompts as a prompt file, which `--prompts` reads."""
    rows = ({"id": p.id, "task": p.task, "messages": list(p.messages)} for p in prompts)
    write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
