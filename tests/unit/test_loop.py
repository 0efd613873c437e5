"""Laws of the decode loop, on doubles: drafting changes the passes and never the tokens."""

from __future__ import annotations

import itertools

import pytest

from drafthead.decoding.loop import LONGEST_DRAFT, PREFILL_ROWS, Request, decode
from drafthead.drafters.base import NoDrafter
from drafthead.errors import CapacityError, RequestError
from tests import fakes

V = 64
PROMPT = [5, 6, 7]


def run(
    drafter, *, prompt=PROMPT, max_tokens=40, next_token=None, capacity=4096, cache=None, **how
):
    backbone = fakes.ScriptedBackbone(next_token or fakes.hashed_next(V), V)
    cache = cache or backbone.new_cache(capacity)
    request = Request(prompt, max_tokens, fakes.Letters(), **how)
    events = list(decode(request, backbone, cache, drafter))
    return events, request, backbone, cache


def tokens_of(events):
    return [event.token for event in events]


def plain(**how):
    return tokens_of(run(NoDrafter(), **how)[0])


def doubles(answer, prompt=PROMPT, k=4):
    at = {"answer": answer, "prompt_tokens": len(prompt), "k": k}
    yield fakes.RandomDrafter(k=k)
    yield fakes.OracleDrafter(**at)
    for right in range(k):
        yield fakes.OracleDrafter(right=right, **at)
    yield fakes.SkippingDrafter(**at)
    yield fakes.SkippingDrafter(every=2, right=1, **at)
    yield fakes.NanDrafter(**at)


def assert_identities(events, stats):
    """Counts fit the events: I1, I2, I5."""
    drafted = sum(event.drafted for event in events)
    assert len(events) == 1 + stats.committed
    assert stats.committed == stats.passes + stats.accepted - stats.cut
    assert stats.accepted == drafted == sum(stats.accepted_at)
    assert stats.drafted == sum(stats.drafted_at)
    assert stats.accepted <= sum(stats.tested_at) <= stats.drafted
    assert stats.cut in (0, 1)


@pytest.mark.parametrize("size", [1, PREFILL_ROWS, PREFILL_ROWS + 1, 3 * PREFILL_ROWS])
def test_the_first_token_waits_for_no_draft(size):
    """H12: the passes before it are those of plain decoding, and nothing was drafted for it."""
    firsts = []
    for drafter in (NoDrafter(), fakes.RandomDrafter(k=4)):
        backbone = fakes.ScriptedBackbone(fakes.hashed_next(V), V)
        request = Request([3] * size, 40, fakes.Letters())
        next(decode(request, backbone, backbone.new_cache(4096), drafter))
        firsts.append((backbone.rows_fed, request.stats.passes, request.stats.drafted))
        assert getattr(drafter, "asked", []) == []
    assert firsts[0] == firsts[1] and firsts[0][1:] == (0, 0)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("prompt", [[3], PROMPT, list(range(40))])
def test_every_double_gives_the_plain_tokens(prompt, k):
    """A5, A6, A7, A10: drafts right, wrong, skipped or broken, the tokens are plain's."""
    expected = plain(prompt=prompt, max_tokens=120)
    for drafter in doubles(expected, prompt, k):
        events, request, _, cache = run(drafter, prompt=prompt, max_tokens=120)
        assert tokens_of(events) == expected, drafter
        assert request.finish_reason == "length"
        assert cache.length == len(prompt) + 120 - 1
        assert_identities(events, request.stats)


def test_a_wrong_draft_of_one_token_is_never_committed():
    """A6: a one-token draft is verified like any other; RANDOM is right about 1 time in V."""
    expected = plain(max_tokens=2000)
    events, request, _, _ = run(fakes.RandomDrafter(k=1), max_tokens=2000)
    assert tokens_of(events) == expected
    assert request.stats.accepted < request.stats.drafted / 16


