"""Laws of the bench: arms interleaved, counts pooled, prompts read with care."""

from __future__ import annotations

import gzip
import json
import sys
from functools import partial

import pytest

from drafthead.cli.bench import named_models
from drafthead.drafters.base import NoDrafter
from drafthead.errors import CapacityError, FileError, RequestError, UnsupportedError
from drafthead.evaluation.energy import EnergyMeter
from drafthead.evaluation.metrics import Answer, arm_lines, language_lines, spread
from drafthead.evaluation.peer_answers import answer_with_peer, peer_section
from drafthead.evaluation.peers import BATCH_ROWS, LlamaCpp, llama_cpp
from drafthead.evaluation.prompts import PromptRow, parse_row, read_prompts, select
from drafthead.evaluation.report.table import (
    all_arms,
    arm_rows,
    choice_lines,
    markdown_table,
    peer_line,
)
from drafthead.evaluation.runner import run_arms
from drafthead.types import DecodeStats, SourceCounts
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


def test_a_random_drafter_is_accepted_once_in_a_vocabulary_and_slows_down():
    """I6: acceptance near 1/V, within five standard deviations; nothing drafted has no rate."""
    session = fakes.session(fakes.RandomDrafter(k=4, vocab_size=256), answer="x" * 2000)
    made = {"plain": session.using(NoDrafter()), "random": session}
    lines = arm_lines(run_arms(made, rows("x"), 2000, cut_loops=False))
    plain, random = line(lines, "plain"), line(lines, "random")
    first = random["passes"] - 1  # the last token is not drafted for
    assert random["identical"] is True
    assert random["drafted"] > 3.9 * first
    accepted = random["accept_at"][0] * first
    assert abs(accepted - first / 256) < 5 * (first / 256) ** 0.5
    assert 1.0 <= random["tau"] < 1.02
    assert (plain["tau"], plain["accept_at"], plain["sources"]) == (1.0, [], {})


def test_sources_of_drafts_are_pooled():
    one = {"ngram": SourceCounts(2, 9, 5)}
    two = {"mtp": SourceCounts(3, 6, 4), "ngram": SourceCounts(1, 1, 0)}
    lines = arm_lines(
        [answer("a", "1", 9, 9.0, sources=one), answer("a", "2", 9, 9.0, sources=two)]
    )
    assert line(lines, "a")["sources"] == {
        "ngram": {"drafts": 3, "drafted": 10, "accepted": 5},
        "mtp": {"drafts": 3, "drafted": 6, "accepted": 4},
    }


def test_the_bench_says_whose_drafts_they_were_and_why():
    sources = {"ngram": {"drafts": 3, "drafted": 10, "accepted": 5},
               "mtp": {"drafts": 1, "drafted": 6, "accepted": 4}}  # fmt: skip
    arm = {"drafter": "ngram+mtp", "task": "all", "sources": sources}
    said = choice_lines({"choices": {"ngram+mtp": "because"}, "arms": [arm]})
    assert said == [
        "ngram+mtp: 75% of the drafts from ngram, 5 of 10 tokens accepted; "
        "25% of the drafts from mtp, 4 of 6 tokens accepted; because."
    ]


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


def test_languages_that_prompts_name_have_lines_of_their_own():
    """K13: a head trained on one language gains less in another, and a pooled figure hides it."""
    answers = [
        answer(drafter, prompt, committed, 1000.0)
        for drafter, speeds in (("plain", (10, 10, 10)), ("mtp", (30, 9, 50)))
        for prompt, committed in zip("abc", speeds, strict=True)
    ]
    lines = language_lines(answers, {("t", "a"): "en", ("t", "b"): "ro", ("t", "c"): None})
    found = {(x["lang"], x["drafter"]): (x["prompts"], x["committed"]) for x in lines}
    assert found == {
        ("en", "plain"): (1, 10), ("ro", "plain"): (1, 10),
        ("en", "mtp"): (1, 30), ("ro", "mtp"): (1, 9),
    }  # fmt: skip
    assert [x["speedup_vs_plain"]["pooled"] for x in lines[2:]] == [3.0, 0.9]
    assert language_lines(answers, {("t", prompt): None for prompt in "abc"}) == []


def test_prompts_of_two_tasks_may_have_one_id():
    """They are told apart, and so are their languages; within a task two with one id are not."""
    answers = [
        answer(drafter, "1", 10, 1000.0, task=task) for drafter in ("plain", "m") for task in "ab"
    ]
    assert line(arm_lines(answers), "m")["prompts"] == 2
    lines = language_lines(answers, {("a", "1"): "en", ("b", "1"): "de"})
    assert [(x["lang"], x["prompts"]) for x in lines if x["drafter"] == "m"] == [
        ("en", 1), ("de", 1),
    ]  # fmt: skip
    same = [PromptRow("1", task, ()) for task in ("a", "b", "a")]
    assert len(select(same[:2])) == 2
    with pytest.raises(RequestError, match="Two prompts of the task a have the id '1'"):
        select(same)


