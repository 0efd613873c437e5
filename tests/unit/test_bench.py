"""Laws of the bench: arms interleaved, counts pooled, prompts read with care."""

from __future__ import annotations

import gzip
import json

import pytest

from drafthead.drafters.base import NoDrafter
from drafthead.errors import CapacityError, FileError, RequestError
from drafthead.evaluation.machine import EnergyMeter
from drafthead.evaluation.metrics import Answer, arm_lines, spread
from drafthead.evaluation.prompts import PromptRow, parse_row, read_prompts, select
from drafthead.evaluation.report import markdown_table, write_report
from drafthead.evaluation.runner import run_arms
from drafthead.types import DecodeStats
from tests import fakes

ANSWER = "a longer answer"


def rows(*tasks):
    return [
        PromptRow(f"p{index}", task, ({"role": "user", "content": "hi"},))
        for index, task in enumerate(tasks)
    ]


def arms(drafter=None):
    drafter = drafter or fakes.OracleDrafter(
        answer=[*ANSWER.encode(), 256], prompt_tokens=8, vocab_size=256
    )
    session = fakes.session(drafter, answer=ANSWER)
    return {"plain": session.using(NoDrafter()), "mtp": session}


def answer(drafter, prompt_id, committed, decode_ms, tokens=(1, 2), task="t", **stats):
    counts = DecodeStats(passes=committed, committed=committed, decode_ms=decode_ms, **stats)
    return Answer(drafter, task, prompt_id, tokens, "stop", counts, 10.0, 0.5, None)


def line(lines, drafter, task="all"):
    return next(x for x in lines if (x["drafter"], x["task"]) == (drafter, task))


def test_arms_alternate_prompt_by_prompt():
    seen = []
    run_arms(arms(), rows("x", "x", "y"), 50, 2, True, lambda a: seen.append(a.drafter))
    first = ["plain", "mtp", "mtp", "plain", "plain", "mtp"]
    second = ["mtp", "plain", "plain", "mtp", "mtp", "plain"]
    assert seen == [*first, *second]


def test_warm_up_is_not_counted():
    answers = run_arms(arms(), rows("x"), 50)
    assert [a.drafter for a in answers] == ["plain", "mtp"]
    assert all(len(a.tokens) == len(ANSWER) + 1 for a in answers)


def test_lines_have_the_promised_fields_for_each_task_and_all():
    lines = arm_lines(run_arms(arms(), rows("x", "y", "x"), 50))
    assert [(x["drafter"], x["task"]) for x in lines] == [
        (drafter, task) for drafter in ("plain", "mtp") for task in ("x", "y", "all")
    ]
    promised = {
        "drafter", "task", "prompts", "tokens", "looped", "passes", "drafted", "accepted", "tau",
        "accept_at", "tok_s", "speedup_vs_plain", "ttft_ms", "identical", "cpu_s_per_token",
        "joules_per_token",
    }  # fmt: skip
    assert all(promised <= set(x) for x in lines)
    plain, mtp = line(lines, "plain"), line(lines, "mtp")
    assert (plain["tau"], plain["accept_at"], plain["drafted"]) == (1.0, [], 0)
    assert mtp["identical"] is True
    assert mtp["tokens"] == plain["tokens"] == 3 * (len(ANSWER) + 1)
    assert mtp["accepted"] == 3 * line(lines, "mtp", "y")["accepted"]
    assert mtp["accept_at"][0] == 1.0


def test_a_differing_token_is_told():
    lines = arm_lines([answer("plain", "a", 9, 9.0), answer("mtp", "a", 9, 9.0, tokens=(1, 3))])
    assert line(lines, "mtp")["identical"] is False


def test_tau_is_pooled_and_speed_up_is_per_prompt_and_pooled():
    """I3: a mean of ratios and a ratio of sums are two numbers, each under its own name."""
    lines = arm_lines(
        [
            answer("plain", "a", 100, 1000.0),
            answer("plain", "b", 10, 100.0),
            answer("mtp", "a", 100, 500.0),
            answer("mtp", "b", 10, 100.0),
        ]
    )
    ratio = line(lines, "mtp")["speedup_vs_plain"]
    assert ratio["median"] == 1.5
    assert ratio["pooled"] == pytest.approx((110 / 600) / (110 / 1100), abs=1e-4)


def test_without_plain_there_is_nothing_to_compare_with():
    lines = arm_lines([answer("mtp", "a", 9, 9.0)])
    assert line(lines, "mtp")["identical"] is None
    assert line(lines, "mtp")["speedup_vs_plain"]["median"] is None


def test_an_answer_of_one_token_has_no_speed_and_breaks_nothing():
    """I6: nothing after the prefill gives None."""
    single = [answer("plain", "a", 0, 0.0, (1,)), answer("mtp", "a", 0, 0.0, (1,))]
    result = line(arm_lines(single), "mtp")
    assert result["tau"] is result["tok_s"]["median"] is result["cpu_s_per_token"] is None
    assert spread([]) == {"median": None, "p10": None, "p90": None}


