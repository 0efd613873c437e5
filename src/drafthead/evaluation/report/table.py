"""The arms of a bench as the rows of one table: for the screen, for Markdown and for the page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from drafthead.evaluation.metrics import ALL_TASKS, PLAIN

COLUMNS = (
    ("task", "task"),
    ("drafter", "drafter"),
    ("prompts", "prompts"),
    ("tokens", "tokens"),
    ("tau", "τ"),
    ("acceptance", "accepted"),
    ("tok_s", "tok/s"),
    ("speedup_vs_plain", "speed-up"),
    ("ci95", "95 %"),
    ("identical", "identical"),
)


def interval_cell(ends: Sequence[float] | None) -> str:
    """An interval as its two ends; a dash where there is none."""
    return "-" if ends is None else f"{ends[0]:.2f}-{ends[1]:.2f}"


def arm_cell(arm: Mapping[str, Any], key: str) -> str:
    """One cell of an arm's row; reports of before have neither shares nor intervals."""
    if key == "ci95":
        return interval_cell(arm["speedup_vs_plain"].get(key))
    return cell(arm.get(key))


def cell(value: object) -> str:
    """One table cell: the median of a spread, numbers short, None as a dash."""
    if isinstance(value, Mapping):
        return cell(value["median"])
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"
    return str(value)


def arm_rows(arms: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The table's rows, the arms of one task together, "all" last."""
    tasks = list(dict.fromkeys(arm["task"] for arm in arms))
    ordered = sorted(arms, key=lambda arm: tasks.index(arm["task"]))
    return [[arm_cell(arm, key) for key, _ in COLUMNS] for arm in ordered]


def language_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """The same for each language that prompts name, in place of the task."""
    return arm_rows([line | {"task": line["lang"]} for line in report.get("languages", [])])


def all_arms(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The arms, and those of the peers under the peers' names.

    A peer was never promised to choose the same tokens; one that decodes plainly drafts nothing.
    Reports of before may have no peers.
    """
    peers = [
        arm | {"drafter": peer_arm(peer, arm), "identical": None}
        for peer in report.get("peers", [])
        for arm in peer["arms"]
    ]
    return [*report["arms"], *peers]


def peer_arm(peer: Mapping[str, Any], arm: Mapping[str, Any]) -> str:
    """The name of a peer's arm among all arms."""
    name = str(peer["name"])
    return name if arm["drafter"] == PLAIN else f"{name}+{arm['drafter']}"


def choice_lines(report: Mapping[str, Any]) -> list[str]:
    """For each arm that chooses between drafters: whose drafts were verified, and why."""
    lines = []
    for name, why in report.get("choices", {}).items():
        arm = next(x for x in report["arms"] if (x["drafter"], x["task"]) == (name, ALL_TASKS))
        drafts = sum(counts["drafts"] for counts in arm["sources"].values())
        shares = [
            f"{counts['drafts'] / drafts:.0%} of the drafts from {source}, "
            f"{counts['accepted']} of {counts['drafted']} tokens accepted"
            for source, counts in arm["sources"].items()
        ]
        lines.append(f"{name}: {'; '.join([*shares, why])}.")
    return lines


def peer_line(peer: Mapping[str, Any]) -> str:
    """One sentence on a peer: what it is and how it was built."""
    features = re.findall(r"(\w+) = 1", peer["build"])
    own = "".join(
        f" With {name} it gave {same['same_answers']} of {same['answers']} answers as without."
        for name, same in peer.get("agrees_with_own_plain", {}).items()
    )
    return (
        f"{peer['name']}: {peer['version']}, {peer['threads']} threads, built with "
        f"{', '.join(features) or peer['build']}; the same file, tokens and ends of an answer. Its "
        f"speed-up is over drafthead's plain decoding, and its tokens are its own.{own}"
    )


def energy_words(energy: Mapping[str, str | None] | None) -> str:
    """Where the joules come from, or why there are none."""
    if energy is None or energy["source"] is None:
        reason = "this report does not say why" if energy is None else energy["reason"]
        return f"Joules were not measured: {reason}."
    return f"Joules are from the source {energy['source']}."


def markdown_table(rows: Sequence[Sequence[str]], first: str = "task") -> str:
    """Rows of arms as a Markdown table, under the title of their first column."""
    titles = [first, *[title for _, title in COLUMNS[1:]]]
    lines = [titles, ["---"] * len(COLUMNS), *rows]
    escaped = [[re.sub(r"([|<>\\])", r"\\\1", word) for word in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)
