"""Random numbers by name: the same key gives the same number, whatever was drawn before it.

A counter-based generator in the sense of Salmon et al. (SC 2011, "Parallel random numbers: as easy
as 1, 2, 3"), with SHA-256 as its function: no state, so batches, resuming and shards change none.
"""

from __future__ import annotations

import hashlib


def uniform(*key: str | int) -> float:
    """A number in [0, 1) that its key alone decides, one of 2^53 equally likely ones."""
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53
