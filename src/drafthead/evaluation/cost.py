"""What a pass of M rows and a draft step cost, and from which acceptance on drafting pays.

v(M) is the time of an M-row pass over that of a one-row pass, c the time of a draft step over that
of a one-row pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drafthead import _native
from drafthead._native import MtpHead
from drafthead.backbone.handle import Backbone, KvCache, Segment
from drafthead.decoding.loop import prefill
from drafthead.drafters.mtp import MtpDrafter
from drafthead.drafters.standalone import StandaloneDrafter, likeliest
from drafthead.errors import CapacityError, RequestError
from drafthead.evaluation.break_even import best_draft, break_even
from drafthead.evaluation.loading import Loading, measure_loading
from drafthead.evaluation.machine import BANDWIDTH_BYTES, MemoryReader
from drafthead.evaluation.roofline import Limit, Work, limits
from drafthead.session import Session

ROUNDS = 21
PROMPT_ROUNDS = 3
PROMPT_TOKENS = 512
DRAFT_STEPS = 8
DEFAULT_ROWS = (1, 2, 4, 8)

Jobs = dict[str, Callable[[], object]]


def measure_cost(
    session: Session, rows: Sequence[int] = DEFAULT_ROWS, context: int = 200, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Time passes and draft steps in interleaved rounds; medians.

    Args:
        session: backbone and, where active, an MTP head or a standalone drafter.
        rows: sizes of pass; 1 is always measured.
        context: tokens in the cache before the pass.
        rounds: how often everything is measured.

    Returns:
        `rows_ms` and `v` by number of rows, `draft_step_ms` (None without either), `break_even`
        by draft length (see `break_even`), `best_draft` by acceptance (see `best_draft`).

    Raises:
        RequestError: a size or the context is below 1; CapacityError: they do not fit.
    """
    return cost_lines(interleaved_ms(cost_jobs(session, rows, context), rounds))


def draft_steps_ms(
    arms: Mapping[str, Session], timed: Session, step_ms: float | None
) -> dict[str, float | None]:
    """The time of a draft step of each drafter that has steps.

    Args:
        arms: whose drafters are meant.
        timed: the session whose step was timed already.
        step_ms: its time.
    """
    return {
        name: step_ms if session is timed else measure_cost(session, ())["draft_step_ms"]
        for name, session in arms.items()
        if isinstance(session.drafting, (MtpDrafter, StandaloneDrafter))
    }


