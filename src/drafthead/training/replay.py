"""Teacher-forced replay: what the runtime would accept on answers that are known.

A draft is kept only as far as it equals the answer, and up to there the head has seen exactly the
tokens that the runtime would feed it. So walking an answer and jumping over what was accepted
counts the passes of a real decode, but for the rounding of exported weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from numpy.typing import NDArray

from drafthead.decoding.stats import count_pass
from drafthead.training.batching import BatchMaker
from drafthead.training.losses import CHUNK_ROWS
from drafthead.training.modules import FrozenMtpHead
from drafthead.types import DecodeStats, Draft


def walk(matches_KA: NDArray[bool], stats: DecodeStats) -> None:  # type: ignore[type-var]
    """Replay one answer; matches_KA says whether step k of anchor a gives the answer's token."""
    steps, anchors = matches_KA.shape
    place = 0
    while place < anchors:
        drafted = min(steps, anchors - place)
        accepted = 0
        while accepted < drafted and matches_KA[accepted, place]:
            accepted += 1
        committed = min(accepted + 1, anchors - place)
        count_pass(stats, Draft((0,) * drafted), accepted, committed)
        place += committed


@torch.no_grad()
def replay(
    head: FrozenMtpHead, maker: BatchMaker, batches: Sequence[Sequence[int]], autocast: bool,
    max_tokens: int | None = None,
) -> DecodeStats:  # fmt: skip
    """Replay the answers of some batches, each as far as `max_tokens`, and pool the counts."""
    last = None if max_tokens is None else max_tokens - 1  # the prefill gives the first token
    stats = DecodeStats()
    for indices in batches:
        batch = maker(indices)
        score_rows = head.score_rows(batch.rows_VD)
        with torch.autocast(batch.rows_VD.device.type, torch.bfloat16, enabled=autocast):
            states = head(batch)
        choices = [
            torch.cat([(part @ score_rows.T).argmax(-1) for part in rows.split(CHUNK_ROWS)])
            for rows in (state.to(score_rows.dtype) for state in states)
        ]
        matches = (torch.stack(choices) == batch.labels_KA).cpu().numpy()
        for sequence in batch.sequences:
            walk(matches[:, sequence.anchors][:, :last], stats)
    return stats
