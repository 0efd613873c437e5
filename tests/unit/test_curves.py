"""Laws of the curves: what was reported is kept and drawn, whatever a resumed run repeats."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from drafthead.training.curves import PICTURE, ROWS, Curves, picture


def row(step, loss=2.0, accept_at=None):
    tau = None if accept_at is None else 1.5
    return {"step": step, "loss": loss, "tau": tau, "accept_at": accept_at or []}


def lines(text):
    """The corners of every curve, in thousandths of its panel, and what is written."""
    root = ElementTree.fromstring(text)
    tag = "{http://www.w3.org/2000/svg}"
    curves = []
    for axes in (g for g in root.iter(tag + "g") if g.get("id", "").startswith("curves-axes_")):
        frame = corners_of(axes.find(tag + "g").find(tag + "path"))
        (left, bottom), (right, top) = frame[0], frame[2]
        for line in (g for g in axes if g.get("id").startswith("curves-line2d_")):
            if (drawn := line.find(tag + "path")) is None:  # without points
                continue
            corners = corners_of(drawn)
            curves.append(
                [((x - left) / (right - left), (y - bottom) / (top - bottom)) for x, y in corners]
            )
    return curves, [text.text for text in root.iter(tag + "text")]


def corners_of(path):
    numbers = [float(word) for word in path.get("d").split() if word not in "MLz"]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_each_line_has_the_place_of_its_numbers_and_a_name():
    rows = [row(5, 4.0), row(10, 2.0, [0.5, 0.25]), row(20, 1.0, [1.0, 0.0])]
    corners, words = lines(picture(rows))
    assert {"loss, all draft steps", "step 1", "step 2"} <= set(words)
    top = 1.05
    expected = [
        [(0.25, 4 / 4 / top), (0.5, 2 / 4 / top), (1, 1 / 4 / top)],
        [(0.5, 0.5 / top), (1, 1 / top)],
        [(0.5, 0.25 / top), (1, 0)],
    ]
    assert len(corners) == len(expected)
    for found, meant in zip(corners, expected, strict=True):
        # The figure's numbers are written with six decimals.
        assert sum(found, ()) == pytest.approx(sum(meant, ()), abs=1e-6)


@pytest.mark.parametrize("rows", [[], [row(3)], [row(3, 0.0, [None])]])
def test_nothing_to_draw_is_an_empty_picture(rows):
    assert "accepted in the runtime, by draft step" in lines(picture(rows))[1]


def test_without_matplotlib_the_numbers_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("drafthead.training.curves.has_matplotlib", lambda: False)
    Curves(tmp_path, 0).add(row(1), True)
    assert (tmp_path / ROWS).is_file() and not (tmp_path / PICTURE).exists()


def test_one_who_resumes_forgets_what_lies_behind_the_checkpoint(tmp_path):
    curves = Curves(tmp_path, 0)
    for step in (1, 2, 3):
        curves.add(row(step), due=step == 2)
    drawn = tmp_path / PICTURE
    assert len(lines(drawn.read_text())[0][0]) == 2
    again = Curves(tmp_path, 2)
    again.add(row(3, 7.0), due=True)
    kept = [json.loads(line) for line in (tmp_path / ROWS).read_text().splitlines()]
    assert kept == [row(1), row(2), row(3, 7.0)]
    assert len(lines(drawn.read_text())[0][0]) == 3
