"""Prompt files: JSON lines, plain or gzip.

A line has `id`, `task` and `prompt` or `messages`; `turns`, a list of texts, stands for the first
and the later things that the user says. Spec-Bench and MT-bench name these keys `question_id`,
`category` and `turns`; the eight categories of MT-bench are one task, as in Spec-Bench's tables.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from drafthead.errors import FileError, RequestError
from drafthead.evaluation.few_shot import few_shot_ends, few_shot_text
from drafthead.evaluation.metrics import ALL_TASKS
from drafthead.session import Session
from drafthead.text.template import check_messages

MT_BENCH = "mt_bench"
MT_BENCH_CATEGORIES = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)
SHAPES = (
    "`id`, `task` and one of `prompt`, `messages` and `turns`, or Spec-Bench's `question_id`, "
    "`category` and `turns`"
)


@dataclass(frozen=True)
class PromptRow:
    """One prompt to answer, as chat messages.

    lang: of the answer, where the file names it.  later: what the user says after the answers.
    """

    id: str
    task: str
    messages: tuple[Mapping[str, str], ...]
    lang: str | None = None
    later: tuple[str, ...] = ()


def parse_row(row: object, where: str) -> PromptRow:
    """Check one row; unknown keys are ignored.

    Raises:
        FileError: a key is missing or of another kind; `where` is in the message.
    """
    if not isinstance(row, dict):
        raise FileError(f"{where}: expected a JSON object, found {type(row).__name__}.")
    row = named(row, where)
    missing = [key for key in ("id", "task") if not _is_text(row.get(key))]
    if missing:
        raise FileError(f"{where}: {' and '.join(missing)} must be text.")
    if row["task"] == ALL_TASKS:
        raise FileError(f"{where}: all tasks together are called {ALL_TASKS}; name the task else.")
    messages = row.get("messages")
    later: list[str] = []
    if "turns" in row:
        first, *later = turns_of(row["turns"], where)
        messages = [{"role": "user", "content": first}]
    elif isinstance(row.get("prompt"), str):
        messages = [{"role": "user", "content": row["prompt"]}]
    if not isinstance(messages, list):
        raise FileError(f"{where}: needs a `prompt` text or a `messages` list of role and content.")
    try:
        check_messages(messages)
    except RequestError as error:
        raise FileError(f"{where}: {error}") from None
    if not all(_is_text(message["content"]) for message in messages):
        raise FileError(f"{where}: the text holds half of a surrogate pair; remove it.")
    lang = row.get("lang")
    if lang is not None and not _is_text(lang):
        raise FileError(f"{where}: lang must be text, found {type(lang).__name__}.")
    return PromptRow(row["id"], row["task"], tuple(messages), lang, tuple(later))


def named(row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The row with the names of its keys that are used here.

    Raises:
        FileError: neither these keys nor those of Spec-Bench are there.
    """
    if "id" in row or "task" in row:
        return row
    if "question_id" not in row or not _is_text(row.get("category")):
        keys = ", ".join(sorted(map(str, row))[:8]) or "none"
        raise FileError(f"{where}: this is no prompt: expected {SHAPES}, found the keys {keys}.")
    category = row["category"]
    task = MT_BENCH if category in MT_BENCH_CATEGORIES else category
    return {"id": str(row["question_id"]), "task": task, "turns": row.get("turns")}


def turns_of(turns: object, where: str) -> list[str]:
    """What the user says, turn by turn.

    Raises:
        FileError: it is not a list of texts with at least one.
    """
    if not isinstance(turns, list) or not turns or not all(map(_is_text, turns)):
        raise FileError(f"{where}: turns must be a list of one text or more.")
    return turns


def prompt_ids(session: Session, row: PromptRow) -> list[int]:
    """The tokens of a prompt; a base model, without a chat template, is shown examples first."""
    if session.template.exists:
        return session.encode(messages=row.messages)
    return session.encode(few_shot_text(row.task, row.messages), raw=True)


def end_ids(session: Session) -> frozenset[int]:
    """The tokens that end the answer to a prompt: end of sequence, a base model's next example."""
    if session.template.exists:
        return session.tokenizer.eos_ids
    return session.tokenizer.eos_ids | few_shot_ends(session.tokenizer)


def _is_text(value: object) -> bool:
    """Whether it is a string that can be written: JSON can hold half of a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_prompts(path: Path) -> Iterator[PromptRow]:
    """The rows of one file, in order.

    Raises:
        FileError: the file is missing or unreadable, or a line is not a prompt; the line is named.
    """
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _parse_line(line, f"{path.name}, line {number}")
    except FileNotFoundError as error:
        raise FileError(f"There is no prompt file {path}.") from error
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise FileError(f"{path} is not a file of JSON lines: {reason}.") from error


def _parse_line(line: str, where: str) -> PromptRow:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise FileError(f"{where}: not JSON: {reason}.") from error
    return parse_row(row, where)


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def select(
    rows: Iterable[PromptRow], tasks: Collection[str] = (), limit: int | None = None
) -> list[PromptRow]:
    """The first `limit` rows of each task, of the named tasks only where some are named.

    Raises:
        RequestError: nothing is left, a named task does not occur, or two prompts of a task have
            one id, by which answers are told apart.
    """
    taken: Counter[str] = Counter()
    chosen = []
    seen: set[str] = set()
    ids: set[tuple[str, str]] = set()
    for row in rows:
        seen.add(row.task)
        if (not tasks or row.task in tasks) and (limit is None or taken[row.task] < limit):
            if (row.task, row.id) in ids:
                raise RequestError(
                    f"Two prompts of the task {row.task} have the id {row.id!r}: give each its own."
                )
            ids.add((row.task, row.id))
            taken[row.task] += 1
            chosen.append(row)
    unknown = sorted(set(tasks) - seen)
    if unknown:
        raise RequestError(
            f"No prompt of task {', '.join(unknown)}; the tasks are {', '.join(sorted(seen))}."
        )
    if not chosen:
        raise RequestError("There are no prompts to answer.")
    return chosen
