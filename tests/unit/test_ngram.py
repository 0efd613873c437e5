"""Laws of drafting from the text: counts on texts that repeat themselves in known ways."""

from __future__ import annotations

import numpy as np
import pytest

from drafthead.decoding.stats import tau
from drafthead.drafters.ngram import SHARES, SHARES_WEIGHT, MatchShares, NgramDrafter
from tests import fakes
from tests.unit.test_loop import V, assert_identities, plain, run, tokens_of

HIDDEN = np.zeros(1, np.float32)


def begun(text, **how):
    drafter = NgramDrafter(**how)
    drafter.begin(text, HIDDEN, None)
    return drafter


def test_a_periodic_answer_has_exact_counts():
    """I1, I3: 10 11 12 13 over and over; from the second 10 on every draft is right.

    Prefill commits 10; four passes of one row commit 11 12 13 10; then passes of 4 + 1.
    """
    answer = [10, 11, 12, 13] * 7
    drafter = NgramDrafter(max_draft_tokens=4, min_match=1, min_confidence=0.0)
    how = {"next_token": fakes.scripted_next([5, 6, 7], answer, V)}
    events, request, backbone, _ = run(drafter, max_tokens=25, **how)
    stats = request.stats
    assert tokens_of(events) == answer[:25]
    assert (stats.passes, stats.drafted, stats.accepted, stats.committed) == (8, 16, 16, 24)
    assert stats.drafted_at == stats.tested_at == stats.accepted_at == [4, 4, 4, 4]
    assert tau(stats) == 3.0
    assert backbone.rows_fed == [3, 1, 1, 1, 1, 5, 5, 5, 5]


def test_a_copy_that_errs_in_its_second_token_has_exact_counts():
    """The answer repeats 1 2 3 of the prompt, then leaves it: of a draft of 3 one is accepted."""
    prompt = [1, 2, 3, 4, 5, 1]
    answer = [2, 3, 9, 20, 21, 22]
    drafter = NgramDrafter(max_draft_tokens=3, min_match=2, min_confidence=0.0)
    how = {"prompt": prompt, "next_token": fakes.scripted_next(prompt, answer, V)}
    events, request, _, _ = run(drafter, max_tokens=6, **how)
    stats = request.stats
    assert tokens_of(events) == answer
    assert (stats.passes, stats.drafted, stats.accepted, stats.committed) == (4, 3, 1, 5)
    assert (stats.drafted_at, stats.tested_at, stats.accepted_at) == ([1, 1, 1], [1, 1], [1])


def test_the_draft_is_what_followed_and_no_longer_than_asked():
    drafter = begun([1, 2, 3, 4, 5, 6, 1, 2], max_draft_tokens=4, min_confidence=0.0)
    assert drafter.propose(8).tokens == (3, 4, 5, 6)
    assert drafter.propose(2).tokens == (3, 4)
    assert drafter.propose(2).confidences == pytest.approx(SHARES[1:3])


@pytest.mark.parametrize(
    ("text", "min_match", "drafted"),
    [([9], 1, 0), ([1, 2], 1, 0), ([1, 2, 1], 1, 3), ([1, 2, 1], 2, 0), ([1, 2, 3, 1, 2], 2, 3)],
)
def test_nothing_is_drafted_behind_a_match_that_is_too_short(text, min_match, drafted):
    drafter = begun(text, max_draft_tokens=3, min_match=min_match, min_confidence=0.0)
    assert len(drafter.propose(8).tokens) == drafted


def test_a_draft_ends_where_the_product_of_the_shares_falls_below_the_threshold():
    text = [1, 2, 3, 4, 5, 6, 1, 2]
    for count in range(1, 5):
        product = float(np.prod(SHARES[1 : 1 + count]))
        for floor, length in ((product - 1e-9, count), (product + 1e-9, count - 1)):
            assert len(begun(text, min_confidence=floor).propose(count).tokens) == length


def test_shares_are_counted_by_length_of_match():
    """Of 3 tested tokens behind a match of 11 the first 2 were right; 12 stands for longer too."""
    shares = MatchShares()
    shares.count(11, tested=3, right=2)
    weight = SHARES_WEIGHT
    assert shares[11] == pytest.approx((weight * SHARES[10] + 1) / (weight + 1))
    assert shares[12] == shares[99] == pytest.approx((weight * SHARES[11] + 1) / (weight + 2))
    assert shares[10] == pytest.approx(SHARES[9])


@pytest.mark.parametrize(
    ("committed", "tested", "right"),
    [([3, 4, 5, 6], 3, 3), ([3, 4, 9], 3, 2), ([9], 1, 0), ([3], 1, 1), ([3, 4], 2, 2)],
)
def test_what_was_proposed_is_compared_with_what_was_committed(
    monkeypatch, committed, tested, right
):
    """Whether it was verified or not, whole or in part."""
    drafter, calls = begun([1, 2, 3, 4, 5, 1, 2], min_confidence=0.0, max_draft_tokens=3), []
    monkeypatch.setattr(MatchShares, "count", lambda self, *how: calls.append(how))
    drafter.propose(8)
    drafter.observe(committed, HIDDEN)
    assert calls == [(2, tested, right)]


def test_what_the_last_request_said_is_forgotten():
    drafter = begun([1, 2, 3, 1, 2], min_confidence=0.0)
    assert drafter.propose(4).tokens
    drafter.begin([1, 2], HIDDEN, None)
    assert drafter.propose(4).tokens == ()


@pytest.mark.parametrize("prompt", [[3], [3, 3, 3], list(range(40))])
@pytest.mark.parametrize("words", [2, 3, 8])
def test_hashed_languages_of_few_words_are_decoded_as_plain(prompt, words):
    """A5, A6: matches abound and mislead; tokens and identities hold, with what was learned too."""
    next_token = fakes.hashed_next(words)
    how = {"prompt": prompt, "max_tokens": 150, "next_token": next_token}
    drafter = NgramDrafter(min_match=1, min_confidence=0.0)
    expected = plain(**how)
    for _ in range(2):
        events, request, _, _ = run(drafter, **how)
        assert tokens_of(events) == expected
        assert request.stats.drafted > request.stats.accepted > 0
        assert_identities(events, request.stats)
