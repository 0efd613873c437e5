"""How long a draft is, pass by pass: what is expected to give the most tokens a second.

A draft token is worth the probability P that it and all before it are accepted, the product of the
drafter's calibrated confidences. It costs the row that verifies it, and its making. In the long run
decoding gives R tokens a ms, so a token stays in the draft while

    P >= R x (time of a pass with its row - time without)

and the next one is made while it can be expected to: P x (usual acceptance) >= R x (its row and
its draft step). This is the rule of the best rate of rewards (the marginal value theorem: Charnov,
Theoretical Population Biology 9, 1976). The times are those of the passes and drafts just seen, of
this machine as busy as it is now. What is said of a draft changes time, never the text.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from operator import mul
from typing import Protocol

from drafthead.decoding.gain import GainSwitch
from drafthead.drafters.base import Certain, Drafter, Floors, Steered
from drafthead.drafters.pass_cost import PassCost
from drafthead.types import Draft

# Steps whose floors are told apart; the last counts for all behind. Blind drafts are no longer.
STEPS = 8
# R is forgotten by this factor a pass, and starts as if so many one-row passes had given this.
KEPT = 0.98
PRIOR_PASSES, PRIOR_RATE = 8.0, 1.5
# Of a drafter that names no confidence: each step starts as if so many of its tokens had been
# tested, with the share accepted of the step before; the first with this one.
BLIND_TOKENS, BLIND_SHARE = 2.0, 0.6
# Confidences are believed as if so many tokens had come out as they promise.
BELIEF_TOKENS = 24.0
# A draft goes on as if its next token were accepted this often.
USUAL = 0.9
# The time of a plain pass is taken anew after so many passes that all had drafts.
PLAIN_EVERY = 96
FLOORS_EVERY = 4
TRIAL_DRAFT = 1
# A head that hardly ever is right after so many drafts is not of this backbone.
WRONG_DRAFTS, WRONG_SHARE = 200, 0.02


class Policy(Protocol):
    """Asks a drafter, or does not, and learns from what came of it."""

    @property
    def resting(self) -> bool:
        """Whether nothing is drafted for now."""

    @property
    def reason(self) -> str | None:
        """Why not."""

    @property
    def warning(self) -> str | None:
        """What a user should know of the drafter."""

    def begin(self, drafter: Drafter) -> None:
        """A request starts."""

    def propose(self, drafter: Drafter, room: int) -> Draft:
        """The draft to verify, at most `room` (>= 1) tokens."""

    def learn(self, draft: Draft, accepted: int, draft_ms: float, pass_ms: float) -> None:
        """A pass has been made.

        Args:
            draft: as it was verified.
            accepted: how many of its tokens the target accepted.
            draft_ms: time of the draft.
            pass_ms: time of the pass.
        """


class AsDrafted:
    """Whatever the drafter proposes: a fixed length, or its own threshold."""

    resting = False
    reason: str | None = None
    warning: str | None = None

    def begin(self, drafter: Drafter) -> None:
        """The drafter ends drafts itself."""
        if isinstance(drafter, Steered):
            drafter.floors = None

    def propose(self, drafter: Drafter, room: int) -> Draft:
        """All of it."""
        return drafter.propose(room)

    def learn(self, draft: Draft, accepted: int, draft_ms: float, pass_ms: float) -> None:
        """Nothing to learn."""


class Adaptive:
    """The length with the best expected speed; none at all where drafting does not pay.

    What it knows of times stays from request to request, what it knows of gains does not.
    """

    def __init__(self) -> None:
        self.cost = PassCost()
        self.switch = GainSwitch()
        self.drafts = self.drafted = self.accepted = 0
        self._asked = self._certain = False
        self._tokens = self._ms = 0.0
        self._since_plain = PLAIN_EVERY
        self._begin_request()

    def _begin_request(self, drafter: Drafter | None = None) -> None:
        # What it can do is asked once: of a protocol that takes 10 us.
        self._sure = drafter if isinstance(drafter, Certain) else None
        self._steered = drafter if isinstance(drafter, Steered) else None
        self._promised = self._kept = BELIEF_TOKENS
        self._tested = [0] * STEPS
        self._right = [0] * STEPS
        self._floors: Floors | None = None
        self._floors_left = 0

    def begin(self, drafter: Drafter) -> None:
        """A request starts: drafting is on."""
        self.switch.begin()
        self._begin_request(drafter)

    def propose(self, drafter: Drafter, room: int) -> Draft:
        """The draft that pays, perhaps none; what is certain always does."""
        self._asked = self._certain = False
        if self._sure is not None:
            draft = self._sure.certain(room)
            self._certain = bool(draft.tokens)
            if self._certain:
                return draft
        if not self.switch.on:
            return Draft()
        if self._since_plain >= PLAIN_EVERY:  # what a plain pass takes has to be known
            return Draft()
        self._asked = True
        room = min(room, TRIAL_DRAFT) if self.switch.trying else room
        if self._steered is not None:
            self._steered.floors = self.floors()
            return drafter.propose(room)
        return drafter.propose(min(room, self._blind_length()))

    def learn(self, draft: Draft, accepted: int, draft_ms: float, pass_ms: float) -> None:
        """Take times and counts."""
        rows, committed = len(draft.tokens) + 1, accepted + 1
        self.cost.add_pass(rows, pass_ms)
        self._since_plain = 0 if rows == 1 else self._since_plain + 1
        if self._certain:  # gained with any drafter, so it says nothing of this one
            return
        plain_ms, spent_ms = self.cost.pace_ms, self.cost.pass_ms(rows)
        if self._asked:
            self.cost.add_draft(draft.made, draft_ms)
            spent_ms += self.cost.step_ms * draft.made
            self._count(draft, accepted)
            self.switch.drafted_pass(committed, spent_ms / plain_ms)
        elif not self.switch.on:
            self.switch.plain_pass()
        if not self._ms:
            self._tokens, self._ms = PRIOR_PASSES * PRIOR_RATE, PRIOR_PASSES * plain_ms
        self._tokens = KEPT * self._tokens + committed
        self._ms = KEPT * self._ms + spent_ms

    def _count(self, draft: Draft, accepted: int) -> None:
        self.drafts += bool(draft.tokens)
        self.drafted += len(draft.tokens)
        self.accepted += accepted
        tested = min(accepted + 1, len(draft.tokens))
        for step in range(min(tested, STEPS)):
            self._tested[step] += 1
            self._right[step] += step < accepted
        self._promised += sum(accumulate(draft.confidences, mul))
        self._kept += accepted if draft.confidences else 0

    @property
    def rate(self) -> float:
        """Tokens a ms, lately."""
        return self._tokens / self._ms if self._ms else 0.0

    def floors(self) -> Floors | None:
        """Where drafts end, as products of confidences; None before times are known."""
        if self._floors_left == 0 and self.rate:
            self._floors = self._new_floors()
            self._floors_left = FLOORS_EVERY
        self._floors_left = max(0, self._floors_left - 1)
        return self._floors

    def _new_floors(self) -> Floors:
        per_token = self.rate * self._promised / self._kept
        passes_ms = [self.cost.pass_ms(rows) for rows in range(1, STEPS + 3)]
        row_ms = [longer - ms for ms, longer in pairwise(passes_ms)]
        keep = [per_token * ms for ms in row_ms]
        go_on = [
            max(least, per_token * (self.cost.step_ms + ms) / USUAL)
            for least, ms in zip(keep, row_ms[1:])  # noqa: B905
        ]
        return Floors(tuple(go_on), tuple(keep))

    def _blind_length(self) -> int:
        """The length with the best expected commit over its time."""
        if not self.rate:
            return STEPS
        best, best_value, likely, commit, share = 1, -1.0, 1.0, 1.0, BLIND_SHARE
        for count, (right, tested) in enumerate(zip(self._right, self._tested, strict=True), 1):
            share = (BLIND_TOKENS * share + right) / (BLIND_TOKENS + tested)
            likely *= share
            commit += likely
            value = commit - self.rate * (self.cost.pass_ms(count + 1) + self.cost.step_ms * count)
            if count == 1 or value > best_value:
                best, best_value = count, value
        return best

    @property
    def resting(self) -> bool:
        """Whether drafting does not pay now."""
        return not self.switch.on

    @property
    def reason(self) -> str | None:
        """Why drafting rests now; None where it does not."""
        if self.switch.on:
            return None
        return (
            f"drafting rests: its passes gave {self.switch.gain:.2f} times what plain ones give "
            "in the same time"
        )

    @property
    def warning(self) -> str | None:
        """What a user should know of a drafter that is hardly ever right."""
        if self.drafts < WRONG_DRAFTS or self.accepted >= WRONG_SHARE * self.drafted:
            return None
        return (
            f"Only {self.accepted} of {self.drafted} drafted tokens were accepted: the head may be "
            "of another backbone; see `drafthead selftest`, or decode with --drafter none."
        )
