"""Laws of choosing between text and head: what gains more tokens a ms is drafted, by a clock."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
import pytest

from drafthead.drafters.ngram import NgramDrafter
from drafthead.drafters.ngram_mtp import HEAD, TEXT, NgramMtpDrafter
from drafthead.types import Draft, SourceCounts
from tests import fakes
from tests.unit.test_loop import V, assert_identities, plain, run, tokens_of

PROMPT = [5, 6, 7]


class Clock:
    """Seconds that pass only where a test lets them."""

    def __init__(self):
        self.ms = 0.0

    def __call__(self):
        return self.ms / 1000


@dataclass
class TickingHead(fakes.OracleDrafter):
    """An oracle that takes its time and says how sure it is."""

    clock: Clock = field(default_factory=Clock)
    step_ms: float = 0.0
    sure: float = 0.9
    name = "mtp"

    def propose(self, max_tokens):
        draft = super().propose(max_tokens)
        self.clock.ms += self.step_ms * (len(draft.tokens) + 1)
        return Draft(draft.tokens, (self.sure,) * len(draft.tokens))


def ticking(next_token, clock, base_ms, row_ms):
    """A language whose every row takes time, so that a pass does."""

    def timed(history):
        clock.ms += row_ms
        return next_token(history)

    class Backbone(fakes.ScriptedBackbone):
        def forward(self, *segments, **how):
            clock.ms += base_ms
            return super().forward(*segments, **how)

    return Backbone(timed, V)


def decode(monkeypatch, answer, head, clock, base_ms=10.0, row_ms=1.0, text=None):
    next_token = fakes.scripted_next(PROMPT, answer, V)
    backbone = ticking(next_token, clock, base_ms, row_ms)
    monkeypatch.setattr(fakes, "ScriptedBackbone", lambda *_: backbone)
    text = text or NgramDrafter(min_match=1, min_confidence=0.02, max_draft_tokens=6)
    drafter = NgramMtpDrafter(text, head, clock)
    return *run(drafter, max_tokens=len(answer)), drafter


def head_of(answer, clock, **how):
    return TickingHead(answer=answer, prompt_tokens=len(PROMPT), clock=clock, **how)


PERIODIC = [10, 11, 12, 13, 14, 15] * 20


def test_a_costly_head_leaves_what_repeats_to_the_text(monkeypatch):
    """Once the head's price is known, it drafts only where the text has nothing to say."""
    clock = Clock()
    head = head_of(PERIODIC, clock, k=2, step_ms=20.0)
    events, request, *_ = decode(monkeypatch, PERIODIC, head, clock)
    sources = request.stats.sources
    assert tokens_of(events) == PERIODIC
    assert_identities(events, request.stats)
    # Prefill gives 10, two drafts of the head 11 12 13 and 14 15 10: from there on the text knows.
    assert sources[HEAD] == SourceCounts(drafts=2, drafted=4, accepted=4)
    assert sources[TEXT].accepted == sources[TEXT].drafted > 0
    assert len(head.asked) == 2


def test_a_free_and_faultless_head_is_asked_throughout(monkeypatch):
    clock = Clock()
    head = head_of(PERIODIC, clock, k=6, step_ms=0.0, sure=1.0)
    _, request, *_ = decode(monkeypatch, PERIODIC, head, clock)
    stats = request.stats
    assert set(stats.sources) == {HEAD}
    assert stats.sources[HEAD] == SourceCounts(17, 102, 102)
    assert (stats.passes, stats.committed) == (17, 119)


def test_a_head_that_is_always_wrong_is_not_believed(monkeypatch):
    """Its confidences promise everything; what it kept says otherwise, and the text drafts."""
    clock = Clock()
    head = head_of(PERIODIC, clock, k=6, right=0, step_ms=0.1, sure=1.0)
    events, request, _, _, drafter = decode(monkeypatch, PERIODIC, head, clock)
    sources = request.stats.sources
    assert tokens_of(events) == PERIODIC
    assert sources[HEAD].accepted == 0
    assert sources[TEXT].accepted > 90
    assert drafter._kept / drafter._promised < 0.3


def test_rows_that_cost_shorten_the_copy(monkeypatch):
    """Free rows are filled; where a row costs as much as a pass, a copy is of few tokens."""

    def usual_length(row_ms):
        clock = Clock()
        head = head_of(PERIODIC, clock, k=1, right=0, step_ms=5.0, sure=0.01)
        _, request, *_ = decode(monkeypatch, PERIODIC, head, clock, base_ms=1.0, row_ms=row_ms)
        monkeypatch.undo()
        copies = request.stats.sources[TEXT]
        return copies.drafted / copies.drafts

    assert usual_length(0.0) > 5.0
    assert usual_length(100.0) < 2.5


