"""Prompt files: JSON lines, plain or gzip, with `id`, `task` and `prompt` or `messages`."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from drafthead.errors import FileError, RequestError


@dataclass(frozen=True)
class PromptRow:
    """One prompt to answer, as chat messages."""

    id: str
    task: str
    messages: tuple[Mapping[str, str], ...]


def parse_row(row: object, where: str) -> PromptRow:
    """Check one row; unknown keys are ignored.

    Raises:
        FileError: a key is missing or of another kind; `where` is in the message.
    """
    if not isinstance(row, dict):
        raise FileError(f"{where}: expected a JSON object, found {type(row).__name__}.")
    missing = [key for key in ("id", "task") if not isinstance(row.get(key), str)]
    if missing:
        raise FileError(f"{where}: {' and '.join(missing)} must be text.")
    prompt, messages = row.get("prompt"), row.get("messages")
    if isinstance(prompt, str):
        messages = [{"role": "user", "content": prompt}]
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise FileError(f"{where}: needs a `prompt` text or a `messages` list of role and content.")
    return PromptRow(row["id"], row["task"], tuple(messages))


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and all(
        isinstance(message.get(key), str) for key in ("role", "content")
    )


def read_prompts(path: Path) -> Iterator[PromptRow]:
    """The rows of one file, in order.

    Raises:
        FileError: the file is missing or unreadable, or a line is not a prompt; the line is named.
    """
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield parse_row(json.loads(line), f"{path.name}, line {number}")
    except FileNotFoundError as error:
        raise FileError(f"There is no prompt file {path}.") from error
    except (OSError, EOFError, ValueError) as error:
        raise FileError(f"{path.name} is not a file of JSON lines: {error}.") from error


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def select(
    rows: Iterable[PromptRow], tasks: Collection[str] = (), limit: int | None = None
) -> list[PromptRow]:
    """The first `limit` rows of each task, of the named tasks only where some are named.

    Raises:
        RequestError: nothing is left, or a named task does not occur.
    """
    taken: Counter[str] = Counter()
    chosen = []
    seen: set[str] = set()
    for row in rows:
        seen.add(row.task)
        if (not tasks or row.task in tasks) and (limit is None or taken[row.task] < limit):
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
