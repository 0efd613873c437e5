"""Laws of invented prompts: the backbone's own words, the same for a seed, and only whole ones."""

from __future__ import annotations

import pytest
import trainee

from drafthead.errors import RequestError
from drafthead.evaluation.prompts import read_prompts
from drafthead.session import load
from drafthead.text.template import Part
from drafthead.training.answers import Answer, AnswerStore
from drafthead.training.data import common_prefix
from drafthead.training.invent import FOLDER, as_prompt, invent, opened_turn, write_prompts
from drafthead.training.prompts import choose
from tests import fakes


class TurnTemplate:
    exists = True

    def render(self, messages, add_generation_prompt=True):
        said = [
            Part(text, user)
            for m in messages
            for text, user in ((m["content"], True), ("<", False))
        ]
        return [Part("U:", False), *said, Part("A:", False)]


def session():
    """Says letters, and ends one token in some hundred."""
    made = fakes.session()
    made.backbone, made.template = trainee.TinyBackbone(), TurnTemplate()
    made.tokenizer = fakes.ByteTokenizer(eos_ids=(trainee.EOS,), vocab_size=trainee.V)
    return made


def told(prompts):
    return [(prompt.id, prompt.messages[0]["content"]) for prompt in prompts]


def test_the_same_seed_invents_the_same_prompts_however_they_are_batched_or_resumed(tmp_path):
    one = invent(session(), tmp_path / "one", 40, 3, 1.0, sequences=1)
    few = invent(session(), tmp_path / "two", 15, 3, 1.0, sequences=9)
    two = invent(session(), tmp_path / "two", 40, 3, 1.0, sequences=4)
    assert told(one) == told(two)
    assert told(few) == told(two)[: len(few)]
    assert 5 < len(one) < 40
    assert invent(session(), tmp_path / "two", 15, 3, 1.0, 9) == few
    assert told(invent(session(), tmp_path / "other", 40, 4, 1.0, 9)) != told(one)


def test_a_prompt_is_what_the_backbone_said_in_the_opened_turn(tmp_path):
    made = session()
    found = {prompt.id: prompt for prompt in invent(made, tmp_path, 40, 0, 1.0, 4)}
    rows = list(AnswerStore(tmp_path / FOLDER).rows())
    assert opened_turn(made) == list(b"U:")
    for row in rows:
        assert (list(row.prompt_tokens), row.temperature) == (list(b"U:"), 1.0)
        assert (row.id in found) == (row.finish == "stop" and bytes(row.answer[:-1]).strip() != b"")
    assert {row.finish for row in rows} >= {"stop", "length"}
    name, prompt = next(iter(found.items()))
    said = next(row for row in rows if row.id == name).answer
    assert prompt.messages[0]["content"] == bytes(said[:-1]).decode().strip()
    assert prompt.task == "invented"


@pytest.mark.parametrize(
    ("said", "finish"),
    [
        (b"hello", "length"), (b"hello", "looped"), (b" \n", "stop"), (b"a\xffb", "stop"),
        (b"", "stop"), ((104, 257), "stop"),
    ],
)  # fmt: skip
def test_what_is_no_whole_prompt_is_left_out(said, finish):
    made = fakes.session()
    assert as_prompt(made, Answer("i", "invented", (1,), (*said, 256), finish)) is None
    assert as_prompt(made, Answer("i", "invented", (1,), (*b"hi ", 256), "stop")) is not None


def test_doubles_are_dropped_and_the_prompt_file_holds_the_rest(tmp_path):
    made = fakes.session()
    rows = [Answer(f"i{n}", "invented", (1,), (*text, 256), "stop")
            for n, text in enumerate((b"one", b"two", b"one"))]  # fmt: skip
    prompts = [as_prompt(made, row) for row in rows]
    kept, dropped = choose(prompts, [], None, 0)
    assert (len(kept), dropped) == (2, 1)
    write_prompts(tmp_path / "p.jsonl", prompts)
    assert list(read_prompts(tmp_path / "p.jsonl")) == prompts


def test_a_base_model_has_no_turn_to_invent_in(tmp_path):
    made = session()
    made.template.exists = False
    with pytest.raises(RequestError, match=r"tiny is a base model .* give --prompts"):
        invent(made, tmp_path, 4, 0, 1.0, 4)
    assert not list(tmp_path.iterdir())


@pytest.mark.backbone
def test_the_opened_turn_is_what_every_chat_begins_with(backbone_path):
    made = load(backbone_path, head="none", drafter="none", threads=1)
    one, other = made.encode("Hello there"), made.encode("Why not?")
    assert opened_turn(made) == one[: common_prefix(one, other)]
