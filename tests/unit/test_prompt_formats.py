"""Laws of prompt files and of prompts with several turns."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from drafthead.drafters.base import NoDrafter
from drafthead.errors import CapacityError, FileError
from drafthead.evaluation.conversation import answer_turns
from drafthead.evaluation.metrics import Answer
from drafthead.evaluation.prompts import PromptRow, read_prompts, select
from drafthead.evaluation.runner import run_arms
from drafthead.types import DecodeStats
from tests import fakes


def read(tmp_path, *rows):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_prompts(path))


def asked(text):
    return ({"role": "user", "content": text},)


def test_spec_bench_rows_are_read_and_mt_bench_is_one_task(tmp_path):
    """Its own table counts the eight categories of MT-bench together, and the others apart."""
    rows = read(
        tmp_path,
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
        {"question_id": 130, "category": "coding", "turns": ["Code."], "reference": ["x"]},
        {"question_id": 161, "category": "translation", "turns": ["Translate."]},
    )
    assert rows == [
        PromptRow("81", "mt_bench", asked("Write."), later=("Again.",)),
        PromptRow("130", "mt_bench", asked("Code.")),
        PromptRow("161", "translation", asked("Translate.")),
    ]
    assert [row.id for row in select(rows, ["mt_bench"])] == ["81", "130"]


def test_turns_of_a_named_row_go_before_its_prompt(tmp_path):
    row = {"id": "m", "task": "chat", "prompt": "One.", "turns": ["One.", "Two."]}
    assert read(tmp_path, row) == [PromptRow("m", "chat", asked("One."), later=("Two.",))]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"question": "6 * 7?", "answer": "42"},
            "this is no prompt: .*found the keys answer, ques",
        ),
        ({}, "this is no prompt: .*found the keys none"),
        ({"question_id": 1, "turns": ["x"]}, "this is no prompt"),
        ({"question_id": 1, "category": "qa"}, "turns must be a list of one text or more"),
        ({"question_id": 1, "category": "qa", "turns": []}, "turns must be"),
        ({"question_id": 1, "category": "qa", "turns": ["x", 2]}, "turns must be"),
        ({"id": "1", "task": "t", "turns": "x"}, "turns must be"),
    ],
)
def test_a_shape_that_is_not_known_is_one_sentence_with_its_line(tmp_path, row, says):
    good = {"id": "0", "task": "t", "prompt": "x"}
    with pytest.raises(FileError, match=rf"^p\.jsonl, line 2: {says}") as caught:
        read(tmp_path, good, row)
    assert str(caught.value).count("\n") == 0


ROW = PromptRow("c", "t", asked("hi"), later=("more", "end"))


def scripted(replies):
    """Answers with bytes, and keeps what it was asked."""
    seen = []

    def answer_one(row):
        seen.append(row)
        if replies[len(seen) - 1] is None:
            raise CapacityError("full")
        tokens = (*replies[len(seen) - 1].encode(), 256)
        counts = DecodeStats(passes=2, committed=len(tokens) - 1, decode_ms=10.0)
        return Answer("a", row.task, row.id, tokens, "stop", counts, 5.0 * len(seen), 1.0, 2.0)

    return seen, answer_one


def test_each_turn_is_asked_after_the_answers_before_it():
    """Spec-Bench's way: the whole conversation is the prompt, and counts and times are added."""
    seen, answer_one = scripted(["ab", "c", "d"])
    whole = answer_turns(fakes.session(), ROW, answer_one)
    said = [[(m["role"], m["content"]) for m in row.messages] for row in seen]
    assert said[0] == [("user", "hi")]
    assert said[1] == [*said[0], ("assistant", "ab"), ("user", "more")]
    assert said[2] == [*said[1], ("assistant", "c"), ("user", "end")]
    assert whole.tokens == (*b"ab", 256, *b"c", 256, *b"d", 256)
    assert (whole.stats.passes, whole.stats.committed, whole.stats.decode_ms) == (6, 4, 30.0)
    assert (whole.ttft_ms, whole.cpu_s, whole.joules) == (5.0, 3.0, 6.0)


def test_the_end_of_an_answer_is_not_quoted_and_one_turn_without_joules_leaves_none():
    seen, answer_one = scripted(["ab!", "c"])
    row = PromptRow("c", "t", asked("hi"), later=("more",))

    def without_joules(row):
        answer = answer_one(row)
        return replace(answer, joules=None) if len(seen) == 2 else answer

    whole = answer_turns(fakes.session(eos_ids=(256, ord("!"))), row, without_joules)
    assert seen[1].messages[1]["content"] == "ab"
    assert whole.tokens[:4] == (*b"ab!", 256) and whole.joules is None


def test_a_conversation_ends_where_the_context_does():
    _, answer_one = scripted(["ab", None])
    assert answer_turns(fakes.session(), ROW, answer_one).tokens == (*b"ab", 256)
    _, answer_one = scripted([None])
    with pytest.raises(CapacityError):
        answer_turns(fakes.session(), ROW, answer_one)


def test_all_arms_answer_all_turns_alike():
    session = fakes.session(answer="ok")
    arms = {"plain": session.using(NoDrafter()), "mtp": session}
    answers = run_arms(arms, [ROW], 8)
    assert answers[0].tokens == answers[1].tokens
    assert len(answers[0].tokens) > len(b"ok") + 1
