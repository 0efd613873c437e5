"""Laws of drafting by the backbone's own passes."""

from __future__ import annotations

import numpy as np
import pytest

from drafthead.drafters.jacobi import JacobiDrafter
from tests import fakes
from tests.unit.test_loop import assert_identities, plain, run, tokens_of

HIDDEN = np.zeros(1, np.float32)


def begun(text, longest=4):
    drafter = JacobiDrafter(longest)
    drafter.begin(text, HIDDEN, None)
    return drafter


def test_a_language_in_which_each_token_has_one_successor_has_exact_counts():
    """0 1 2 3 0 1 ...: each of the first four passes says one token, then all are known.

    Prefill commits 1. Pass 1 has nothing to guess from and drafts the last token again; it chooses
    2 in both rows, and the second is the next guess, which is wrong by one, and so on. At the
    second 1 everything has been said, and each pass drafts 2 and commits 3.
    """
    how = {"prompt": [0], "max_tokens": 20, "next_token": lambda history: (history[-1] + 1) % 4}
    events, request, backbone, _ = run(JacobiDrafter(max_draft_tokens=2), **how)
    stats = request.stats
    assert tokens_of(events) == plain(**how)
    assert (stats.passes, stats.drafted, stats.accepted, stats.committed) == (9, 14, 10, 19)
    assert (stats.drafted_at, stats.accepted_at) == ([9, 5], [5, 5])
    assert backbone.rows_fed == [1, 2, 2, 2, 2, 3, 3, 3, 3, 3]


def test_choices_behind_a_rejected_token_are_the_next_guess():
    """Jacobi's iteration: after 7, the rows of 7 7 8 chose 20, 30, 31; 20 is committed."""
    drafter = begun([5, 7])
    drafter.propose(4)
    drafter._draft = (7, 8)
    drafter.watch(np.array([20, 30, 31], np.int32))
    drafter.observe([20], HIDDEN)
    assert drafter.propose(4).tokens == (30, 31)


def test_what_was_said_after_the_last_two_tokens_goes_before_what_was_said_after_one():
    drafter = begun([1, 2])
    for fed, chosen in (((3, 2), (3, 2, 4)), ((9, 2), (9, 2, 6)), ((1, 2), (1, 2, 30))):
        drafter._draft = fed
        drafter.watch(np.array(chosen, np.int32))
        drafter.observe(chosen, HIDDEN)
    drafter.observe([3, 2], HIDDEN)
    assert drafter.propose(1).tokens == (4,)
    drafter.observe([8, 2], HIDDEN)
    assert drafter.propose(1).tokens == (30,)


def test_a_committed_row_overrules_a_rejected_one_of_the_same_pass():
    """Fed 1 | 5 1: after the first 1 comes 2, which is committed; after the other, guessed, 3."""
    drafter = begun([1])
    drafter._draft = (5, 1)
    drafter.watch(np.array([2, 9, 3], np.int32))
    assert drafter._chosen[1,] == 2


@pytest.mark.parametrize("longest", [1, 2, 5, 9])
@pytest.mark.parametrize("prompt", [[3], list(range(40))])
def test_hashed_languages_are_decoded_as_plain(prompt, longest):
    """A5, A6; the request after is none the wiser."""
    how = {"prompt": prompt, "max_tokens": 150, "next_token": fakes.hashed_next(3)}
    drafter, counts = JacobiDrafter(longest), []
    for _ in range(2):
        events, request, _, _ = run(drafter, **how)
        assert tokens_of(events) == plain(**how)
        assert_identities(events, request.stats)
        counts.append((request.stats.drafted, request.stats.accepted))
    assert counts[0] == counts[1]
    assert counts[0][0] > counts[0][1] > 0


def test_every_pass_has_a_row_to_guess_with():
    drafter = begun([4])
    assert drafter.propose(8).tokens == (4,)
    assert drafter.propose(1).tokens == (4,)
