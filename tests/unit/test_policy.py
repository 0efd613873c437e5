"""How long a draft is: as long as it pays, and none where drafting does not."""

import random
from itertools import accumulate, count
from operator import mul
from statistics import median

import pytest

from drafthead.decoding.policy import PLAIN_EVERY, Adaptive, AsDrafted
from drafthead.drafters.base import Floors, Steered
from drafthead.types import Draft

PACE_MS, STEP_MS = 4.0, 0.4
# What further rows add to a pass of one, in such passes, on the machine of these tests.
EXTRA = (0.0, 0.07, 0.17, 0.33, 0.52, 0.75, 1.02, 1.32, 1.62)


class Sure:
    """Steered: drafts tokens of one confidence as far as its floors let it; `right` are right."""

    name = "sure"

    def __init__(self, confidence=0.9, longest=8):
        self.confidence, self.longest = confidence, longest
        self.floors = None

    def propose(self, max_tokens):
        floors = self.floors or Floors.of(0.0)
        made, kept = 0, 0
        for product in accumulate([self.confidence] * min(max_tokens, self.longest), mul):
            kept += floors.keeps(product, made)
            made += 1
            if not floors.goes_on(product, made - 1):
                break
        return Draft((7,) * kept, (self.confidence,) * kept, steps=made)


class Blind:
    """Names no confidence."""

    name = "blind"

    def __init__(self, longest=8):
        self.longest = longest

    def propose(self, max_tokens):
        return Draft((7,) * min(max_tokens, self.longest))


class Forced(Sure):
    """Knows every third token for certain, as many at once as it may."""

    asked = 0

    def certain(self, max_tokens):
        self.asked += 1
        return Draft((7,) * (0 if self.asked % 3 else 4))


def passes(policy, drafter, accepts, bend=1.0, step_ms=STEP_MS):
    """Verify passes on a machine of known speed; the lengths of the drafts."""
    lengths = []
    policy.begin(drafter)
    for accept in accepts:
        draft = policy.propose(drafter, 100)
        size = len(draft.tokens)
        pass_ms = PACE_MS * (1.0 + bend * EXTRA[size])
        policy.learn(draft, min(size, accept), step_ms * draft.made, pass_ms)
        lengths.append(size)
    return lengths


def test_doubles_are_what_they_claim():
    assert isinstance(Sure(), Steered) and not isinstance(Blind(), Steered)


def as_promised(share, passes):
    """How many tokens of a long draft are accepted where each is with this probability."""
    draw = random.Random(3)
    return [next(n for n in count() if draw.random() > share) for _ in range(passes)]


def last_length(drafter, share, **machine):
    """The usual length of the last drafts."""
    return median(passes(Adaptive(), drafter, as_promised(share, 400), **machine)[-60:])


def test_a_sure_drafter_drafts_longer_than_a_doubtful_one():
    lengths = [last_length(Sure(share), share) for share in (0.97, 0.8, 0.5, 0.05)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] >= 4 and lengths[0] > lengths[2] > lengths[-1] == 0


def test_dearer_rows_and_dearer_steps_make_shorter_drafts():
    """H4, H6, H10: a cheap target, or passes that take long for a few rows."""
    cheap, dear = (last_length(Sure(0.8), 0.8, bend=bend) for bend in (0.3, 3.0))
    assert cheap > dear
    cheap, dear = (last_length(Sure(0.8), 0.8, step_ms=ms) for ms in (0.1, 2.0))
    assert cheap > dear


def test_a_token_stays_exactly_while_its_row_is_worth_its_time():
    policy = Adaptive()
    passes(policy, Sure(0.8), [2] * 80)
    floors = policy.floors()
    per_token = policy.rate * policy._promised / policy._kept
    for step, least in enumerate(floors.keep):
        row_ms = policy.cost.pass_ms(step + 2) - policy.cost.pass_ms(step + 1)
        assert least == pytest.approx(per_token * row_ms, rel=0.2)  # renewed every few passes
    assert all(go >= keep for go, keep in zip(floors.go_on, floors.keep))  # noqa: B905


def test_without_confidences_the_length_follows_what_was_accepted():
    lengths = [last_length(Blind(), share) for share in (0.97, 0.8, 0.5)]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] >= 5 and lengths[-1] <= 2


@pytest.mark.parametrize("drafter", [Blind(), Sure(0.9), Sure(0.99)])
def test_drafts_that_are_never_right_cost_little(drafter):
    """H1, H5, H13, H15: a floor of 0.97 over 500 tokens, in units of what passes take."""
    policy = Adaptive()
    lengths = passes(policy, drafter, [0] * 500)
    plain_ms = 500 * PACE_MS
    spent_ms = sum(PACE_MS * (1.0 + EXTRA[size]) + STEP_MS * size for size in lengths)
    assert plain_ms / spent_ms >= 0.97
    assert policy.resting and "rests" in policy.reason


def test_a_poem_then_code_is_off_then_on():
    """H2, H7, H15: drafting is tried again, however long it has rested."""
    policy = Adaptive()
    lengths = passes(policy, Sure(0.9), [0] * 60 + [6] * 300)
    assert 0 in lengths[20:60]
    assert min(lengths[-100:-1]) >= 0 and sum(size > 2 for size in lengths[-150:]) > 140


def test_what_is_certain_is_drafted_even_while_drafting_rests():
    policy, drafter = Adaptive(), Forced(0.9)
    lengths = passes(policy, drafter, [4 if turn % 3 == 2 else 0 for turn in range(600)])
    assert lengths[2::3] == [4] * 200
    assert policy.resting


def test_what_is_certain_says_nothing_of_the_drafter():
    """Were its gains counted, drafts that are never right would go on beside it for long."""
    alone, beside = Adaptive(), Adaptive()
    passes(alone, Sure(0.9), [0] * 40)
    passes(beside, Forced(0.9), [4 if turn % 3 == 2 else 0 for turn in range(60)])
    assert (beside.drafts, beside.switch.gain) == (alone.drafts, alone.switch.gain)
    assert beside.rate == pytest.approx(alone.rate, rel=0.02)  # times are learned from all passes


def test_a_plain_pass_is_timed_first_and_now_and_then():
    """Else nobody could tell what drafting gains."""
    lengths = passes(Adaptive(), Sure(0.95), [5] * (3 * PLAIN_EVERY))
    assert lengths[0] == 0
    assert 2 <= lengths.count(0) <= 4


def test_a_request_starts_with_drafting_on_whatever_came_before():
    policy = Adaptive()
    passes(policy, Sure(0.9), [0] * 100)
    assert policy.resting
    assert passes(policy, Sure(0.9), [5] * 3)[-1] > 0


def test_a_head_that_is_hardly_ever_right_is_told():
    policy = Adaptive()
    for _ in range(60):
        passes(policy, Sure(0.9), [0] * 40)
        if policy.drafts < 200:
            assert policy.warning is None
    assert "another backbone" in policy.warning
    other = Adaptive()
    for _ in range(40):
        passes(other, Sure(0.9), [0] * 30 + [1])
        passes(other, Sure(0.9), [5] * 10)
    assert other.drafts >= 200 and other.warning is None


def test_as_drafted_leaves_all_to_the_drafter():
    drafter, policy = Sure(0.9, longest=5), AsDrafted()
    drafter.floors = Floors.of(2.0)
    assert passes(policy, drafter, [0] * 50) == [5] * 50
    assert drafter.floors is None
    assert (policy.resting, policy.reason, policy.warning) == (False, None, None)
