"""The scripts of benchmarks/: what they compute, on doubles; nothing is timed here."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from drafthead.backbone.handle import Backbone, Segment
from drafthead.gguf.types import GGML_TYPES
from tests import fakes
from tests.tiny import FLOAT, TinySpec, write_tiny_llama

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SIZE = 64


@pytest.fixture
def script(monkeypatch):
    """Imports a script by name, as if its folder were the working one."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


class OddPeer:
    """A peer with the scripted backbone's logits, but another choice at some positions.

    A pass of one row changes its mind there.
    """

    def __init__(self, backbone, odd=()):
        self.backbone, self.odd = backbone, set(odd)
        self.cache = backbone.new_cache(1024)

    def rollback(self, length):
        self.cache.rollback(length)

    def feed(self, tokens, every_row=False):
        start = self.cache.length
        segment = Segment(self.cache, tokens)
        logits = self.backbone.forward([segment], want="logits").logits.copy()
        for row in range(len(tokens)):
            if start + row in self.odd and len(tokens) > 1:
                logits[row] = np.roll(logits[row], 1)
        return logits if every_row else logits[-1:]

    def choose(self, tokens):
        return int(self.feed(tokens)[0].argmax())


def test_tables_are_aligned_markdown(script):
    lines = script("tables").markdown(["name", "v"], [["a", "1.00"], ["longer", "22"]]).splitlines()
    assert lines == [
        "| name   |    v |",
        "| ------ | ---: |",
        "| a      | 1.00 |",
        "| longer |   22 |",
    ]


def seen_by(agreement, odd=(), length=200, alone=1, **more):
    """Two windows of one text, read by the scripted backbone and by an odd peer."""
    backbone = fakes.ScriptedBackbone(fakes.hashed_next(SIZE), SIZE)
    peers = {"drafthead": OddPeer(backbone), "llama.cpp": OddPeer(backbone, odd)}
    peers |= {name: OddPeer(backbone, where) for name, where in more.items()}
    text = [[(step * i) % SIZE for i in range(length)] for step in (7, 11)]
    return agreement.compare(peers, text, alone)


def compared(agreement, *arguments, **options):
    return agreement.summary(seen_by(agreement, *arguments, **options))


def test_an_engine_agrees_with_itself(script):
    found = compared(script("agreement"))
    assert (found["positions"], found["agreement"], found["perplexity_ratio"]) == (398, 1.0, 1.0)
    assert found["margin_where_different_nats"] is None
    assert found["llama.cpp_with_itself"] == {"positions": 199, "differ": 0}
    assert found["agreement_with_exact"] is None


def test_differences_are_counted_and_asked_about_again(script):
    """The last position predicts nothing; a pass of one row tells what the batch did."""
    found = compared(script("agreement"), odd=(3, 64, 100, 149), length=150)
    assert found["agreement"] == pytest.approx(1 - 6 / 298)
    assert found["different"] == found["one_row_pass_differs_from_its_own"] == 6
    assert found["one_row_pass_agrees_with_drafthead"] == 6
    assert found["llama.cpp_with_itself"] == {"positions": 149, "differ": 3}
    assert found["margin_where_different_nats"]["highest"] == 1.0  # one-hot logits


def test_both_engines_are_put_beside_the_exact_one(script):
    found = compared(script("agreement"), odd=(3, 64), length=101, exact=(64, 70, 71))
    expected = {"drafthead": 1 - 6 / 200, "llama.cpp": 1 - 6 / 200}
    assert found["agreement_with_exact"] == pytest.approx(expected)


def test_kinds_of_text_are_pooled_by_position(script):
    """Counts add up; rates are of all positions, not means of rates."""
    agreement = script("agreement")
    many, few = (seen_by(agreement, (3,), length) for length in (401, 101))
    both = agreement.summary(many + few)
    assert both["positions"] == 1000
    assert both["agreement"] == pytest.approx(1 - 4 / 1000)
    assert both["different"] == 4
    assert both["llama.cpp_with_itself"] == {"positions": 500, "differ": 2}
    loss = [np.concatenate(seen.losses["drafthead"]) for seen in (many, few)]
    assert both["perplexity"]["drafthead"] == pytest.approx(np.exp(np.concatenate(loss).mean()))


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_1])
def test_the_exact_form_has_the_weights_of_the_file(script, tmp_path, kind):
    """Its logits are those of the same file with its weights written as floats."""
    agreement = script("agreement")
    spec = TinySpec()
    exact = write_tiny_llama(tmp_path / "a.gguf", spec, dict.fromkeys(FLOAT, kind))
    write_tiny_llama(tmp_path / "b.gguf", spec, FLOAT, exact)
    made = agreement.exact_form(Backbone.open(tmp_path / "a.gguf", threads=1))
    written = Backbone.open(tmp_path / "b.gguf", threads=1)
    tokens = list(range(40))
    logits = [agreement.Drafthead(each).feed(tokens, every_row=True) for each in (made, written)]
    assert logits[0].tobytes() == logits[1].tobytes()


