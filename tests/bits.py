"""Equality of raw buffers, which is what "same bits" means."""

from __future__ import annotations

import numpy as np


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Two float32 arrays word by word: -0.0 differs from 0.0 and a NaN equals itself."""
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))
