"""One self-contained HTML page of a bench: no network, no script, every number from the JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from drafthead.evaluation.metrics import ALL_TASKS, PLAIN
from drafthead.evaluation.report import plots
from drafthead.evaluation.report.table import (
    COLUMNS,
    all_arms,
    arm_rows,
    cell,
    choice_lines,
    energy_words,
    interval_cell,
    language_rows,
    peer_line,
)

TEMPLATE = Path(__file__).with_name("page.html")
HEADLINE = ("drafter", "speedup_vs_plain", "ci95", "tok_s", "tau", "acceptance")
DETAILS = (
    ("drafter", "drafter"),
    ("prompts", "prompts"),
    ("tokens", "tokens"),
    ("looped", "looped"),
    ("passes", "passes"),
    ("drafted", "drafted"),
    ("accepted", "accepted"),
    ("tau", "τ"),
    ("tok_s", "tok/s"),
    ("ttft_ms", "first token ms"),
    ("cpu_ms_per_token", "CPU ms a token"),
    ("joules_per_token", "J a token"),
)
# Behind these a name may go on in the next line.
JOINTS = re.compile(r"(?<=[+:_=/])")


class Piece(NamedTuple):
    """A run of text of one pass that was drafted, or was not."""

    text: str
    drafted: bool


def page(report: Mapping[str, Any]) -> str:
    """The page.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    arms = all_arms(report)
    keys = [key for key, _ in COLUMNS]
    place = [keys.index(key) for key in HEADLINE]
    rows = {
        task: [[row[index] for index in place] for row in arm_rows(arms) if row[0] == task]
        for task in plots.tasks_of(report)
    }
    speed = [plots.speedups(report, task) for task in plots.tasks_of(report)]
    return template().render(
        report=report,
        headline=[COLUMNS[index][1] for index in place],
        all_rows=rows.pop(ALL_TASKS),
        task_rows={plots.title_of(task): found for task, found in rows.items()},
        details=[title for _, title in DETAILS],
        detail_rows={
            plots.title_of(task): [detail_row(arm) for arm in arms if arm["task"] == task]
            for task in plots.tasks_of(report)
        },
        languages=[[row[0], *[row[index] for index in place]] for row in language_rows(report)],
        notes=[*choice_lines(report), *map(peer_line, report["peers"])],
        means=mean_rows(report.get("task_means", {})),
        speed=[figure for figure in speed if figure is not None],
        acceptance=plots.acceptance(report),
        cost=plots.cost(report),
        memory=plots.memory(report),
        memory_rows=memory_rows(report["memory"]),
        identical=identical_words(report["arms"]),
        energy=energy_words(report.get("energy")),
        samples=samples(report.get("samples", [])),
    )


@cache
def template() -> Template:
    """The page's frame; every text put into it is escaped, the figures excepted."""
    # An unknown name is an error and no empty place.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["breakable"] = breakable
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def breakable(text: str) -> Markup:
    """A name that may be broken at its joints and nowhere else."""
    return Markup("<wbr>").join(JOINTS.split(text))


def detail_row(arm: Mapping[str, Any]) -> list[str]:
    """The counts and times of one arm and task."""
    seconds = arm["cpu_s_per_token"]
    values = {**arm, "cpu_ms_per_token": None if seconds is None else 1000 * seconds}
    return [
        grouped(value) if isinstance(value := values.get(key), int) else cell(value)
        for key, _ in DETAILS
    ]


def identical_words(arms: Sequence[Mapping[str, Any]]) -> str:
    """Whether the drafters gave plain decoding's tokens, and which did not."""
    drafting = [arm for arm in arms if arm["drafter"] != PLAIN and arm["task"] == ALL_TASKS]
    others = ", ".join(arm["drafter"] for arm in drafting if arm["identical"] is False)
    if others:
        return f"NOT the tokens of plain decoding: {others}. This is a fault; please report it."
    if not any(arm["identical"] for arm in drafting):
        return "Nothing was compared with the tokens of plain decoding."
    return "Every drafter gave the tokens of plain decoding, every one."


def mean_rows(means: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[list[str]]:
    """Drafter, what it is compared with, the mean ratio and its interval.

    The first drafter against all, the others against plain decoding.
    """
    return [
        [name, other, cell(ratio["mean"]), interval_cell(ratio["ci95"])]
        for place, (name, others) in enumerate(means.items())
        for other, ratio in others.items()
        if place == 0 or other == PLAIN
    ]


def memory_rows(section: Mapping[str, Any]) -> list[list[str]]:
    """Part, weights, embedding table, keys and values a token, and peak, in bytes."""
    keys = ("weights_bytes", "embedding_bytes", "kv_bytes_per_token", "peak_bytes")
    backbone = {
        "weights_bytes": section["backbone_bytes"],
        "embedding_bytes": section.get("embedding_bytes"),
        "kv_bytes_per_token": section["kv_bytes_per_token"],
    }
    parts = {"backbone": backbone, **section["drafters"]}
    return [[name, *[grouped(use.get(key)) for key in keys]] for name, use in parts.items()]


def grouped(count: int | None) -> str:
    """A count with its thousands apart, or a dash."""
    return "-" if count is None else f"{count:,}"


def samples(section: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One a task: its prompt, and each drafter's answer as passes of runs of text."""
    return [
        {
            "task": plots.title_of(task),
            "prompt": answers[0]["prompt"],
            "answers": [
                {"drafter": answer["drafter"], "passes": passes(answer["pieces"])}
                for answer in answers
                if answer["drafter"] != PLAIN or len(answers) == 1
            ],
        }
        for task, group in groupby(section, key=lambda answer: answer["task"])
        for answers in [list(group)]
    ]


def passes(pieces: list[list[Any]]) -> list[list[Piece]]:
    """The pieces pass by pass, neighbours of one kind joined."""
    return [
        [
            Piece("".join(text for text, _, _ in run), drafted)
            for drafted, run in groupby(group, key=lambda piece: bool(piece[1]))
        ]
        for _, group in groupby(pieces, key=lambda piece: piece[2])
    ]
