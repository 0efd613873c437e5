"""Laws of the suffix automaton: it finds what a search of the whole text finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drafthead.drafters.automaton import Match, SuffixAutomaton

texts = st.integers(1, 5).flatmap(lambda size: st.lists(st.integers(0, size), max_size=60))


def longest_earlier_suffix(text):
    """Brute force: its length, and the places behind all earlier occurrences."""
    size = len(text)
    for length in range(size - 1, 0, -1):
        ends = [end for end in range(length, size) if text[end - length : end] == text[-length:]]
        if ends:
            return length, ends
    return 0, []


@given(texts)
def test_the_match_is_the_longest_ending_that_occurs_before(text):
    """At every token, and it points behind an earlier occurrence of just that ending."""
    automaton = SuffixAutomaton()
    for size, token in enumerate(text, 1):
        automaton.extend([token])
        length, ends = longest_earlier_suffix(text[:size])
        assert automaton.match.length == length
        assert not length or automaton.match.next in ends


@given(texts, st.integers(0, 12))
def test_what_followed_is_copied_and_past_the_end_the_copy_goes_on(text, count):
    automaton = SuffixAutomaton(text)
    length, start = automaton.match
    copied = automaton.following(count)
    if not length:
        assert copied == []
        return
    assert len(copied) == count
    for index, token in enumerate(copied):
        assert token == [*text, *copied][start + index]


@given(texts)
def test_token_by_token_or_at_once_is_one_automaton(text):
    whole, grown = SuffixAutomaton(text), SuffixAutomaton(text[: len(text) // 2])
    grown.extend(text[len(text) // 2 :])
    assert vars(whole) == vars(grown)


@given(texts)
def test_it_has_fewer_than_two_states_and_three_ways_a_token(text):
    """Blumer et al.: at most 2n - 1 states and 3n - 4 transitions for n >= 3 tokens."""
    automaton, size = SuffixAutomaton(text), len(text)
    if size >= 3:
        assert len(automaton._next) <= 2 * size - 1
        assert sum(map(len, automaton._next)) <= 3 * size - 4


def test_a_new_token_matches_nothing():
    assert SuffixAutomaton().match == SuffixAutomaton([7]).match == Match(0, 0)
    assert SuffixAutomaton([1, 2, 1, 2, 9]).match == Match(0, 0)
    assert SuffixAutomaton([5]).following(3) == []


def test_the_latest_occurrence_of_a_match_is_followed():
    """1 2 was followed by 3, then by 4."""
    assert SuffixAutomaton([1, 2, 3, 9, 1, 2, 4, 8, 1, 2]).following(2) == [4, 8]


def test_a_period_is_continued():
    assert SuffixAutomaton([9, 1, 2, 1, 2]).following(5) == [1, 2, 1, 2, 1]
    assert SuffixAutomaton([3, 3]).following(3) == [3, 3, 3]
