"""The native decoder layer against the papers' formulas, for each choice of a description."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from drafthead import _native
from drafthead.backbone.handle import Backbone, Segment
from drafthead.errors import NumericsError
from drafthead.gguf.model import Layer, ModelSpec, Rope
from tests.reference import reference_logits
from tests.windowed import SPEC, build, random_weights

TOKENS = [int(t) for t in np.random.default_rng(1).integers(0, 112, 330)]  # past a ring of 272
FEW = TOKENS[:48]


def logits_of(backbone: Backbone, tokens: list[int], dtype: str) -> np.ndarray:
    cache = backbone.new_cache(len(tokens), dtype)
    return backbone.forward([Segment(cache, tokens)], want="logits").logits


def float_error(spec: ModelSpec, expected: np.ndarray) -> float:
    """With u = 2^-24, a sum of K terms is off by about √K u of its size; a layer has seven such
    products one after the other, beside norms and a softmax that pass relative errors on.
    """
    widest = max(spec.d_model, spec.d_ff, spec.n_heads * spec.head_dim)
    return float(2.0**-24 * (7 * spec.n_layers + 1) * widest**0.5 * np.abs(expected).max())


CHOICES: dict[str, ModelSpec] = {
    "everything": SPEC,
    "no rope": replace(SPEC, ropes=(), rope_factors=False, layers=((Layer(16, -1),) * 3)),
    "window 1": replace(SPEC, layers=(Layer(1, 1), Layer(0, 0), Layer(1, 0))),
    "windows of two sizes": replace(SPEC, layers=(Layer(40, 1), Layer(3, 0), Layer(16, 0))),
    "split halves": replace(SPEC, rope_interleaved=False, qkv_bias=False),
    "one key-value head": replace(SPEC, n_kv_heads=1),
    "five heads": replace(SPEC, n_heads=5, n_kv_heads=1),
    "wide heads": replace(SPEC, n_heads=1, n_kv_heads=1, head_dim=256, ropes=(Rope(1e6, 1.0),) * 2),
    "odd heads": replace(SPEC, head_dim=96, tied_output=False),
}


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_gives_the_formulas_logits(every_isa, name):
    """With f32 cells only float32 rounds; a half may fall the other way, by 2^-11 of its size."""
    spec = CHOICES[name]
    weights = random_weights(spec)
    backbone = build(spec, weights, kind=Type.F32)
    for dtype in ("f32", "f16"):
        expected = reference_logits(weights, spec, TOKENS, cache=dtype)
        error = float_error(spec, expected)
        if dtype == "f16":
            error += spec.n_layers * 2.0**-11 * np.abs(expected).max()
        for isa in every_isa:
            _native.set_isa(isa)
            found = logits_of(backbone, TOKENS, dtype)
            assert np.abs(found - expected).max() < error, isa


@pytest.mark.parametrize("size", [1.0, 2.0**-20])
def test_the_gate_and_the_cap_are_accurate_at_both_ends(size):
    """Gates from tiny to huge, and logits from far below the cap to at it, without attention."""
    spec = replace(SPEC, n_layers=1, layers=(Layer(0, 0),), post_norms=False, final_softcap=0.5)
    weights = random_weights(spec)
    weights["blk.0.attn_output"][:] = 0
    weights["blk.0.ffn_gate"] *= np.logspace(-5, 3, spec.d_ff, dtype=np.float32)[:, None]
    weights["output_norm"] *= np.float32(size)
    tokens = list(range(272))
    expected = reference_logits(weights, spec, tokens)
    found = logits_of(build(spec, weights, kind=Type.F32), tokens, "f16")
    assert (np.abs(expected).max() > 0.499) == (size == 1)
    assert np.abs(found - expected).max() < float_error(spec, expected)


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("blk.0.ffn_gate", np.nan),
        ("blk.0.ffn_gate", 1e38),  # an infinite gate
        ("blk.1.attn_q.bias", np.inf),
        ("blk.1.attn_k_norm", np.nan),
        ("blk.0.post_attention_norm", np.nan),
        ("output_norm", np.inf),  # infinite logits, which a cap would make finite
        ("blk.2.attn_k.bias", 1e25),  # a mean square beyond float
    ],
)
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_no_cap_gate_or_norm_hides_what_is_not_finite(every_isa, dtype, name, factor):
    weights = random_weights(SPEC)
    weights[name] *= np.float32(factor)
    backbone = build(SPEC, weights, kind=Type.F32)
    for isa in every_isa:
        _native.set_isa(isa)
        with pytest.raises(NumericsError, match="no finite logit"):
            backbone.forward([Segment(backbone.new_cache(40, dtype), FEW[:30])])


@pytest.mark.parametrize("factor", [0.5, 0.0, -1.0, np.nan, np.inf])
def test_rope_factors_that_are_none_are_refused(factor):
    weights = random_weights(SPEC)
    weights["rope_freqs"][3] = factor
    with pytest.raises(ValueError, match="must hold 1 or more"):
        build(SPEC, weights)


def test_embeddings_are_given_as_the_first_layer_takes_them():
    weights = random_weights(SPEC)
    found = build(SPEC, weights).native.embed(np.arange(272, dtype=np.int32))
    assert np.array_equal(found, weights["token_embd"] * np.float32(SPEC.embedding_scale))
