"""What a folder of answers holds, altogether, by task, and by language where rows name theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from drafthead.training.answers import Answer

COUNTS = ("answers", "answer_tokens", "prompt_tokens", "truncated", "looped", "sampled")


def _count(counts: Counter[str], row: Answer) -> None:
    counts["answers"] += 1
    counts["answer_tokens"] += len(row.answer)
    counts["prompt_tokens"] += len(row.prompt_tokens)
    counts["truncated"] += row.finish == "length"
    counts["looped"] += row.finish == "looped"
    counts["sampled"] += row.temperature > 0


def tally(rows: Iterable[Answer]) -> dict[str, object]:
    """Count answers; the keys of COUNTS, and `tasks` and `languages` with the same keys each."""
    total = Counter[str]()
    tasks: dict[str, Counter[str]] = {}
    languages: dict[str, Counter[str]] = {}
    for row in rows:
        _count(total, row)
        _count(tasks.setdefault(row.task, Counter()), row)
        if row.lang is not None:
            _count(languages.setdefault(row.lang, Counter()), row)

    def written(counts: Counter[str]) -> dict[str, int]:
        return {name: counts[name] for name in COUNTS}

    return {
        **written(total),
        "tasks": {name: written(counts) for name, counts in sorted(tasks.items())},
        "languages": {name: written(counts) for name, counts in sorted(languages.items())},
    }