@pytest.mark.parametrize("size", [1, 2, 511, 512, 513, 1024, 1025])
def test_prompt_split_is_the_same_with_and_without_drafting(size):
    """A4: chunks of 512 rows and the rest, whoever drafts."""
    prompt = [index % V for index in range(size)]
    _, _, alone, _ = run(NoDrafter(), prompt=prompt, max_tokens=3)
    _, _, drafted, _ = run(fakes.RandomDrafter(), prompt=prompt, max_tokens=3)
    chunks = [PREFILL_ROWS] * ((size - 1) // PREFILL_ROWS)
    chunks.append(size - PREFILL_ROWS * len(chunks))
    assert alone.rows_fed[: len(chunks)] == drafted.rows_fed[: len(chunks)] == chunks


@pytest.mark.parametrize(("max_tokens", "k"), itertools.product(range(1, 21), range(1, 9)))
def test_max_tokens_is_exact(max_tokens, k):
    """C5, I5: exactly max_tokens tokens, and no token past them is ever verified."""
    answer = plain(max_tokens=40)
    for right in (None, 1):
        drafter = fakes.OracleDrafter(answer=answer, prompt_tokens=3, k=k, right=right)
        events, request, backbone, _ = run(drafter, max_tokens=max_tokens)
        assert tokens_of(events) == answer[:max_tokens]
        assert request.finish_reason == "length"
        assert all(asked <= max_tokens - 1 for asked in drafter.asked)
        assert request.stats.cut == 0
        assert_identities(events, request.stats)
        assert sum(backbone.rows_fed) == 3 + request.stats.passes + request.stats.drafted


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("stop_id", [60, 61])
def test_stop_wherever_in_a_draft_it_falls(k, stop_id):
    """C1, C3: the answer ends with the first of several stop ids, at every index of a draft."""
    for at in range(0, 20):
        answer = [*range(10, 10 + at), stop_id, *range(30, 50)]
        how = {
            "next_token": fakes.scripted_next(PROMPT, answer, V),
            "stop_ids": frozenset({60, 61}),
        }
        for drafter in [NoDrafter(), *doubles(answer, PROMPT, k)]:
            events, request, _, cache = run(drafter, max_tokens=30, **how)
            assert tokens_of(events) == answer[: at + 1]
            assert request.finish_reason == "stop"
            assert cache.length == len(PROMPT) + at
            assert "".join(e.text for e in events) == "".join(f"{t}," for t in answer[:at]) + "."
            assert_identities(events, request.stats)


def test_a_stop_inside_a_draft_drops_the_rest():
    """C1: a draft [a, EOS, b, c] that the target would accept whole ends at EOS, in one pass."""
    answer = [10, 11, 60, 12, 13, 14]
    drafter = fakes.OracleDrafter(answer=answer, prompt_tokens=3, k=4)
    next_token = fakes.scripted_next(PROMPT, answer, V)
    events, request, _, _ = run(drafter, next_token=next_token, stop_ids=frozenset({60}))
    stats = request.stats
    assert tokens_of(events) == [10, 11, 60]
    assert (stats.passes, stats.drafted, stats.accepted, stats.cut) == (1, 4, 2, 1)
    assert (stats.drafted_at, stats.tested_at, stats.accepted_at) == ([1] * 4, [1, 1], [1, 1])


def test_ignored_stops_run_to_the_limit():
    """C1: without stop ids an end-of-sequence token is a token like any other."""
    answer = [10, 60, 11, 61, *range(20, 40)]
    next_token = fakes.scripted_next(PROMPT, answer, V)
    drafter = fakes.OracleDrafter(answer=answer, prompt_tokens=3, k=3)
    events, request, _, _ = run(drafter, next_token=next_token, max_tokens=20)
    assert tokens_of(events) == answer[:20]
    assert request.finish_reason == "length"


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("size", [1, 30, 60, 63, 64])
def test_context_end_is_reached_and_never_passed(size, k):
    """E1, E5: with 64 cells the answer ends "length" in the last cell, tokens as plain's."""
    prompt = [index % V for index in range(size)]
    how = {"prompt": prompt, "max_tokens": 500, "capacity": 64}
    expected = plain(**how)
    assert len(expected) == 64 + 1 - size
    for drafter in doubles(expected, prompt, k):
        events, request, _, cache = run(drafter, **how)
        assert tokens_of(events) == expected
        assert request.finish_reason == "length"
        assert cache.length == 64


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers():
    with pytest.raises(CapacityError, match=r"65 tokens .* 64"):
        run(NoDrafter(), prompt=[1] * 65, capacity=64)


@pytest.mark.parametrize("how", [{"prompt": []}, {"max_tokens": 0}, {"max_tokens": -3}])
def test_nothing_to_do_is_refused(how):
    with pytest.raises(RequestError):
        run(NoDrafter(), **how)


@pytest.mark.parametrize("after", [1, 2, 7, 20])
def test_a_request_after_an_abandoned_one_equals_a_fresh_one(after):
    """An abandoned generator leaves nothing behind, in cache or drafter."""
    answer = plain(max_tokens=60)
    drafter = fakes.OracleDrafter(answer=answer, prompt_tokens=3, right=2)
    backbone = fakes.ScriptedBackbone(fakes.hashed_next(V), V)
    cache = backbone.new_cache(256)
    request = Request([9, 9, 9, 9], 50, fakes.Letters())
    started = decode(request, backbone, cache, fakes.RandomDrafter())
    for _ in range(after):
        next(started)
    started.close()
    events, request, _, _ = run(drafter, max_tokens=60, cache=cache)
    fresh, fresh_request, _, _ = run(drafter, max_tokens=60)
    assert tokens_of(events) == tokens_of(fresh) == answer
    assert request.stats.accepted_at == fresh_request.stats.accepted_at


def test_oracle_counts_are_exact_integers():
    """I1, I3, I7, I8: ORACLE-2 with k=4: each full pass drafts 4, tests 3, accepts 2, commits 3."""
    answer = plain(max_tokens=31)
    drafter = fakes.OracleDrafter(answer=answer, prompt_tokens=3, k=4, right=2)
    events, request, _, _ = run(drafter, max_tokens=31)
    stats = request.stats
    assert (stats.passes, stats.committed, stats.accepted) == (10, 30, 20)
    # The last pass has room for 2 draft tokens only.
    assert stats.drafted_at == [10, 10, 9, 9]
    assert stats.tested_at == [10, 10, 9]
    assert stats.accepted_at == [10, 10]
    assert [e.pass_index for e in events] == [0, *[p for p in range(1, 11) for _ in range(3)]]
    assert [e.drafted for e in events] == [False, *[True, True, False] * 10]


def test_bad_drafts_are_dropped_and_counted():
    """A10: ids out of the vocabulary and lost confidences never reach the backbone."""
    answer = plain(max_tokens=41)
    drafter = fakes.NanDrafter(answer=answer, prompt_tokens=3, k=4)
    events, request, _, _ = run(drafter, max_tokens=41)
    assert tokens_of(events) == answer
    assert request.stats.dropped > 0
    assert request.stats.accepted > 0


def test_a_draft_longer_than_asked_for_is_clipped():
    class Greedy(fakes.OracleDrafter):
        def draft(self, max_tokens):
            return super().draft(100)

    answer = plain(max_tokens=20)
    drafter = Greedy(answer=answer, prompt_tokens=3, k=9)
    events, request, _, _ = run(drafter, max_tokens=6)
    assert tokens_of(events) == answer[:6]
    assert (request.stats.drafted, request.stats.dropped) == (4, 5)


def test_a_looping_answer_is_cut_at_the_same_token_with_and_without_drafting():
    answer = [*range(10, 20)] * 4
    how = {"next_token": fakes.scripted_next(PROMPT, answer, V), "cut_loops": True}
    expected = plain(max_tokens=40, **how)
    assert expected == answer[:18]
    for drafter in doubles(answer):
        events, request, _, _ = run(drafter, max_tokens=40, **how)
        assert tokens_of(events) == expected
        assert request.finish_reason == "looped"
        assert_identities(events, request.stats)


def test_nothing_is_drafted_for_the_last_token():
    drafter = fakes.OracleDrafter(answer=plain(), prompt_tokens=3)
    _, request, _, _ = run(drafter, max_tokens=2)
    assert drafter.asked == []
    assert (request.stats.passes, request.stats.drafted) == (1, 0)


def test_no_draft_is_longer_than_a_sliding_window_can_take_back():
    """B1: a ring of cells forgets; a drafter without a limit of its own must not reach its end."""
    answer = plain(max_tokens=400)
    drafter = fakes.OracleDrafter(answer=answer, prompt_tokens=len(PROMPT), k=1000, right=0)
    events, request, backbone, _ = run(drafter, max_tokens=400)
    assert tokens_of(events) == answer
    assert max(backbone.rows_fed) == 1 + LONGEST_DRAFT
    assert request.stats.drafted > 0
