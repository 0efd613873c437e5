"""Laws of the counts: pooled first, divided once, None where nothing was drafted."""

from __future__ import annotations

import pytest

from drafthead.decoding.stats import accept_at, count_pass, decode_tok_s, pool, tau
from drafthead.types import DecodeStats, Draft, SourceCounts


def counted(*passes):
    stats = DecodeStats()
    for drafted, accepted in passes:
        count_pass(stats, Draft((0,) * drafted), accepted, kept=accepted + 1)
    return stats


def test_a_known_pattern_gives_exact_integers():
    """I1, I7: drafts of 4, 2, 0, 3 tokens of which 2, 2, 0, 0 are accepted."""
    stats = counted((4, 2), (2, 2), (0, 0), (3, 0))
    assert (stats.passes, stats.drafted, stats.accepted, stats.committed) == (4, 9, 4, 8)
    assert stats.drafted_at == [3, 3, 2, 1]
    assert stats.tested_at == [3, 2, 1]
    assert stats.accepted_at == [2, 2]
    assert tau(stats) == 2.0


def test_acceptance_of_a_step_is_given_that_the_steps_before_were_accepted():
    """I4, I8: drafts too short to have a step, or rejected before it, do not lower its rate."""
    stats = counted((4, 2), (2, 2), (0, 0), (3, 0))
    assert accept_at(stats) == [2 / 3, 2 / 2, 0 / 1, None]


@pytest.mark.parametrize(
    ("kept", "accepted", "committed", "cut", "tested"),
    [(1, 1, 1, 1, [1]), (2, 2, 2, 1, [1, 1]), (3, 2, 3, 0, [1, 1, 1])],
)
def test_tokens_after_the_end_are_not_counted_as_accepted(kept, accepted, committed, cut, tested):
    """I5: accepted never exceeds what was emitted; the dropped next token has its own field."""
    stats = count_pass(DecodeStats(), Draft((0,) * 4), accepted=2, kept=kept)
    assert (stats.accepted, stats.committed, stats.cut) == (accepted, committed, cut)
    assert stats.tested_at == tested
    assert stats.committed == stats.passes + stats.accepted - stats.cut


def test_nothing_drafted_gives_none_and_plain_tau_is_one():
    """I6: no division by zero, no made-up rate."""
    stats = counted((0, 0), (0, 0))
    assert accept_at(stats) == []
    assert tau(stats) == 1.0
    assert tau(DecodeStats()) is None
    assert decode_tok_s(DecodeStats()) is None


def test_rates_never_exceed_one():
    """I2: accepted <= tested <= drafted at every step."""
    stats = counted(*[(k, a) for k in range(6) for a in range(k + 1)])
    for accepted, tested, drafted in zip(
        stats.accepted_at, stats.tested_at, stats.drafted_at, strict=True
    ):
        assert accepted <= tested <= drafted


def test_pooling_adds_counts_and_not_ratios():
    """I3: a short request does not weigh as much as a long one."""
    long, short = counted(*[(1, 1)] * 99), counted((4, 0))
    total = pool([long, short])
    assert tau(total) == (198 + 1) / 100
    assert accept_at(total)[0] == 99 / 100
    assert total.drafted_at == [100, 1, 1, 1]
    assert (long.passes, short.passes) == (99, 1)


def test_pooling_nothing_is_empty():
    assert pool([]) == DecodeStats()


def test_speed_is_committed_tokens_over_decode_time():
    assert decode_tok_s(DecodeStats(committed=30, decode_ms=100.0, prefill_ms=900.0)) == 300.0


def test_sources_are_counted_where_they_drafted():
    """A pass without a draft is nobody's; tokens after the end are not the source's either."""
    stats = DecodeStats()
    count_pass(stats, Draft((0,) * 4, source="a"), 2, kept=3)
    count_pass(stats, Draft((0,) * 0, source="a"), 0, kept=1)
    count_pass(stats, Draft((0,) * 3, source="b"), 3, kept=2)
    count_pass(stats, Draft((0,) * 2), 1, kept=2)
    assert stats.sources == {"a": SourceCounts(1, 4, 2), "b": SourceCounts(1, 3, 2)}
    assert pool([stats, stats]).sources["b"] == SourceCounts(2, 6, 4)


def test_a_source_that_never_drafted_is_not_listed():
    assert count_pass(DecodeStats(), Draft(source="a"), 0, kept=1).sources == {}