def test_a_pass_that_nobody_drafted_for_is_not_timed(monkeypatch):
    """The last token needs no draft: its pass did not begin when the clock was last read."""
    clock = Clock()
    head = head_of(PERIODIC, clock, k=2, check_hidden=False)
    drafter = decode(monkeypatch, PERIODIC[:20], head, clock)[-1]
    before = drafter.cost.pass_ms(3)
    assert before == pytest.approx(13.0, rel=0.05)
    drafter.observe([1], np.zeros(1, np.float32))
    clock.ms += 999
    drafter.watch(np.zeros(1, np.int32))
    assert drafter.cost.pass_ms(3) == before


def test_a_text_without_repetition_is_the_heads(monkeypatch):
    answer = list(range(10, 50))
    clock = Clock()
    head = head_of(answer, clock, k=3, step_ms=1.0)
    _, request, *_ = decode(monkeypatch, answer, head, clock)
    assert set(request.stats.sources) == {HEAD}
    assert request.stats.sources[HEAD].accepted == request.stats.accepted > 0


@pytest.mark.parametrize("words", [2, 4])
@pytest.mark.parametrize("right", [None, 0, 1])
def test_tokens_are_plains_whichever_drafts(words, right):
    """A5, A6: with the clock of the machine, so by whatever choices it leads to, and once more."""
    next_token = fakes.hashed_next(words)
    how = {"prompt": PROMPT, "max_tokens": 150, "next_token": next_token}
    expected = plain(**how)
    head = TickingHead(answer=expected, prompt_tokens=3, k=4, right=right, vocab_size=words)
    drafter = NgramMtpDrafter(NgramDrafter(min_match=1, min_confidence=0.02), head)
    for _ in range(2):
        events, request, _, _ = run(drafter, **how)
        assert tokens_of(events) == expected
        assert_identities(events, request.stats)
        sources = request.stats.sources.values()
        assert sum(source.drafted for source in sources) == request.stats.drafted
        assert sum(source.accepted for source in sources) == request.stats.accepted


def test_a_head_in_trouble_costs_a_draft_and_no_token():
    """A10: what it raises, loses or invents reaches neither the backbone nor the accounts."""
    expected = plain(max_tokens=120)
    head = fakes.NanDrafter(answer=expected, prompt_tokens=3)
    drafter = NgramMtpDrafter(NgramDrafter(min_match=1, min_confidence=0.02), head)
    events, request, _, _ = run(drafter, max_tokens=120)
    assert tokens_of(events) == expected
    assert request.stats.dropped > 0
    assert isfinite(drafter._promised)
    assert_identities(events, request.stats)


@dataclass
class Fixed:
    """Proposes one draft for ever."""

    draft: Draft

    def propose(self, max_tokens):
        return self.draft


@pytest.mark.parametrize(("kept", "source"), [(10, HEAD), (1, TEXT)])
def test_confidences_are_believed_as_far_as_they_were_kept(kept, source):
    """The copy promises 1 + 0.5 + 0.25, the head 1 + 0.9, or 1 + 0.09 where it kept a tenth."""
    text, head = Fixed(Draft((1, 2), (0.5, 0.5))), Fixed(Draft((3,), (0.9,)))
    drafter = NgramMtpDrafter(text, head, Clock())
    drafter.cost.add_pass(1, 1.0)
    drafter._head_tokens, drafter._head_ms = 100.0, 1.0  # worth asking
    drafter._promised, drafter._kept = 10.0, float(kept)
    assert drafter.propose(8).source == source


@pytest.mark.parametrize(("asked", "made"), [(True, 3), (False, 0)])
def test_a_copy_takes_only_the_time_of_the_head_that_was_asked_in_vain(asked, made):
    """Else a policy would learn from copies that the head's steps cost nothing."""
    text, head = Fixed(Draft((1, 2), (0.9, 0.9))), Fixed(Draft((3,), (0.1,), steps=3))
    drafter = NgramMtpDrafter(text, head, Clock())
    drafter.cost.add_pass(1, 1.0)
    drafter._head_tokens, drafter._head_ms = (100.0, 1.0) if asked else (1.0, 100.0)
    draft = drafter.propose(8)
    assert (draft.source, draft.made) == (TEXT, made)


def test_why_is_one_sentence_with_the_times_that_were_seen(monkeypatch):
    clock = Clock()
    head = head_of(PERIODIC, clock, k=2, step_ms=20.0)
    drafter = decode(monkeypatch, PERIODIC, head, clock)[-1]
    said = drafter.explain()
    times = re.search(r"passes of 1 / 2 / 4 / 8 rows take (.*) ms, the head", said)[1]
    assert [float(word) for word in times.split(" / ")] == pytest.approx([11, 12, 14, 18], rel=0.1)
    assert "the head takes 30.00 ms to draft a token" in said  # 60 for two