def test_no_task_is_called_as_all_of_them_are():
    with pytest.raises(FileError, match="line 1: all tasks together are called all"):
        parse_row({"id": "1", "task": "all", "prompt": "hi"}, "line 1")


@pytest.mark.parametrize("name", ["ngram", "mtp", "plain"])
def test_an_arm_of_a_draft_model_has_a_name_of_its_own(name):
    with pytest.raises(RequestError, match=f"Two arms are called {name}: give --draft-model"):
        named_models([f"{name}=a.gguf"])
    with pytest.raises(RequestError, match="the arm has no name"):
        named_models(["=a.gguf"])
    assert named_models(["standalone=a.gguf"]) == {"standalone": "a.gguf"}


def test_a_task_with_a_bar_in_its_name_breaks_no_table():
    answers = [answer("plain", "1", 10, 1000.0, task="<b>x|y")]
    row = markdown_table(arm_rows(arm_lines(answers))).splitlines()[2]
    assert row.startswith("| \\<b\\>x\\|y | plain |")


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


def run_with_peer(peer, made, *names, max_tokens=50):
    answering = {peer.name: partial(answer_with_peer, peer, None, made["plain"])}
    return run_arms(made, rows(*names), max_tokens, peers=answering)


def test_a_peer_takes_turns_and_ends_by_the_same_rules():
    """Same tokens in, same end, one warm-up that is not counted, and its own section after."""
    made = arms()
    seen = []
    peer = fakes.ScriptedPeer(made["plain"])
    answering = {peer.name: partial(answer_with_peer, peer, None, made["plain"])}
    run_arms(made, rows("x", "y"), 50, 1, True, lambda a: seen.append(a.drafter), answering)
    assert seen == ["plain", "mtp", "llama.cpp", "mtp", "llama.cpp", "plain"]
    for max_tokens in (1, 3, 50):
        answers = run_with_peer(peer, made, "x", max_tokens=max_tokens)
        plain, _, other = answers
        assert (other.tokens, other.finish_reason) == (plain.tokens, plain.finish_reason)
        assert other.stats.committed == len(other.tokens) - 1
        assert other.ttft_ms >= 0


def test_a_peer_has_its_own_section_and_a_row_of_the_table():
    """Fields of drafting are left out; its tokens were never promised to be the same."""
    made = arms()
    peer = fakes.ScriptedPeer(made["plain"])
    answers = run_with_peer(peer, made, "x", "y")
    lines = arm_lines(answers)
    section = peer_section(peer, [], lines, answers)
    assert [(arm["drafter"], arm["task"]) for arm in section["arms"]] == [
        ("plain", "x"), ("plain", "y"), ("plain", "all"),
    ]  # fmt: skip
    assert section["arms"][-1]["identical"] is True
    assert {"tok_s", "speedup_vs_plain", "ttft_ms"} < set(section["arms"][0])
    assert not {"tau", "drafted", "accepted", "accept_at"} & set(section["arms"][0])
    own = [x for x in lines if x["drafter"] != peer.name]
    report = {"arms": own, "peers": [section]}
    table = markdown_table(arm_rows(all_arms(report)))
    assert "| all | llama.cpp | 2 | 32 | - |" in table
    assert [line.rsplit("|", 2)[1] for line in table.splitlines() if "llama" in line] == [" - "] * 3
    assert peer_line(section).startswith("llama.cpp: binding 1.0, 1 threads, built with AVX;")


def test_a_peer_that_is_not_there_is_one_sentence(monkeypatch):
    """The command that installs it is named; one that does not load says why."""
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(UnsupportedError, match="pip install --no-binary llama-cpp-python"):
        llama_cpp()

    def broken(name):
        raise RuntimeError("Failed to load 'libllama.so':\nno such file.")

    monkeypatch.setattr("drafthead.evaluation.peers.import_module", broken)
    with pytest.raises(UnsupportedError, match=r"does not load: Failed .* no such file\.$"):
        llama_cpp()


@pytest.mark.backbone
def test_llama_cpp_is_fed_and_rolled_back_as_a_cache_is(backbone_path, tmp_path):
    """Chunks of any size, one row's logits or every row's, and the ends of its memory."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    peer = LlamaCpp(backbone_path, threads=2, context=1024)
    ids = [(7 * i * i + 13) % 40_000 + 100 for i in range(BATCH_ROWS + 5)]
    first = peer.choose(ids)
    assert peer.length == len(ids)
    peer.rollback(len(ids) - 4)
    every = peer.feed(ids[-4:], every_row=True)
    assert every.shape == (4, peer.vocab_size)
    assert int(every[-1].argmax()) == first
    peer.rollback(0)
    assert peer.choose(ids) == first
    with pytest.raises(CapacityError, match="cannot add"):
        peer.feed(ids)
    peer.close()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with pytest.raises(FileError, match=r"cannot load .*broken\.gguf"):
        LlamaCpp(broken, 1, 64)
