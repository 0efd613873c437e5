"""What a regeneration will take, said before it begins: tokens, time, bytes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from drafthead.evaluation.prompts import PromptRow
from drafthead.training.answers import Answer
from drafthead.training.pace import Lengths
from drafthead.training.regen import Regenerator, RegenSettings

PROBE_PROMPTS, PROBE_PASSES = 8, 32
LONGEST_PROBE_S = 30.0


@dataclass(frozen=True)
class Plan:
    """What answering some prompts will take.

    held: prompts that the folder has answered already, not part of the other numbers.
    rows: tokens that go through the engine.  feature_bytes: None where none are kept.
    """

    prompts: int
    held: int
    skipped: int
    prompt_tokens: int
    answer_tokens: int
    rows: int
    seconds: float
    answer_bytes: int
    feature_bytes: int | None


def probe(
    regenerator: Regenerator, prompts: Sequence[PromptRow], lengths: Lengths
) -> tuple[float, float]:
    """Answer the first prompts for a few seconds, and learn from it.

    Args:
        regenerator: a fresh one without features; its answers are thrown away.
        prompts: from the head of the list.
        lengths: told of the answers that ended, and of those that did not.

    Returns:
        Seconds of a pass, and of each of its rows: a line through the measured passes.
    """
    waiting = deque(prompts[:PROBE_PROMPTS])
    passes: list[tuple[int, float]] = []
    decoding, start = 0, time.perf_counter()
    while waiting or regenerator.running:
        rows, begun = regenerator.counts.rows, time.perf_counter()
        for answer in regenerator.step(waiting):
            lengths.add(answer.task, len(answer.answer))
        ended = time.perf_counter()
        passes.append((regenerator.counts.rows - rows, ended - begun))
        decoding += passes[-1][0] <= PROBE_PROMPTS
        if decoding >= PROBE_PASSES or ended - start > LONGEST_PROBE_S:
            break
    for prompt, _, written in regenerator.running:
        lengths.add(prompt.task, written, finished=False)
    return fit(passes)


def fit(passes: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Seconds of a pass and of a row, by least squares over (rows, seconds); neither below zero."""
    rows_P, seconds_P = np.array(passes, np.float64).reshape(-1, 2).T
    design_P2 = np.stack([np.ones_like(rows_P), rows_P], axis=1)
    a_pass, a_row = np.linalg.lstsq(design_P2, seconds_P, rcond=None)[0].tolist()
    if a_pass < 0 or a_row < 0:
        return 0.0, float(seconds_P.sum() / max(rows_P.sum(), 1.0))
    return a_pass, a_row


def make_plan(
    regenerator: Regenerator,
    settings: RegenSettings,
    prompts: Sequence[PromptRow],
    held: Sequence[Answer],
    sequences: int,
    feature_bytes: tuple[int, int] | None = None,
) -> Plan:
    """Say what the prompts that are not answered yet will take.

    Args:
        regenerator: a fresh one without features.
        settings: of the run.
        prompts: all of them.
        held: answers that the folder has already; their lengths are learned from.
        sequences: answers in flight.
        feature_bytes: of an anchor and of a position, where features are kept.
    """
    lengths = Lengths(settings.max_tokens)
    for row in held:
        lengths.add(row.task, len(row.answer))
    known = {row.id for row in held}
    todo = [prompt for prompt in prompts if prompt.id not in known]
    sizes = [(prompt, len(regenerator.tokens(prompt))) for prompt in todo]
    fitting = [(prompt, size) for prompt, size in sizes if size]
    a_pass, a_row = 0.0, 0.0
    if fitting:
        a_pass, a_row = probe(regenerator, [prompt for prompt, _ in fitting], lengths)
    prompt_tokens = sum(size for _, size in fitting)
    answer_tokens = round(sum(lengths.mean(prompt.task) for prompt, _ in fitting))
    rows = prompt_tokens + answer_tokens
    kept = (max(answer_tokens - len(fitting), 0), max(rows - 2 * len(fitting), 0))
    digits = len(str(regenerator.backbone.spec.vocab_size)) + 1  # and a comma, for each token
    return Plan(
        prompts=len(fitting),
        held=len(prompts) - len(todo),
        skipped=len(todo) - len(fitting),
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        rows=rows,
        seconds=a_pass * answer_tokens / sequences + a_row * rows,
        answer_bytes=rows * digits,
        feature_bytes=feature_bytes and kept[0] * feature_bytes[0] + kept[1] * feature_bytes[1],
    )