def cost_jobs(session: Session, rows: Sequence[int], context: int) -> Jobs:
    """What is timed: passes by their number of rows, and "draft", DRAFT_STEPS draft tokens.

    Each pass computes the target's choice for every row, as verification does, and is rolled back.

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
    ids = random_ids(backbone, context + sizes[-1])
    cache = backbone.new_cache(context + sizes[-1])
    hidden_D = prefill(backbone, cache, ids[:context]).hidden[-1]
    jobs: Jobs = {
        str(size): _pass_job(backbone, cache, ids[context : context + size]) for size in sizes
    }
    drafting = session.drafting
    if isinstance(drafting, MtpDrafter):
        head = drafting.head
        jobs["draft"] = partial(_draft, head, cache, ids[context], hidden_D)
    if isinstance(drafting, StandaloneDrafter):
        jobs["draft"] = _model_job(drafting.model, context)
    return jobs


def _draft(head: MtpHead, cache: KvCache, token: int, hidden_D: NDArray[np.float32]) -> None:
    """DRAFT_STEPS tokens: one draft of a recurrent head, several of one with a few positions."""
    longest = head.positions if head.positions > 1 else DRAFT_STEPS
    for done in range(0, DRAFT_STEPS, longest):
        head.draft(cache, token, hidden_D, min(longest, DRAFT_STEPS - done), [0.0])


def _model_job(model: Backbone, context: int) -> Callable[[], object]:
    """DRAFT_STEPS one-row passes of a draft model, behind as much context as it can read."""
    context = min(context, model.spec.context_length - DRAFT_STEPS)
    cache, ids = model.new_cache(context + DRAFT_STEPS), random_ids(model, context + DRAFT_STEPS)
    prefill(model, cache, ids[:context])

    def job() -> None:
        for token in ids[context:]:
            likeliest(model, cache, [token])
        cache.rollback(context)

    return job


def random_ids(backbone: Backbone, count: int) -> list[int]:
    """Token ids to fill a cache with, the same every time."""
    random = Random(0)
    return [random.randrange(backbone.spec.vocab_size) for _ in range(count)]


def cost_lines(times_ms: Mapping[str, float]) -> dict[str, Any]:
    """The fields of `measure_cost` from the times of its jobs."""
    rows_ms = {name: value for name, value in times_ms.items() if name.isdecimal()}
    step_ms = times_ms["draft"] / DRAFT_STEPS if "draft" in times_ms else None
    return {
        "rows_ms": {name: round(value, 4) for name, value in rows_ms.items()},
        "v": {name: round(rows_ms[name] / rows_ms["1"], 4) for name in rows_ms if name != "1"},
        "draft_step_ms": None if step_ms is None else round(step_ms, 4),
        "break_even": break_even(rows_ms, step_ms),
        "best_draft": best_draft(rows_ms, step_ms),
    }


def cost_report(
    session: Session, rows: Sequence[int] = DEFAULT_ROWS, context: int = 200
) -> dict[str, Any]:
    """The object of `cost --json`: times, what the machine would allow, and what loading takes.

    Memory is read in the same rounds as the passes run, so that both meet the same machine.
    """
    backbone = session.backbone
    reader = MemoryReader(backbone.threads)
    jobs = cost_jobs(session, rows, context)
    times_ms = interleaved_ms(jobs | {"read": reader.read}, ROUNDS)
    read_gb_s = BANDWIDTH_BYTES / 1e6 / times_ms.pop("read")
    peak_g_s = _native.integer_peak(backbone.threads) / 1e9
    costs, work = cost_lines(times_ms), Work.of(backbone.spec)
    roofs = limits(costs["rows_ms"], work, backbone.pass_bytes, read_gb_s, peak_g_s)
    loading = measure_loading(backbone.path, backbone.threads)
    return costs | {
        "context": context,
        "memory_read_gb_s": round(read_gb_s, 1),
        "bytes_per_pass": backbone.pass_bytes,
        "bandwidth_share": round(roofs["1"].memory_ms / roofs["1"].measured_ms, 4),
        "multiply_adds_per_row": work.of_pass(1, 1),
        "integer_peak_g_s": round(peak_g_s, 1),
        "roofline": {name: limit_json(limit) for name, limit in roofs.items()},
        "prompt": prompt_speed(session, work, peak_g_s),
        "load_ms": loading.load_ms,
        "memory": memory_json(loading) | {"kv_bytes_per_token": backbone.kv_bytes_per_token},
    }


def limit_json(limit: Limit) -> dict[str, Any]:
    """One element of `roofline`."""
    return {
        "memory_ms": round(limit.memory_ms, 4),
        "multiply_ms": round(limit.multiply_ms, 4),
        "measured_ms": round(limit.measured_ms, 4),
        "binds": limit.binds,
        "share": round(limit.share, 4),
        "multiply_share": round(limit.multiply_share, 4),
    }


def prompt_speed(session: Session, work: Work, peak_g_s: float) -> dict[str, Any]:
    """The `prompt` section: tokens a second of a prompt, and what the multiply-adds allow."""
    backbone = session.backbone
    count = min(PROMPT_TOKENS, session.context)
    ids, cache = random_ids(backbone, count), backbone.new_cache(count)
    prompt_ms = interleaved_ms({"prompt": lambda: prefill(backbone, cache, ids)}, PROMPT_ROUNDS)
    tok_s = 1000 * count / prompt_ms["prompt"]
    limit_tok_s = count * 1e9 * peak_g_s / work.of_pass(count, 1)
    return {
        "tokens": count,
        "tok_s": round(tok_s, 1),
        "limit_tok_s": round(limit_tok_s, 1),
        "share": round(tok_s / limit_tok_s, 4),
    }


def memory_json(loading: Loading) -> dict[str, Any]:
    """The `memory` section: bytes, and the weights' as a ratio to the file."""
    fields = asdict(loading)
    del fields["load_ms"]
    return fields | {
        "resident_ratio": round(loading.resident_bytes / loading.file_bytes, 3),
        "peak_ratio": round(loading.peak_bytes / loading.file_bytes, 3),
    }


def _pass_job(backbone: Backbone, cache: KvCache, tokens: Sequence[int]) -> Callable[[], object]:
    def job() -> None:
        length = cache.length
        backbone.forward([Segment(cache, tokens)], rows="all", want="tokens")
        cache.rollback(length)

    return job


def interleaved_ms(jobs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median time of each job, after one round of warm-up, all jobs once in every round.

    Their order is another in each round: what one leaves in the caches meets the others alike.
    """
    times: dict[str, list[float]] = {name: [] for name in jobs}
    order, random = list(jobs), Random(0)
    for round_index in range(rounds + 1):
        random.shuffle(order)
        for name in order:
            started = perf_counter()
            jobs[name]()
            if round_index > 0:
                times[name].append(1000 * (perf_counter() - started))
    return {name: median(values) for name, values in times.items()}
