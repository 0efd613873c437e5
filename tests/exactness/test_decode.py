"""Decoding on the real core: whatever drafts, tokens and cache bits are those of plain."""

from __future__ import annotations

import numpy as np
import pytest

from drafthead import _native
from drafthead.backbone.handle import Backbone, Segment
from drafthead.decoding.loop import PREFILL_ROWS, Request, decode
from drafthead.decoding.policy import Adaptive
from drafthead.drafters.base import NoDrafter
from drafthead.drafters.mtp import MtpDrafter
from drafthead.evaluation.selftest import run_selftest
from drafthead.heads.package import HeadPackage
from drafthead.session import load
from tests import fakes
from tests.random_head import write_random_head

PROMPTS = [
    "Proofread: I has a apple and he have two pears, we was happy.",
    "Write one sentence about the sea.",
    "Summarize: Ada: dinner at 7? Bo: yes. Ada: bring bread. Bo: ok, and cheese.",
]


@pytest.fixture(scope="module")
def session(backbone_path, tmp_path_factory):
    """The embedded backbone with a head of random weights, which drafts in spite of its doubts."""
    opened = Backbone.open(backbone_path, threads=2)
    folder = write_random_head(tmp_path_factory.mktemp("heads") / "random", opened)
    loaded = load(backbone_path, head=folder, threads=2)
    return loaded.using(MtpDrafter(loaded.drafting.head, 4, min_confidence=0.0))


def run(backbone, drafter, prompt, max_tokens, capacity=640, cache=None, policy=None):
    request = Request(prompt, max_tokens, fakes.Letters())
    cache = cache or backbone.new_cache(capacity)
    tokens = [event.token for event in decode(request, backbone, cache, drafter, policy)]
    return tokens, request, cache


def doubles(answer, prompt, vocab_size, k=5):
    at = {"answer": answer, "prompt_tokens": len(prompt), "k": k, "vocab_size": vocab_size}
    at["check_hidden"] = False
    yield fakes.RandomDrafter(k=k, vocab_size=vocab_size, check_hidden=False)
    yield fakes.OracleDrafter(**at)
    for right in range(k):
        yield fakes.OracleDrafter(right=right, **at)
    yield fakes.SkippingDrafter(**at)
    yield fakes.SkippingDrafter(every=2, right=1, **at)
    yield fakes.NanDrafter(**at)


def cache_bits(backbone, cache):
    """Keys and values of every layer up to the cache's length, as 16-bit words."""
    cells = []
    for layer in range(backbone.spec.n_layers):
        keys = cache.key_view(layer)  # (kv_heads, blocks, head_dim, 16)
        by_cell = keys.transpose(0, 1, 3, 2).reshape(keys.shape[0], -1, keys.shape[2])
        cells += [by_cell[:, : cache.length], cache.value_view(layer)[:, : cache.length]]
    return [np.ascontiguousarray(part).view(np.uint16) for part in cells]


def test_the_automatic_policy_gives_the_plain_tokens_and_cache_bits(tiny_path):
    """Off, on again, short, long: one policy for all doubles, so that it has learned something."""
    backbone, policy = Backbone.open(tiny_path, threads=1), Adaptive()
    prompt = [5, 9, 2, 17]
    plain, _, plain_cache = run(backbone, NoDrafter(), prompt, 300)
    bits, rested = cache_bits(backbone, plain_cache), 0
    for drafter in doubles(plain, prompt, backbone.spec.vocab_size):
        tokens, request, cache = run(backbone, drafter, prompt, 300, policy=policy)
        assert tokens == plain
        assert all(map(np.array_equal, cache_bits(backbone, cache), bits))
        rested += request.stats.rested
    assert rested > 0 and policy.accepted > 0


@pytest.mark.parametrize("size", [1, 2, 33, 511, 512, 513])
def test_every_double_gives_the_plain_tokens_and_cache_bits(tiny_path, size):
    """A4, A5, A6, A7, A10: rejected tokens leave no trace, in tokens or cache."""
    backbone = Backbone.open(tiny_path, threads=2)
    vocab_size = backbone.spec.vocab_size
    prompt = [int(t) for t in np.random.default_rng(size).integers(0, vocab_size, size)]
    plain, _, plain_cache = run(backbone, NoDrafter(), prompt, 100)
    expected = cache_bits(backbone, plain_cache)
    for drafter in doubles(plain, prompt, vocab_size):
        tokens, _, cache = run(backbone, drafter, prompt, 100)
        assert tokens == plain, drafter
        for want, got in zip(expected, cache_bits(backbone, cache), strict=True):
            assert (want == got).all(), drafter


def test_decoding_equals_prefilling_what_was_decoded(tiny_path):
    """A3: prompt and answer fed at once give the cache that decoding left."""
    backbone = Backbone.open(tiny_path, threads=1)
    prompt = list(range(40))
    tokens, _, decoded = run(backbone, NoDrafter(), prompt, 60)
    fresh = backbone.new_cache(640)
    backbone.forward([Segment(fresh, [*prompt, *tokens[:-1]])], rows="last", want="hidden")
    for want, got in zip(cache_bits(backbone, decoded), cache_bits(backbone, fresh), strict=True):
        assert (want == got).all()


def test_every_instruction_set_and_thread_count_decodes_the_same(tiny_path, every_isa):
    prompt = [3, 1, 4, 1, 5]
    answers = set()
    for isa in every_isa:
        _native.set_isa(isa)
        for threads in (1, 3):
            backbone = Backbone.open(tiny_path, threads=threads)
            drafter = fakes.RandomDrafter(k=3, vocab_size=272, check_hidden=False)
            answers.add(tuple(run(backbone, drafter, prompt, 40)[0]))
            answers.add(tuple(run(backbone, NoDrafter(), prompt, 40)[0]))
    assert len(answers) == 1


