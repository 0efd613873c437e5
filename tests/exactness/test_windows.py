"""Sliding windows: rings of cells keep the contract, whatever was drafted, rolled back or chunked.

The plain run feeds one row a pass and never rolls back. W is the window of two of three layers.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from drafthead import _native
from drafthead.backbone.handle import Backbone, KvCache, Segment
from tests.bits import same_bits
from tests.reference import reference_logits
from tests.windowed import (
    SPEC,
    build,
    random_weights,
    same_cells,
    seen_positions,
    with_window,
)

SLACK = 256
TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, 272, 2600)]
LAYERS = range(SPEC.n_layers)


@lru_cache
def model(window: int, threads: int = 1) -> Backbone:
    spec = with_window(window)
    return build(spec, random_weights(spec), threads)


def feed(backbone: Backbone, cache: KvCache, tokens: list[int], chunk: int = 512) -> np.ndarray:
    """Append the tokens, `chunk` rows a pass; returns the logits of every row."""
    parts = [np.zeros((0, SPEC.vocab_size), np.float32)]
    for i in range(0, len(tokens), chunk):
        rows = Segment(cache, tokens[i : i + chunk])
        parts.append(backbone.forward([rows], want="logits").logits)
    return np.concatenate(parts)


@lru_cache
def plain(window: int, n: int, dtype: str = "f16") -> np.ndarray:
    backbone = model(window)
    return feed(backbone, backbone.new_cache(n, dtype), TOKENS[:n], 1)


def poison_the_rest(backbone: Backbone, cache: KvCache) -> None:
    """Fill every cell that the next row does not see with NaN."""
    for layer in LAYERS:
        unseen = np.ones(cache.cells(layer), bool)
        unseen[seen_positions(backbone, cache, layer) % cache.cells(layer)] = False
        at = np.flatnonzero(unseen)
        cache.key_view(layer)[:, at // 16, :, at % 16] = np.nan
        cache.value_view(layer)[:, at] = np.nan


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("window", [1, 16, 48, 512])
def test_chunks_threads_and_instruction_sets_change_no_bit(every_isa, window, dtype):
    """A1, A3, B2: the rows wrap the ring; a pass of 512 or more holds more than its slack."""
    n = window + SLACK + 330
    expected = plain(window, n, dtype)
    for chunk, threads in ((2, 1), (7, 1), (32, 2), (512, 1), (512, 2), (n, 2)):
        backbone = model(window, threads)
        found = feed(backbone, backbone.new_cache(n, dtype), TOKENS[:n], chunk)
        assert same_bits(found, expected), (threads, chunk)
    for isa in every_isa[1:]:
        _native.set_isa(isa)
        found = feed(backbone, backbone.new_cache(n, dtype), TOKENS[:n])
        assert same_bits(found, expected), isa


@pytest.mark.parametrize("window", [16, 100])
def test_a_window_masks_as_a_dense_matrix_does(window):
    """B3: long after the wrap, within what int8 activations may do to a logit."""
    backbone = model(window)
    n = window + 3 * SLACK
    found = feed(backbone, backbone.new_cache(n), TOKENS[:n], 100)
    expected = reference_logits(random_weights(SPEC), backbone.spec, TOKENS[:n])
    wrong = reference_logits(random_weights(SPEC), with_window(window + 8), TOKENS[:n])
    error = np.abs(found - expected)[-SLACK:].mean()
    assert error < 0.2 * np.abs(wrong - expected)[-SLACK:].mean()


@pytest.mark.parametrize("window", [16, 48, 512])
def test_forced_rejections_across_window_and_wrap_leave_no_trace(window):
    """B1: wrong drafts of every length at every position around both, then the right token: the
    logits and every cell that is still seen are those of the plain run, byte for byte.
    """
    backbone = model(window)
    ring = backbone.new_cache(2600).cells(0)
    assert ring == window + SLACK
    n = 2 * ring + 24
    expected = plain(window, n)
    cache, twin = backbone.new_cache(n + 24), backbone.new_cache(n + 24)
    middles = (window, ring, ring + window, 2 * ring)
    for position in sorted({m + i for m in middles for i in range(-8, 9)}):
        feed(backbone, twin, TOKENS[twin.length : position + 1], 1)
        feed(backbone, cache, TOKENS[cache.length : position])
        for count in (1, 3, 17):
            wrong = [(t + 1) % 272 for t in TOKENS[position : position + count]]
            rows = Segment(cache, [TOKENS[position], *wrong])
            found = backbone.forward([rows], want="logits").logits
            assert same_bits(found[0], expected[position])
            cache.rollback(position)
        cache.rollback(position - 3)
        found = feed(backbone, cache, TOKENS[position - 3 : position + 1])
        assert same_bits(found, expected[position - 3 : position + 1])
        assert same_cells(backbone, cache, twin)


def test_two_thousand_drafted_tokens_take_no_more_memory():
    """B2: a windowed layer holds min(window + slack, capacity) cells, rounded to blocks of 16."""
    backbone = model(48)
    cache = backbone.new_cache(2600)
    assert [cache.cells(layer) for layer in LAYERS] == [304, 2608, 304]
    cells = 304 + 2608 + 304
    assert cache.nbytes == 2 * 2 * cells * SPEC.n_kv_heads * SPEC.head_dim
    before = cache.nbytes
    for position in range(0, 2000, 4):
        backbone.forward([Segment(cache, TOKENS[position : position + 8])])
        cache.rollback(position + 4)
    assert (cache.length, cache.nbytes) == (2000, before)
    assert cache.key_view(0).shape == (2, 19, 32, 16)
    assert cache.value_view(0).shape == (2, 304, 32)
    assert [backbone.new_cache(100).cells(layer) for layer in LAYERS] == [112] * 3
    assert backbone.new_cache(100, "f32").nbytes == 2 * backbone.new_cache(100).nbytes


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_what_a_window_does_not_show_counts_for_nothing(every_isa, dtype):
    """B3: every other cell is NaN, stale or not: no masked lane or neighbour in a block leaks."""
    backbone = model(48)
    expected = plain(48, 760, dtype)
    for isa in every_isa:
        _native.set_isa(isa)
        for n in (5, 40, 47, 48, 49, 63, 200, 303, 304, 305, 640, 750):
            cache = backbone.new_cache(760, dtype)
            feed(backbone, cache, TOKENS[:n], 250)
            poison_the_rest(backbone, cache)
            found = feed(backbone, cache, TOKENS[n : n + 5])
            assert same_bits(found, expected[n : n + 5]), (isa, n)


def test_a_rollback_is_exact_down_to_its_floor_and_refused_below():
    """B1, B15: never a rollback that says nothing."""
    backbone = model(48)
    n = 1000
    cache = backbone.new_cache(1100)
    feed(backbone, cache, TOKENS[:300])
    assert cache.rollback_floor == 0  # nothing has been overwritten yet
    feed(backbone, cache, TOKENS[300:n])
    floor = cache.rollback_floor
    assert floor == n - cache.cells(0) + 48 - 1
    for length in (floor - 1, 1):
        with pytest.raises(ValueError, match=f"too deep: .* below {floor} need; roll back to 0"):
            cache.rollback(length)
    assert cache.length == n
    cache.rollback(floor)
    assert cache.rollback_floor == floor  # what was overwritten stays so
    poison_the_rest(backbone, cache)
    found = feed(backbone, cache, TOKENS[floor:1100], 60)
    assert same_bits(found, plain(48, 1100)[floor:])
    cache.rollback(0)
    assert cache.rollback_floor == 0
    assert same_bits(feed(backbone, cache, TOKENS[:300]), plain(48, 1100)[:300])


def test_strangers_with_other_rings_share_a_pass():
    """A short cache that never wraps, a ring, and a longer ring, in one pass of many rows."""
    backbone = model(48)
    expected = plain(48, 1200)
    caches = [backbone.new_cache(n) for n in (250, 1200, 2600)]
    lengths = [0, 0, 0]
    for counts in ((100, 500, 1), (1, 3, 400), (140, 600, 700)):
        segments = [
            Segment(cache, TOKENS[n : n + count])
            for cache, n, count in zip(caches, lengths, counts, strict=True)
        ]
        found = backbone.forward(segments, want="logits").logits
        wanted = [expected[n : n + c] for n, c in zip(lengths, counts, strict=True)]
        assert same_bits(found, np.concatenate(wanted))
        lengths = [n + count for n, count in zip(lengths, counts, strict=True)]


def test_caches_of_two_types_share_a_pass():
    backbone = model(16)
    types = ("f32", "f16")
    segments = [Segment(backbone.new_cache(40, dtype), TOKENS[:40]) for dtype in types]
    found = backbone.forward(segments, want="logits").logits
    for i, dtype in enumerate(types):
        assert same_bits(found[40 * i : 40 * i + 40], plain(16, 40, dtype))
        assert segments[i].cache.key_view(0).dtype == np.dtype(f"float{dtype[1:]}")
    assert not same_bits(plain(16, 40, "f32"), plain(16, 40, "f16"))
