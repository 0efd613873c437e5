"""The numerics contract on a whole model: == on the raw buffers, no tolerance anywhere."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from drafthead import _native
from drafthead.backbone.handle import Backbone, KvCache, Segment
from drafthead.errors import RequestError
from drafthead.gguf.spec import vector_values
from tests.bits import same_bits
from tests.tiny import TinySpec, write_tiny_llama

TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, 272, 560)]
FEW = TOKENS[:70]


def run_chunks(backbone: Backbone, tokens: list[int], chunk: int, cache: KvCache | None = None):
    """Logits and hidden states of every row, fed `chunk` rows a pass."""
    cache = cache or backbone.new_cache(len(tokens))
    parts = [
        backbone.forward([Segment(cache, tokens[i : i + chunk])], want="logits")
        for i in range(0, len(tokens), chunk)
    ]
    return np.concatenate([p.logits for p in parts]), np.concatenate([p.hidden for p in parts])


@lru_cache
def one_by_one(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The reference: one row a pass, one thread, the scalar definition."""
    before = _native.active_isa()
    _native.set_isa("scalar")
    try:
        return run_chunks(Backbone.open(path, threads=1), TOKENS, 1)
    finally:
        _native.set_isa(before)


@pytest.mark.parametrize("chunk", [1, 2, 7, 32, 512])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_chunks_and_threads_change_no_bit(tiny_path, every_isa, chunk, threads):
    """A1, A3: logits and hidden states of every row, one row a pass or 512."""
    backbone = Backbone.open(tiny_path, threads=threads)
    logits, hidden = one_by_one(tiny_path)
    for isa in every_isa:
        _native.set_isa(isa)
        found = run_chunks(backbone, TOKENS, chunk)
        assert same_bits(found[0], logits), isa
        assert same_bits(found[1], hidden), isa


def run_tapped(backbone: Backbone, chunk: int, taps: list[int]) -> np.ndarray:
    """Hidden states and taps of every row, (R, (1 + taps) D)."""
    cache = backbone.new_cache(len(FEW))
    return np.concatenate([
        backbone.forward([Segment(cache, FEW[i : i + chunk])], taps=taps).hidden
        for i in range(0, len(FEW), chunk)
    ])  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 3, 9, 70])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_taps_are_rows_of_the_stream_and_change_no_bit(tiny_path, every_isa, chunk, threads):
    """The last layer's tap is the hidden state before the weight of its norm."""
    backbone = Backbone.open(tiny_path, threads=threads)
    width = backbone.spec.d_model
    weight = vector_values(backbone.gguf, "output_norm.weight")
    alone = run_tapped(Backbone.open(tiny_path, threads=1), 1, [1, 0])
    for isa in every_isa:
        _native.set_isa(isa)
        found = run_tapped(backbone, chunk, [1, 0])
        assert same_bits(found, alone), isa
        assert same_bits(found[:, :width], one_by_one(tiny_path)[1][: len(FEW)]), isa
        assert same_bits(found[:, width : 2 * width] * weight, found[:, :width]), isa


def test_a_tap_is_the_output_of_its_layer(tmp_path):
    """It is the last tap of the model that ends there."""
    spec = TinySpec()
    write_tiny_llama(tmp_path / "two.gguf", spec)
    write_tiny_llama(tmp_path / "one.gguf", spec.with_(layers=1))  # the same numbers, seeded
    two, one = (Backbone.open(tmp_path / f"{name}.gguf", threads=1) for name in ("two", "one"))
    tapped = run_tapped(two, 7, [0])
    assert same_bits(tapped[:, spec.width :], run_tapped(one, 7, [0])[:, spec.width :])
    two.give_taps([0])
    cache = two.new_cache(len(FEW))
    assert same_bits(two.forward([Segment(cache, FEW)]).hidden, tapped)


