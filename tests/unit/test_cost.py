"""Laws of the cost report: roofline, loading, times."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from drafthead import _native
from drafthead.drafters.base import NoDrafter
from drafthead.drafters.mtp import MtpDrafter
from drafthead.drafters.standalone import StandaloneDrafter
from drafthead.errors import CapacityError, FileError, RequestError
from drafthead.evaluation import cost
from drafthead.evaluation.cost import cost_report, interleaved_ms, measure_cost
from drafthead.evaluation.loading import Loading, measure_loading
from drafthead.evaluation.roofline import Work, limits
from drafthead.gguf.reader import read_gguf
from drafthead.gguf.spec import model_spec
from tests import fakes
from tests.tiny import TinySpec, write_tiny_llama

LOADING = Loading(
    load_ms=5.0,
    file_bytes=1000,
    resident_bytes=1200,
    mapped_bytes=150,
    peak_bytes=1300,
    python_bytes=40,
    metadata_bytes=9,
    text_bytes=7,
)


@pytest.fixture
def spec(tiny_path):
    """A model's numbers, with the vocabulary of the scripted backbone."""
    return replace(model_spec(read_gguf(tiny_path)), vocab_size=260)


@pytest.fixture
def report(monkeypatch, spec):
    """A report on the scripted backbone: 10^9 multiply-adds a second, and made-up loading."""
    monkeypatch.setattr(_native, "integer_peak", lambda threads: 1e9, raising=False)
    monkeypatch.setattr(cost, "measure_loading", lambda path, threads: LOADING)
    session = fakes.session()
    session.backbone.spec = spec
    return cost_report(session, rows=(4, 2), context=10)


def test_report_has_the_promised_fields_and_always_one_row(report):
    assert list(report["rows_ms"]) == ["1", "2", "4"]
    assert list(report["v"]) == ["2", "4"]
    assert report["draft_step_ms"] is None
    assert report["bytes_per_pass"] == 1_000_000
    share = 1e6 / (report["rows_ms"]["1"] / 1000) / 1e9 / report["memory_read_gb_s"]
    assert report["bandwidth_share"] == pytest.approx(share, rel=0.1, abs=2e-4)
    assert report["load_ms"] == 5.0
    assert report["memory"]["kv_bytes_per_token"] == 100
    assert (report["memory"]["resident_ratio"], report["memory"]["peak_ratio"]) == (1.2, 1.3)


def test_report_shows_which_limit_binds(report, spec):
    """The tokens of every row are asked for, those of a prompt for the last alone."""
    work = Work.of(spec)
    for name, roof in report["roofline"].items():
        assert roof["multiply_ms"] == pytest.approx(int(name) * work.of_pass(1, 1) / 1e6, abs=1e-4)
        assert roof["measured_ms"] == report["rows_ms"][name]
    prompt = report["prompt"]
    assert prompt["tokens"] == 512
    assert prompt["limit_tok_s"] == pytest.approx(512e9 / work.of_pass(512, 1), rel=1e-3)
    assert prompt["share"] == pytest.approx(prompt["tok_s"] / prompt["limit_tok_s"], rel=1e-2)


def test_the_larger_limit_binds():
    """The roofline: bytes over bandwidth, multiply-adds over peak."""
    work = Work(layers=9_000_000, output=1_000_000)
    roofs = limits({"1": 4.0, "8": 16.0}, work, 20_000_000, read_gb_s=10.0, peak_g_s=10.0)
    one, eight = roofs["1"], roofs["8"]
    assert (one.memory_ms, one.multiply_ms, one.binds, one.share) == (2.0, 1.0, "memory", 0.5)
    assert (eight.memory_ms, eight.multiply_ms, eight.binds) == (2.0, 8.0, "multiply")
    assert (eight.share, one.multiply_share) == (0.5, 0.25)


@pytest.mark.parametrize("tied", [True, False])
def test_work_counts_every_weight_that_is_multiplied(tmp_path, tied):
    """The embedding counts where it is the output matrix, and norms never."""
    tiny = TinySpec(tied=tied)
    write_tiny_llama(tmp_path / "t.gguf", tiny)
    work = Work.of(model_spec(read_gguf(tmp_path / "t.gguf")))
    query, kv = tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim
    layer = tiny.width * (2 * query + 2 * kv + 3 * tiny.ff)
    assert (work.layers, work.output) == (tiny.layers * layer, tiny.vocab * tiny.width)
    assert work.of_pass(5, 2) == 5 * work.layers + 2 * work.output


@pytest.mark.backbone
def test_loading_is_measured_in_a_process_of_its_own(backbone_path):
    """The weights are told from Python before them and the tokenizer after them."""
    loading = measure_loading(backbone_path, threads=1)
    assert loading.file_bytes == backbone_path.stat().st_size
    assert loading.resident_bytes > 0.9 * loading.file_bytes
    assert loading.peak_bytes >= loading.resident_bytes >= loading.mapped_bytes >= 0
    assert loading.python_bytes > 10e6
    assert 1e6 < loading.metadata_bytes < 0.5 * loading.file_bytes
    assert 1e6 < loading.text_bytes < 0.5 * loading.file_bytes
    assert loading.load_ms > 0


def test_loading_that_fails_is_one_sentence(tmp_path):
    path = tmp_path / "page.gguf"
    path.write_text("<html>not found</html>")
    with pytest.raises(FileError, match=r"^A fresh process could not load .*page\.gguf") as caught:
        measure_loading(path, threads=1)
    assert "Error" not in str(caught.value)


def test_jobs_run_once_a_round_in_an_order_that_changes():
    ran = []
    times = interleaved_ms({name: partial(ran.append, name) for name in "abcd"}, rounds=9)
    rounds = [ran[start : start + 4] for start in range(0, len(ran), 4)]
    assert len(rounds) == 1 + 9  # the first warms up
    assert all(sorted(one) == list("abcd") for one in rounds)
    assert len(set(map(tuple, rounds))) > 5
    assert set(times) == set("abcd")


@pytest.mark.parametrize(
    ("rows", "context", "error"),
    [((0,), 10, RequestError), ((2,), 0, RequestError), ((8,), 60, CapacityError)],
)
def test_sizes_that_do_not_fit_are_refused(rows, context, error):
    with pytest.raises(error):
        measure_cost(fakes.session(context=64), rows, context)


def test_only_drafters_with_steps_are_timed_and_none_twice(monkeypatch):
    def arm(kind):
        return SimpleNamespace(drafting=object.__new__(kind))

    arms = {"plain": arm(NoDrafter), "mtp": arm(MtpDrafter), "small": arm(StandaloneDrafter)}
    timed = []
    monkeypatch.setattr(
        cost, "measure_cost", lambda session, _rows: timed.append(session) or {"draft_step_ms": 2.0}
    )
    assert cost.draft_steps_ms(arms, arms["mtp"], 0.5) == {"mtp": 0.5, "small": 2.0}
    assert timed == [arms["small"]]
