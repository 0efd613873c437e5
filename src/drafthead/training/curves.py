"""The course of a training, written beside its checkpoint: numbers, and a picture of them.

    curves.jsonl   one line a report: step, loss, accuracy of each draft step, what was evaluated
    curves.svg     loss, and acceptance by draft step, over the steps; drawn at each evaluation

Lines differ by dashes and carry their names, so that they can be told apart without colours.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from drafthead.training.answers import write_atomic

ROWS, PICTURE = "curves.jsonl", "curves.svg"
WIDTH, HEIGHT = 640, 240  # of one panel
LEFT, RIGHT, TOP, BOTTOM = 60, 90, 30, 40
DASHES = ("none", "8 3", "2 3", "8 3 2 3", "14 4", "1 5")
TICKS, NAME_HEIGHT = 4, 14

Line = tuple[str, Sequence[tuple[float, float]]]


class Curves:
    """Grows with every report. One who resumes from a step forgets what lies behind it."""

    def __init__(self, folder: Path, step: int) -> None:
        self._folder = folder
        self.rows = [row for row in _read(folder / ROWS) if row["step"] <= step]

    def add(self, row: Mapping[str, Any], draw: bool) -> None:
        """Write one row more, and the picture of all where `draw`."""
        self.rows.append(dict(row))
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self._folder / ROWS, "".join(json.dumps(row) + "\n" for row in self.rows))
        if draw:
            write_atomic(self._folder / PICTURE, picture(self.rows))


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Two panels over the training steps, as SVG."""
    loss = [("loss", [(row["step"], row["loss"]) for row in rows])]
    judged = [row for row in rows if row["tau"] is not None]
    steps = max((len(row["accept_at"]) for row in judged), default=0)
    acceptance = [
        (f"step {place + 1}", [
            (row["step"], row["accept_at"][place]) for row in judged
            if place < len(row["accept_at"]) and row["accept_at"][place] is not None
        ])
        for place in range(steps)
    ]  # fmt: skip
    last = max((row["step"] for row in rows), default=1)
    top = max((row["loss"] for row in rows), default=1.0)
    panels = [
        panel("loss, all draft steps", loss, last, top, 0),
        panel("accepted in the runtime, by draft step", acceptance, last, 1.0, HEIGHT),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{2 * HEIGHT}" '
        'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{2 * HEIGHT}" fill="white"/>\n{"".join(panels)}</svg>\n'
    )


def panel(title: str, lines: Iterable[Line], last: float, top: float, offset: int) -> str:
    """One panel: x from 0 to `last`, y from 0 to `top`, `offset` pixels below the upper edge."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    wide, high = right - LEFT, bottom - TOP

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + wide * x / (last or 1), bottom - high * y / (top or 1)

    parts = [f'<text x="{LEFT}" y="{TOP - 12}" font-weight="bold">{title}</text>']
    for tick in range(TICKS + 1):
        x, y = at(last * tick / TICKS, top * tick / TICKS)
        parts += [
            f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * tick / TICKS:.2f}'
            "</text>",
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{last * tick / TICKS:.0f}'
            "</text>",
        ]
    parts.append(f'<text x="{right}" y="{bottom + 34}" text-anchor="end">training steps</text>')
    drawn = [(name, [at(x, y) for x, y in values]) for name, values in lines if values]
    names = apart([points[-1][1] for _, points in drawn])
    for place, ((name, points), name_y) in enumerate(zip(drawn, names, strict=True)):
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = DASHES[place % len(DASHES)]
        parts += [
            f'<polyline points="{joined}" fill="none" stroke="black" stroke-dasharray="{dashes}"/>',
            f'<text x="{points[-1][0] + 6:.1f}" y="{name_y + 4:.1f}">{name}</text>',
        ]
    return f'<g transform="translate(0 {offset})">\n' + "\n".join(parts) + "\n</g>\n"


def apart(heights: Sequence[float]) -> list[float]:
    """Where names are written whose lines end at these heights: one below the other, readable."""
    moved = dict.fromkeys(range(len(heights)), 0.0)
    above = float("-inf")
    for place in sorted(moved, key=lambda place: heights[place]):
        above = moved[place] = max(heights[place], above + NAME_HEIGHT)
    return list(moved.values())
