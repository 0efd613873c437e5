"""Streamed text is the text, whatever bytes come, and ends where a stop says, with any drafter."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafthead.drafters.base import NoDrafter
from drafthead.drafting import DrafterState
from drafthead.session import Session
from tests import fakes

PROMPT = [*b"user:hi;"]


def talk(answer: bytes, drafter=None, then=(256,)):
    """A session that answers the prompt with these bytes and then these ids."""
    tokenizer = fakes.ByteTokenizer()
    script = fakes.scripted_next(PROMPT, [*answer, *then], 256)
    backbone = fakes.ScriptedBackbone(script, tokenizer.vocab_size)
    drafter = drafter or NoDrafter()
    state = DrafterState(drafter.name, True)
    return Session(backbone, tokenizer, fakes.PlainTemplate(), drafter, state)


def oracle(answer: bytes, then=(256,), **how):
    return fakes.OracleDrafter(
        answer=[*answer, *then], prompt_tokens=len(PROMPT), vocab_size=256, **how
    )


def drafters(answer: bytes):
    yield NoDrafter()
    for right, k in ((None, 1), (None, 4), (None, 9), (1, 4), (2, 3)):
        yield oracle(answer, right=right, k=k)


@given(st.binary(min_size=1, max_size=24), st.integers(1, 26))
@settings(max_examples=300, deadline=None)
def test_streamed_text_is_the_text_of_the_tokens_whatever_bytes_come(answer, max_tokens):
    """F1: cut inside characters by the limit or not, drafted or not."""
    texts = set()
    for drafter in drafters(answer):
        session = talk(answer, drafter)
        whole = session.generate(PROMPT, max_tokens=max_tokens)
        events = list(session.stream(PROMPT, max_tokens=max_tokens))
        assert tuple(event.token for event in events) == whole.tokens
        assert "".join(event.text for event in events) == whole.text
        assert whole.text == session.tokenizer.decode(whole.tokens)
        texts.add(whole.text)
    assert len(texts) == 1


STOPS = [
    ("one STOP two", "STOP", "one "),
    ("one STO", "STOP", "one STO"),
    ("a\n\nb", ["\n\n"], "a"),
    ("naïve ✓ end", ["✓"], "naïve "),
    ("日本語です", ["語で"], "日本"),
    ("x yes no", [" no", "yes"], "x "),
    ("aaab", ["aab"], "a"),
    ("plain", ["never", "ever"], "plain"),
]


@pytest.mark.parametrize(("answer", "stop", "text"), STOPS)
def test_an_answer_ends_before_its_stop_with_any_drafter(answer, stop, text):
    """C3, C7: a stop over many tokens and draft borders; the last token is that which ends it."""
    raw = answer.encode()
    for drafter in drafters(raw):
        result = talk(raw, drafter).generate(PROMPT, stop=stop, logprobs=1)
        assert result.text == text
        assert result.finish_reason == "stop"
        shown = [stop] if isinstance(stop, str) else stop
        assert not any(one in result.text for one in shown)
        if text != answer:
            complete = min(
                raw.find(one.encode()) + len(one.encode()) for one in shown if one in answer
            )
            assert len(result.tokens) == complete
        assert all(event.logprob is not None for event in result.events)
        stats = result.stats
        assert len(result.tokens) == 1 + stats.committed
        assert stats.committed == stats.passes + stats.accepted - stats.cut


@pytest.mark.parametrize(("answer", "stop", "text"), STOPS)
def test_what_is_shown_is_never_taken_back(answer, stop, text):
    for drafter in drafters(answer.encode()):
        shown = ""
        for event in talk(answer.encode(), drafter).stream(PROMPT, stop=stop):
            shown += event.text
            assert text.startswith(shown)


@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("limit", range(1, 12))
def test_reasons_where_two_apply_and_exact_limits(k, limit):
    """C5: a stop text that is complete, or an end id that comes, at the limit is a stop."""
    for answer, size in ((b"abcSTOPdef", 7), (b"abcde", 6)):  # with its stop, with its end id
        result = talk(answer, oracle(answer, k=k)).generate(PROMPT, max_tokens=limit, stop="STOP")
        assert len(result.tokens) == min(limit, size)
        assert result.finish_reason == ("stop" if limit >= size else "length")
    text = talk(b"abcSTOPdef").generate(PROMPT, max_tokens=limit, stop="STOP").text
    assert text == ("abc" if limit >= 7 else "abcSTOP"[:limit])


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("at", range(6))
def test_end_ids_of_ones_own_end_like_those_of_the_model(k, at):
    """C1: several, at every place of a draft, also where those of the model are ignored."""
    answer = b"abcdef"
    stop_ids = [answer[at], 255]
    for ignore_eos in (False, True):
        session = talk(answer, oracle(answer, k=k))
        result = session.generate(PROMPT, stop_ids=stop_ids, ignore_eos=ignore_eos)
        assert result.tokens == tuple(answer[: at + 1])
        assert (result.text, result.finish_reason) == (answer[:at].decode(), "stop")


def test_an_ignored_end_of_sequence_goes_on():
    then = [256, *b"more", 256, *b"!"]
    for drafter in (NoDrafter(), oracle(b"ab", then, k=4)):
        result = talk(b"ab", drafter, then).generate(PROMPT, max_tokens=9, ignore_eos=True)
        assert result.tokens == (*b"ab", *then)
        assert (result.text, result.finish_reason) == ("abmore!", "length")


@pytest.mark.parametrize(("at", "k"), itertools.product(range(5), [2, 5]))
def test_a_turn_after_a_stop_text_inside_a_draft_starts_from_what_was_answered(at, k):
    """The cells are those of the tokens, and none of what was drafted past the stop."""
    answer = b"0123456789"
    session = talk(answer, oracle(answer, k=k))
    one = session.generate(PROMPT, stop=chr(answer[at]) + chr(answer[at + 1]))
    assert one.tokens == tuple(answer[: at + 2])
    two = session.generate([*PROMPT, *one.tokens])
    assert two.stats.cached_tokens == len(PROMPT) + len(one.tokens) - 1
    assert one.tokens + two.tokens == (*answer, 256)
