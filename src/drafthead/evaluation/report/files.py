"""The files of a report: bench.json, bench.md and bench.html in one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafthead.evaluation.report.page import page
from drafthead.evaluation.report.table import (
    all_arms,
    arm_rows,
    choice_lines,
    energy_words,
    language_rows,
    markdown_table,
    peer_line,
)


def write_report(report: Mapping[str, Any], folder: Path) -> None:
    """Write the three files into a folder, which is made where missing.

    Raises:
        UnsupportedError: matplotlib is not installed; the JSON and the table are there even so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1) + "\n"
    (folder / "bench.json").write_text(text, encoding="utf-8")
    (folder / "bench.md").write_text(markdown(report), encoding="utf-8")
    (folder / "bench.html").write_text(page(report), encoding="utf-8")


def markdown(report: Mapping[str, Any]) -> str:
    """What was measured on what, the table, and lines on choosing drafters, peers and joules."""
    machine = report["machine"]
    head = (
        f"Measured by `drafthead bench` {report['drafthead']} on {machine['cpu']}, "
        f"{machine['threads']} threads, {machine['isa']}; backbone {report['backbone']['name']}. "
        "Greedy decoding; medians over the prompts of one run with the arms interleaved, and 95 % "
        "intervals of the median speed-up (bootstrap over prompts).\n\n"
    )
    notes = [*choice_lines(report), *map(peer_line, report["peers"])]
    notes.append(energy_words(report["energy"]))
    tables = markdown_table(arm_rows(all_arms(report)))
    if languages := language_rows(report):
        tables += "\n" + markdown_table(languages, "language")
    return head + tables + "".join(f"\n{note}\n" for note in notes)
