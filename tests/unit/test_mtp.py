"""Laws of the MTP drafter, on a recording head."""

from __future__ import annotations

import numpy as np
import pytest

from drafthead.drafters.base import Floors
from drafthead.drafters.mtp import RECENT_TOKENS, MtpDrafter


class RecordingHead:
    """Answers every call with the same draft and keeps what it was given."""

    def __init__(self, tokens=(5, 6, 7), confidences=(0.9, 0.8, 0.2), prompt_tokens=False):
        self.calls, self.groups, self.prompt_tokens = [], [], prompt_tokens
        self.answer = np.array(tokens, np.int32), np.array(confidences, np.float32)

    positions = 1

    def draft(self, cache, token, hidden, max_tokens, floors, calibration, more_groups):
        self.calls.append((cache, token, hidden.tolist(), max_tokens, floors, calibration))
        self.groups.append(more_groups)
        return self.answer


def test_it_drafts_from_the_last_committed_token_and_the_hidden_state_that_chose_it():
    """J7: the pair is (h of position n - 1, x_n), at the start and after every pass."""
    head = RecordingHead()
    drafter = MtpDrafter(head, max_draft_tokens=4, min_confidence=0.0)
    drafter.begin([1, 2, 3], np.array([0.5], np.float32), "cache")
    drafter.propose(8)
    drafter.observe([9, 10], np.array([0.25], np.float32))
    drafter.propose(2)
    assert head.calls == [
        ("cache", 3, [0.5], 4, (0.0,), []), ("cache", 10, [0.25], 2, (0.0,), []),
    ]  # fmt: skip


@pytest.mark.parametrize(("floor", "kept"), [(0.0, (5, 6, 7)), (0.15, (5, 6, 7)), (0.5, (5, 6))])
def test_the_step_that_the_head_doubts_is_left_out(floor, kept):
    head = RecordingHead(confidences=(0.9, 0.8, 0.25))
    drafter = MtpDrafter(head, 4, min_confidence=floor)
    drafter.begin([1], np.zeros(1, np.float32), "cache")
    draft = drafter.propose(4)
    assert draft.tokens == kept
    assert len(draft.confidences) == len(kept)


def test_a_confidence_that_is_not_a_number_is_left_for_the_loop_to_count():
    """A10: nothing hides numerics trouble."""
    head = RecordingHead(tokens=(5,), confidences=(float("nan"),))
    drafter = MtpDrafter(head, 4)
    drafter.begin([1], np.zeros(1, np.float32), "cache")
    assert drafter.propose(4).tokens == (5,)


def test_an_empty_draft_is_a_draft():
    drafter = MtpDrafter(RecordingHead((), ()), 4, min_confidence=0.5)
    drafter.begin([1], np.zeros(1, np.float32), "cache")
    assert drafter.propose(4).tokens == ()


def groups_seen(prompt_tokens, texts):
    """What the head is handed at each draft: after `begin` with the first text, then `observe`."""
    head, hidden = RecordingHead(prompt_tokens=prompt_tokens), np.zeros(1, np.float32)
    drafter = MtpDrafter(head)
    drafter.begin(texts[0], hidden, "cache")
    drafter.propose(4)
    for tokens in texts[1:]:
        drafter.observe(tokens, hidden)
        drafter.propose(4)
    return head.groups


def test_a_head_of_prompt_tokens_is_handed_the_groups_of_the_text_so_far():
    """Ascending and once each, answer tokens from the pass on that committed them."""
    assert groups_seen(True, [[400, 15, 16, 31, 0, 401], [700], [17, 48]]) == [
        [0, 1, 25], [0, 1, 25, 43], [0, 1, 3, 25, 43],
    ]  # fmt: skip


def test_a_head_without_prompt_tokens_is_handed_none():
    assert groups_seen(False, [[400, 15], [700]]) == [[], []]


def test_no_more_than_the_last_tokens_of_a_long_text_count():
    far = [1600, *[5] * (RECENT_TOKENS - 1)]
    assert groups_seen(True, [far]) == [[0, 100]]
    assert groups_seen(True, [[*far, 5]]) == [[0]]


def test_the_next_answer_begins_with_its_own_text():
    head, hidden = RecordingHead(prompt_tokens=True), np.zeros(1, np.float32)
    drafter = MtpDrafter(head)
    for text in ([400], [16]):
        drafter.begin(text, hidden, "cache")
        drafter.propose(4)
    assert head.groups == [[25], [1]]


def test_drafts_end_where_the_drafter_is_told():
    """Floors of a policy go before its own threshold; the head is handed where to go on."""
    head = RecordingHead(confidences=(0.9, 0.8, 0.25))
    drafter = MtpDrafter(head, 4, min_confidence=0.9, calibration=[(1.0, 0.5)])
    drafter.begin([1], np.zeros(1, np.float32), "cache")
    drafter.floors = Floors((0.5, 0.4), (0.3, 0.1))
    assert drafter.propose(4).tokens == (5, 6, 7)
    drafter.floors = Floors((0.5, 0.4), (0.3, 0.2))
    draft = drafter.propose(4)
    assert (draft.tokens, draft.made) == ((5, 6), 3)
    assert head.calls[0][-2:] == ((0.5, 0.4), [(1.0, 0.5)])
    drafter.floors = None
    assert drafter.propose(4).tokens == (5, 6)
