"""Which prompts are answered by sampling, and by which seed: the prompt decides, not its turn."""

from __future__ import annotations

from drafthead.rng import uniform


def is_sampled(seed: int, digest: str, share: float) -> bool:
    """Whether a prompt belongs to the sampled share; a larger share holds a smaller one."""
    return uniform(seed, "share", digest) < share


def answer_seed(seed: int, digest: str) -> int:
    """The seed of the answer to one prompt: `generate` with it gives the same text."""
    return int(uniform(seed, "answer", digest) * 2**53)
