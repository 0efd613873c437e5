"""One command makes a head, and says how to use it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = {
    "minutes = 5": "steps = 4",
    "prompts = 500": "prompts = 9",
    "max_tokens = 160": "max_tokens = 24",
    "heldout = 0.05": "heldout = 0.4",
    "per_task = 6": "per_task = 1",
    "max_tokens = 128": "max_tokens = 12",
    "_every = 300": "_every = 2",
}
pytestmark = pytest.mark.backbone


def drafthead(*words):
    run = subprocess.run(
        [sys.executable, "-m", "drafthead", *words], env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=600, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run


@pytest.fixture(scope="module")
def folder(backbone_path, tmp_path_factory):
    """A folder with the recipe of the newcomer, made small."""
    assert backbone_path.is_file()
    folder = tmp_path_factory.mktemp("newcomer")
    text = (ROOT / "recipes" / "smollm2-quick.toml").read_text()
    for old, new in SMALL.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "small.toml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    return drafthead(*command(folder))


def command(folder):
    return ["train", str(folder / "small.toml"), "--run", str(folder / "run"), "--threads", "1"]


def test_the_table_compares_the_head_with_plain_decoding(trained):
    rows = [line.split() for line in trained.stdout.splitlines() if line[:4] == "all "]
    assert [(row[1], row[-1]) for row in rows] == [("plain", "yes"), ("mtp", "yes")]
    assert trained.stderr.count("held-out tau") == 2 and "int8: tau" in trained.stderr


def test_the_last_line_is_the_command_that_uses_the_head(folder, trained):
    words = shlex.split(trained.stdout.splitlines()[-1].partition("Use it: ")[2])
    assert words[0] == "drafthead"
    more = ["--max-tokens", "8", "--policy", "threshold", "--json"]
    answer = json.loads(drafthead(*words[1:], *more).stdout)
    assert answer["drafter"]["active"] and answer["tokens"]


def test_called_again_it_answers_and_trains_nothing_and_gives_the_same_head(folder, trained):
    run = folder / "run"
    weights = (run / "head" / "model.safetensors").read_bytes()
    again = drafthead(*command(folder), "--json")
    assert "built-in prompts first" in trained.stderr and "step" in trained.stderr
    assert "built-in prompts first" not in again.stderr and "step" not in again.stderr
    assert (run / "head" / "model.safetensors").read_bytes() == weights
    result = json.loads(again.stdout)
    assert result["training"]["kept"]["expected_speedup"] > 0
    assert result["acceptance"].keys() == {"f32", "int8", "int4"}
    assert {"curves.svg", "curves.jsonl", "costs.json"} <= {path.name for path in run.iterdir()}


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (
            ("kv_layers = [18]", "kv_layers = [99]"),
            [],
            "[head] kv_layers: smollm2-135m has layers 0 .. 29",
        ),
        (None, ["--prompts", "missing.jsonl"], "There is no prompt file missing.jsonl."),
        (None, ["--out", __file__], "is not a head package; choose another --out."),
        (None, ["--run", __file__], "--run: "),
    ],
)
def test_what_cannot_end_well_is_refused_before_it_begins(folder, change, words, said):
    text = (folder / "small.toml").read_text()
    if change is not None:
        assert change[0] in text
        text = text.replace(*change)
    (folder / "bad.toml").write_text(text)
    run = subprocess.run(
        [sys.executable, "-m", "drafthead", "train", str(folder / "bad.toml"),
         "--run", str(folder / "other"), "--threads", "1", *words],
        timeout=600, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 1 and run.stdout == ""
    assert said in run.stderr and run.stderr.count("\n") == 1
    assert not (folder / "other").exists()
