"""Laws of the cost report: break-even, roofline, loading."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from drafthead import _native
from drafthead.errors import CapacityError, FileError, RequestError
from drafthead.evaluation import cost
from drafthead.evaluation.cost import (
    acceptance_for_tau,
    break_even,
    cost_report,
    expected_tau,
    interleaved_ms,
    measure_cost,
)
from drafthead.evaluation.loading import Loading, measure_loading
from drafthead.evaluation.roofline import Work, limits
from drafthead.gguf.reader import read_gguf
from drafthead.gguf.spec import model_spec
from tests import fakes
from tests.tiny import TinySpec, write_tiny_llama


def test_expected_tau_is_the_geometric_sum():
    """Leviathan et al., equation 1."""
    for acceptance in (0.0, 0.3, 0.9):
        closed = (1 - acceptance**5) / (1 - acceptance)
        assert expected_tau(acceptance, 4) == pytest.approx(closed)
    assert expected_tau(1.0, 4) == 5


def test_break_even_acceptance_reaches_the_needed_tau():
    for k in (1, 3, 7):
        for needed in (1.0, 1.2, 1.9):
            acceptance = acceptance_for_tau(needed, k)
            assert acceptance is not None
            assert expected_tau(acceptance, k) == pytest.approx(needed)


def test_where_certain_drafts_do_not_pay_there_is_no_break_even():
    """H3: a pass of two rows plus a draft that costs more than two passes never wins."""
    assert acceptance_for_tau(2.1, 1) is None
    lines = break_even({"1": 10.0, "2": 15.0, "4": 20.0}, step_ms=6.0)
    assert lines["1"] == {"tau": 2.1, "acceptance": None}
    assert lines["3"]["tau"] == 3.8
    assert 0.9 < lines["3"]["acceptance"] < 1.0


def test_without_a_head_there_is_nothing_to_break_even():
    assert break_even({"1": 10.0, "2": 15.0}, None) == {}


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
