"""Laws of a report's files: one page without network, every arm in it, the numbers of the JSON."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from drafthead.cli import main
from drafthead.drafters.base import NoDrafter
from drafthead.errors import UnsupportedError
from drafthead.evaluation.metrics import arm_lines, language_lines, task_means
from drafthead.evaluation.prompts import PromptRow
from drafthead.evaluation.report import drawing, plots
from drafthead.evaluation.report.files import write_report
from drafthead.evaluation.report.page import page, passes
from drafthead.evaluation.report.table import all_arms, arm_rows, markdown_table
from drafthead.evaluation.runner import run_arms
from drafthead.evaluation.samples import sample_section
from tests import fakes

ANSWER = "a <b>longer</b> & odder answer"
TASKS = ("x", "y_z", "x")


def measured():
    """A report as `bench` makes it, of two arms on doubles, with a peer beside them."""
    oracle = fakes.OracleDrafter(answer=[*ANSWER.encode(), 256], prompt_tokens=8, vocab_size=256)
    session = fakes.session(oracle, answer=ANSWER)
    rows = [
        PromptRow(f"p{index}", task, ({"role": "user", "content": "hi"},))
        for index, task in enumerate(TASKS)
    ]
    answers = run_arms({"plain": session.using(NoDrafter()), "mtp": session}, rows, 50)
    lines = arm_lines(answers)
    peer_arms = [line | {"drafter": "plain"} for line in lines if line["drafter"] == "plain"]
    peer_arms += [line | {"drafter": "lookup"} for line in lines if line["drafter"] == "mtp"]
    return {
        "drafthead": "0",
        "machine": {
            "cpu": "CPU <1>", "cores": 2, "isa": "scalar", "threads": 1, "memory_read_gb_s": 9.5,
        },
        "backbone": {"name": "b"},
        "settings": {"max_tokens": 50},
        "cost": {"rows_ms": {"1": 2.0, "2": 2.5, "4": 4.0}, "draft_step_ms": {"mtp": 0.25}},
        "choices": {},
        "arms": lines,
        "task_means": task_means(answers),
        "languages": language_lines(answers, {("x", "p0"): "es", ("x", "p2"): "es"}),
        "peers": [
            {"name": "other", "version": "1", "threads": 1, "build": "X = 1", "arms": peer_arms}
        ],
        "energy": {"source": None, "reason": "no counter here"},
        "memory": {
            "backbone_bytes": 123_456, "kv_bytes_per_token": 64, "embedding_bytes": 1000,
            "context_tokens": 100,
            "drafters": {
                "mtp": {
                    "weights_bytes": 7777, "embedding_bytes": 0, "kv_bytes_per_token": 0,
                    "peak_bytes": 8888,
                },
            },
            "head_saves": {
                "context_tokens": 100, "embedding_bytes": 1000, "cache_bytes": 200,
                "standalone_bytes": 1200, "second_cache_bytes": 6400,
            },
        },
        "samples": sample_section(answers, rows),
    }  # fmt: skip


@pytest.fixture(scope="module")
def report():
    return measured()


class Parsed(HTMLParser):
    """Every address, id, cell and marked text of a page, and whether its tags are balanced."""

    VOID = ("meta", "link", "br", "img", "wbr")

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.addresses, self.tags = [], [], [], []
        self.rows, self.tables, self.marked, self.text = [], {}, [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        if "id" in values:
            self.ids.append(values["id"])
        links = ("src", "href", "xlink:href", "srcset", "action", "data", "poster")
        self.addresses += [values[name] for name in links if name in values]
        self.addresses += re.findall(r"url\(([^)]*)\)", " ".join(filter(None, values.values())))
        if values.get("role") == "region":
            self.table = self.tables.setdefault(values["aria-label"], [])
        if tag == "tr":
            self.rows.append([])
            self.table.append(self.rows[-1])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "u":
            self.marked.append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        if self.open and self.open[-1] == "u":
            self.marked[-1] += data
        if self.open and self.open[-1] == "style":
            assert "@import" not in data and "url(" not in data


@pytest.fixture(scope="module")
def parsed(report):
    return Parsed(page(report))


def test_the_page_needs_no_network_and_no_script(report, parsed):
    """Its only addresses are places in itself and the JSON beside it."""
    text = page(report)
    assert text.startswith("<!DOCTYPE html>")
    outside = {a for a in parsed.addresses if not a.startswith("#")}
    assert outside == {"bench.json"}
    inside = {a[1:] for a in parsed.addresses if a.startswith("#")}
    assert inside <= set(parsed.ids)
    assert not {"script", "link", "img", "iframe", "object"} & set(parsed.tags)
    # Names of XML vocabularies look like addresses and are never fetched.
    names = set(re.findall(r"https?://[^\"' <]+", text))
    assert names <= {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}


def test_no_two_parts_of_the_page_share_an_id(parsed):
    assert len(parsed.ids) == len(set(parsed.ids))


def test_every_arm_of_every_task_is_on_the_page_with_its_numbers(report, parsed):
    """Speeds and shares by task, counts and times by task, in the words of the JSON's numbers."""
    names = {"all": "all tasks", "x": "x", "y_z": "y z"}
    for task, title in names.items():
        arms = [arm for arm in all_arms(report) if arm["task"] == task]
        speeds = parsed.tables["All tasks together" if task == "all" else title][1:]
        counts = parsed.tables[f"Counts and times, {title}"][1:]
        assert [row[0] for row in speeds] == [row[0] for row in counts]
        assert len(arms) == len(speeds) == 4
        for arm, speed, count in zip(arms, speeds, counts, strict=True):
            ratio, low, high = arm["speedup_vs_plain"]["median"], *ends(arm)
            assert speed[:3] == [arm["drafter"], f"{ratio:.2f}", f"{low}-{high}".strip("-") or "-"]
            assert count[1:5] == [str(arm[key]) for key in COUNTS]
            assert f"{1000 * arm['cpu_s_per_token']:.2f}" in count and count[-1] == "-"
    mtp = next(a for a in report["arms"] if (a["drafter"], a["task"]) == ("mtp", "all"))
    assert parsed.tables["All tasks together"][2][-2:] == [f"{mtp['tau']:.2f}", "1.00"]


