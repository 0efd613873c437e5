"""Which prompts a training is made of: distinct ones, in an order that only the seed decides."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence

from drafthead.errors import RequestError
from drafthead.evaluation.prompts import PromptRow, parse_row
from drafthead.tasks import TASKS, prompt_set


def built_in(tasks: Sequence[str], each: int, seed: int) -> list[PromptRow]:
    """The project's own prompts: `each` of the named tasks, or of all where none is named."""
    made = (row for task in tasks or TASKS for row in prompt_set(task, each, seed))
    return [parse_row(row, "built-in prompts") for row in made]


def digest(row: PromptRow) -> str:
    """Hash the conversation alone, to find duplicates."""
    pairs = [[message["role"], message["content"]] for message in row.messages]
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def choose(
    rows: Iterable[PromptRow], tasks: Sequence[str], limit: int | None, seed: int
) -> tuple[list[PromptRow], int]:
    """Choose distinct prompts, at most `limit` a task.

    A larger limit gives the same prompts and more behind them in each task, so that a run can be
    extended. Tasks alternate, so that a part of the list is balanced.

    Returns:
        The prompts, and how many duplicates were dropped.

    Raises:
        RequestError: nothing is left, a named task does not occur, or two prompts share an id.
    """
    by_task: dict[str, list[tuple[str, PromptRow]]] = defaultdict(list)
    seen: set[str] = set()
    ids: set[str] = set()
    total = 0
    for row in rows:
        if tasks and row.task not in tasks:
            continue
        total += 1
        key = digest(row)
        if key in seen:
            continue
        if row.id in ids:
            raise RequestError(f"Two different prompts have the id {row.id!r}.")
        seen.add(key)
        ids.add(row.id)
        rank = hashlib.sha256(f"{seed}:{key}".encode()).hexdigest()
        by_task[row.task].append((rank, row))
    missing = [task for task in tasks if task not in by_task]
    if missing:
        raise RequestError(f"The prompt files hold no prompt of task {missing[0]!r}.")
    if not by_task:
        raise RequestError("The prompt files hold no prompt.")
    ranked = []
    for task, members in by_task.items():
        members.sort(key=lambda member: member[0])
        ranked += [(place, task, row) for place, (_, row) in enumerate(members[:limit])]
    ranked.sort(key=lambda entry: entry[:2])
    return [row for _, _, row in ranked], total - len(seen)