def test_report_is_written_as_json_and_markdown(tmp_path):
    lines = arm_lines(run_arms(arms(), rows("x"), 50))
    machine = {"cpu": "c", "threads": 1, "isa": "scalar"}
    report = {"drafthead": "0", "machine": machine, "backbone": {"name": "b"}, "arms": lines}
    write_report(report, tmp_path / "new")
    assert json.loads((tmp_path / "new/bench.json").read_text()) == report
    table = markdown_table(lines)
    assert table in (tmp_path / "new/bench.md").read_text()
    assert table.count("\n") == 2 + 4
    assert "| x | plain | 1 | 16 | 1.00 |" in table


def test_prompt_files_are_read_plain_or_gzipped_and_unknown_keys_ignored(tmp_path):
    lines = [
        {"id": "1", "task": "t", "prompt": "hi", "group": "g"},
        {"id": "2", "task": "t", "messages": [{"role": "user", "content": "ho"}]},
    ]
    text = "".join(json.dumps(x) + "\n" for x in lines) + "\n"
    (tmp_path / "p.jsonl").write_text(text)
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    expected = [
        PromptRow("1", "t", ({"role": "user", "content": "hi"},)),
        PromptRow("2", "t", ({"role": "user", "content": "ho"},)),
    ]
    for name in ("p.jsonl", "p.jsonl.gz"):
        assert list(read_prompts(tmp_path / name)) == expected


@pytest.mark.parametrize(
    "line",
    ["[1]", "{", '{"id": "1"}', '{"id": "1", "task": "t"}', '{"id": 1, "task": "t", "prompt": "x"}',
     '{"id": "1", "task": "t", "messages": []}',
     '{"id": "1", "task": "t", "messages": [{"role": "user"}]}',
     '{"id": "1", "task": "t", "messages": [{"role": "boss", "content": "x"}]}',
     '{"id": "1", "task": "t", "prompt": "\\ud83d"}',
     '{"id": "\\ud83d", "task": "t", "prompt": "x"}',
     "[" * 100_000, "9" * 5000],
)  # fmt: skip
def test_a_bad_line_is_one_named_error(tmp_path, line):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"id": "0", "task": "t", "prompt": "x"}\n' + line + "\n")
    with pytest.raises(FileError, match=r"^bad\.jsonl, line 2: ") as caught:
        list(read_prompts(path))
    assert "line 1" not in str(caught.value)


def test_a_file_that_is_no_text_is_one_named_error(tmp_path):
    """Bytes that are not UTF-8, and gzip that is cut, rotten or no gzip."""
    row = b'{"id": "0", "task": "t", "prompt": "x"}\n'
    packed = bytearray(gzip.compress(row * 999))
    rotten = packed[:12] + bytes(byte ^ 255 for byte in packed[12:])
    (tmp_path / "a.jsonl").write_bytes(row + b"\xff\n")
    for name, raw in {"cut": packed[:30], "rotten": rotten, "no": row}.items():
        (tmp_path / f"{name}.jsonl.gz").write_bytes(raw)
    (tmp_path / "folder").mkdir()
    for path in tmp_path.iterdir():
        with pytest.raises(FileError, match="is not a file of JSON lines") as caught:
            list(read_prompts(path))
        assert str(path) in str(caught.value)


def test_a_prompt_that_cannot_be_answered_is_named_before_anything_is_measured():
    long = PromptRow("p9", "x", ({"role": "user", "content": "long " * 999},))
    with pytest.raises(CapacityError, match=r"^Prompt p9: .* 4096"):
        run_arms(arms(), [*rows("x"), long], 5, on_answer=lambda a: pytest.fail("measured"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match=r"no\.jsonl"):
        list(read_prompts(tmp_path / "no.jsonl"))


def test_limit_is_per_task_and_tasks_filter():
    many = rows("x", "x", "y", "x", "y")
    assert [r.id for r in select(many, limit=1)] == ["p0", "p2"]
    assert [r.id for r in select(many, ["y"], 5)] == ["p2", "p4"]
    with pytest.raises(RequestError, match="z"):
        select(many, ["y", "z"])
    with pytest.raises(RequestError):
        select([])


def test_a_row_with_both_takes_the_prompt():
    row = parse_row({"id": "1", "task": "t", "prompt": "p", "messages": 3}, "here")
    assert row.messages == ({"role": "user", "content": "p"},)


def test_energy_adds_packages_and_follows_a_wrapped_counter(tmp_path):
    """Sub-zones are part of their package; a machine without counters gives None."""
    assert EnergyMeter(tmp_path).lap_joules() is None
    for name, start in {"intel-rapl:0": 900, "intel-rapl:1": 100, "intel-rapl:0:0": 5}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{start}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("1000\n")
    meter = EnergyMeter(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("50\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("400\n")
    (tmp_path / "intel-rapl:0:0" / "energy_uj").write_text("999\n")
    assert meter.lap_joules() == pytest.approx((150 + 300) / 1e6)
    assert meter.lap_joules() == 0
