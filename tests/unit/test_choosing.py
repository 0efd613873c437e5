"""Laws of who chooses: what they see, in which order, and what drafts may change."""

from __future__ import annotations

import numpy as np
import pytest

from drafthead.backbone.handle import Pass
from drafthead.decoding.acceptance import keeps, residual
from drafthead.decoding.choosing import GreedyChooser, LogitChooser, RejectingChooser, make_chooser
from drafthead.decoding.loop import Request, decode
from drafthead.decoding.options import DecodeOptions
from drafthead.decoding.sampling import Sampler
from drafthead.drafters.base import NoDrafter
from drafthead.types import Draft
from tests import fakes

V = 16
PROMPT = [3, 1, 4]
LOGITS_VV = np.random.default_rng(2).normal(size=(V, V))


class Recorder:
    """A rule that changes nothing and notes the tokens before each place."""

    def __init__(self, prompt):
        self.before, self.seen = list(prompt), []

    def apply(self, logits_V):
        self.seen.append(tuple(self.before))

    def push(self, token):
        self.before.append(token)


def answer(drafter, options, rules=(), max_tokens=40, prompt=PROMPT):
    backbone = fakes.MarkovBackbone(LOGITS_VV)
    asked = DecodeOptions(**options)
    chooser = make_chooser(asked, prompt, V)
    if rules:
        chooser = LogitChooser(Sampler(asked), rules, len(prompt))
    request = Request(prompt, max_tokens, fakes.Letters(), chooser=chooser)
    events = list(decode(request, backbone, backbone.new_cache(256), drafter))
    return [event.token for event in events], request


def doubles(expected):
    at = {"answer": expected, "prompt_tokens": len(PROMPT), "vocab_size": V, "check_hidden": False}
    yield fakes.RandomDrafter(vocab_size=V, check_hidden=False)
    yield fakes.OracleDrafter(**at)
    yield fakes.OracleDrafter(right=1, **at)
    yield fakes.SkippingDrafter(**at)
    yield fakes.NanDrafter(**at)


@pytest.mark.parametrize("temperature", [0, 1e-6, 0.3, 1, 2])
def test_the_seed_decides_the_text_whatever_drafts(temperature):
    """D5: also a drafter that is always right is then accepted always."""
    options = {"temperature": temperature, "seed": 42}
    expected, _ = answer(NoDrafter(), options)
    assert answer(NoDrafter(), options)[0] == expected
    for drafter in doubles(expected):
        tokens, request = answer(drafter, options)
        assert tokens == expected
        if type(drafter) is fakes.OracleDrafter and drafter.right is None:
            assert request.stats.accepted == request.stats.drafted > 0


def test_another_seed_gives_another_text_and_a_tiny_temperature_the_greedy_one():
    texts = {tuple(answer(NoDrafter(), {"temperature": 1, "seed": seed})[0]) for seed in range(20)}
    assert len(texts) == 20
    cold = answer(NoDrafter(), {"temperature": 1e-6, "seed": 7})[0]
    assert cold == answer(NoDrafter(), {})[0]


def test_numbers_belong_to_absolute_positions():
    """A prompt longer by what was answered goes on as if it had been one answer."""
    options = {"temperature": 1, "seed": 5}
    whole, _ = answer(NoDrafter(), options)
    tail, _ = answer(NoDrafter(), options, prompt=[*PROMPT, *whole[:10]], max_tokens=30)
    assert tail == whole[10:]


def test_a_rule_sees_each_prefix_once_and_in_order_whatever_drafts():
    """D8."""
    alone = Recorder(PROMPT)
    expected, _ = answer(NoDrafter(), {"temperature": 1, "seed": 3}, [alone])
    assert alone.seen == [(*PROMPT, *expected[:size]) for size in range(40)]
    for drafter in doubles(expected):
        recorder = Recorder(PROMPT)
        answer(drafter, {"temperature": 1, "seed": 3}, [recorder])
        assert recorder.seen == alone.seen


def test_greedy_decoding_asks_the_core_for_no_logits():
    kinds = {GreedyChooser: {}, LogitChooser: {"presence_penalty": 1}}
    kinds[RejectingChooser] = {"temperature": 1, "seed": 1, "accept": "rejection"}
    for kind, options in kinds.items():
        chooser = make_chooser(DecodeOptions(**options), PROMPT, V)
        assert type(chooser) is kind
        assert Request(PROMPT, 4, fakes.Letters(), chooser=chooser).want == (
            "tokens" if kind is GreedyChooser else "logits"
        )
    assert Request(PROMPT, 4, fakes.Letters(), logprobs=0).want == "logits"


@pytest.mark.parametrize("options", [{}, {"temperature": 1, "seed": 4}, {"presence_penalty": 0.1}])
def test_a_logit_that_is_not_a_number_never_comes(options):
    logits_MV = np.full((1, V), np.nan, np.float32)
    logits_MV[0, 5] = -3
    given = Pass(np.zeros((1, 3), np.float32), np.array([5], np.int32), logits_MV)
    chooser = make_chooser(DecodeOptions(**options), PROMPT, V)
    assert chooser.choose(Draft(), given) == [5]
    assert np.isnan(logits_MV[0, 0])


def test_a_draft_that_may_not_come_is_rejected_and_one_that_alone_may_is_kept():
    options = {"temperature": 1, "top_k": 1, "accept": "rejection", "seed": 0}
    best = int(LOGITS_VV[3].argmax())
    logits_MV = LOGITS_VV[[3, best]].astype(np.float32)
    given = Pass(np.zeros((2, 3), np.float32), np.zeros(2, np.int32), logits_MV)
    for token, kept in ((best, 2), ((best + 1) % V, 1)):
        chooser = make_chooser(DecodeOptions(**options), PROMPT, V)
        chosen = chooser.choose(Draft((token,)), given)
        assert (chosen[0], len(chosen)) == (best, kept)


def test_keeping_and_the_residual_make_up_the_target():
    """Algorithm 1 of Leviathan et al., in shares: what is kept and what is drawn anew."""
    rng = np.random.default_rng(0)
    target, drafted = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    numbers = (np.arange(20000) + 0.5) / 20000
    kept = [
        np.mean([keeps(p, q, n) for n in numbers]) for p, q in zip(target, drafted, strict=True)
    ]
    left = residual(target, drafted)
    total = drafted * kept + (1 - (drafted * kept).sum()) * left / left.sum()
    np.testing.assert_allclose(total, target, atol=1e-4)  # the numbers' grid is 5e-5
    assert residual(target, target) is target
