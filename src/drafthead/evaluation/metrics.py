"""From single answers to the lines of a report: counts pooled first, divided once.

`speedup_vs_plain` is per prompt the drafter's decode speed over plain's in the same run, given as
median, p10 and p90 over the prompts; its `pooled` is total speed over total speed, that is total
tokens over total decode time of the one arm divided by that of the other. `ci95` and `pooled_ci95`
are their 95 % intervals (bootstrap.py), null for fewer than two prompts. `speedup_vs` has the same
against every other drafter of the run, `task_means` the mean over tasks of pooled ratios,
`languages` lines as those of `arms` for the prompts that name the language of their answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from drafthead.decoding.stats import accept_at, decode_tok_s, pool, tau
from drafthead.evaluation.bootstrap import (
    Pairs,
    median_interval,
    pooled_interval,
    task_mean_interval,
)
from drafthead.types import DecodeStats, TokenEvent

PLAIN = "plain"
ALL_TASKS = "all"


@dataclass(frozen=True)
class Answer:
    """What one arm did with one prompt.

    cpu_s and joules are of the decode passes, prefill excluded. events: the tokens with their text
    and whether they were drafted, kept of the answers that a report shows.
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
    events: tuple[TokenEvent, ...] = ()


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
        "prompts": len({(answer.task, answer.prompt_id) for answer in mine}),
        "tokens": sum(len(answer.tokens) for answer in mine),
        "looped": sum(answer.finish_reason == "looped" for answer in mine),
        "passes": total.passes,
        "drafted": total.drafted,
        "accepted": total.accepted,
        "dropped": total.dropped,
        "rested": total.rested,
        "cut": total.cut,
        "committed": total.committed,
        "tau": rounded(tau(total)),
        "acceptance": rounded(total.accepted / total.drafted if total.drafted else None),
        "accept_at": [rounded(rate) for rate in accept_at(total)],
        "calibration_error": rounded(total.reliability.error),
        "sources": {name: asdict(counts) for name, counts in total.sources.items()},
        "tested_at": total.tested_at,
        "accepted_at": total.accepted_at,
        "tok_s": spread(speeds) | {"pooled": rounded(decode_tok_s(total))},
        "speedup_vs_plain": speedup(mine, plain),
        "ttft_ms": spread([answer.ttft_ms for answer in mine])["median"],
        "identical": identical(mine, plain),
        "cpu_s_per_token": per_token(sum(answer.cpu_s for answer in mine), total),
        "joules_per_token": per_token(sum(joules), total) if len(joules) == len(mine) else None,
    }


def speedup(mine: Sequence[Answer], base: Sequence[Answer]) -> dict[str, object]:
    """Decode speed over another arm's: over the prompts, and pooled."""
    pairs = [(decode_tok_s(a.stats), decode_tok_s(b.stats)) for a, b in zip(mine, base)]  # noqa: B905
    ratios = [speed / base for speed, base in pairs if speed and base]
    paired = paired_counts(mine, base)
    return spread(ratios) | {
        "pooled": rounded(pooled_ratio(mine, base)),
        "ci95": median_interval(paired),
        "pooled_ci95": pooled_interval(paired),
    }


def pooled_ratio(mine: Sequence[Answer], base: Sequence[Answer]) -> float | None:
    """Total speed over total speed; None where an arm has none."""
    speeds = [decode_tok_s(pool(answer.stats for answer in arm)) for arm in (mine, base)]
    return speeds[0] / speeds[1] if speeds[0] and speeds[1] else None


def paired_counts(mine: Sequence[Answer], base: Sequence[Answer]) -> Pairs:
    """What is drawn from: both arms' tokens and times of each prompt; nothing without a base."""
    both = list(zip(mine, base)) if base else []  # noqa: B905
    counts = [(a.stats, b.stats) for a, b in both]
    return Pairs.of(
        [f"{a.task}\0{a.prompt_id}" for a, _ in both],
        [(a.committed, a.decode_ms, b.committed, b.decode_ms) for a, b in counts],
    )


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
    drafters, tasks = names_of(answers)

    def of(drafter: str, task: str) -> list[Answer]:
        return [a for a in answers if a.drafter == drafter and task in (a.task, ALL_TASKS)]

    return [
        arm_line(drafter, task, of(drafter, task), of(PLAIN, task))
        | {
            "speedup_vs": {
                other: speedup(of(drafter, task), of(other, task))
                for other in drafters
                if PLAIN not in (drafter, other) and other != drafter
            }
        }
        for drafter in drafters
        for task in (*tasks, ALL_TASKS)
    ]


def language_lines(
    answers: Sequence[Answer], languages: Mapping[tuple[str, str], str | None]
) -> list[dict[str, object]]:
    """A line for each drafter and each language, all tasks together; a head is of its data's.

    Args:
        answers: of all arms.
        languages: of the answer to each prompt, by its task and id, where it is named.
    """
    spoken = list(dict.fromkeys(lang for lang in languages.values() if lang is not None))

    def of(drafter: str, lang: str) -> list[Answer]:
        mine = (a for a in answers if a.drafter == drafter)
        return [a for a in mine if languages.get((a.task, a.prompt_id)) == lang]

    return [
        arm_line(drafter, ALL_TASKS, of(drafter, lang), of(PLAIN, lang)) | {"lang": lang}
        for drafter in names_of(answers)[0]
        for lang in spoken
    ]


def names_of(answers: Sequence[Answer]) -> tuple[list[str], list[str]]:
    """The drafters and the tasks, each in order of appearance."""
    drafters = list(dict.fromkeys(answer.drafter for answer in answers))
    return drafters, list(dict.fromkeys(answer.task for answer in answers))


def task_means(answers: Sequence[Answer]) -> dict[str, dict[str, dict[str, object]]]:
    """For each drafter and each other: the mean over tasks of pooled speed over speed.

    Every task weighs the same, however long its answers are. `{drafter: {other: {"mean", "ci95"}}}`
    with plain decoding among the others; nothing where the run has one arm.
    """
    drafters, tasks = names_of(answers)
    by_arm = {
        name: [[a for a in answers if (a.drafter, a.task) == (name, task)] for task in tasks]
        for name in drafters
    }
    return {
        name: {
            other: mean_ratio(by_arm[name], by_arm[other]) for other in drafters if other != name
        }
        for name in drafters
        if name != PLAIN
    }


def mean_ratio(
    mine: Sequence[Sequence[Answer]], base: Sequence[Sequence[Answer]]
) -> dict[str, object]:
    """One ratio of `task_means`: None where a task has no speed to divide."""
    ratios = [pooled_ratio(a, b) for a, b in zip(mine, base, strict=True)]
    sound = [ratio for ratio in ratios if ratio is not None]
    mean = sum(sound) / len(sound) if len(sound) == len(ratios) and sound else None
    pairs = [paired_counts(a, b) for a, b in zip(mine, base, strict=True)]
    return {"mean": rounded(mean), "ci95": None if mean is None else task_mean_interval(pairs)}
