"""The native backbone against the papers' formulas, and its promises about rows and caches."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from drafthead import _native
from drafthead.backbone.handle import Backbone, Segment
from drafthead.errors import NumericsError, RequestError
from tests.tiny import FLOAT, TinySpec, random_weights, reference_logits, write_tiny_llama

TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, 272, 60)]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def logits_of(backbone: Backbone, tokens: list[int]) -> np.ndarray:
    cache = backbone.new_cache(len(tokens))
    return backbone.forward([Segment(cache, tokens)], want="logits").logits


@pytest.mark.parametrize("tied", [True, False])
def test_float_weights_give_the_formulas_logits(tmp_path, tied):
    """Only float32 rounds here, and now and then a half of the cache falls the other way."""
    spec = TinySpec(tied=tied)
    weights = write_tiny_llama(tmp_path / "float.gguf", spec, FLOAT)
    found = logits_of(Backbone.open(tmp_path / "float.gguf", threads=1), TOKENS)
    expected = reference_logits(weights, spec, TOKENS)
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()
    assert (found.argmax(1) == expected.argmax(1)).mean() > 0.95


def test_quantised_weights_stay_within_the_activations_rounding(tmp_path):
    weights = write_tiny_llama(tmp_path / "mixed.gguf")
    found = logits_of(Backbone.open(tmp_path / "mixed.gguf", threads=1), TOKENS)
    expected = reference_logits(weights, TinySpec(), TOKENS)
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.999


def test_greedy_tokens_are_the_logits_argmax_and_hidden_is_normed(tiny_path):
    backbone = Backbone.open(tiny_path, threads=1)
    result = backbone.forward([Segment(backbone.new_cache(60), TOKENS)], want="logits")
    assert np.array_equal(result.tokens, result.logits.argmax(1))
    rows = backbone.native.output_rows(np.arange(272, dtype=np.int32))
    approximate = result.hidden @ rows.T
    assert np.corrcoef(approximate.ravel(), result.logits.ravel())[0, 1] > 0.999


def test_ties_go_to_the_lowest_id(tmp_path):
    """Every output row stands twice in the vocabulary, 136 ids apart: the first must win."""
    weights = random_weights(TinySpec())
    weights["token_embd"][136:] = weights["token_embd"][:136]
    write_tiny_llama(tmp_path / "twice.gguf", types=FLOAT, weights=weights)
    backbone = Backbone.open(tmp_path / "twice.gguf", threads=2)
    result = backbone.forward([Segment(backbone.new_cache(60), TOKENS)], want="logits")
    assert same_bits(result.logits[:, :136], result.logits[:, 136:])
    assert (result.tokens < 136).all()


def test_rows_last_gives_the_last_row_of_each_segment(tiny_path):
    backbone = Backbone.open(tiny_path, threads=2)
    both = [
        Segment(backbone.new_cache(60), TOKENS[:7]),
        Segment(backbone.new_cache(60), TOKENS[7:]),
    ]
    last = backbone.forward(both, rows="last", want="logits")
    assert same_bits(last.logits[0], logits_of(backbone, TOKENS[:7])[-1])
    assert same_bits(last.logits[1], logits_of(backbone, TOKENS[7:])[-1])


def test_a_pass_refuses_bad_rows_before_it_writes_a_cell(tiny_path):
    backbone = Backbone.open(tiny_path, threads=1)
    cache = backbone.new_cache(10)
    backbone.forward([Segment(cache, TOKENS[:4])])
    cells = cache.key_view(0).copy()
    for tokens, reason in [
        ([272], "outside the vocabulary"),
        ([-1], "outside the vocabulary"),
        (TOKENS[:7], "do not fit"),
        ([], "empty"),
    ]:
        with pytest.raises(ValueError, match=reason):
            backbone.forward([Segment(cache, tokens)])
    with pytest.raises(ValueError, match="twice"):
        backbone.forward([Segment(cache, [1]), Segment(cache, [2])])
    assert cache.length == 4
    assert np.array_equal(cells.view(np.uint16), cache.key_view(0).view(np.uint16))


def test_rollback_is_absolute_and_bounded(tiny_path):
    backbone = Backbone.open(tiny_path, threads=1)
    cache = backbone.new_cache(20)
    backbone.forward([Segment(cache, TOKENS[:9])])
    cache.rollback(5)
    assert cache.length == 5
    for length in (6, -1):
        with pytest.raises(ValueError, match="rollback"):
            cache.rollback(length)


def test_stale_cells_of_any_content_are_never_read(tiny_path):
    """Rolled-back cells are filled with NaN: the next pass must not notice."""
    backbone = Backbone.open(tiny_path, threads=1)
    cache = backbone.new_cache(60)
    backbone.forward([Segment(cache, TOKENS)])
    cache.rollback(21)
    for layer in range(2):
        keys, values = cache.key_view(layer), cache.value_view(layer)
        for position in range(21, 60):
            keys[:, position // 16, :, position % 16] = np.nan
            values[:, position, :] = np.nan
    again = backbone.forward([Segment(cache, TOKENS[21:])], want="logits").logits
    assert same_bits(again, logits_of(backbone, TOKENS)[21:])


def test_subnormal_flushing_of_another_library_changes_nothing(tiny_path):
    """The floating-point environment is the pass's own, on every thread, and is put back."""
    libm = ctypes.CDLL("libm.so.6")
    before = logits_of(Backbone.open(tiny_path, threads=2), TOKENS)
    environment = (ctypes.c_uint8 * 64)()
    assert libm.fegetenv(environment) == 0
    try:
        assert libm.fesetround(0x400) == 0  # downward
        flushed = logits_of(Backbone.open(tiny_path, threads=2), TOKENS)
        assert libm.fegetround() == 0x400
    finally:
        libm.fesetenv(environment)
    assert same_bits(before, flushed)


def test_non_finite_weights_are_an_error_not_a_token(tmp_path):
    weights = random_weights(TinySpec())
    weights["output_norm"][:] = np.nan
    write_tiny_llama(tmp_path / "nan.gguf", types=FLOAT, weights=weights)
    backbone = Backbone.open(tmp_path / "nan.gguf", threads=1)
    with pytest.raises(NumericsError, match="no finite logit"):
        backbone.forward([Segment(backbone.new_cache(4), [1])])


@pytest.mark.parametrize("threads", [0, -1, 5000])
def test_unusable_thread_counts_are_refused(tiny_path, threads):
    with pytest.raises(RequestError, match="threads"):
        Backbone.open(tiny_path, threads=threads)


def test_an_unknown_instruction_set_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="scalar"):
        _native.set_isa("mmx")
