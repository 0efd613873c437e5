"""Laws of where an answer ends."""

from __future__ import annotations

import pytest

from drafthead.decoding.constraints import EndRule, token_limit
from drafthead.errors import CapacityError, RequestError


@pytest.mark.parametrize(
    ("prompt", "wanted", "capacity", "limit"),
    [(1, 5, 64, 5), (60, 5, 64, 5), (60, 6, 64, 5), (64, 9, 64, 1), (63, 9, 64, 2)],
)
def test_limit_is_what_was_asked_for_or_what_fits(prompt, wanted, capacity, limit):
    """E1: C cells hold a prompt of P tokens and C - P + 1 more, the last one unfed."""
    assert token_limit(prompt, wanted, capacity) == limit


def test_a_prompt_too_long_names_both_numbers():
    with pytest.raises(CapacityError, match=r"70 tokens .* 64"):
        token_limit(70, 1, 64)


@pytest.mark.parametrize(("prompt", "wanted"), [(0, 5), (3, 0), (3, -1)])
def test_nothing_to_do_is_refused(prompt, wanted):
    with pytest.raises(RequestError):
        token_limit(prompt, wanted, 64)


def test_cut_keeps_the_token_that_ends_the_answer_and_drops_the_rest():
    """C1, C3: whatever follows the end is gone."""
    assert EndRule(9, frozenset({7, 8})).cut([1, 8, 2, 7]) == ([1, 8], "stop")
    assert EndRule(3).cut([1, 2, 3, 4]) == ([1, 2, 3], "length")
    assert EndRule(9).cut([1, 2]) == ([1, 2], None)


def test_a_stop_at_the_limit_is_a_stop():
    assert EndRule(2, frozenset({7})).cut([1, 7]) == ([1, 7], "stop")


def test_left_counts_down_over_passes():
    rule = EndRule(5)
    rule.cut([1, 2])
    assert rule.left == 3
    assert rule.cut([3, 4, 5, 6]) == ([3, 4, 5], "length")


def test_loops_are_cut_only_where_asked_for():
    tokens = [1, 2, 3, 4, 5, 6, 7, 8] * 2
    assert EndRule(99).cut(tokens) == (tokens, None)
    assert EndRule(99, cut_loops=True).cut(tokens) == (tokens, "looped")
    assert EndRule(99, cut_loops=True).cut([*tokens, 9]) == (tokens, "looped")
