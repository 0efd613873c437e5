"""A stop text ends the answer wherever tokens part it, and nothing of it is ever shown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafthead.decoding.stops import StopText


class Words:
    """Text pieces whose token ids are indices into a list; `tail` comes at the end."""

    def __init__(self, words, tail=""):
        self.words, self.tail = words, tail

    def push(self, token_id):
        return self.words[token_id]

    def flush(self):
        return self.tail


def shown(words, stops, tail=""):
    """Every piece until the stop or the end, and whether it was a stop."""
    text = StopText(Words(words, tail), stops)
    pieces = []
    for token in range(len(words)):
        pieces.append(text.push(token))
        if text.stopped:
            return pieces, True
    return [*pieces, text.flush()], text.stopped


def cut(text, stops):
    """The definition, on the whole text: up to the stop that is complete first."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@pytest.mark.parametrize(
    ("words", "stops", "pieces"),
    [
        (["a ", "ST", "OP", "!"], ["STOP"], ["a ", "", ""]),
        (["a ", "ST", "AY"], ["STOP"], ["a ", "", "STAY", ""]),
        (["aSTOPb"], ["STOP"], ["a"]),
        (["x", "ab", "c"], ["abcd", "bc"], ["x", "", "a"]),
        (["xab", "c"], ["bc", "abc"], ["x", ""]),
        (["one", "\n", "\n", "two"], ["\n\n"], ["one", "", ""]),
        (["yes", " no"], [" no"], ["yes", ""]),
        (["日", "本", "語"], ["本語"], ["日", "", ""]),
        (["aa", "b"], ["ab"], ["a", ""]),
        (["aab", "aac"], ["aabaad"], ["", "aabaac", ""]),
        (["ends with ST"], ["STOP"], ["ends with ", "ST"]),
        (["a", "b"], [], ["a", "b", ""]),
    ],
)
def test_pieces(words, stops, pieces):
    """C7: spanning tokens, of different lengths, with spaces, line breaks and CJK."""
    assert shown(words, stops)[0] == pieces


TEXT = st.text("ab\n é日", max_size=14)


@given(st.lists(TEXT, max_size=8), st.lists(TEXT.filter(bool), max_size=4), TEXT)
@settings(max_examples=1500, deadline=None)
def test_where_tokens_part_a_text_changes_nothing(words, stops, tail):
    """C7: the joined pieces are the whole text up to the first stop."""
    pieces, stopped = shown(words, stops, tail)
    assert ("".join(pieces), stopped) == cut("".join(words) + tail, stops)


@given(st.lists(TEXT, max_size=8), st.lists(TEXT.filter(bool), min_size=1, max_size=4))
@settings(max_examples=800, deadline=None)
def test_no_text_is_held_back_that_cannot_become_a_stop(words, stops):
    text = StopText(Words(words), stops)
    given_so_far, shown_so_far = "", ""
    for token, word in enumerate(words):
        given_so_far += word
        shown_so_far += text.push(token)
        if text.stopped:
            break
        held = given_so_far[len(shown_so_far) :]
        assert given_so_far.startswith(shown_so_far)
        assert not held or any(stop.startswith(held) for stop in stops)
