"""Laws of the curves: what was reported is kept and drawn, whatever a resumed run repeats."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from drafthead.training.curves import PICTURE, ROWS, Curves, apart, picture


def row(step, loss=2.0, accept_at=None):
    tau = None if accept_at is None else 1.5
    return {"step": step, "loss": loss, "tau": tau, "accept_at": accept_at or []}


def lines(text):
    """The corners of every curve, and what is written."""
    root = ElementTree.fromstring(text)
    tag = "{http://www.w3.org/2000/svg}"
    corners = [
        [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
        for line in root.iter(tag + "polyline")
    ]
    return (
        corners,
        [text.text for text in root.iter(tag + "text")],
        list(root.iter(tag + "polyline")),
    )


def test_each_line_has_the_place_of_its_numbers_a_name_and_dashes_of_its_own():
    rows = [row(5, 4.0), row(10, 2.0, [0.5, 0.25]), row(20, 1.0, [1.0, 0.0])]
    corners, words, drawn = lines(picture(rows))
    assert len(corners) == 3 and {"loss", "step 1", "step 2"} <= set(words)
    assert corners[0] == [(182.5, 30), (305, 115), (550, 157.5)]  # of 60 .. 550 and 200 .. 30
    assert corners[1] == [(305, 115), (550, 30)]
    assert corners[2] == [(305, 157.5), (550, 200)]
    assert len({line.get("stroke-dasharray") for line in drawn[1:]}) == 2
    assert {line.get("stroke") for line in drawn} == {"black"}


@pytest.mark.parametrize("rows", [[], [row(3)], [row(3, 0.0, [None])]])
def test_nothing_to_draw_is_an_empty_picture(rows):
    corners, _, _ = lines(picture(rows))
    assert len(corners) == min(len(rows), 1)


def test_names_of_lines_that_meet_do_not():
    assert apart([50, 50, 10, 55]) == [50, 64, 10, 78]


def test_one_who_resumes_forgets_what_lies_behind_the_checkpoint(tmp_path):
    curves = Curves(tmp_path, 0)
    for step in (1, 2, 3):
        curves.add(row(step), draw=step == 2)
    assert len(lines((tmp_path / PICTURE).read_text())[0][0]) == 2
    again = Curves(tmp_path, 2)
    again.add(row(3, 7.0), draw=True)
    kept = [json.loads(line) for line in (tmp_path / ROWS).read_text().splitlines()]
    assert kept == [row(1), row(2), row(3, 7.0)]
    assert len(lines((tmp_path / PICTURE).read_text())[0][0]) == 3
