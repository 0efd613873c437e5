"""Laws of the built-in prompts."""

from __future__ import annotations

import pytest

from drafthead.errors import RequestError
from drafthead.evaluation.prompts import parse_row
from drafthead.tasks import TASKS, prompt_set


@pytest.mark.parametrize("task", TASKS)
def test_a_seed_gives_the_same_different_prompts(task):
    """Prompts differ within a set; a longer set starts with a shorter one; seeds differ."""
    long = prompt_set(task, 300, seed=3)
    assert prompt_set(task, 20, seed=3) == long[:20]
    assert len({row["prompt"] for row in long}) == len({row["id"] for row in long}) == 300
    assert {row["prompt"] for row in prompt_set(task, 20, seed=4)}.isdisjoint(
        row["prompt"] for row in long[:20]
    )


@pytest.mark.parametrize("task", TASKS)
def test_rows_are_prompt_rows_with_every_slot_filled(task):
    for row in prompt_set(task, 200):
        assert parse_row(row, "built in").task == task
        assert "{" not in row["prompt"]
        assert "}" not in row["prompt"]
        assert 20 < len(row["prompt"]) < 800


def test_an_unknown_task_is_refused_with_the_known_ones():
    with pytest.raises(RequestError, match="notif_summary, proofread, smart_reply"):
        prompt_set("poem", 1)
