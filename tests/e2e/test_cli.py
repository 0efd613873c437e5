"""The command line as a user meets it: one process a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from drafthead.backbone.handle import Backbone
from tests.random_head import write_random_head


def drafthead(*words, env=None, stdin=None):
    return subprocess.run(
        [sys.executable, "-m", "drafthead", *map(str, words)],
        capture_output=True,
        text=True,
        input=stdin,
        env={**os.environ, **(env or {})},
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def head(backbone_path, tmp_path_factory):
    """A head package of random weights for the embedded backbone."""
    folder = tmp_path_factory.mktemp("heads") / "random"
    return write_random_head(folder, Backbone.open(backbone_path))


def test_help_and_pull_list_need_neither_backbone_nor_core(tmp_path):
    env = {"DRAFTHEAD_CACHE": str(tmp_path)}
    assert drafthead("--help", env=env).returncode == 0
    listed = drafthead("pull", "--list", env=env)
    assert listed.returncode == 0
    assert "smollm2-135m" in listed.stdout


def test_a_missing_backbone_names_the_pull_command(tmp_path):
    """One sentence, no traceback, exit code 1."""
    done = drafthead("generate", "hi", env={"DRAFTHEAD_CACHE": str(tmp_path)})
    assert (done.returncode, done.stdout) == (1, "")
    assert "drafthead pull smollm2-135m" in done.stderr
    assert done.stderr.count("\n") == 1
    debug = drafthead("generate", "hi", "--debug", env={"DRAFTHEAD_CACHE": str(tmp_path)})
    assert "Traceback" in debug.stderr


def test_a_file_that_is_no_model_is_one_sentence(tmp_path):
    path = tmp_path / "page.gguf"
    path.write_text("<html>not found</html>")
    done = drafthead("generate", "hi", "--backbone", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "page.gguf" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["generate", "hi", "--max_tokens", "3"], 2),
        (["generate", "hi", "--temperature", "-1"], 2),
        (["generate", "hi", "--drafter", "medusa"], 1),
        (["bench", "--limit", "0"], 2),
        (["bench", "--drafters", "plain,eagle"], 1),
        (["bench", "--peers", "another"], 1),
        (["bench", "--peer-draft-model", "x.gguf"], 1),
        (["fly"], 2),
    ],
)
def test_bad_words_are_one_sentence(words, code):
    done = drafthead(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("stdin", [b"", b" \n", b"caf\xe9"])
def test_a_prompt_that_is_no_text_is_one_sentence(stdin):
    done = subprocess.run(
        [sys.executable, "-m", "drafthead", "generate"],
        input=stdin,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.count(b"\n") == 1
    assert b"prompt" in done.stderr


@pytest.mark.parametrize("words", ["--help", "pull --list"])
@pytest.mark.parametrize("buffered", [True, False])
def test_what_cannot_be_written_is_no_traceback(words, buffered):
    """A reader that leaves early is not told; a full disk is one sentence and exit code 1."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}

    def shell(redirection):
        command = f"{sys.executable} -m drafthead {words} {redirection}"
        return subprocess.run(
            command, shell=True, capture_output=True, text=True, env=environment, check=False
        )

    assert shell("| true").stderr == ""
    full = shell("> /dev/full")
    assert full.returncode == 1
    assert full.stderr.endswith("No space left on device.\n")
    assert full.stderr.count("\n") == 1


