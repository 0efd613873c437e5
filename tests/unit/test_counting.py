"""Counting identities: a bench of oracle drafters gives integers that can be worked out by hand.

A plain answer of n + 1 tokens is one of the prefill and n decoded ones. A drafter that is right
for r of k tokens commits r + 1 of the n in each pass.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from drafthead.drafters.base import NoDrafter
from drafthead.evaluation.metrics import Answer, arm_lines
from drafthead.evaluation.prompts import PromptRow
from drafthead.evaluation.runner import run_arms
from drafthead.types import DecodeStats
from tests import fakes

K, PROMPTS, REPEAT = 4, 3, 2


def pooled(drafter, tokens):
    """The lines of an arm and of plain decoding, over all prompts and repeats."""
    session = fakes.session(drafter, answer="x" * 500)
    rows = [
        PromptRow(f"p{index}", "t", ({"role": "user", "content": "hi"},))
        for index in range(PROMPTS)
    ]
    made = {"plain": session.using(NoDrafter()), "oracle": session}
    lines = arm_lines(run_arms(made, rows, tokens, REPEAT, cut_loops=False))
    return [line for line in lines if line["task"] == "all"]


def oracle(right):
    return fakes.OracleDrafter(
        answer=[*b"x" * 500], prompt_tokens=len("user:hi;"), k=K, right=right, vocab_size=256
    )


@pytest.mark.parametrize("right", range(K + 1))
@pytest.mark.parametrize("passes", [1, 2, 9])
def test_whole_passes_of_a_drafter_that_is_right_for_r_of_k_tokens(right, passes):
    """A pass drafts k tokens, or one fewer than are left: the last one is never drafted."""
    n, many = passes * (right + 1), PROMPTS * REPEAT
    plain, line = pooled(oracle(right), n + 1)
    drafted = sum(min(K, n - done * (right + 1) - 1) for done in range(passes))
    assert counts(plain) == (n * many, 0, 0, n * many)
    assert counts(line) == (passes * many, drafted * many, right * passes * many, n * many)
    assert line["prompts"] == PROMPTS and line["tokens"] == plain["tokens"] == (n + 1) * many
    assert (line["tau"], plain["tau"]) == (right + 1, 1.0)
    assert line["identical"] is True
    assert line["accepted_at"] == [passes * many] * right
    assert line["tau"] == 1 + Fraction(line["accepted"], line["passes"])


def counts(line):
    return tuple(line[key] for key in ("passes", "drafted", "accepted", "committed"))


@pytest.mark.parametrize("right", [1, 2, 3])
def test_each_step_is_tested_where_those_before_were_accepted(right):
    """Steps up to r are accepted whenever tested, step r + 1 never, later ones are not tested."""
    passes = 9
    _, line = pooled(oracle(right), passes * (right + 1) + 1)
    many = PROMPTS * REPEAT
    assert line["tested_at"] == [passes * many] * right + [(passes - 1) * many]
    assert line["accept_at"] == [1.0] * right + [0.0] + [None] * (K - right - 1)
    assert line["accepted"] == sum(line["accepted_at"])


@pytest.mark.parametrize("every", [2, 3])
def test_passes_without_a_draft_count_as_passes_and_not_as_steps(every):
    drafter = fakes.SkippingDrafter(
        answer=[*b"x" * 500], prompt_tokens=len("user:hi;"), k=K, vocab_size=256, every=every
    )
    plain, line = pooled(drafter, 41)
    assert line["committed"] == plain["committed"] == 40 * PROMPTS * REPEAT
    assert line["committed"] == line["passes"] + line["accepted"]
    assert line["accept_at"] == [1.0] * K and line["tested_at"] == line["accepted_at"]


def test_a_slowdown_is_reported_as_one():
    """Speed over speed below 1 is neither clipped nor hidden."""
    lines = [[answer("plain", name, 10.0), answer("random", name, 40.0)] for name in "abc"]
    line = next(
        line for line in arm_lines([*(a for a, _ in lines), *(b for _, b in lines)])
        if (line["drafter"], line["task"]) == ("random", "all")
    )  # fmt: skip
    ratio = line["speedup_vs_plain"]
    assert (ratio["median"], ratio["pooled"], ratio["ci95"]) == (0.25, 0.25, [0.25, 0.25])


def answer(drafter, prompt_id, decode_ms):
    counted = DecodeStats(passes=9, committed=9, decode_ms=decode_ms)
    return Answer(drafter, "t", prompt_id, (1, 2), "stop", counted, 1.0, 0.5, None)
