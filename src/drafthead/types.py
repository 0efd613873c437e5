"""Plain data that travels between rooms."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Draft:
    """What a drafter proposes after the last committed token.

    tokens: 0..max_draft_tokens proposed ids, without the bonus token.
    confidences: for each token the drafter's own probability of it, or empty where it has none.
    source: who made it, where the drafter chooses between several.
    steps: how many tokens took time to make, where that is not how many are left.
    proposals: for each token the distribution it was drawn from, over the whole vocabulary; empty
    where the drafter did not draw, which is as if each token had had the probability 1.
    """

    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()
    source: str = ""
    proposals: tuple[NDArray[np.float64], ...] = ()
    steps: int | None = None

    @property
    def made(self) -> int:
        """How many tokens took time to make."""
        return len(self.tokens) if self.steps is None else self.steps


@dataclass(frozen=True)
class ScoredToken:
    """A token and its natural-log probability under the backbone.

    logprob: None for the first token of a prompt, which nothing precedes.
    top: the likeliest tokens of its place, best first, as many as were asked for.
    """

    token: int
    logprob: float | None
    top: tuple[ScoredToken, ...] = ()


@dataclass(frozen=True)
class TokenEvent:
    """One committed token, in order.

    text: the piece that became complete with it; it may be empty inside a multi-byte character.
    drafted: True where the token was drafted and accepted, False where the target chose it.
    pass_index: the verify pass that committed it; 0 is the prefill, which commits the first token.
    logprob: natural-log probability under the backbone, None unless asked for.
    top: the likeliest tokens of its place, best first, as many as were asked for.
    """

    token: int
    text: str
    drafted: bool
    pass_index: int
    logprob: float | None = None
    top: tuple[ScoredToken, ...] = ()


@dataclass
class SourceCounts:
    """Of one source of drafts: verified drafts that were not empty, and their tokens."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0


CONFIDENCE_BINS = 10


@dataclass
class Reliability:
    """How often drafted tokens were accepted, by how sure their drafter was of each.

    tested / accepted / promised: tokens that were compared, those that were accepted, and the sum
    of the confidences, of each tenth of the range from 0 to 1.
    """

    tested: list[int] = field(default_factory=lambda: [0] * CONFIDENCE_BINS)
    accepted: list[int] = field(default_factory=lambda: [0] * CONFIDENCE_BINS)
    promised: list[float] = field(default_factory=lambda: [0.0] * CONFIDENCE_BINS)

    def add(self, confidence: float, accepted: bool) -> None:
        """Take one token."""
        place = min(int(confidence * CONFIDENCE_BINS), CONFIDENCE_BINS - 1)
        self.tested[place] += 1
        self.accepted[place] += accepted
        self.promised[place] += confidence

    def join(self, other: Reliability) -> None:
        """Add what another one counted."""
        for place in range(CONFIDENCE_BINS):
            self.tested[place] += other.tested[place]
            self.accepted[place] += other.accepted[place]
            self.promised[place] += other.promised[place]

    @property
    def error(self) -> float | None:
        """Expected calibration error: |acceptance - mean confidence|, weighed by tokens.

        Guo et al., On Calibration of Modern Neural Networks, arXiv 1706.04599, equation 3.
        """
        gaps = [abs(a - p) for a, p in zip(self.accepted, self.promised)]  # noqa: B905
        return sum(gaps) / sum(self.tested) if any(self.tested) else None


@dataclass
class DecodeStats:
    """Counts of one or many requests. Ratios are computed from pooled counts, once, at the end.

    passes: verify passes, prefill excluded.  drafted / accepted: draft tokens proposed to the
    target / kept by it and committed.  committed: tokens committed by verify passes (the prefill's
    first token excluded), after cutting at a stop.  cut: next tokens thrown away because a drafted
    token before them ended the request, so that committed == passes + accepted - cut.
    dropped: draft tokens thrown away before verification (not finite, out of vocabulary, no room).
    rested: passes while nothing was drafted because drafting did not pay.
    cached_tokens: prompt tokens whose keys and values an earlier request had left.
    drafted_at / tested_at / accepted_at[i]: of draft step i (0-based); step i is tested where all
    steps before it were accepted and the answer had not ended.
    sources: counts by who made the draft, where the drafter chooses between several.
    reliability: of the confidences, where drafts have them.
    """

    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    committed: int = 0
    dropped: int = 0
    cut: int = 0
    rested: int = 0
    cached_tokens: int = 0
    drafted_at: list[int] = field(default_factory=list)
    tested_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    sources: dict[str, SourceCounts] = field(default_factory=dict)
    reliability: Reliability = field(default_factory=Reliability)
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
