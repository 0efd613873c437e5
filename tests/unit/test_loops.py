"""Laws of the loop detector."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drafthead.decoding.loops import LOOP_WINDOW, LoopDetector


def looped(tokens, window=LOOP_WINDOW):
    detector = LoopDetector(window)
    return any(detector.push(token) for token in tokens)


def test_a_window_that_occurs_again_is_found_with_its_last_token():
    detector = LoopDetector(3)
    assert [detector.push(t) for t in [1, 2, 3, 9, 1, 2, 3]] == [False] * 6 + [True]


def test_overlapping_repeats_count():
    """A constant run of window + 1 tokens repeats its window."""
    assert not looped([5] * LOOP_WINDOW)
    assert looped([5] * (LOOP_WINDOW + 1))


def test_the_promised_window_is_eight_tokens():
    assert LOOP_WINDOW == 8
    assert not looped([*range(7), 99, *range(7)])
    assert looped([*range(8), 99, *range(8)])


@given(st.lists(st.integers(0, 2), max_size=60))
def test_it_agrees_with_a_search_of_all_windows(tokens):
    windows = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    assert looped(tokens, 4) == (len(set(windows)) < len(windows))
