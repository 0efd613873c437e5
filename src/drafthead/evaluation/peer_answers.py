"""A peer's answers to the prompts of a bench, and its section of the report.

Rows of a pass give llama.cpp's logits other bits than one row alone, so an answer with drafts may
leave the one without: nothing is asserted of it, and how far the two agree is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter, process_time, sleep
from typing import Any

from drafthead.common_start import common_start
from drafthead.decoding.acceptance import longest_match
from drafthead.decoding.constraints import EndRule, FinishReason, token_limit
from drafthead.decoding.stats import count_pass
from drafthead.evaluation.energy import EnergyMeter
from drafthead.evaluation.metrics import PLAIN, Answer
from drafthead.evaluation.peer_drafting import PeerDrafter
from drafthead.evaluation.peers import SETTLE_S, LlamaCpp, Peer
from drafthead.evaluation.prompts import PromptRow, end_ids, prompt_ids
from drafthead.session import Session
from drafthead.types import DecodeStats, Draft

# Of an arm's line, what says something of an engine that decodes plainly, and of one that drafts.
PLAIN_FIELDS = (
    "task", "prompts", "tokens", "looped", "passes", "tok_s", "speedup_vs_plain", "ttft_ms",
    "identical", "cpu_s_per_token", "joules_per_token",
)  # fmt: skip
DRAFT_FIELDS = (*PLAIN_FIELDS, "drafted", "accepted", "tau", "acceptance", "accept_at")


def arm_name(peer: Peer, drafter: PeerDrafter | None) -> str:
    """What the peer's answers are filed under."""
    return peer.name if drafter is None else f"{peer.name}+{drafter.name}"


def answer_with_peer(
    peer: Peer,
    drafter: PeerDrafter | None,
    session: Session,
    row: PromptRow,
    max_tokens: int,
    cut_loops: bool,
    meter: EnergyMeter,
) -> Answer:
    """Answer one prompt with a peer, ended by the same rules as drafthead's answers.

    Args:
        peer: the engine.
        drafter: drafts for it; plain decoding where None.
        session: turns the prompt into tokens, which is part of the time to the first token.
        row: the prompt.
        max_tokens: limit of the answer.
        cut_loops: end an answer that repeats itself.
        meter: counts the joules of decoding.
    """
    sleep(SETTLE_S)
    started = perf_counter()
    prompt = prompt_ids(session, row)
    limit = token_limit(len(prompt), max_tokens, peer.context)
    end = EndRule(limit, end_ids(session), cut_loops)
    peer.rollback(0)
    tokens = [*prompt, peer.choose(prompt)]
    reason = end.push(tokens[-1])
    if drafter is not None:
        drafter.begin(prompt)
    prefilled = perf_counter()
    meter.lap_joules()
    cpu_started = process_time()
    stats = DecodeStats()
    while reason is None:
        reason = one_pass(peer, drafter, tokens, end, stats)
    stats.decode_ms = 1000 * (perf_counter() - prefilled)
    cpu_s, joules = process_time() - cpu_started, meter.lap_joules()
    sleep(SETTLE_S)
    stats.prefill_ms = 1000 * (prefilled - started)
    return Answer(
        drafter=arm_name(peer, drafter),
        task=row.task,
        prompt_id=row.id,
        tokens=tuple(tokens[len(prompt) :]),
        finish_reason=reason,
        stats=stats,
        ttft_ms=stats.prefill_ms,
        cpu_s=cpu_s,
        joules=joules,
    )


def one_pass(
    peer: Peer, drafter: PeerDrafter | None, tokens: list[int], end: EndRule, stats: DecodeStats
) -> FinishReason | None:
    """Draft, verify and append what is kept; why the answer ended, if it did."""
    room = end.left - 1
    draft = drafter.propose(tokens, room) if drafter is not None and room else []
    chosen = peer.choose_rows([tokens[-1], *draft])
    accepted = longest_match(draft, chosen)
    kept, reason = end.cut([*draft[:accepted], int(chosen[accepted])])
    tokens += kept
    if accepted < len(draft):
        peer.rollback(len(tokens) - 1)
    count_pass(stats, Draft(tuple(draft)), accepted, len(kept))
    return reason


def peer_section(
    peer: LlamaCpp,
    drafters: Sequence[PeerDrafter],
    lines: Sequence[Mapping[str, object]],
    answers: Sequence[Answer],
) -> dict[str, Any]:
    """One element of `peers` in a report, from the lines and answers of all arms."""
    arms = []
    for drafter in (None, *drafters):
        name = arm_name(peer, drafter)
        of = PLAIN_FIELDS if drafter is None else DRAFT_FIELDS
        found = [line for line in lines if line["drafter"] == name]
        own = {"drafter": PLAIN if drafter is None else drafter.name}
        arms += [
            own
            | {field: line[field] for field in of}
            | ({} if drafter is None else {"speedup_vs_own_plain": against_own(line, peer)})
            for line in found
        ]
    mine = {
        drafter.name: agreement(
            [a for a in answers if a.drafter == arm_name(peer, drafter)],
            [a for a in answers if a.drafter == peer.name],
        )
        for drafter in drafters
    }
    return {
        "name": peer.name,
        "version": peer.version,
        "build": peer.build,
        "threads": peer.threads,
        "arms": arms,
        "agrees_with_own_plain": mine,
    }


def against_own(line: Mapping[str, Any], peer: Peer) -> object:
    """A drafter's speed over that of its own engine without."""
    return line["speedup_vs"][peer.name]


def agreement(drafted: Sequence[Answer], plain: Sequence[Answer]) -> dict[str, int]:
    """How many answers are the same, and how many tokens stand before the first other one."""
    pairs = [(a.tokens, b.tokens) for a, b in zip(drafted, plain, strict=True)]
    return {
        "answers": len(pairs),
        "same_answers": sum(a == b for a, b in pairs),
        "tokens": sum(len(b) for _, b in pairs),
        "same_tokens": sum(common_start(*pair) for pair in pairs),
    }
