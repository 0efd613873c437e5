"""One answer of each task, as each arm gave it: which pieces were drafted, and in which pass."""

from __future__ import annotations

from collections.abc import Sequence

from drafthead.evaluation.metrics import Answer
from drafthead.evaluation.prompts import PromptRow


def sample_section(answers: Sequence[Answer], rows: Sequence[PromptRow]) -> list[dict[str, object]]:
    """The `samples` of a report: of the answers that kept their events, task by task.

    `pieces` are `[text, drafted and accepted, pass]`, one for each token; pass 0 is the prompt's.
    They hold text of the prompts: mind their licence before you pass them on.
    """
    asked = {(row.task, row.id): row.messages[-1]["content"] for row in reversed(rows)}
    tasks = list(dict.fromkeys(row.task for row in rows))
    shown = sorted((a for a in answers if a.events), key=lambda answer: tasks.index(answer.task))
    return [
        {
            "task": answer.task,
            "id": answer.prompt_id,
            "drafter": answer.drafter,
            "prompt": asked[answer.task, answer.prompt_id],
            "pieces": [[event.text, event.drafted, event.pass_index] for event in answer.events],
        }
        for answer in shown
    ]
