"""From single answers to the lines of a report: counts pooled first, divided once.

`speedup_vs_plain` is per prompt the drafter's decode speed over plain's in the same run, given as
median, p10 and p90 over the prompts; its `pooled` is total speed over total speed, that is total
tokens over total decode time of the one arm divided by that of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from drafthead.decoding.stats import accept_at, decode_tok_s, pool, tau
from drafthead.types import DecodeStats

PLAIN = "plain"
ALL_TASKS = "all"


@dataclass(frozen=True)
class Answer:
    """What one arm did with one prompt.

    cpu_s and joules are of the decode passes, prefill excluded.
    """

    drafter: str
    task: str
    prompt_id: str
    tokens: tuple[int, ...]
    finish_reason: str
    stats: DecodeStats
    ttft_ms: float
    cpu_s: float
    joules: float | None


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Median, p10 and p90; None where there are no values."""
    if not values:
        return {"median": None, "p10": None, "p90": None}
    p10, median, p90 = np.percentile(np.asarray(values, np.float64), [10, 50, 90])
    return {"median": round(median, 4), "p10": round(p10, 4), "p90": round(p90, 4)}


def arm_line(
    drafter: str, task: str, mine: Sequence[Answer], plain: Sequence[Answer]
) -> dict[str, object]:
    """One element of `arms`.

    Args:
        drafter: the arm's name.
        task: the task, or "all".
        mine: the arm's answers.
        plain: plain decoding's answers to the same prompts, in the same order; may be empty where
            the run had no such arm.
    """
    total = pool(answer.stats for answer in mine)
    joules = [answer.joules for answer in mine if answer.joules is not None]
    speeds = [speed for answer in mine if (speed := decode_tok_s(answer.stats)) is not None]
    return {
        "drafter": drafter,
        "task": task,
        "prompts": len({answer.prompt_id for answer in mine}),
        "tokens": sum(len(answer.tokens) for answer in mine),
        "looped": sum(answer.finish_reason == "looped" for answer in mine),
        "passes": total.passes,
        "drafted": total.drafted,
        "accepted": total.accepted,
        "dropped": total.dropped,
        "committed": total.committed,
        "tau": rounded(tau(total)),
        "accept_at": [rounded(rate) for rate in accept_at(total)],
        "sources": {name: asdict(counts) for name, counts in total.sources.items()},
        "tok_s": spread(speeds) | {"pooled": rounded(decode_tok_s(total))},
        "speedup_vs_plain": speedup(mine, plain),
        "ttft_ms": spread([answer.ttft_ms for answer in mine])["median"],
        "identical": identical(mine, plain),
        "cpu_s_per_token": per_token(sum(answer.cpu_s for answer in mine), total),
        "joules_per_token": per_token(sum(joules), total) if len(joules) == len(mine) else None,
    }


def speedup(mine: Sequence[Answer], plain: Sequence[Answer]) -> dict[str, float | None]:
    """Decode speed over plain's: over the prompts, and pooled."""
    pairs = [(decode_tok_s(a.stats), decode_tok_s(b.stats)) for a, b in zip(mine, plain)]  # noqa: B905
    ratios = [speed / base for speed, base in pairs if speed and base]
    pooled = [decode_tok_s(pool(answer.stats for answer in arm)) for arm in (mine, plain)]
    ratio = pooled[0] / pooled[1] if pooled[0] and pooled[1] else None
    return spread(ratios) | {"pooled": rounded(ratio)}


def identical(mine: Sequence[Answer], plain: Sequence[Answer]) -> bool | None:
    """Whether every answer has plain's tokens; None without a plain arm."""
    if not plain:
        return None
    return [answer.tokens for answer in mine] == [answer.tokens for answer in plain]


def per_token(amount: float, total: DecodeStats) -> float | None:
    """An amount spread over the tokens that verify passes committed."""
    return round(amount / total.committed, 6) if total.committed else None


def rounded(value: float | None, digits: int = 4) -> float | None:
    """The value, shortened for print; None stays None."""
    return None if value is None else round(value, digits)


def arm_lines(answers: Sequence[Answer]) -> list[dict[str, object]]:
    """The `arms` of a report: for each drafter its tasks in order of appearance, then "all"."""
    drafters = list(dict.fromkeys(answer.drafter for answer in answers))
    tasks = list(dict.fromkeys(answer.task for answer in answers))

    def of(drafter: str, task: str) -> list[Answer]:
        return [a for a in answers if a.drafter == drafter and task in (a.task, ALL_TASKS)]

    return [
        arm_line(drafter, task, of(drafter, task), of(PLAIN, task))
        for drafter in drafters
        for task in (*tasks, ALL_TASKS)
    ]
