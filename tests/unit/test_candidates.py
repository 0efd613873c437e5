"""What may come, against definitions written out in full; the short cut never changes it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafthead.decoding.candidates import everything, largest, likely, narrowed
from drafthead.decoding.options import DecodeOptions


def logits(seed, size=300, spread=4.0):
    return (np.random.default_rng(seed).normal(size=size) * spread).astype(np.float32)


def softmax(weights):
    mass = [math.exp(w - max(weights)) for w in weights]
    return [m / sum(mass) for m in mass]


def by_definition(logits_V, options):
    """Token ids that may come, by plain loops."""
    weights = {i: float(x) / options.temperature for i, x in enumerate(logits_V) if x > -np.inf}

    def fewest(order, share):
        shares = dict(zip(weights, softmax(list(weights.values())), strict=True))
        kept, held = [], 0.0
        for token in sorted(weights, key=lambda t: (order(t, shares), t)):
            kept.append(token)
            held += shares[token]
            if held >= share:
                break
        return {t: weights[t] for t in sorted(kept)}

    if options.top_k:
        kept = sorted(weights, key=lambda t: (-weights[t], t))[: options.top_k]
        weights = {t: weights[t] for t in sorted(kept)}
    if options.typical_p < 1:

        def oddness(token, shares):
            entropy = -sum(p * math.log(p) for p in shares.values() if p)
            return abs(-math.log(shares[token]) - entropy) if shares[token] else math.inf

        weights = fewest(oddness, options.typical_p)
    if options.top_p < 1:
        weights = fewest(lambda t, shares: -weights[t], options.top_p)
    if options.min_p:
        least = math.log(options.min_p) + max(weights.values())
        weights = {t: w for t, w in weights.items() if w >= least}
    return weights


OPTIONS = [
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 290},
    {"top_p": 0.9},
    {"top_p": 0.001},
    {"top_p": 0.999999},
    {"min_p": 0.05},
    {"min_p": 1e-12},
    {"min_p": 1.0},
    {"typical_p": 0.9},
    {"typical_p": 0.2},
    {"top_k": 20, "typical_p": 0.9, "top_p": 0.8, "min_p": 0.1},
    {"typical_p": 0.95, "min_p": 0.3},
]


@pytest.mark.parametrize("temperature", [1e-6, 0.3, 1, 2, 50])
@pytest.mark.parametrize("options", OPTIONS)
def test_narrowing_is_as_defined(temperature, options):
    """In this order: top-k, typical-p, top-p, min-p, each of what is left."""
    asked = DecodeOptions(temperature=temperature, **options)
    for seed in range(6):
        row = logits(seed)
        row[seed::11] = -np.inf
        expected = by_definition(row, asked)
        found = narrowed(everything(row, temperature), asked)
        assert found.ids_N.tolist() == list(expected)
        shares = softmax(list(expected.values()))
        np.testing.assert_allclose(found.probabilities(), shares, rtol=1e-9, atol=1e-300)
        for reach in (3.0, 10.0, 20.0):
            few = narrowed(likely(row, temperature, reach), asked)
            if few is not None:
                # What weighs less than e^-80 is nothing in float32, and never drawn.
                left = [t for t, w in expected.items() if w - max(expected.values()) > -80]
                assert set(left) <= set(few.ids_N.tolist()) <= set(expected)
                assert few.rest == 0


def test_the_rest_weighs_what_is_not_likely():
    row = logits(1, size=5000)
    few, every = likely(row, 1.0, 5.0), everything(row, 1.0)
    outside = ~np.isin(every.ids_N, few.ids_N)
    assert outside.any()
    # float32: logits within 2^-24 of 30 and exp within 3 ulp, of each of the terms.
    np.testing.assert_allclose(few.rest, np.exp(every.weights_N[outside]).sum(), rtol=1e-5)
    assert few.weights_N.max() == 0


def test_of_equal_logits_the_lowest_ids_come_first():
    row = np.array([1, 3, 3, 3, 0], np.float32)
    assert largest(row, 2).tolist() == [1, 2]
    two = narrowed(everything(row, 1.0), DecodeOptions(temperature=1, top_k=2))
    assert two.ids_N.tolist() == [1, 2]


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=40), st.integers(1, 45))
@settings(max_examples=300, deadline=None)
def test_largest_is_a_stable_sort(values, count):
    expected = sorted(range(len(values)), key=lambda at: (-values[at], at))[:count]
    assert largest(np.array(values, np.float64), count).tolist() == expected
