"""Laws of the command line that need no backbone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types

import pytest

import drafthead
from drafthead.cli import demo, generate, main, output
from drafthead.cli.train_head import short_shares
from drafthead.drafters.base import NoDrafter
from drafthead.errors import HeadError
from drafthead.types import TokenEvent
from tests import fakes

LEFT, RIGHT = "\u2039", "\u203a"


def events(text, drafted):
    return [TokenEvent(0, c, d == "x", 1) for c, d in zip(text, drafted, strict=True)]


def test_runs_of_drafted_text_are_marked_once():
    assert output.marked(events("abcdef", ".xx.xx"), "marks") == f"a{LEFT}bc{RIGHT}d{LEFT}ef{RIGHT}"
    assert output.marked(events("ab", "xx"), "none") == "ab"
    assert output.marked(events("ab", ".x"), "colour") == "a\x1b[32mb\x1b[0m"
    assert output.marked([], "marks") == ""


def test_pieces_without_text_move_no_mark():
    pieces = [TokenEvent(0, "a", True, 1), TokenEvent(0, "", False, 1), TokenEvent(0, "b", True, 2)]
    assert output.marked(pieces, "marks") == f"{LEFT}ab{RIGHT}"


def test_json_survives_any_encoding_of_stdout(capsys):
    report = {"text": "h\u00e9llo \u2713 \U0001f600"}
    output.print_json(report)
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == report


def test_tables_are_aligned():
    table = output.aligned(("task", "n"), [("a", "1"), ("long", "22")])
    assert table.splitlines() == ["task   n", "----  --", "a      1", "long  22"]


@pytest.mark.parametrize(
    ("terminal", "environment", "colour"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False),
     (True, {"TERM": "dumb"}, False), (True, {"NO_COLOR": ""}, True)],
)  # fmt: skip
def test_colour_only_on_a_terminal_that_wants_it(monkeypatch, terminal, environment, colour):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert output.colourful(types.SimpleNamespace(isatty=lambda: terminal)) is colour


def test_generate_report_is_the_promised_shape():
    """I6, C6: plain decoding has tau 1, no rates, and says why nothing drafted."""
    session = fakes.session(answer="ok", active=False, reason="no head")
    report = generate.report(session, session.generate("hi"))
    assert set(report) == {
        "text", "tokens", "prompt_tokens", "finish_reason", "seed", "logprobs",
        "prompt_logprobs", "backbone", "drafter", "stats",
    }  # fmt: skip
    assert set(report["backbone"]) == {"name", "architecture", "file", "fingerprint"}
    assert report["drafter"] == {
        "name": "none",
        "active": False,
        "reason": "no head",
        "warning": None,
    }
    promised = {
        "passes", "drafted", "accepted", "committed", "tau", "accept_at", "prefill_ms", "decode_ms",
        "tok_s",
    }  # fmt: skip
    assert promised <= set(report["stats"])
    assert (report["text"], report["tokens"]) == ("ok", [111, 107, 256])
    assert (report["stats"]["tau"], report["stats"]["accept_at"]) == (1.0, [])
    json.dumps(report)


def test_the_last_line_says_which_drafter_is_active_or_why_not():
    """J11: a head that is not used is told."""
    session = fakes.session(active=False, reason="no head fits")
    result = session.generate("hi")
    assert "not active: no head fits" in output.stats_line(result.drafter, result.stats)
    session = fakes.session()
    assert "drafter none active" in output.stats_line(session.drafter, result.stats)


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "--temprature", "0"],
        ["generate", "--temp", "0"],
        ["generate", "--temperature", "warm"],
        ["generate", "--temperature", "-1", "hi"],
        ["generate", "--top-p", "0", "hi"],
        ["generate", "--top-k", "1.5", "hi"],
        ["generate", "--seed", "-1", "hi"],
        ["generate", "--logit-bias", "7", "hi"],
        ["generate", "--logit-bias", "7=1000", "hi"],
        ["generate", "--stop", "", "hi"],
        ["generate", "--stop-id", "-1", "hi"],
        ["generate", "--accept", "always", "hi"],
        ["generate", "--regex", "a", "--json-schema", "{}", "hi"],
        ["generate", "--json-schema", "{", "hi"],
        ["generate", "--json-schema", "/no/such/file", "hi"],
        ["generate", "--grammar", "/no/such/file", "hi"],
        ["generate", "--max-tokens", "many"],
        ["generate", "--max-tokens", "0"],
        ["generate", "hi", "there"],
        ["generate", "--max-draft", "-1"],
        ["generate", "--threads", "nan"],
        ["cost", "--rows", "1,x"],
        ["cost", "--rows", "1,0"],
        ["bench", "--limit", "0"],
        ["regen", "--out", "x", "--sequences", "0"],
        ["train", "r", "--answers", "a", "--run", "b", "--out", "c", "--max-disk", "nan"],
        ["bench", "--repeat"],
        ["dream"],
        ["--loud"],
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_two(capsys, words):
    """J9: unknown, renamed and shortened flags are errors, never silence."""
    assert main.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("drafthead")
    assert err.endswith(".\n")
    assert err.count("\n") == 1


def test_a_value_that_makes_no_sense_is_refused_by_the_name_of_its_flag(capsys):
    """D4: repetition penalty 0 divides by zero elsewhere."""
    for words, said in (
        (["--repetition-penalty", "0"], "--repetition-penalty: repetition_penalty must be"),
        (["--top-p", "1.5"], "--top-p: top_p must be a number above 0 and up to 1, not 1.5"),
        (["--temperature", "nan"], "--temperature: temperature, where it is not 0, must be"),
        (["--logit-bias", "7=nan"], "--logit-bias: logit_bias of 7 must be"),
    ):
        assert main.main(["generate", "hi", *words]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["generate", "hi", "--draft-model", "x"], "is the model of --drafter standalone"),
        (["generate", "hi", "--backbone", ""], "No backbone is named"),
        (["bench", "--draft-model", "x"], "names the models of the arm standalone"),
        (["generate", "hi", "--drafter", "ngram", "--head", "h"], "--head h is read by the"),
        (["bench", "--drafters", "plain,ngram", "--head", "h"], "not by plain, ngram"),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(capsys, words, said):
    """J9: never silence."""
    assert main.main(words) == 1
    out, err = capsys.readouterr()
    assert said in err and err.count("\n") == 1 and not out


def test_a_stop_id_that_is_no_number_is_told_what_is_expected(capsys):
    assert main.main(["generate", "hi", "--stop-id", "x"]) == 2
    assert "--stop-id: expected a token id such as 2, found 'x'" in capsys.readouterr().err


def test_log_probabilities_without_json_are_refused(capsys):
    assert main.main(["generate", "hi", "--logprobs", "2"]) == 1
    assert "part of --json" in capsys.readouterr().err


def test_structured_answers_are_asked_for_by_file_or_text(tmp_path, monkeypatch, capsys):
    pytest.importorskip("llguidance")
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"const": "é"}', "utf-8")
    grammar.write_text('start: "no" | "nope"', "utf-8")
    monkeypatch.setattr("drafthead.session.load", lambda *a, **k: fakes.session(answer="nope"))
    for words, text in (
        (["--json-schema", str(schema)], '"é"'),
        (["--json-schema", ' {"const": 12}'], "12"),
        (["--regex", "n.p"], "nop"),
        (["--grammar", str(grammar)], "nope"),
    ):
        assert main.main(["generate", "hi", "--json", *words]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["text"], report["finish_reason"]) == (text, "stop")


def failing_command(monkeypatch, error):
    def add_parser(subparsers):
        def run(args):
            raise error

        subparsers.add_parser("cost").set_defaults(run=run)

    monkeypatch.setattr(
        main.importlib, "import_module", lambda name: types.SimpleNamespace(add_parser=add_parser)
    )


def test_an_error_is_one_sentence_and_exit_code_one(monkeypatch, capsys):
    failing_command(monkeypatch, HeadError("Head x: fingerprint differs."))
    assert main.main(["cost"]) == 1
    assert capsys.readouterr().err == "drafthead cost: Head x: fingerprint differs.\n"


def test_an_error_of_the_system_is_one_sentence_too(monkeypatch, capsys):
    failing_command(monkeypatch, PermissionError(13, "Permission denied", "/report"))
    assert main.main(["cost"]) == 1
    assert capsys.readouterr().err == "drafthead cost: Permission denied: /report.\n"


def test_debug_shows_the_traceback(monkeypatch):
    failing_command(monkeypatch, HeadError("Head x."))
    with pytest.raises(HeadError):
        main.main(["cost", "--debug"])


def test_interruption_is_no_traceback(monkeypatch, capsys):
    failing_command(monkeypatch, KeyboardInterrupt())
    assert main.main(["cost"]) == 130
    assert "stopped" in capsys.readouterr().err


@pytest.mark.parametrize(("mismatches", "code"), [(0, 0), (1, 1)])
def test_a_machine_that_is_not_exact_fails_the_selftest(monkeypatch, capsys, mismatches, code):
    """A2: one mismatch in one check is exit code 1 and said, never silent."""
    checks = [{"name": "rows", "cases": 9, "mismatches": mismatches}]
    report = {"exact": not mismatches, "isa": "scalar", "threads": 1, "checks": checks}
    monkeypatch.setattr("drafthead.session.load", lambda *a, **k: fakes.session())
    monkeypatch.setattr("drafthead.evaluation.selftest.run_selftest", lambda *a: report)
    assert main.main(["selftest"]) == code
    assert ("NOT exact" in capsys.readouterr().out) is bool(code)
    assert main.main(["selftest", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == report


@pytest.mark.parametrize(("other", "code"), [("the same", 0), ("another", 1)])
def test_the_demo_fails_where_the_outputs_differ(monkeypatch, capsys, other, code):
    """A1, A2: an answer that is not plain's is shown as NO and ends with exit code 1."""
    prompt = "user:hi;"
    monkeypatch.setattr("drafthead.tasks.prompt_set", lambda *a: [{"prompt": "hi"}])
    answer = [*b"the same", 256]
    drafter = fakes.OracleDrafter(answer=answer, prompt_tokens=len(prompt), vocab_size=256)
    drafting = fakes.session(drafter, answer="the same")
    plain = fakes.session(NoDrafter(), answer=other)
    monkeypatch.setattr(drafting, "using", lambda drafter: plain)
    monkeypatch.setattr("drafthead.session.load", lambda *a, **k: drafting)
    assert main.main(["demo"]) == code
    out = capsys.readouterr().out
    assert out.count("  NO\n") == 3 * code
    assert ("DIFFER" in out) is bool(code)
    assert len(demo.SEEDS) == 3


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(capsys, words):
    assert main.main(words) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in main.COMMANDS)


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_explains_itself(capsys, name):
    assert main.main([name, "--help"]) == 0
    assert f"drafthead {name}" in capsys.readouterr().out


def test_version(capsys):
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"drafthead {drafthead.__version__}\n"


def test_an_instruction_set_that_is_not_there_is_one_sentence(backbone_path):
    done = subprocess.run(
        [sys.executable, "-m", "drafthead", "generate", "--backbone", str(backbone_path), "hi"],
        env=os.environ | {"DRAFTHEAD_ISA": "foo"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("drafthead generate: DRAFTHEAD_ISA: instruction set 'foo'")
    assert done.stderr.count("\n") == 1


def test_a_share_of_all_is_not_shown_as_none():
    assert short_shares([0.567, 1.0, 0.996, 0.0, None]) == ".57/1.00/1.00/.00/-"
