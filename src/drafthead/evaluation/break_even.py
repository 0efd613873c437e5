"""From when on drafting pays, and how long a draft is best: arithmetic on measured times.

k is the draft length, v(M) the time of an M-row pass over that of a one-row pass, c the time of a
draft step over that of a one-row pass.
"""

from __future__ import annotations

from collections.abc import Mapping

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)


def break_even(
    rows_ms: Mapping[str, float], step_ms: float | None
) -> dict[str, dict[str, float | None]]:
    """For each draft length k whose pass of k + 1 rows was timed: when does drafting pay?

    Drafting k tokens costs v(k + 1) + k c one-row passes, so tau must reach that number. Where
    each draft token is accepted with the same probability a, tau = (1 - a^(k+1)) / (1 - a)
    (Leviathan et al., arXiv 2211.17192, equation 1); `acceptance` is the a that reaches it, None
    where even certain drafts do not pay.
    """
    if step_ms is None:
        return {}
    lines = {}
    for name, pass_ms in rows_ms.items():
        k = int(name) - 1
        if k > 0:
            needed = (pass_ms + k * step_ms) / rows_ms["1"]
            acceptance = acceptance_for_tau(needed, k)
            lines[str(k)] = {
                "tau": round(needed, 4),
                "acceptance": None if acceptance is None else round(acceptance, 4),
            }
    return lines


def best_draft(
    rows_ms: Mapping[str, float], step_ms: float | None
) -> dict[str, dict[str, float | int]]:
    """For some acceptances, the draft length with the most tokens a second, and the gain.

    Of the lengths k whose pass of k + 1 rows was timed, and of none at all: `speedup` is
    `expected_tau` over v(k + 1) + k c (Leviathan et al., arXiv 2211.17192, theorem 3.8).
    """
    if step_ms is None:
        return {}
    found = {}
    for acceptance in ACCEPTANCES:
        gains = {
            k: expected_tau(acceptance, k) * rows_ms["1"] / (pass_ms + k * step_ms)
            for k, pass_ms in ((int(name) - 1, ms) for name, ms in rows_ms.items())
        }
        tokens = max(gains, key=lambda k: gains[k])
        found[str(acceptance)] = {"draft_tokens": tokens, "speedup": round(gains[tokens], 4)}
    return found


def expected_tau(acceptance: float, k: int) -> float:
    """Tokens a pass with k draft tokens, each accepted with the given probability."""
    return sum(acceptance**step for step in range(k + 1))


def acceptance_for_tau(needed: float, k: int) -> float | None:
    """The acceptance at which `expected_tau` reaches `needed`; None where it never does."""
    if needed > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if expected_tau(middle, k) < needed:
            low = middle
        else:
            high = middle
    return high
