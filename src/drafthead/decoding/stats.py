"""From counts to rates. Counts are pooled first and divided once; nothing drafted gives None."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drafthead.types import DecodeStats, Draft, SourceCounts

_COUNTS = (
    "passes",
    "drafted",
    "accepted",
    "committed",
    "dropped",
    "cut",
    "rested",
    "cached_tokens",
)


def count_pass(
    stats: DecodeStats, draft: Draft, accepted: int, kept: int, dropped: int = 0
) -> DecodeStats:
    """Add one verify pass.

    Args:
        stats: where to add; returned as well.
        draft: as it was verified.
        accepted: how many of them the target accepted.
        kept: committed tokens that are left after cutting at a stop, 1..accepted + 1.
        dropped: drafted tokens thrown away before verification.
    """
    drafted, source = len(draft.tokens), draft.source
    kept_drafted = min(accepted, kept)
    ended_inside = kept <= accepted
    stats.passes += 1
    stats.drafted += drafted
    stats.accepted += kept_drafted
    stats.committed += kept
    stats.dropped += dropped
    stats.cut += ended_inside
    _bump(stats.drafted_at, drafted)
    # The step after the last accepted one was compared too, unless the answer ended before it.
    tested = kept if ended_inside else min(accepted + 1, drafted)
    _bump(stats.tested_at, tested)
    for step, confidence in enumerate(draft.confidences[:tested]):
        stats.reliability.add(confidence, step < kept_drafted)
    _bump(stats.accepted_at, kept_drafted)
    if source and drafted:
        _add_source(stats, source, SourceCounts(1, drafted, kept_drafted))
    return stats


def _add_source(stats: DecodeStats, name: str, more: SourceCounts) -> None:
    counts = stats.sources.setdefault(name, SourceCounts())
    counts.drafts += more.drafts
    counts.drafted += more.drafted
    counts.accepted += more.accepted


def _bump(counts: list[int], steps: int) -> None:
    counts.extend([0] * (steps - len(counts)))
    for step in range(steps):
        counts[step] += 1


def pool(many: Iterable[DecodeStats]) -> DecodeStats:
    """The sum of many requests' counts and times."""
    total = DecodeStats()
    for one in many:
        for name in _COUNTS:
            setattr(total, name, getattr(total, name) + getattr(one, name))
        for name in ("drafted_at", "tested_at", "accepted_at"):
            setattr(total, name, _added(getattr(total, name), getattr(one, name)))
        for name, counts in one.sources.items():
            _add_source(total, name, counts)
        total.reliability.join(one.reliability)
        total.prefill_ms += one.prefill_ms
        total.decode_ms += one.decode_ms
    return total


def _added(left: Sequence[int], right: Sequence[int]) -> list[int]:
    size = max(len(left), len(right))
    padded = [[*counts, *[0] * (size - len(counts))] for counts in (left, right)]
    return [a + b for a, b in zip(*padded, strict=True)]


def tau(stats: DecodeStats) -> float | None:
    """Block efficiency: committed tokens a verify pass, prefill excluded; None without passes."""
    return stats.committed / stats.passes if stats.passes else None


def accept_at(stats: DecodeStats) -> list[float | None]:
    """For each draft step the share accepted, given that all steps before it were accepted."""
    accepted = [*stats.accepted_at, *[0] * (len(stats.drafted_at) - len(stats.accepted_at))]
    tested = [*stats.tested_at, *[0] * (len(stats.drafted_at) - len(stats.tested_at))]
    return [a / t if t else None for a, t in zip(accepted, tested, strict=True)]


def decode_tok_s(stats: DecodeStats) -> float | None:
    """Tokens a second of the verify passes, prefill and its first token excluded."""
    return 1000.0 * stats.committed / stats.decode_ms if stats.decode_ms else None
