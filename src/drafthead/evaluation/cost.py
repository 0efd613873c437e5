"""What a pass of M rows and a draft step cost, and from which acceptance on drafting pays.

v(M) is the time of an M-row pass over that of a one-row pass, c the time of a draft step over that
of a one-row pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from drafthead.backbone.handle import Backbone, KvCache, Segment
from drafthead.decoding.loop import prefill
from drafthead.drafters.mtp import MtpDrafter
from drafthead.errors import CapacityError, RequestError
from drafthead.evaluation.machine import memory_read_gb_s
from drafthead.session import Session

ROUNDS = 15
DRAFT_STEPS = 8
DEFAULT_ROWS = (1, 2, 3, 4, 6, 8)


def measure_cost(
    session: Session, rows: Sequence[int] = DEFAULT_ROWS, context: int = 200, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Time passes and draft steps in interleaved rounds; medians.

    Each pass computes the target's choice for every row, as verification does, and is rolled back.

    Args:
        session: backbone and, where active, an MTP head.
        rows: sizes of pass; 1 is always measured.
        context: tokens in the cache before the pass.
        rounds: how often everything is measured.

    Returns:
        `rows_ms` and `v` by number of rows, `draft_step_ms` (None without a head), `break_even`
        by draft length (see `break_even`).

    Raises:
        RequestError: a size or the context is below 1; CapacityError: they do not fit.
    """
    sizes = sorted({1, *rows})
    if sizes[0] < 1 or context < 1:
        raise RequestError("Rows and context must be at least 1.")
    if context + sizes[-1] > session.context:
        raise CapacityError(
            f"{context} tokens and {sizes[-1]} rows do not fit a context of {session.context}."
        )
    backbone = session.backbone
    random = Random(0)
    ids = [random.randrange(backbone.spec.vocab_size) for _ in range(context + sizes[-1])]
    cache = backbone.new_cache(context + sizes[-1])
    hidden_D = prefill(backbone, cache, ids[:context]).hidden[-1]
    jobs: dict[str, Callable[[], object]] = {
        str(size): _pass_job(backbone, cache, ids[context : context + size]) for size in sizes
    }
    drafting = session.drafting
    if isinstance(drafting, MtpDrafter):
        head = drafting.head
        jobs["draft"] = lambda: head.draft(cache, ids[context], hidden_D, DRAFT_STEPS, 0.0)
    times_ms = interleaved_ms(jobs, rounds)
    step_ms = times_ms.pop("draft") / DRAFT_STEPS if "draft" in jobs else None
    return {
        "rows_ms": {name: round(value, 4) for name, value in times_ms.items()},
        "v": {name: round(times_ms[name] / times_ms["1"], 4) for name in times_ms if name != "1"},
        "draft_step_ms": None if step_ms is None else round(step_ms, 4),
        "break_even": break_even(times_ms, step_ms),
    }


def cost_report(
    session: Session, rows: Sequence[int] = DEFAULT_ROWS, context: int = 200
) -> dict[str, Any]:
    """The object of `cost --json`: times, and how near a pass comes to the memory's speed."""
    costs = measure_cost(session, rows, context)
    read_gb_s = memory_read_gb_s(session.backbone.threads)
    pass_gb = session.backbone.pass_bytes / 1e9
    return costs | {
        "context": context,
        "memory_read_gb_s": round(read_gb_s, 1),
        "bytes_per_pass": session.backbone.pass_bytes,
        "bandwidth_share": round(pass_gb / (costs["rows_ms"]["1"] / 1000) / read_gb_s, 4),
    }


def _pass_job(backbone: Backbone, cache: KvCache, tokens: Sequence[int]) -> Callable[[], object]:
    def job() -> None:
        length = cache.length
        backbone.forward([Segment(cache, tokens)], rows="all", want="tokens")
        cache.rollback(length)

    return job


def interleaved_ms(jobs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median time of each job, after one round of warm-up, all jobs once in every round."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for round_index in range(rounds + 1):
        for name, job in jobs.items():
            started = perf_counter()
            job()
            if round_index > 0:
                times[name].append(1000 * (perf_counter() - started))
    return {name: median(values) for name, values in times.items()}


def break_even(
    rows_ms: dict[str, float], step_ms: float | None
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