def test_heads_share_taps_that_begin_alike(tiny_path):
    backbone = Backbone.open(tiny_path, threads=1)
    for layers in ([], [1], [1, 0], [1], []):
        backbone.give_taps(layers)
    assert backbone.taps == (1, 0)
    with pytest.raises(RequestError, match="another head"):
        backbone.give_taps([0])
    with pytest.raises(ValueError, match="layer 2"):
        backbone.forward([Segment(backbone.new_cache(4), [1])], taps=[2])


def test_more_threads_than_cores_change_no_bit(tiny_path, every_isa):
    """A1: eight of them, most with one head or none and a tile or two."""
    backbone = Backbone.open(tiny_path, threads=8)
    logits, hidden = one_by_one(tiny_path)
    for isa in every_isa:
        _native.set_isa(isa)
        found = run_chunks(backbone, TOKENS, 100)
        assert same_bits(found[0], logits), isa
        assert same_bits(found[1], hidden), isa


@pytest.mark.parametrize("rows", range(1, 18))
def test_verify_widths_change_no_bit(tiny_path, every_isa, rows):
    """A1, A2: of M rows after a context of 37, row i equals the one-row pass at its position."""
    backbone = Backbone.open(tiny_path, threads=2)
    logits, _ = one_by_one(tiny_path)
    for isa in every_isa:
        _native.set_isa(isa)
        cache = backbone.new_cache(64)
        backbone.forward([Segment(cache, TOKENS[:37])])
        found = backbone.forward([Segment(cache, TOKENS[37 : 37 + rows])], want="logits").logits
        assert same_bits(found, logits[37 : 37 + rows]), isa


def test_rejected_rows_leave_no_trace(tiny_path):
    """A7: wrong drafts of every length at every position, rolled back, then the right token."""
    backbone = Backbone.open(tiny_path, threads=2)
    logits, _ = one_by_one(tiny_path)
    cache = backbone.new_cache(96)
    for i, token in enumerate(FEW):
        wrong = [(t + 1 + i) % 272 for t in TOKENS[i + 1 : i + 1 + i % 8]]
        found = backbone.forward([Segment(cache, [token, *wrong])], want="logits").logits
        assert same_bits(found[0], logits[i])
        cache.rollback(i + 1)


def test_strangers_in_the_pass_change_no_bit(tiny_path):
    backbone = Backbone.open(tiny_path, threads=2)
    logits, _ = one_by_one(tiny_path)
    mine = backbone.new_cache(96)
    for i in range(0, 60, 3):
        strangers = [
            Segment(backbone.new_cache(40), [(7 * i + j) % 272 for j in range(1 + (i + n) % 9)])
            for n in range(i % 4)
        ]
        order = [*strangers[: i % 2], Segment(mine, FEW[i : i + 3]), *strangers[i % 2 :]]
        found = backbone.forward(order, want="logits").logits
        first = sum(len(s.tokens) for s in strangers[: i % 2])
        assert same_bits(found[first : first + 3], logits[i : i + 3])


def test_cells_have_the_same_bits_however_they_were_written(tiny_path):
    backbone = Backbone.open(tiny_path, threads=2)
    caches = []
    for chunk in (1, 5, 70):
        caches.append(backbone.new_cache(70))
        run_chunks(backbone, FEW, chunk, caches[-1])
    for layer in range(2):
        for other in caches[1:]:
            for view in ("key_view", "value_view"):
                a, b = getattr(caches[0], view)(layer), getattr(other, view)(layer)
                assert np.array_equal(a.view(np.uint16), b.view(np.uint16))


@pytest.mark.backbone
def test_the_embedded_backbone_keeps_the_contract(backbone, every_isa):
    """Real weights: verify widths, chunkings and the two fast instruction sets."""
    tokens = [int(t) for t in np.random.default_rng(9).integers(0, 49152, 48)]
    logits, hidden = run_chunks(backbone, tokens, 1)
    for isa in every_isa[:-1]:
        _native.set_isa(isa)
        for chunk in (2, 3, 5, 17, 48):
            found = run_chunks(backbone, tokens, chunk)
            assert same_bits(found[0], logits), (isa, chunk)
            assert same_bits(found[1], hidden), (isa, chunk)
