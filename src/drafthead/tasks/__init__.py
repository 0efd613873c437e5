"""The on-device tasks: how a prompt is worded, and a built-in set of prompts for each.

The built-in prompts are filled from slots by a seed, so that demos, recipes and tests need no
outside data. They are dedicated to the public domain (CC0-1.0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from drafthead.errors import RequestError
from drafthead.tasks import notif_summary, proofread, smart_reply
from drafthead.tasks.slots import Slots


@dataclass(frozen=True)
class Task:
    """One kind of request: its name in prompt files, its title, and a maker of prompts."""

    name: str
    title: str
    prompt: Callable[[Slots], str]


TASKS = {
    task.name: task
    for task in (
        Task("notif_summary", "notification summary", notif_summary.prompt),
        Task("proofread", "proofread", proofread.prompt),
        Task("smart_reply", "smart reply", smart_reply.prompt),
    )
}


def prompt_set(task: str, count: int, seed: int = 0) -> list[dict[str, str]]:
    """`count` different prompts of a task: rows with `id`, `task` and `prompt`.

    The same task and seed give the same rows, and a longer set starts with a shorter one.

    Raises:
        RequestError: there is no such task.
    """
    if task not in TASKS:
        raise RequestError(f"There is no task {task!r}; the tasks are {', '.join(TASKS)}.")
    slots = Slots(Random(f"{task}/{seed}"))
    prompts: dict[str, None] = {}
    while len(prompts) < count:
        prompts[TASKS[task].prompt(slots)] = None
    return [
        {"id": f"built-in-{task}-{seed}-{index:05d}", "task": task, "prompt": prompt}
        for index, prompt in enumerate(prompts)
    ]
