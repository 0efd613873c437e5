"""Laws of the acceptance rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafthead.common_start import common_start
from drafthead.decoding.acceptance import longest_match, usable_prefix
from drafthead.types import Draft

tokens = st.lists(st.integers(0, 3), max_size=8)


@given(draft=tokens, noise=tokens)
def test_longest_match_is_the_common_prefix(draft, noise):
    """Every accepted token equals the target's, and the next one, if any, does not."""
    target = (noise + [0] * 9)[: len(draft) + 1]
    accepted = longest_match(draft, np.array(target, np.int32))
    assert 0 <= accepted <= len(draft)
    assert draft[:accepted] == target[:accepted]
    assert accepted == len(draft) or draft[accepted] != target[accepted]


@given(one=tokens, other=tokens)
def test_a_common_start_is_the_longest_one_and_the_same_from_either_side(one, other):
    size = common_start(one, other)
    assert size == common_start(other, one)
    assert one[:size] == other[:size]
    assert one[size : size + 1] != other[size : size + 1] or size == len(one) == len(other)


def test_nothing_drafted_accepts_nothing():
    assert longest_match([], np.array([7], np.int32)) == 0


@pytest.mark.parametrize(
    ("draft", "room", "usable"),
    [
        (Draft((1, 2, 3)), 8, [1, 2, 3]),
        (Draft((1, 2, 3)), 2, [1, 2]),
        (Draft((1, 9, 3)), 8, [1]),
        (Draft((1, 8, 3)), 8, [1]),
        (Draft((-1, 2)), 8, []),
        (Draft((1, 2, 3), (0.9, float("nan"), 0.9)), 8, [1]),
        (Draft((1, 2), (float("inf"), 0.5)), 8, []),
        (Draft((1, 2, 3), (0.9,)), 8, [1, 2, 3]),
        (Draft(), 8, []),
    ],
)
def test_usable_prefix_ends_before_the_first_bad_token(draft, room, usable):
    """A10: out-of-vocabulary ids and confidences that are not finite end a draft."""
    assert usable_prefix(draft, room, vocab_size=8) == usable
