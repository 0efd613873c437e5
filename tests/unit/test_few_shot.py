"""Laws of prompts for a base model: examples first, the answer left open, and an end to it."""

from __future__ import annotations

import pytest

from drafthead.drafters.base import NoDrafter
from drafthead.evaluation.energy import EnergyMeter
from drafthead.evaluation.few_shot import HEADING, SEPARATOR, few_shot_ends, few_shot_text
from drafthead.evaluation.prompts import end_ids, parse_row, prompt_ids
from drafthead.evaluation.runner import answer_one
from drafthead.evaluation.worked_examples import EXAMPLES, GENERAL
from tests import fakes

CLASSES = (
    "chat", "code", "math", "notif_summary", "proofread", "rag_qa", "rewrite", "smart_reply",
    "summarization", "translation",
)  # fmt: skip
ROW = parse_row({"id": "a", "task": "proofread", "prompt": "Fix: he go"}, "row")
TEXT = few_shot_text(ROW.task, ROW.messages)
END = 200  # stands for the heading's mark


MARKS = {
    END: b"###", 201: b"####", 202: b".\n\n\n", 203: b"\n\n\n\n", 204: b" ###", 205: b"\n\n"
}  # fmt: skip


class MarkTokenizer(fakes.ByteTokenizer):
    """Bytes, but for tokens that hold line ends and marks."""

    def token_bytes(self, token_id, first=False):
        return MARKS.get(token_id) or super().token_bytes(token_id, first)


def base_session(answer, drafter=None):
    session = fakes.session(drafter)
    session.template.exists = False
    session.tokenizer = MarkTokenizer()
    session.backbone.next_token = fakes.scripted_next(TEXT.encode(), answer, 256)
    return session


def test_every_class_has_examples_that_do_not_end_early():
    assert sorted(EXAMPLES) == sorted(CLASSES)
    for examples in (*EXAMPLES.values(), GENERAL):
        assert len(examples) >= 2
        for example in examples:
            for text in example:
                assert text == text.strip() != ""
                assert SEPARATOR not in text and "\n### " not in f"\n{text}"


def test_a_prompt_is_the_examples_of_its_class_then_the_question():
    shown, question = TEXT.rsplit(SEPARATOR, 1)
    assert question == "### Input: Fix: he go\n### Output:"
    assert [part.split("\n### Output: ")[1] for part in shown.split(SEPARATOR)] == [
        example.answer for example in EXAMPLES["proofread"]
    ]
    assert GENERAL[0].answer in few_shot_text("cooking", ROW.messages)


def test_system_text_comes_first_and_earlier_turns_become_examples():
    talk = [
        {"role": role, "content": content}
        for role, content in (
            ("system", "Be kind."), ("user", "one"), ("user", "two"), ("assistant", "three"),
            ("user", "four"),
        )
    ]  # fmt: skip
    parts = few_shot_text("chat", talk).split(SEPARATOR)
    assert parts[0] == "Be kind."
    assert parts[-2:] == [
        "### Input: one\n\ntwo\n### Output: three", "### Input: four\n### Output:"
    ]  # fmt: skip


def test_an_answer_ends_with_blank_lines_or_the_next_heading_and_not_before_a_sum():
    assert few_shot_ends(MarkTokenizer()) == {END, 202, 203}
    assert HEADING == "###"


def test_a_model_with_a_chat_template_is_shown_no_examples():
    session = fakes.session()
    row = parse_row({"id": "a", "task": "t", "prompt": "hi"}, "row")
    assert prompt_ids(session, row) == list(b"user:hi;")
    assert end_ids(session) == session.tokenizer.eos_ids


@pytest.mark.parametrize("right", [None, 0, 1, 3])
def test_the_answer_of_a_base_model_ends_where_it_begins_the_next_example(right):
    answer = [*b"He goes.", END, *b" Input: more"]
    drafter = NoDrafter()
    if right is not None:
        drafter = fakes.OracleDrafter(
            answer=answer, prompt_tokens=len(TEXT.encode()), right=right, vocab_size=256
        )
    session = base_session(answer, drafter)
    assert prompt_ids(session, ROW) == list(TEXT.encode())
    found = answer_one("arm", session, ROW, 64, True, EnergyMeter())
    assert list(found.tokens) == [*b"He goes.", END]
    assert found.finish_reason == "stop"
