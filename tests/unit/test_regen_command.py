"""Laws of `drafthead regen`: what each flag does to the folder, what is refused in a sentence."""

from __future__ import annotations

import json

import pytest
import trainee
from test_invent import TurnTemplate

from drafthead import session as sessions
from drafthead.cli import main
from tests import fakes


@pytest.fixture(autouse=True)
def tiny_session(monkeypatch):
    """Every backbone that is loaded is a tiny one."""

    def load(*_args, **_options):
        made = fakes.session()
        made.backbone, made.template = trainee.TinyBackbone(), TurnTemplate()
        made.tokenizer = fakes.ByteTokenizer(eos_ids=(trainee.EOS,), vocab_size=trainee.V)
        return made

    monkeypatch.setattr(sessions, "load", load)


@pytest.fixture
def regen(tmp_path, capsys):
    """Run the command on twenty prompts of two tasks; its JSON object, or its error."""
    rows = [
        {"id": f"p{n}", "task": ("chat", "math")[n % 2], "prompt": f"question {n}",
         **({"lang": "de"} if n < 4 else {})}
        for n in range(20)
    ]  # fmt: skip
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*words, prompts=True):
        begin = ["regen", "--json", "--max-tokens", "16", "--capacity", "64"]
        begin += ["--prompts", str(path)] if prompts else []
        code = main.main([*begin, *map(str, words)])
        out, err = capsys.readouterr()
        return json.loads(out) if code == 0 else err

    return run


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_parts_merge_to_the_folder_of_the_undivided_run(regen, tmp_path):
    share = ("--sampled", "0.5", "--temperature", "0.7")
    whole = regen("--out", tmp_path / "whole", *share)
    folders = [tmp_path / f"part{index}" for index in (1, 2, 3)]
    for index, folder in enumerate(folders, 1):
        regen("--out", folder, "--shard", f"{index}/3", "--sequences", index, *share)
    merged = regen("--merge", *folders, "--out", tmp_path / "merged", prompts=False)
    assert contents(tmp_path / "merged") == contents(tmp_path / "whole")
    assert merged.items() <= whole.items()
    assert 0 < whole["sampled"] < 20
    assert whole["languages"]["de"]["answers"] == 4


def test_without_a_sampled_share_the_temperature_decides_nothing(regen, tmp_path):
    regen("--out", tmp_path / "a", "--temperature", "0.7")
    regen("--out", tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_plan_writes_nothing_and_speaks_of_the_part_alone(regen, tmp_path):
    options = ("--out", tmp_path / "out", "--features", tmp_path / "f", "--kv-layers", "1")
    before = sorted(tmp_path.iterdir())
    whole = regen("--plan", *options)
    parts = [regen("--plan", *options, "--shard", f"{index}/2") for index in (1, 2)]
    assert sorted(tmp_path.iterdir()) == before
    assert whole["prompts"] == 20 == sum(part["prompts"] for part in parts)
    assert whole["prompt_tokens"] == sum(part["prompt_tokens"] for part in parts)
    assert whole["feature_bytes"] > 0


def test_features_over_the_limit_are_refused_before_and_stopped_while_they_grow(regen, tmp_path):
    """K5: never terabytes by surprise."""
    options = ("--out", tmp_path / "out", "--features", tmp_path / "f", "--kv-layers", "1")
    assert "the limit is 0.00 GB" in regen("--plan", *options, "--max-disk", "1e-6")
    assert "raise --max-disk" in regen(*options, "--max-disk", "1e-6")
    held = regen("--plan", *options)["held"]
    assert held > 0
    assert regen(*options)["answers"] == 20


def test_invented_prompts_are_answered_beside_the_others_or_alone(regen, tmp_path):
    room = ("--invent", "40", "--capacity", "256")
    both = regen("--out", tmp_path / "both", *room)
    assert set(both["tasks"]) == {"chat", "math", "invented"}
    chat = regen("--out", tmp_path / "chat", *room, "--tasks", "chat")
    assert set(chat["tasks"]) == {"chat", "invented"}
    alone = regen("--out", tmp_path / "alone", *room, prompts=False)
    assert set(alone["tasks"]) == {"invented"}
    # The prompt file of the folder gives the same answers.
    listed = ("--prompts", tmp_path / "alone" / "invented.jsonl", *room[2:])
    regen("--out", tmp_path / "again", *listed, prompts=False)
    one, other = (tmp_path / name / "answers-00000.jsonl" for name in ("again", "alone"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("flags", [("--shard", "1/2"), ("--plan",)])
def test_inventing_comes_before_dividing_and_planning(regen, tmp_path, flags):
    assert "invent first" in regen("--out", tmp_path / "x", "--invent", "5", *flags)


@pytest.mark.parametrize(
    "flags",
    [
        ("--shard", "3/2"), ("--shard", "0/2"), ("--shard", "half"), ("--sampled", "2"),
        ("--temperature", "0"), ("--invent", "0"), ("--kv-layers", "x"),
    ],
)  # fmt: skip
def test_wrong_values_are_named(regen, tmp_path, flags):
    error = regen("--out", tmp_path / "x", *flags)
    assert flags[0] in error
    assert flags[1] in error
    assert error.count("\n") == 1
