"""How far two sequences of tokens agree: of a draft and a choice, of a prompt and the last one."""

from __future__ import annotations

from collections.abc import Iterable


def common_start(one: Iterable[int], other: Iterable[int]) -> int:
    """How many tokens are the same in both before the first that is not, or an end."""
    count = 0
    for mine, theirs in zip(one, other):  # noqa: B905 - one may be longer
        if mine != theirs:
            break
        count += 1
    return count