COUNTS = ("prompts", "tokens", "looped", "passes")


def ends(arm):
    interval = arm["speedup_vs_plain"]["ci95"]
    return ("", "") if interval is None else tuple(f"{end:.2f}" for end in interval)


def test_an_arm_with_other_tokens_is_named_as_a_fault(report, parsed):
    assert "Every drafter gave the tokens of plain decoding" in parsed.text
    wrong = [arm | {"identical": arm["drafter"] != "mtp"} for arm in report["arms"]]
    said = Parsed(page(report | {"arms": wrong})).text
    assert "NOT the tokens of plain decoding: mtp." in said and "Every drafter" not in said
    alone = [arm | {"identical": None} for arm in report["arms"] if arm["drafter"] == "mtp"]
    assert "Nothing was compared" in Parsed(page(report | {"arms": alone})).text


def test_figures_say_the_numbers_they_draw(report, parsed):
    """One figure of speed-ups for each task and one for all; text is text."""
    for name in ("all tasks", "x", "y z"):
        assert name in parsed.text
    assert parsed.tags.count("svg") == 3 + 3
    for arm in all_arms(report):
        if arm["drafter"] != "plain":
            assert f"{arm['drafter']}: {arm['speedup_vs_plain']['median']:.2f}" in parsed.text
    assert "1 rows: 1.00, 2 rows: 1.25, 4 rows: 2.00" in parsed.text
    assert "break-even of mtp" in parsed.text
    mtp = next(a for a in report["arms"] if (a["drafter"], a["task"]) == ("mtp", "all"))
    assert "mtp: " + ", ".join(f"{rate:.2f}" for rate in mtp["accept_at"]) in parsed.text


def test_memory_and_what_the_head_saves_are_those_of_the_json(parsed):
    assert ["backbone", "123,456", "1,000", "64", "-"] in parsed.rows
    assert ["mtp", "7,777", "0", "0", "8,888"] in parsed.rows
    assert "1,200 bytes more at 100 tokens" in parsed.text and "6,400 bytes" in parsed.text
    assert "Joules were not measured: no counter here." in parsed.text


def test_a_sample_marks_what_was_drafted_and_keeps_the_text(report, parsed):
    """One answer a task and arm, whole, and escaped; plain decoding has nothing to mark."""
    assert [(s["task"], s["drafter"]) for s in report["samples"]] == [
        ("x", "plain"), ("x", "mtp"), ("y_z", "plain"), ("y_z", "mtp"),
    ]  # fmt: skip
    pieces = report["samples"][1]["pieces"]
    assert "".join(text for text, _, _ in pieces) == ANSWER
    drafted = "".join(text for text, drafted, _ in pieces if drafted)
    assert drafted and "".join(parsed.marked) == "Underlined" + 2 * drafted
    assert parsed.text.count(ANSWER) == 2


