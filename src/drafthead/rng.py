"""Random numbers by name: the same key gives the same number, whatever was drawn before it.

A counter-based generator in the sense of Salmon et al. (SC 2011, "Parallel random numbers: as easy
as 1, 2, 3"), with SHA-256 as its function: no state, so batches, resuming and shards change none.
Many numbers of one key are SplitMix64 (Steele et al., OOPSLA 2014), whose start the key gives.

N numbers of one key.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def uniform(*key: str | int) -> float:
    """A number in [0, 1) that its key alone decides, one of 2^53 equally likely ones."""
    return (_bits(key) >> 11) / 2**53


def uniforms(counters_N: NDArray[np.integer], *key: str | int) -> NDArray[np.float64]:
    """For each counter a number in (0, 1) that it and the key alone decide, shape (N,).

    They are the middles of 2^52 equal parts, so that neither 0 nor 1 is among them.
    """
    z_N = counters_N.astype(np.uint64)
    z_N += np.uint64(1)
    z_N *= np.uint64(0x9E3779B97F4A7C15)
    z_N += np.uint64(_bits(key))
    z_N ^= z_N >> np.uint64(30)
    z_N *= np.uint64(0xBF58476D1CE4E5B9)
    z_N ^= z_N >> np.uint64(27)
    z_N *= np.uint64(0x94D049BB133111EB)
    z_N ^= z_N >> np.uint64(31)
    parts_N: NDArray[np.float64] = (z_N >> np.uint64(12)).astype(np.float64)
    return (parts_N + 0.5) * 2.0**-52


def _bits(key: tuple[str | int, ...]) -> int:
    """64 bits of the key's hash."""
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "big")
