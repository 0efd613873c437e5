"""Drafters by name on the real core: whatever they draft, tokens and cache bits are those of plain.

The backbone is random, or the embedded one; its head is random too. Cycles of few tokens abound in
random models, and long copies with them.
"""

from __future__ import annotations

import numpy as np
import pytest

from drafthead.backbone.handle import Backbone
from drafthead.decoding.loop import Request, decode
from drafthead.drafters.base import NoDrafter
from drafthead.drafting import DRAFTERS, Asked, DrafterMaker
from drafthead.session import load
from tests import fakes
from tests.exactness.test_decode import PROMPTS, cache_bits, run
from tests.random_head import write_random_head

# A standalone drafter needs a model with a tokenizer: test_standalone_texts.py.
ACTIVE = [name for name in DRAFTERS if name not in ("none", "standalone")]


@pytest.fixture(scope="module")
def maker(tiny_path, tmp_path_factory):
    backbone = Backbone.open(tiny_path, threads=2)
    folder = write_random_head(tmp_path_factory.mktemp("heads") / "random", backbone)
    return DrafterMaker(backbone, Asked(folder))


def prompt_of(size, seed=0):
    """Random ids of which a part comes twice."""
    ids = [int(token) for token in np.random.default_rng(seed).integers(0, 272, size)]
    return [*ids[: size // 2], *ids[: size - size // 2]]


@pytest.mark.parametrize("size", [1, 2, 40, 513])
@pytest.mark.parametrize("name", ACTIVE)
def test_tokens_and_cache_bits_are_plains(maker, name, size):
    """A4, A5, A6: a request, an abandoned one, and the first again by what was learned since."""
    prompt = prompt_of(size)
    plain, _, plain_cache = run(maker.backbone, NoDrafter(), prompt, 100)
    expected = cache_bits(maker.backbone, plain_cache)
    drafter = maker.make(name).drafting
    cache = maker.backbone.new_cache(640)
    for _ in range(2):
        tokens, request, cache = run(maker.backbone, drafter, prompt, 100, cache=cache)
        assert tokens == plain
        assert request.stats.committed == request.stats.passes + request.stats.accepted
        for want, got in zip(expected, cache_bits(maker.backbone, cache), strict=True):
            assert (want == got).all()
        abandon(maker.backbone, drafter, cache)


def abandon(backbone, drafter, cache):
    started = decode(Request(prompt_of(90, 1), 50, fakes.Letters()), backbone, cache, drafter)
    for _ in range(13):
        next(started)
    started.close()


@pytest.mark.parametrize("name", ["ngram", "jacobi"])
def test_a_text_that_repeats_itself_is_drafted(maker, name):
    """Not only harmless: on a random model, which soon goes in circles, both save passes."""
    stats = run(maker.backbone, maker.make(name).drafting, prompt_of(40), 200)[1].stats
    assert stats.accepted > 0
    assert stats.passes < 199


@pytest.mark.backbone
@pytest.mark.parametrize("name", ACTIVE)
def test_the_embedded_backbone_answers_as_plain(backbone_path, name):
    """A1: with the shipped head."""
    session = load(backbone_path, drafter=name, threads=2)
    assert session.drafter.active
    for prompt in PROMPTS:
        plain = session.with_drafter("none").generate(prompt, max_tokens=60)
        session.forget()
        answer = session.generate(prompt, max_tokens=60)
        assert (answer.tokens, answer.text) == (plain.tokens, plain.text)
        assert answer.stats.drafted > 0
