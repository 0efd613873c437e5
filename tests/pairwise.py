"""Few cases that try every pair of values of every two factors."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any


def pairwise(factors: Mapping[str, Sequence[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Cases, each a value for every factor, that hold each pair of values of two factors.

    Greedy: each case is the best of some random ones around a pair that is still missing.
    """
    names, chance = list(factors), random.Random(seed)
    places = {name: range(len(factors[name])) for name in names}
    missing = {
        (one, i, other, j)
        for one, other in itertools.combinations(names, 2)
        for i, j in itertools.product(places[one], places[other])
    }

    def covered(case: Mapping[str, int]) -> set[tuple[str, int, str, int]]:
        pairs = itertools.combinations(names, 2)
        return missing & {(one, case[one], other, case[other]) for one, other in pairs}

    cases = []
    while missing:
        one, i, other, j = min(missing)
        tries = [
            {name: chance.choice(places[name]) for name in names} | {one: i, other: j}
            for _ in range(30)
        ]
        best = max(tries, key=lambda case: len(covered(case)))
        missing -= covered(best)
        cases.append({name: factors[name][best[name]] for name in names})
    return cases
