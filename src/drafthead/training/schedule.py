"""The learning rate over the course of a training, as a share of its peak."""

from __future__ import annotations

import math


def lr_share(progress: float, warmup: float, schedule: str) -> float:
    """Rise linearly over the `warmup` share of the training, then fall to zero at its end.

    Args:
        progress: 0 at the start, 1 at the end.
        warmup: share of the training spent rising.
        schedule: "cosine" or "linear" fall.
    """
    if progress < warmup:
        return progress / warmup
    rest = min(1.0, (progress - warmup) / (1.0 - warmup))
    return 1.0 - rest if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * rest))
