"""Drawn texts have the target's distribution, with drafts of any kind and by either rule.

The language is a Markov chain of 8 tokens, so the share of every answer of 3 tokens is known. Each
comparison is a chi-square test of counts over thousands of seeds; it fails where counts this far
off would come less than once in a million right programs. There are 47 comparisons, so a right
program fails with a probability below 5e-5; since the seeds are fixed, it does so always or never.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from drafthead.decoding.candidates import likely
from drafthead.decoding.choosing import make_chooser
from drafthead.decoding.loop import Request, decode
from drafthead.decoding.options import DecodeOptions
from drafthead.decoding.sampling import Sampler
from drafthead.drafters.base import NoDrafter
from drafthead.rng import uniforms
from tests import fakes
from tests.chi_square import false_alarm, upper_tail

ALARM = 1e-6
V, ANSWER, SEEDS = 8, 3, 1500
LOGITS_VV = np.random.default_rng(5).normal(size=(V, V)) * 1.5
START = 2
TEMPERATURES = [1e-6, 0.3, 1, 2]
RULES = ["exact", "rejection"]


def shares_of(options):
    """Of every answer its share, by the definitions, for the options that this file uses."""
    step = LOGITS_VV.astype(np.float32).astype(float) / options.temperature
    shares_VV = np.exp(step - step.max(axis=1, keepdims=True))
    shares_VV /= shares_VV.sum(axis=1, keepdims=True)
    if options.top_k:
        for row in shares_VV:
            row[np.argsort(-row)[options.top_k :]] = 0
        shares_VV /= shares_VV.sum(axis=1, keepdims=True)
    answers = itertools.product(range(V), repeat=ANSWER)
    return {
        answer: float(np.prod([shares_VV[pair] for pair in itertools.pairwise((START, *answer))]))
        for answer in answers
    }


def counts_of(drafter, options, seeds=SEEDS):
    backbone = fakes.MarkovBackbone(LOGITS_VV)
    counts = Counter()
    for seed in range(seeds):
        asked = DecodeOptions(**options, seed=seed)
        chooser = make_chooser(asked, [START], V)
        request = Request([START], ANSWER, fakes.Letters(), chooser=chooser)
        events = decode(request, backbone, backbone.new_cache(16), drafter)
        counts[tuple(event.token for event in events)] += 1
    return counts


def drafters():
    """Each quite another distribution than the target's, and the drafts of one that is right."""
    of = {"check_hidden": False}
    yield "none", NoDrafter()
    yield "likely", fakes.OracleDrafter(answer=[1, 6, 6], prompt_tokens=1, vocab_size=V, **of)
    yield "random", fakes.RandomDrafter(vocab_size=V, **of)
    yield "uniform", fakes.DrawingDrafter(shares=[1 / V] * V, **of)
    yield "skew", fakes.DrawingDrafter(shares=[0.3, 0.02, 0.4, 0.08, 0, 0.1, 0.1, 0], **of)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("drafter", drafters(), ids=lambda drafter: drafter[0])
def test_answers_come_as_often_as_they_should(temperature, rule, drafter):
    options = {"temperature": temperature, "accept": rule}
    shares = shares_of(DecodeOptions(**options))
    counts = counts_of(drafter[1], options)
    assert false_alarm([counts[answer] for answer in shares], list(shares.values())) > ALARM


@pytest.mark.parametrize("rule", RULES)
def test_narrowed_answers_come_as_often_as_they_should(rule):
    options = {"temperature": 1.0, "top_k": 3, "accept": rule}
    shares = shares_of(DecodeOptions(**options))
    counts = counts_of(fakes.DrawingDrafter(shares=[1 / V] * V, check_hidden=False), options)
    assert false_alarm([counts[answer] for answer in shares], list(shares.values())) > ALARM


def test_drafts_like_the_target_are_accepted_more_often_by_rejection():
    """What the second rule is for: a drafter that draws as the target does is always right."""
    row = np.exp(LOGITS_VV[START])
    shares = (row / row.sum()).tolist()
    accepted = {}
    for rule in RULES:
        backbone = fakes.MarkovBackbone(np.tile(LOGITS_VV[START], (V, 1)))
        asked = DecodeOptions(temperature=1.0, accept=rule, seed=1)
        request = Request([START], 400, fakes.Letters(), chooser=make_chooser(asked, [START], V))
        drafter = fakes.DrawingDrafter(shares=shares, check_hidden=False)
        list(decode(request, backbone, backbone.new_cache(512), drafter))
        accepted[rule] = request.stats.accepted / request.stats.drafted
    assert accepted["rejection"] > 0.999  # the shares in float64, the logits in float32
    assert accepted["exact"] < 0.6


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_the_light_rest_of_a_long_vocabulary_comes_as_often_as_it_should(temperature):
    """Likely tokens are drawn one by one and the rest first as one: the shares are the same."""
    long, bins = 5000, 12
    weights_V = np.random.default_rng(0).normal(-11, 0.4, long)  # a tenth of all together
    weights_V[:4] = [0, -0.5, -3, -9]
    logits_V = (weights_V * temperature).astype(np.float32)
    few = likely(logits_V, temperature)
    assert 4 <= len(few.ids_N) < long / 10
    assert few.rest > 0.02
    sampler = Sampler(DecodeOptions(temperature=temperature, seed=9))
    drawn = [sampler.token(logits_V, position) for position in range(8000)]
    bin_of = np.argsort(np.argsort(-weights_V)) * bins // long  # by likelihood, the rest in most
    bin_of[:4] = bins + np.arange(4)
    mass = np.bincount(bin_of, np.exp(logits_V.astype(float) / temperature))
    counts = np.bincount(bin_of[drawn], minlength=bins + 4).tolist()
    assert false_alarm(counts, (mass / mass.sum()).tolist()) > ALARM


def test_numbers_of_a_key_are_uniform_and_those_of_neighbours_are_unrelated():
    size, cells = 40000, 10
    one, two = (uniforms(np.arange(size), 7, "token", position) for position in (3, 4))
    pairs = {
        "one key": (one[:-1], one[1:]),
        "two positions": (one, two),
        "two seeds": (one, uniforms(np.arange(size), 8, "token", 3)),
    }
    for left, right in pairs.values():
        cell = (left * cells).astype(int) * cells + (right * cells).astype(int)
        counts = np.bincount(cell, minlength=cells**2).tolist()
        assert false_alarm(counts, [1 / cells**2] * cells**2) > ALARM
    assert 0 < one.min() <= one.max() < 1


@pytest.mark.parametrize(
    ("degrees", "statistic", "tail"),
    [(1, 3.841459, 0.05), (2, 5.991465, 0.05), (5, 11.0705, 0.05), (10, 29.5883, 0.001)],
)
def test_tails_are_those_of_the_tables(degrees, statistic, tail):
    assert upper_tail(degrees, statistic) == pytest.approx(tail, rel=1e-4)
