"""Log-probabilities against their definition, and what they leave alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from drafthead.decoding.choosing import make_chooser
from drafthead.decoding.loop import Request, decode
from drafthead.decoding.options import DecodeOptions
from drafthead.decoding.scores import ECHO_ROWS, score, score_prompt
from drafthead.drafters.base import NoDrafter
from tests import fakes

V = 24
LOGITS_VV = np.random.default_rng(2).normal(size=(V, V)) * 4


def logprob(row, token):
    exact = [float(x) for x in row.astype(np.float32)]
    return exact[token] - max(exact) - math.log(sum(math.exp(x - max(exact)) for x in exact))


@pytest.mark.parametrize("top", [0, 1, 5, V, 1000])
def test_scores_are_the_log_softmax(top):
    """The rest of a row is summed in float32: relative error below 1e-6 of at most e^-10 V."""
    for row in LOGITS_VV:
        found = score(row.astype(np.float32), 7, top)
        assert found.logprob == pytest.approx(logprob(row, 7), abs=1e-8)
        best = sorted(range(V), key=lambda token: (-row[token], token))[:top]
        assert [other.token for other in found.top] == best
        for other in found.top:
            assert other.logprob == pytest.approx(logprob(row, other.token), abs=1e-8)


def test_a_chosen_token_has_one_score_wherever_it_is_told():
    found = score(LOGITS_VV[0].astype(np.float32), int(LOGITS_VV[0].argmax()), 3)
    assert found.logprob == found.top[0].logprob


def test_equal_logits_are_told_lowest_id_first_and_what_is_no_number_never():
    row = np.array([1, np.nan, 1, 1, -np.inf], np.float32)
    found = score(row, 3, 4)
    assert [other.token for other in found.top] == [0, 2, 3]
    assert found.logprob == pytest.approx(-math.log(3))


@pytest.mark.parametrize("size", [1, 2, ECHO_ROWS, ECHO_ROWS + 1, ECHO_ROWS + 2, 3 * ECHO_ROWS])
def test_a_prompt_is_scored_over_every_chunk(size):
    """D3."""
    backbone = fakes.MarkovBackbone(LOGITS_VV)
    prompt = [int(t) for t in np.random.default_rng(size).integers(0, V, size)]
    cache = backbone.new_cache(256)
    scored = score_prompt(backbone, cache, prompt, 2)
    assert [one.token for one in scored] == prompt
    assert scored[0].logprob is None
    for before, one in zip(prompt, scored[1:], strict=False):
        assert one.logprob == pytest.approx(logprob(LOGITS_VV[before], one.token), abs=1e-8)
    assert cache.length == size - 1


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 2, "seed": 1}, {"repetition_penalty": 9, "temperature": 0.5}]
)
def test_scores_are_of_the_backbone_before_anything_shapes_it(options):
    """D2: penalties, biases and temperature change the choice and not what is told of it."""
    backbone = fakes.MarkovBackbone(LOGITS_VV)
    asked = DecodeOptions(**options, logit_bias={3: 9} if options else {}).seeded()
    chooser = make_chooser(asked, [5], V)
    request = Request([5], 20, fakes.Letters(), chooser=chooser, logprobs=2)
    events = list(decode(request, backbone, backbone.new_cache(64), NoDrafter()))
    before = 5
    for event in events:
        assert event.logprob == pytest.approx(logprob(LOGITS_VV[before], event.token), abs=1e-8)
        assert len(event.top) == 2
        before = event.token