def test_the_first_answer_of_each_task_is_kept_with_its_text_and_no_other():
    session = fakes.session(NoDrafter(), answer=ANSWER)
    rows = [
        PromptRow(f"p{index}", task, ({"role": "user", "content": "hi"},))
        for index, task in enumerate(TASKS)
    ]
    kept = [(a.task, a.prompt_id) for a in run_arms({"a": session}, rows, 5, 3) if a.events]
    assert kept == [("x", "p0"), ("y_z", "p1")]


def test_pieces_are_joined_within_a_pass_and_not_across():
    pieces = [["a", False, 0], ["b", True, 1], ["c", True, 1], ["d", False, 1], ["e", True, 2]]
    assert passes(pieces) == [[("a", False)], [("bc", True), ("d", False)], [("e", True)]]


def test_the_folder_holds_json_table_and_page(report, tmp_path):
    write_report(report, tmp_path / "new")
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "bench.json", "bench.md", "bench.html",
    }  # fmt: skip
    assert json.loads((tmp_path / "new" / "bench.json").read_text()) == report
    said = (tmp_path / "new" / "bench.md").read_text()
    assert markdown_table(arm_rows(all_arms(report))) in said
    assert "\nother: 1, 1 threads, built with X; the same file, tokens and ends" in said
    assert said.endswith("\n\nJoules were not measured: no counter here.\n")
    assert (tmp_path / "new" / "bench.html").read_text() == page(report)


def test_languages_have_a_table_where_prompts_name_them(report, tmp_path):
    """K13."""
    rows = Parsed(page(report)).tables["By language of the answer"]
    assert rows[0][:2] == ["language", "drafter"]
    lines = report["languages"]
    assert [row[:2] for row in rows[1:]] == [["es", line["drafter"]] for line in lines]
    assert rows[2][-2] == f"{lines[1]['tau']:.2f}"
    write_report(report, tmp_path)
    assert "\n| language | drafter |" in (tmp_path / "bench.md").read_text()
    write_report(report | {"languages": []}, tmp_path)
    assert not any("language" in path.read_text() for path in tmp_path.glob("*.[hm]*"))


def test_the_same_report_gives_the_same_page(report):
    assert page(report) == page(json.loads(json.dumps(report)))


def test_a_report_of_plain_decoding_alone_has_a_page(report):
    alone = report | {"peers": [], "task_means": {}, "samples": []}
    alone["arms"] = [arm for arm in report["arms"] if arm["drafter"] == "plain"]
    alone["cost"] = report["cost"] | {"draft_step_ms": {}}
    alone["memory"] = {
        key: report["memory"][key] for key in report["memory"] if key != "head_saves"
    }
    alone["memory"]["drafters"] = {}
    assert Parsed(page(alone)).tags.count("svg") == 1


def test_series_differ_without_colour():
    """No two of the first thirty look alike, and the first seven not even in black and white."""
    curves, bars = (drawing.DASHES, drawing.MARKERS), (drawing.FILLS, drawing.HATCHES)
    for first, second in (curves, bars):
        looks = {(str(drawing.nth(first, n)), str(drawing.nth(second, n))) for n in range(30)}
        assert len(looks) == 30
    for black in (drawing.HATCHES, drawing.DASHES, drawing.MARKERS):
        assert len(set(map(str, black[:7]))) == 7


def test_a_long_name_keeps_what_tells_models_apart():
    names = [f"standalone:qwen2.5-coder-{size}b-instruct-q4_k_m" for size in ("0.5", "1.5")]
    names += ["standalone:qwen2.5-coder-0.5b-instruct-q8_0", "llama.cpp+prompt-lookup"]
    shown = [plots.short(name) for name in names]
    assert len(set(shown)) == 4 and max(map(len, shown)) <= plots.LONGEST_NAME
    assert shown[0] == "qwen2.5-coder-0.5b…t-q4_k_m" and shown[3] == names[3]


def test_a_report_without_matplotlib_is_refused_before_anything_is_measured(
    monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(drawing, "has_matplotlib", lambda: False)
    monkeypatch.setattr("drafthead.session.load", lambda *a, **k: pytest.fail("loaded"))
    assert main.main(["bench", "--report", str(tmp_path / "new")]) == 1
    said = capsys.readouterr().err
    assert "pip install 'drafthead[report]'" in said and said.count("\n") == 1
    assert not (tmp_path / "new").exists()
    with pytest.raises(UnsupportedError):
        drawing.draw("x", 100, 100, lambda axes: None)
