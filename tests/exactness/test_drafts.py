"""What a head drafts depends on the committed tokens alone, not on how they came to be there.

The head is made of the backbone's own layers, so that most of its first steps are accepted and
every cell, position and state counts for them. N is a number of tokens, prompt included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import sqrt
from typing import Any

import pytest

from drafthead.common_start import common_start
from drafthead.decoding.loop import Request, decode, prefill
from drafthead.decoding.loops import LoopDetector
from drafthead.drafters.base import NoDrafter
from drafthead.drafters.mtp import MtpDrafter
from drafthead.heads.config import HeadConfig
from drafthead.types import Draft
from tests import every_drafter, fakes
from tests.exactness.test_decode import doubles
from tests.own_head import MODEL, own_head, own_model
from tests.windowed import same_cells

PROMPT = [220, 23, 48, 64, 49, 217, 236, 158]
ANSWER_TOKENS = 1000
TYPES = ["f16", "f32"]
K = 4
HEAD = own_head(own_model())


def own_drafter() -> MtpDrafter:
    """Drafts in spite of its doubts."""
    return MtpDrafter(HEAD, K, min_confidence=0.0)


@dataclass
class Recorder:
    """Keeps what another drafter proposes at each N; where it is `off`, nothing is asked of it.

    unheard: the drafts are kept and not proposed, so that the run is plain.
    """

    drafter: Any = field(default_factory=own_drafter)
    off: range = range(0)
    unheard: bool = False
    name = "recorder"

    def begin(self, tokens, hidden_D, cache) -> None:
        self.cache, self.n, self.drafts = cache, len(tokens), {}
        self.drafter.begin(tokens, hidden_D, cache)

    def observe(self, tokens, hidden_D) -> None:
        self.n += len(tokens)
        self.drafter.observe(tokens, hidden_D)

    def propose(self, max_tokens: int) -> Draft:
        assert self.cache.length == self.n - 1, "the head reads all committed tokens but the last"
        if self.n in self.off:
            return Draft()
        self.drafts[self.n] = self.drafter.propose(max_tokens)
        return Draft() if self.unheard else self.drafts[self.n]


def run(drafter, prompt=PROMPT, max_tokens=ANSWER_TOKENS, dtype="f16"):
    backbone = own_model()
    cache = backbone.new_cache(len(prompt) + max_tokens, dtype)
    request = Request(prompt, max_tokens, fakes.Letters())
    return [event.token for event in decode(request, backbone, cache, drafter)], request, cache


@lru_cache
def plain(dtype: str = "f16") -> tuple[list[int], dict[int, Draft]]:
    """The plain answer, and what the head would draft at each N of it."""
    recorder = Recorder(unheard=True)
    return run(recorder, dtype=dtype)[0], recorder.drafts


def first_steps(
    drafts: dict[int, Draft], answer: Sequence[int], first: int, last: int
) -> list[bool]:
    """Which first steps are right, of the drafts for the answer's tokens first..last."""
    at = len(PROMPT)
    return [drafts[at + i].tokens[0] == answer[i] for i in range(first, last) if at + i in drafts]


@pytest.mark.parametrize("dtype", TYPES)
def test_after_any_rejections_a_head_drafts_what_it_drafts_in_a_plain_run(dtype):
    """B5, E5: ids and confidences to the bit; at each round it stands where the tokens end."""
    answer, expected = plain(dtype)
    recorder = Recorder()
    tokens, request, _ = run(recorder, dtype=dtype)
    assert tokens == answer
    assert request.stats.drafted - request.stats.accepted > ANSWER_TOKENS // 2
    for n, draft in recorder.drafts.items():
        size = len(draft.tokens)
        assert size == min(K, len(PROMPT) + ANSWER_TOKENS - n - 1)
        assert draft.tokens == expected[n].tokens[:size], n
        assert draft.confidences == expected[n].confidences[:size], n


@pytest.mark.parametrize("dtype", TYPES)
def test_after_a_cold_prompt_a_head_drafts_what_it_drafts_in_a_plain_run(dtype):
    """B5: with every cell written in one pass, or in chunks, below, at and beyond the window."""
    answer, expected = plain(dtype)
    backbone, whole = own_model(), [*PROMPT, *answer]
    for n in (9, 15, 16, 17, 100, 271, 272, 273, 288, 514, 900):
        cache = backbone.new_cache(1100, dtype)
        state = prefill(backbone, cache, whole[: n - 1]).hidden[-1]
        drafter = own_drafter()
        drafter.begin(whole[:n], state, cache)
        assert drafter.propose(K) == expected[n], n


def test_acceptance_does_not_fall_with_the_length():
    """B5: of tokens 1-100 as many first steps are accepted as of 900-1000, within three times the
    deviation of so many throws of one coin; the oracle's drafts are accepted whole in both."""
    answer, drafts = plain()
    early, late = (first_steps(drafts, answer, n, n + 99) for n in (1, 900))
    rate = (sum(early) + sum(late)) / (len(early) + len(late))
    assert rate > 0.5
    assert abs(sum(early) - sum(late)) < 3 * sqrt(2 * 99 * rate * (1 - rate))
    at = {"answer": answer, "prompt_tokens": len(PROMPT), "k": K, "check_hidden": False}
    recorder = Recorder(fakes.OracleDrafter(**at))
    _, request, _ = run(recorder)
    assert request.stats.accepted == request.stats.drafted > 0
    assert set(recorder.drafts) == set(range(9, 9 + ANSWER_TOKENS - 1, K + 1))