@pytest.mark.parametrize("k", [1, 8])
def test_context_end_on_the_core(tiny_path, k):
    """E1: with 64 cells the answer ends in the last one, whatever is drafted."""
    backbone = Backbone.open(tiny_path, threads=1)
    prompt = list(range(20))
    plain, _, _ = run(backbone, NoDrafter(), prompt, 999, capacity=64)
    assert len(plain) == 64 + 1 - 20
    for drafter in doubles(plain, prompt, backbone.spec.vocab_size, k):
        tokens, request, cache = run(backbone, drafter, prompt, 999, capacity=64)
        assert tokens == plain
        assert (request.finish_reason, cache.length) == ("length", 64)


def test_an_abandoned_answer_leaves_the_cache_as_new(tiny_path):
    backbone = Backbone.open(tiny_path, threads=1)
    fresh, _, _ = run(backbone, NoDrafter(), [7, 8, 9], 50)
    cache = backbone.new_cache(640)
    drafter = fakes.RandomDrafter(k=4, vocab_size=272, check_hidden=False)
    started = decode(Request([1] * 90, 50, fakes.Letters()), backbone, cache, drafter)
    for _ in range(13):
        next(started)
    started.close()
    assert run(backbone, drafter, [7, 8, 9], 50, cache=cache)[0] == fresh


@pytest.mark.backbone
@pytest.mark.parametrize("prompt", PROMPTS)
def test_embedded_backbone_decodes_the_same_with_every_drafter(session, prompt):
    """A1: greedy tokens with drafting on are those with drafting off."""
    plain = session.using(NoDrafter())
    ids = session.encode(prompt)
    expected = plain.generate(ids, max_tokens=80, ignore_eos=True).tokens
    assert session.generate(ids, max_tokens=80, ignore_eos=True).tokens == expected
    every = list(doubles(expected, ids, session.backbone.spec.vocab_size, k=4))
    for drafter in (every[0], every[4], *every[-2:]):  # RANDOM, ORACLE-2, SKIPPING, NaN
        answer = session.using(drafter).generate(ids, max_tokens=80, ignore_eos=True)
        assert answer.tokens == expected, drafter


@pytest.mark.backbone
def test_an_oracle_is_accepted_whole(session):
    """The engine's verify pass agrees with its own plain decoding on every drafted row."""
    ids = session.encode(PROMPTS[1])
    plain = session.using(NoDrafter()).generate(ids, max_tokens=81, ignore_eos=True)
    at = {"answer": plain.tokens, "prompt_tokens": len(ids), "k": 7, "check_hidden": False}
    stats = (
        session.using(fakes.OracleDrafter(**at)).generate(ids, max_tokens=81, ignore_eos=True).stats
    )
    assert (stats.passes, stats.accepted, stats.drafted) == (10, 70, 70)


@pytest.mark.backbone
def test_stream_and_generate_give_one_text_with_marks_for_drafted_tokens(session):
    """A9: the two ways of asking are one program."""
    result = session.generate(PROMPTS[2], max_tokens=40)
    events = list(session.stream(PROMPTS[2], max_tokens=40))
    assert tuple(event.token for event in events) == result.tokens
    assert "".join(event.text for event in events) == result.text
    assert session.tokenizer.decode(result.tokens) == result.text
    assert sum(event.drafted for event in events) == result.stats.accepted


@pytest.mark.backbone
def test_the_head_drafts_at_most_what_it_is_asked_for(session):
    ids = session.encode(PROMPTS[0])
    drafter = session.drafting
    assert isinstance(drafter, MtpDrafter)
    stats = session.generate(ids, max_tokens=30, ignore_eos=True).stats
    assert len(stats.drafted_at) <= 4
    assert stats.drafted > 0
    short = MtpDrafter(drafter.head, max_draft_tokens=2)
    assert len(session.using(short).generate(ids, max_tokens=30).stats.drafted_at) <= 2
    unsure = MtpDrafter(drafter.head, 4, min_confidence=1.5)
    assert session.using(unsure).generate(ids, max_tokens=10).stats.drafted == 0


@pytest.mark.backbone
def test_a_long_prompt_is_cut_the_same_way_and_answered_the_same(session):
    """A4: prompts around the chunk size."""
    words = session.encode("one two three four five six seven eight nine ten " * 60)
    plain = session.using(NoDrafter())
    for size in (PREFILL_ROWS - 1, PREFILL_ROWS, PREFILL_ROWS + 1):
        ids = words[:size]
        expected = plain.generate(ids, max_tokens=12, ignore_eos=True)
        assert session.generate(ids, max_tokens=12, ignore_eos=True).tokens == expected.tokens


@pytest.mark.backbone
def test_quick_selftest_is_exact(session):
    report = run_selftest(session, quick=True)
    assert report["exact"], report["checks"]


@pytest.mark.backbone
def test_a_head_of_another_backbone_is_refused_by_name_and_passed_over_by_auto(
    session, backbone_path, tiny_path, tmp_path, monkeypatch
):
    """J1, J11: a named head that does not fit is an error; auto decodes plainly, says why."""
    from drafthead.errors import HeadError

    folder = write_random_head(tmp_path / "other", session.backbone)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace(session.backbone.fingerprint, "0" * 64))
    with pytest.raises(HeadError, match="fingerprint"):
        load(backbone_path, head=folder)
    monkeypatch.setattr("drafthead.drafting.find_head", lambda backbone: None)
    plain = load(backbone_path)
    assert not plain.drafter.active
    assert "no head" in plain.drafter.reason
    assert plain.generate("hi", max_tokens=3).stats.drafted == 0
    assert HeadPackage.load(folder).config.target.fingerprint == "0" * 64
