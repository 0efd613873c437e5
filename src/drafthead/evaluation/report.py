"""A bench as files: bench.json, and its arms as one Markdown table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLUMNS = (
    ("task", "task"),
    ("drafter", "drafter"),
    ("prompts", "prompts"),
    ("tokens", "tokens"),
    ("tau", "τ"),
    ("tok_s", "tok/s"),
    ("speedup_vs_plain", "speed-up"),
    ("identical", "identical"),
)


def cell(value: object) -> str:
    """One table cell: the median of a spread, numbers short, None as a dash."""
    if isinstance(value, Mapping):
        return cell(value["median"])
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def arm_rows(arms: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The table's rows, the arms of one task together, "all" last."""
    tasks = list(dict.fromkeys(arm["task"] for arm in arms))
    ordered = sorted(arms, key=lambda arm: tasks.index(arm["task"]))
    return [[cell(arm[key]) for key, _ in COLUMNS] for arm in ordered]


def all_arms(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The arms, and those of the peers under the peers' names.

    A peer drafted nothing, and was never promised to choose the same tokens.
    """
    peers = [
        {"tau": None} | arm | {"drafter": peer["name"], "identical": None}
        for peer in report["peers"]
        for arm in peer["arms"]
    ]
    return [*report["arms"], *peers]


def peer_line(peer: Mapping[str, Any]) -> str:
    """One sentence on a peer: what it is and how it was built."""
    features = re.findall(r"(\w+) = 1", peer["build"])
    return (
        f"{peer['name']}: {peer['version']}, {peer['threads']} threads, built with "
        f"{', '.join(features) or peer['build']}; its speed-up is over drafthead's plain decoding."
    )


def markdown_table(arms: Sequence[Mapping[str, Any]]) -> str:
    """The arms as a Markdown table."""
    lines = [[title for _, title in COLUMNS], ["---"] * len(COLUMNS), *arm_rows(arms)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_report(report: Mapping[str, Any], folder: Path) -> None:
    """Write bench.json and bench.md into a folder, which is made where missing."""
    machine = report["machine"]
    head = (
        f"Measured by `drafthead bench` {report['drafthead']} on {machine['cpu']}, "
        f"{machine['threads']} threads, {machine['isa']}; backbone {report['backbone']['name']}. "
        "Greedy decoding; medians over the prompts of one run with the arms interleaved.\n\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    text = head + markdown_table(all_arms(report))
    text += "".join(f"\n{peer_line(peer)}\n" for peer in report["peers"])
    (folder / "bench.md").write_text(text, encoding="utf-8")