@pytest.mark.parametrize("first", [10, 300, 600])
def test_a_head_that_was_off_drafts_as_if_it_had_been_on(first):
    """B6: 50 tokens without a draft need no catching up; what follows is what always-on drafts."""
    answer, expected = plain()
    recorder = Recorder(off=range(first, first + 50))
    tokens, _, _ = run(recorder)
    assert tokens == answer
    after = {n: draft for n, draft in recorder.drafts.items() if n >= first + 50}
    assert min(after) == first + 50
    for n, draft in after.items():
        assert draft.tokens == expected[n].tokens[: len(draft.tokens)], n
        assert draft.confidences == expected[n].confidences[: len(draft.tokens)], n


@pytest.mark.parametrize("name", ["standalone", "ngram"])
def test_a_drafter_with_a_memory_of_its_own_reads_what_came_while_it_was_off(name):
    """B6: after 50 tokens without a draft it drafts what one that was asked throughout drafts."""
    throughout = Recorder(every_drafter.make(name), unheard=True)
    answer = run(throughout, max_tokens=120)[0]
    for unheard in (True, False):
        recorder = Recorder(every_drafter.make(name), off=range(40, 90), unheard=unheard)
        tokens, request, _ = run(recorder, max_tokens=120)
        assert tokens == answer
        assert (request.stats.accepted > 0) != unheard
        after = {n: draft.tokens for n, draft in recorder.drafts.items() if n >= 90}
        assert min(after) == 90 and sum(map(len, after.values())) > 10
        for n, draft in after.items():
            expected = throughout.drafts[n].tokens
            assert common_start(draft, expected) == min(len(draft), len(expected)), n


@pytest.mark.parametrize("dtype", TYPES)
def test_every_drafter_is_exact_on_cells_of_either_type(dtype):
    """B13, B14: ids and cells are those of plain on the same type, and no run falls into a loop."""
    answer = plain(dtype)[0]
    reference = run(NoDrafter(), max_tokens=400, dtype=dtype)[2]
    loops = LoopDetector()
    assert not any(loops.push(token) for token in answer)
    for drafter in [own_drafter(), *doubles(answer, PROMPT, MODEL.vocab_size)]:
        tokens, request, cache = run(drafter, max_tokens=400, dtype=dtype)
        assert tokens == answer[:400], drafter
        assert request.finish_reason == "length"
        assert same_cells(own_model(), cache, reference), drafter


def test_a_head_reads_cells_of_either_type_as_what_they_are():
    """B13: read as the other type its acceptance would be chance, one in 272; the two are alike
    within three deviations, and their drafts differ in the last bits."""
    answers, drafts = zip(*(plain(dtype) for dtype in TYPES), strict=True)
    n = ANSWER_TOKENS - 1
    right = [sum(first_steps(d, a, 1, n + 1)) for d, a in zip(drafts, answers, strict=True)]
    rate = sum(right) / (2 * n)
    assert rate > 0.5, f"first steps accepted on {TYPES}: {right} of {n}"
    assert abs(right[0] - right[1]) < 3 * sqrt(2 * n * rate * (1 - rate))
    first = len(PROMPT) + 1
    assert drafts[0][first].confidences != drafts[1][first].confidences


def test_a_head_has_no_context_of_its_own():
    """E2: its config names none, and it drafts behind a prompt of any length that fits."""
    assert not [f.name for f in fields(HeadConfig) if "context" in f.name or f.name == "position"]
    answer, drafts = plain()
    for n in (1, 64, 513, 940):
        prompt = [*PROMPT, *answer[:n]]
        recorder = Recorder()
        tokens, request, _ = run(recorder, prompt, 59)
        assert tokens == answer[n : n + 59]
        assert 0 < request.stats.accepted < request.stats.drafted
        assert all(draft.tokens == drafts[n].tokens[: len(draft.tokens)]
                   for n, draft in recorder.drafts.items())  # fmt: skip


@pytest.mark.parametrize("name", ["mtp", "standalone", "ngram", "jacobi"])
def test_what_is_drafted_does_not_depend_on_how_tokens_are_chosen(name):
    """D9: behind the same tokens the same draft, whatever temperature and shape brought them."""
    tokens = every_drafter.session().generate(PROMPT, max_tokens=40).tokens
    drafts = []
    for options in ({}, {"temperature": 2, "seed": 1}, {"presence_penalty": 0.1, "logprobs": 3}):
        recorder = Recorder(every_drafter.make(name), unheard=True)
        # The bias leaves no choice but the answer's own token, so that all texts are the same.
        talk = every_drafter.session(recorder)
        found = []
        for place, token in enumerate(tokens[:12]):
            prompt = [*PROMPT, *tokens[:place]]
            asked = {**options, "logit_bias": {token: 100}, "max_tokens": 3}
            found.append(talk.generate(prompt, **asked).tokens[0])
            drafts.append((place, recorder.drafts.get(len(prompt) + 1)))
        assert found == list(tokens[:12])
    by_place = [[draft for at, draft in drafts if at == place] for place in range(12)]
    assert all(draft is not None and draft == same[0] for same in by_place for draft in same)
    assert any(draft.tokens for same in by_place for draft in same)