def test_closed_standard_streams_are_no_traceback():
    for command, code in (("generate <&-", 1), ("--help >&-", 0), ("fly 2>&-", 2)):
        words = f"{sys.executable} -m drafthead {command}"
        done = subprocess.run(words, shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == code, command
        assert done.stderr.count("\n") == (code == 1)


@pytest.mark.backbone
def test_generate_json_is_one_object_and_the_same_with_and_without_the_head(head):
    """A9, J11: the drafter that is active is named; tokens do not depend on it."""
    words = ["generate", "Write one sentence about the sea.", "--max-tokens", "24", "--json"]
    with_head = drafthead(*words, "--head", head, "--policy", "threshold")
    without = drafthead(*words, "--drafter", "none")
    assert with_head.returncode == without.returncode == 0
    got, plain = json.loads(with_head.stdout), json.loads(without.stdout)
    assert (got["tokens"], got["text"]) == (plain["tokens"], plain["text"])
    assert got["drafter"] == {
        "name": "mtp", "active": True, "reason": None, "warning": None,
    }  # fmt: skip
    assert plain["drafter"]["active"] is False
    assert plain["drafter"]["reason"]
    assert got["stats"]["drafted"] > 0 == plain["stats"]["drafted"]
    assert got["backbone"]["name"] == "smollm2-135m"
    assert len(got["tokens"]) == 1 + got["stats"]["committed"]
    assert with_head.stderr == ""


@pytest.mark.backbone
def test_generate_prints_the_text_and_one_line_of_counts():
    """Text on stdout without colour codes; how it went on stderr, whichever drafter is active."""
    done = drafthead("generate", "-", "--max-tokens", "8", stdin="Say hello.")
    assert done.returncode == 0
    assert done.stdout.strip()
    assert "\x1b" not in done.stdout
    assert "tau" in done.stderr
    assert "drafter mtp" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.backbone
def test_exactly_max_tokens_are_counted():
    """C5: what is delivered is what is counted."""
    done = drafthead("generate", "Count to fifty.", "--max-tokens", "5", "--ignore-eos", "--json")
    report = json.loads(done.stdout)
    assert len(report["tokens"]) == 5
    assert report["finish_reason"] == "length"


@pytest.mark.backbone
def test_generate_does_not_import_torch():
    code = (
        "import sys; from drafthead.cli.main import main; "
        "code = main(['generate', 'hi', '--max-tokens', '2']); "
        "sys.exit(code or 3 * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.backbone
def test_demo_compares_three_tasks(head):
    done = drafthead("demo", "--max-tokens", "12", "--head", head)
    assert done.returncode == 0, done.stderr
    assert "Legend" in done.stdout
    assert done.stdout.count("yes") >= 3
    for title in ("notification summary", "proofread", "smart reply"):
        assert title in done.stdout


@pytest.mark.backbone
def test_bench_json_has_both_arms_identical(head, tmp_path):
    done = drafthead(
        "bench",
        "--head",
        head,
        "--limit",
        "1",
        "--max-tokens",
        "10",
        "--report",
        tmp_path,
        "--json",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert json.loads((tmp_path / "bench.json").read_text()) == report
    assert (tmp_path / "bench.html").is_file() and (tmp_path / "bench.md").is_file()
    assert report["samples"] and report["energy"].keys() == {"source", "reason"}
    assert {"machine", "backbone", "drafthead", "cost", "arms", "peers", "memory"} <= set(report)
    assert report["backbone"]["file"] == "SmolLM2-135M-Instruct.Q4_1.gguf"
    pooled = [arm for arm in report["arms"] if arm["task"] == "all"]
    assert [(arm["drafter"], arm["identical"]) for arm in pooled] == [
        ("plain", True), ("mtp", True),
    ]  # fmt: skip
    assert report["cost"]["rows_ms"].keys() == {"1", "2", "3", "4", "6", "8"}
    assert report["cost"]["draft_step_ms"]["mtp"] > 0
    memory = report["memory"]["drafters"]
    assert memory["mtp"]["kv_bytes_per_token"] == 0 < memory["mtp"]["weights_bytes"]
    assert memory["mtp"]["peak_bytes"] < report["memory"]["backbone_bytes"]


@pytest.mark.backbone
def test_bench_of_prompts_from_a_file(tmp_path):
    path = tmp_path / "p.jsonl"
    row = {"id": "1", "task": "own", "prompt": "hi", "licence": "CC0-1.0"}
    path.write_text(json.dumps(row) + "\n")
    words = ["--drafters", "plain", "--prompts", path, "--max-tokens", "4", "--json"]
    report = json.loads(drafthead("bench", *words).stdout)
    assert [arm["task"] for arm in report["arms"]] == ["own", "all"]


@pytest.mark.backbone
def test_cost_json_shows_what_the_machine_allows():
    done = drafthead("cost", "--rows", "1,2", "--context", "32", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["rows_ms"].keys() == report["roofline"].keys() == {"1", "2"}
    assert report["integer_peak_g_s"] > 0 < report["prompt"]["tok_s"]
    assert report["memory"]["resident_bytes"] > 0.9 * report["memory"]["file_bytes"]
    gb_s = report["bytes_per_pass"] / report["rows_ms"]["1"] / 1e6
    read_gb_s = report["memory_read_gb_s"]
    rounding = 0.05 / read_gb_s + 0.001  # a tenth is little of a busy machine's bandwidth
    assert report["bandwidth_share"] == pytest.approx(gb_s / read_gb_s, rel=rounding)
