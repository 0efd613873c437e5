"""K6: the same prompts, answered by the backbone and by somebody else, train two heads apart."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from pathlib import Path

import pytest

from drafthead.backbone.handle import Backbone
from drafthead.drafters.base import NoDrafter
from drafthead.drafting import DrafterState
from drafthead.session import Session
from drafthead.training import selection
from drafthead.training.answers import AnswerStore
from tests import fakes
from tests.tiny import TinySpec, write_tiny_llama

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
RECIPE = """
[head]
name = "small"
backbone = "tiny"
kv_layers = [1]
d_ff = 64
draft_vocab = 128
[answers]
max_tokens = 12
[data]
heldout = 0.3
[train]
steps = 3
lr = 1e-3
precision = "f32"
start = "random"
evaluate_every = 100
[measure]
per_task = 1
max_tokens = 12
"""
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("regenerated_vs_original")


@pytest.fixture
def session(tmp_path):
    write_tiny_llama(tmp_path / "tiny.gguf", TinySpec(context=1024))
    backbone = Backbone.open(tmp_path / "tiny.gguf", threads=1)
    tokenizer = fakes.ByteTokenizer(vocab_size=backbone.spec.vocab_size)
    state = DrafterState("none", False, "plain")
    return Session(backbone, tokenizer, fakes.PlainTemplate(), NoDrafter(), state)


def rows():
    """Some with an answer under one of the two names, one without; a line separator in a text."""
    made = [
        {"id": f"p{n}", "task": f"t{n % 2}", "prompt": f"say {n}\u2028 now", key: f"said {n}, so"}
        for n, key in enumerate(["answer", "reference"] * 7)
    ]
    return [*made, {"id": "none", "task": "t0", "prompt": "nothing"}]


def write(path):
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows()).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def compare(script, session, monkeypatch, tmp_path, capsys):
    """Runs the script in one folder; the figures and the table."""
    costs = {"rows_ms": {str(rows): 10.0 for rows in range(1, 9)}, "draft_step_ms": 1.0}
    monkeypatch.setattr(selection, "measure_cost", lambda *_how: costs)
    monkeypatch.setattr(script, "load", lambda *_how, **_more: session)
    (tmp_path / "r.toml").write_text(RECIPE)

    def run(name):
        words = [
            "--prompts", write(tmp_path / name), "--work", tmp_path / "work",
            "--recipe", tmp_path / "r.toml", "--out", tmp_path / "figures.json",
        ]  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["script", *map(str, words)])
        script.main()
        figures = json.loads((tmp_path / "figures.json").read_text())["arms"]
        return figures, capsys.readouterr().out

    return run


def test_both_heads_learn_the_same_prompts_and_draft_the_same_held_out_ones(compare, tmp_path):
    figures, printed = compare("p.jsonl.gz")
    own, original = (
        {row.id: row for row in AnswerStore(tmp_path / "work" / arm).rows()}
        for arm in ("regenerated", "original")
    )
    assert own.keys() == original.keys() and len(own) == 14
    for key, row in original.items():
        assert row.prompt_tokens == own[key].prompt_tokens
        whole = [*f"said {key[1:]}, so".encode(), 256]
        assert list(row.answer) == whole[:12] != list(own[key].answer)
        assert row.finish == ("stop" if len(whole) <= 12 else "length")
    assert [arm["arm"] for arm in figures] == ["regenerated", "original"]
    assert {arm["steps"] for arm in figures} == {3}
    assert figures[0]["heldout_prompts"] == figures[1]["heldout_prompts"] > 0
    assert all(arm["tau"] >= 1 and arm["accept_at"][0] is not None for arm in figures)
    assert len(printed.splitlines()) == 4 and "| regenerated |" in printed


def test_called_again_it_goes_on_and_says_the_same(compare):
    assert compare("p.jsonl")[0] == compare("p.jsonl")[0]