def test_losses_are_negative_log_likelihoods(script):
    logits = np.log(np.array([[1.0, 3.0], [4.0, 4.0]], np.float32)) + 1000
    expected = -np.log([0.75, 0.5])
    assert script("agreement").losses(logits, [1, 0]) == pytest.approx(expected, abs=1e-4)


def test_texts_are_there_without_network(script):
    """Both kinds have room for the windows that are the default, at five characters a token."""
    agreement = script("agreement")
    assert "```" not in agreement.prose()
    assert "def " in agreement.code()
    assert min(len(agreement.prose()), len(agreement.code())) > 5 * agreement.WINDOW * 5


@pytest.mark.parametrize("add_bos", [True, False])
def test_windows_begin_as_the_file_asks(script, add_bos):
    agreement = script("agreement")
    tokenizer = fakes.ByteTokenizer()
    tokenizer.bos_id, tokenizer.add_bos = 257, add_bos
    text = "abcdefghij" * 200
    windows = agreement.windows(tokenizer, text, 3)
    assert {len(window) for window in windows} == {agreement.WINDOW}
    assert {window[0] == 257 for window in windows} == {add_bos}
    for index, window in enumerate(windows):
        body = bytes(window[add_bos:])
        assert body == text.encode()[index * 666 :][: len(body)]
    with pytest.raises(SystemExit, match="take fewer windows"):
        agreement.windows(tokenizer, text, 9)


def test_a_backbone_is_one_row_beside_its_peer(script):
    """Ratios and v(M) are those of the rounds, with their spread."""
    versus = script("vs_llama_cpp")
    one = versus.spread([3.0, 1.0, 2.0])
    assert one == {"median": 2.0, "low": 1.0, "high": 3.0}
    engine = dict.fromkeys(("plain_tok_s", "prompt_tok_s", "v_2", "v_4", "v_8"), one)
    result = {"backbone": "tiny", "drafthead": engine, "llama.cpp": engine}
    result |= {"ratio": engine, "bandwidth_share": one}
    header, _, row = versus.table([result]).splitlines()
    assert len(header) == len(row)
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[:3] == ["tiny", "2 / 2", "2.00 (1.00-3.00)"]
    assert cells[-2:] == ["2.00 / 2.00", "2.00 (1.00-3.00)"]


class ClockedMatrix:
    """A matrix whose products take a second a row on average, but the first of a turn nothing."""

    nbytes = 40

    def time_products(self, rows, repeats, threads):
        return [rows * repeat / 1.5 for repeat in range(repeats)]


def test_kernel_rates_leave_the_first_product_out(script):
    kernels = script("kernels")
    seconds = kernels.product_s(ClockedMatrix(), [1, 2, 4], rounds=2, threads=1)
    assert seconds == {1: 1.0, 2: 2.0, 4: 4.0}
    q8_0 = GGML_TYPES[8]
    line = kernels.line(q8_0, ClockedMatrix(), 32 * 10**9, seconds)
    assert line == ["Q8_0", "0.000", "0.0", "32", "32", "32", "2.00", "4.00"]


def test_random_weights_have_sound_scales(script, monkeypatch):
    """Whatever two bytes of a block are its scale, that is a normal number below one."""
    kernels = script("kernels")
    made = []
    monkeypatch.setattr(kernels._native, "Matrix", lambda *arguments: made.append(arguments))
    kernels.random_matrix(GGML_TYPES[12], 4, 512)
    kind, rows, columns, raw = made[0]
    assert (kind, rows, columns, raw.size) == (12, 4, 512, 4 * 2 * 144)
    for scales in (raw[:-1], raw[1:-2]):
        halves = scales[: scales.size // 2 * 2].copy().view(np.float16)
        assert (np.abs(halves) < 1).all()
        assert (np.abs(halves) >= np.finfo(np.float16).tiny).all()
