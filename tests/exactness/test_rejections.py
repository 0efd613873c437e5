"""Drafts rejected anywhere, around a sliding window too, leave the tokens and cells of plain.

The plain run starts from one token and feeds one row a pass; every other run continues it from some
N on, and its cells are compared at every round, not only at the end. N is a number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pytest

from drafthead.backbone.handle import Backbone
from drafthead.decoding.loop import Request, decode
from drafthead.drafters.base import NoDrafter
from drafthead.drafters.mtp import MtpDrafter
from drafthead.drafters.rehearsed import RehearsedDrafter
from drafthead.types import Draft
from tests import fakes
from tests.own_head import WINDOW, own_head, own_model
from tests.windowed import build, random_weights, seen_cells, with_window

V, TOTAL, CAPACITY = 272, 340, 700
RING = WINDOW + 256
EDGES = (WINDOW, RING, RING + WINDOW)
K = 8
MODELS = ["plain layers", "every choice"]  # the second is of Gemma's kind, with all there is


@lru_cache
def model(name: str) -> Backbone:
    if name == "plain layers":
        return own_model()
    spec = replace(with_window(WINDOW), tied_output=False)
    return build(spec, random_weights(spec), threads=1)


@dataclass
class Watch:
    """Reads the cells that the next row sees, at each round, and compares them with plain's."""

    backbone: Backbone
    drafter: Any
    expected: dict[int, list[np.ndarray]] | None = None
    drafts: dict[int, Draft] = field(default_factory=dict)
    cells: dict[int, list[np.ndarray]] = field(default_factory=dict)
    name = "watch"

    def begin(self, tokens, hidden_D, cache) -> None:
        self.cache, self.n = cache, len(tokens)
        self.drafter.begin(tokens, hidden_D, cache)

    def observe(self, tokens, hidden_D) -> None:
        self.n += len(tokens)
        self.drafter.observe(tokens, hidden_D)

    def propose(self, max_tokens: int) -> Draft:
        assert self.cache.length == self.n - 1
        found = seen_cells(self.backbone, self.cache)
        if self.expected is None:
            self.cells[self.n] = found
        else:
            pairs = zip(found, self.expected[self.n], strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs), self.n
        self.drafts[self.n] = self.drafter.propose(max_tokens)
        return self.drafts[self.n]


def run(backbone, drafter, prompt, max_tokens, cache=None):
    cache = cache or backbone.new_cache(CAPACITY)
    request = Request(prompt, max_tokens, fakes.Letters())
    return [event.token for event in decode(request, backbone, cache, drafter)], request, cache


@lru_cache
def plain(name: str) -> tuple[list[int], dict[int, list[np.ndarray]]]:
    """All tokens of the plain run, and the cells that the next row sees at each N."""
    watch = Watch(model(name), NoDrafter())
    tokens, _, cache = run(model(name), watch, [81], TOTAL - 1)
    assert cache.cells(0) == RING < TOTAL
    return [81, *tokens], watch.cells


def check(name: str, drafter, n: int, count: int) -> dict[int, Draft]:
    """Continue the plain run's first n tokens by `count` more; returns the drafts."""
    tokens, cells = plain(name)
    watch = Watch(model(name), drafter, cells)
    assert run(model(name), watch, tokens[:n], count)[0] == tokens[n : n + count]
    return watch.drafts


def oracle(tokens, n: int, right: int | None, k: int = K):
    at = {"answer": tokens[n:], "prompt_tokens": n, "k": k, "check_hidden": False}
    return fakes.OracleDrafter(right=right, vocab_size=V, **at)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("right", range(5))
def test_a_rejection_at_any_position_around_a_window_leaves_no_trace(name, right):
    """B1, B4: after `right` accepted tokens, at every position within 8 of where the window fills,
    where its ring wraps, and a window later."""
    tokens, _ = plain(name)
    rejected = set()
    for edge in EDGES:
        first = max(1, edge - 9 - right)
        for n in range(first, first + right + 1):
            drafts = check(name, oracle(tokens, n, right), n, edge + 12 + right - n)
            rejected |= {at + right for at, draft in drafts.items() if len(draft.tokens) > right}
    assert rejected >= {edge + i for edge in EDGES for i in range(-8, 9)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n", [WINDOW // 2, WINDOW, WINDOW + 1, 5 * WINDOW, RING - 1, RING + 1])
def test_whole_answers_are_plain_whoever_drafts(name, n):
    """B1: prompts below, at and beyond the window, answers across all edges that are left."""
    tokens, _ = plain(name)
    drafters = [RehearsedDrafter(tokens[n:], V), oracle(tokens, n, None), oracle(tokens, n, 0, 17)]
    drafters += [fakes.RandomDrafter(k=K, vocab_size=V, check_hidden=False)]
    if name == "plain layers":
        drafters.append(MtpDrafter(own_head(own_model()), K, min_confidence=0.0))
    for drafter in drafters:
        drafts = check(name, drafter, n, TOTAL - n)
        assert sum(len(draft.tokens) for draft in drafts.values()) > TOTAL - n - RING // 4


@pytest.mark.parametrize("capacity", [WINDOW + 4, RING, RING + 28])
def test_an_answer_ends_in_the_last_cell_and_nothing_is_shifted(capacity):
    """B12, E1: whoever drafts it ends "length" with the tokens that a larger cache gives; the
    drafter then starts the next request on the same cache as a fresh one does."""
    backbone, (tokens, _) = own_model(), plain("plain layers")
    other = tokens[40:60]
    expected = run(backbone, NoDrafter(), other, capacity - 21)[0] if capacity > 21 else []
    for n in (1, capacity - 3, capacity - 1, capacity):
        rights = chain([None], range(4))
        drafters = [oracle(tokens, n, right) for right in rights]
        drafters += [fakes.RandomDrafter(k=K, vocab_size=V, check_hidden=False)]
        drafters += [MtpDrafter(own_head(backbone), K, min_confidence=0.0)]
        for drafter in drafters:
            cache = backbone.new_cache(capacity)
            found, request, _ = run(backbone, drafter, tokens[:n], 9999, cache)
            assert found == tokens[n : capacity + 1], drafter
            assert (request.finish_reason, cache.length) == ("length", capacity)
            again = run(backbone, drafter, other, capacity - 21, cache)[0] if expected else []
            assert again == expected, drafter
