"""Laws of a peer that drafts: greedy, ended by the same rules, and compared with its own plain."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from drafthead.drafters.base import NoDrafter
from drafthead.errors import RequestError
from drafthead.evaluation import peer_drafting
from drafthead.evaluation.metrics import Answer, arm_lines
from drafthead.evaluation.peer_answers import agreement, answer_with_peer, peer_section
from drafthead.evaluation.peer_drafting import MODEL_CONFIDENCE, DraftModel, PromptLookup, likeliest
from drafthead.evaluation.peers import LlamaCpp
from drafthead.evaluation.prompts import PromptRow
from drafthead.evaluation.report.table import all_arms, arm_rows, markdown_table, peer_line
from drafthead.evaluation.runner import run_arms
from drafthead.types import DecodeStats
from tests import fakes

ANSWER = "a longer answer"
ROW = PromptRow("p", "x", ({"role": "user", "content": "hi"},))


class Rehearsed:
    """Drafts `right` tokens of the answer and then wrong ones, four in all."""

    name = "rehearsed"

    def __init__(self, right):
        self.right, self.begun = right, []

    def begin(self, tokens):
        self.begun.append(len(tokens))

    def propose(self, tokens, room):
        assert room >= 1
        done = len(tokens) - self.begun[-1]
        draft = [*ANSWER.encode(), 256][done : done + 4]
        draft[self.right :] = [(token + 1) % 256 for token in draft[self.right :]]
        return draft[:room]


def arms():
    session = fakes.session(NoDrafter(), answer=ANSWER)
    return {"plain": session}


def answers_of(drafter, max_tokens=50):
    made = arms()
    peer = fakes.ScriptedPeer(made["plain"])
    others = {
        name: partial(answer_with_peer, peer, each, made["plain"])
        for name, each in (("llama.cpp", None), (f"llama.cpp+{drafter.name}", drafter))
    }
    return peer, run_arms(made, [ROW], max_tokens, peers=others)


@pytest.mark.parametrize("right", [0, 1, 2, 4])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 50])
def test_drafts_change_the_passes_and_not_the_tokens(right, max_tokens):
    """Rejected rows are rolled back; the counts are those of our own loop with these drafts."""
    drafter = Rehearsed(right)
    _, (plain, own, drafted) = answers_of(drafter, max_tokens)
    assert own.tokens == drafted.tokens == plain.tokens
    assert own.finish_reason == drafted.finish_reason == plain.finish_reason
    assert own.stats.drafted == 0 and own.stats.passes == own.stats.committed
    stats = drafted.stats
    assert stats.committed == stats.passes + stats.accepted - stats.cut == len(plain.tokens) - 1
    oracle = fakes.OracleDrafter(
        answer=[*ANSWER.encode(), 256], prompt_tokens=8, right=right, vocab_size=256
    )
    (own_loop,) = run_arms({"own": fakes.session(oracle, answer=ANSWER)}, [ROW], max_tokens)
    for name in ("passes", "drafted", "accepted", "committed", "cut", "tested_at", "accepted_at"):
        assert getattr(stats, name) == getattr(own_loop.stats, name), name
    if max_tokens == 50:
        whole, rest = divmod(len(plain.tokens) - 1, right + 1)
        assert stats.passes == whole + bool(rest)


def test_the_section_has_an_arm_for_each_drafter_and_its_agreement():
    drafter = Rehearsed(2)
    peer, answers = answers_of(drafter)
    lines = arm_lines(answers)
    section = peer_section(peer, [drafter], lines, answers)
    names = [(arm["drafter"], arm["task"]) for arm in section["arms"]]
    assert names == [("plain", "x"), ("plain", "all"), ("rehearsed", "x"), ("rehearsed", "all")]
    assert section["arms"][-1]["tau"] > 2.5 and "tau" not in section["arms"][0]
    own = next(x for x in lines if (x["drafter"], x["task"]) == ("llama.cpp+rehearsed", "all"))
    assert section["arms"][-1]["speedup_vs_own_plain"] == own["speedup_vs"]["llama.cpp"]
    assert section["arms"][-1]["speedup_vs_plain"] == own["speedup_vs_plain"]
    assert section["agrees_with_own_plain"] == {
        "rehearsed": {"answers": 1, "same_answers": 1, "tokens": 16, "same_tokens": 16}
    }
    own = [line for line in lines if line["drafter"] == "plain"]
    report = {"arms": own, "peers": [section]}
    assert "| all | llama.cpp+rehearsed | 1 | 16 | 3" in markdown_table(arm_rows(all_arms(report)))
    assert "With rehearsed it gave 1 of 1 answers as without." in peer_line(section)


def test_agreement_counts_the_tokens_before_the_first_other_one():
    def answer(*tokens):
        return Answer("a", "t", "p", tokens, "stop", DecodeStats(), 1.0, 1.0, None)

    drafted = [answer(1, 2, 3), answer(1, 9, 3), answer(1, 2, 3, 4), answer(1)]
    plain = [answer(1, 2, 3), answer(1, 2, 3), answer(1, 2, 3), answer(1, 2)]
    assert agreement(drafted, plain) == {
        "answers": 4, "same_answers": 1, "tokens": 11, "same_tokens": 3 + 1 + 3 + 1,
    }  # fmt: skip


class RecordingModel:
    """In place of a llama.cpp context: the next token is one more, sure below 100."""

    def __init__(self, path, threads, context):
        self.tokens, self.fed, self.closed, self.vocab_size = [], [], False, int(path)

    def close(self):
        self.closed = True

    def rollback(self, length):
        assert length <= len(self.tokens)
        del self.tokens[length:]

    def feed(self, tokens):
        assert len(tokens)
        self.tokens += tokens
        self.fed.append(list(tokens))
        logits = np.zeros((1, 128), np.float32)
        logits[0, self.tokens[-1] + 1] = 50.0 if self.tokens[-1] < 100 else 0.1
        return logits


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(peer_drafting, "LlamaCpp", RecordingModel)
    drafter = DraftModel("128", SimpleNamespace(threads=1, context=64, vocab_size=128))
    drafter.begin([5, 6])
    return drafter


def test_a_draft_model_follows_what_was_committed(model):
    """Its cache is rolled back to the accepted tokens and fed the others, never twice the same."""
    assert model.propose([5, 6, 7], 3) == [8, 9, 10]
    assert model.propose([5, 6, 7, 8, 9, 10, 11], 2) == [12, 13]
    assert model.propose([5, 6, 7, 8, 9, 10, 11, 12, 50], 1) == [51]
    assert model._model.fed == [[5, 6], [7], [8], [9], [10, 11], [12], [50]]
    assert model._model.tokens == [5, 6, 7, 8, 9, 10, 11, 12, 50]


def test_what_was_rejected_is_rolled_back_in_the_draft_models_cache(model):
    assert model.propose([5, 6, 7], 4) == [8, 9, 10, 11]
    assert model._model.tokens == [5, 6, 7, 8, 9, 10]
    assert model.propose([5, 6, 7, 8, 60], 2) == [61, 62]
    assert model._model.tokens == [5, 6, 7, 8, 60, 61]


def test_a_draft_model_stops_where_it_is_unsure(model):
    assert model.propose([5, 6, 97], 9) == [98, 99, 100]
    assert model.propose([5, 6, 97, 98, 101], 9) == []


def test_the_probability_is_that_of_all_tokens():
    logits = np.log(np.array([0.2, 0.7, 0.1], np.float32)) + 3
    token, probability = likeliest(logits)
    assert token == 1 and 0.69 < probability < 0.71 < MODEL_CONFIDENCE


@pytest.mark.parametrize(("vocab", "fits"), [(128, True), (256, True), (257, False)])
def test_a_draft_model_of_another_vocabulary_is_refused(monkeypatch, vocab, fits):
    """Files of one tokenizer are padded to different sizes, by 128 at most."""
    monkeypatch.setattr(peer_drafting, "LlamaCpp", RecordingModel)
    target = SimpleNamespace(threads=1, context=64, vocab_size=128)
    if fits:
        DraftModel(str(vocab), target)
        return
    with pytest.raises(RequestError, match="257 tokens there and 128 in the backbone"):
        DraftModel(str(vocab), target)


@pytest.mark.backbone
def test_llama_cpp_drafts_for_itself(backbone_path):
    """A model that drafts for itself is accepted; a lookup finds what was said before."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    target = LlamaCpp(backbone_path, threads=2, context=256)
    ids = [(7 * i * i + 13) % 40_000 + 100 for i in range(20)] * 2
    token = target.choose(ids)
    drafter = DraftModel(backbone_path, target)
    drafter.begin(ids)
    draft = drafter.propose([*ids, token], 4)
    chosen = target.choose_rows([token, *draft])
    assert len(chosen) == 1 + len(draft)
    lookup = PromptLookup()
    lookup.begin(ids)
    assert lookup.propose(ids[:22], 8) == ids[2:4]
    assert lookup.propose(ids[:22], 1) == ids[2:3]
    drafter.close()
    target.close()
