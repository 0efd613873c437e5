"""The course of a training, written beside its checkpoint: numbers, and a picture of them.

curves.jsonl   one line a report: step, loss, accuracy of each draft step, what was evaluated
curves.svg     loss, and acceptance by draft step, over the steps; drawn at each evaluation,
               where matplotlib is installed
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drafthead.evaluation.report.drawing import DASHES, MARKERS, draw, has_matplotlib, nth
from drafthead.training.answers import write_atomic

ROWS, PICTURE = "curves.jsonl", "curves.svg"
WIDTH, HEIGHT = 640, 480


class Curves:
    """Grows with every report. One who resumes from a step forgets what lies behind it."""

    def __init__(self, folder: Path, step: int) -> None:
        self._folder = folder
        self.rows = [row for row in _read(folder / ROWS) if row["step"] <= step]

    def add(self, row: Mapping[str, Any], due: bool) -> None:
        """Write one row more, and the picture of all where `due`."""
        self.rows.append(dict(row))
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self._folder / ROWS, "".join(json.dumps(row) + "\n" for row in self.rows))
        if due and has_matplotlib():
            write_atomic(self._folder / PICTURE, picture(self.rows))


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Two panels over the training steps, as SVG: loss, and acceptance by draft step."""
    judged = [row for row in rows if row["tau"] is not None]
    steps = max((len(row["accept_at"]) for row in judged), default=0)

    def paint(panels: list[Any]) -> None:
        loss, accepted = panels
        loss.plot([row["step"] for row in rows], [row["loss"] for row in rows], color="black")
        loss.set_title("loss, all draft steps")
        for place in range(steps):
            line = [(row["step"], rate) for row in judged if (rate := at(row, place)) is not None]
            accepted.plot(
                *zip(*line, strict=True), color="black", markersize=4, label=f"step {place + 1}",
                linestyle=nth(DASHES, place), marker=nth(MARKERS, place),
            )  # fmt: skip
        accepted.set_title("accepted in the runtime, by draft step")
        accepted.set_xlabel("training steps")
        for panel, top in ((loss, max((row["loss"] for row in rows), default=1.0)), (accepted, 1)):
            panel.set_xlim(0, max((row["step"] for row in rows), default=1))
            panel.set_ylim(0, 1.05 * (top or 1))
            panel.grid(axis="y")
        if accepted.lines:
            accepted.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)

    return draw("curves", WIDTH, HEIGHT, paint, panels=2)


def at(row: Mapping[str, Any], place: int) -> float | None:
    """The acceptance of one draft step, None where nothing was drafted that far."""
    rates = row["accept_at"]
    return rates[place] if place < len(rates) else None
