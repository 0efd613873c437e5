"""The MTP head as a drafter: it reads the backbone's hidden state and KV cache, and holds neither.

D is the backbone's hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from drafthead._native import KvCache, MtpHead
from drafthead.drafters.base import Floors
from drafthead.heads.config import GROUP, MIN_CONFIDENCE
from drafthead.types import Draft

# One recurrent head drafts any length. A draft token costs its step and one more row to verify,
# about a quarter of a one-row pass, so a draft goes on while it is likely enough to be accepted.
# docs/decisions.md has the thresholds that were compared.
MAX_DRAFT_TOKENS = 6

# A head may draft tokens outside its draft vocabulary that are among this many last ones.
RECENT_TOKENS = 1024


class MtpDrafter:
    """Drafts by a native head, step after step, from the last verified position."""

    name = "mtp"

    def __init__(
        self,
        head: MtpHead,
        max_draft_tokens: int = MAX_DRAFT_TOKENS,
        min_confidence: float = MIN_CONFIDENCE,
        calibration: Sequence[tuple[float, float]] = (),
    ) -> None:
        """Wrap a head.

        Args:
            head: native head of the backbone that verifies.
            max_draft_tokens: longest draft.
            min_confidence: a draft ends before the token with which the product of confidences,
                the head's own guess that all of it is accepted, falls below this; unless `floors`
                are set.
            calibration: of the confidences of each step, a temperature and a shift of their
                log-odds; the last counts for all steps behind, and none leaves them as they are.
        """
        self.head = head
        self.max_draft_tokens = max_draft_tokens
        self.min_confidence = min_confidence
        self.calibration = list(calibration)
        self.floors: Floors | None = None
        self._cache: KvCache | None = None
        self._hidden_D: NDArray[np.float32] = np.zeros(0, np.float32)
        self._last_token = 0
        self._groups: list[int] = []

    def begin(self, tokens: Sequence[int], hidden_D: NDArray[np.float32], cache: KvCache) -> None:
        """Remember the cache to read, and where the answer starts."""
        self._cache = cache
        self._groups = []
        if self.head.prompt_tokens:
            self._groups = np.unique(np.asarray(tokens[-RECENT_TOKENS:]) // GROUP).tolist()
        self._last_token, self._hidden_D = tokens[-1], hidden_D

    def propose(self, max_tokens: int) -> Draft:
        """Draft from the last committed token; a step that is not finite ends the draft."""
        assert self._cache is not None, "propose before begin"
        count = min(max_tokens, self.max_draft_tokens)
        floors = self.floors or Floors.of(self.min_confidence)
        tokens, confidences = self.head.draft(
            self._cache, self._last_token, self._hidden_D, count, floors.go_on, self.calibration,
            self._groups,
        )  # fmt: skip
        # The head stops after the step that brings the product below, and still hands it over.
        steps = kept = len(tokens)
        if steps and not floors.keeps(float(np.cumprod(confidences)[-1]), steps - 1):
            kept -= 1
        if self.head.positions > 1:  # one pass makes all, wanted or not
            steps = min(self.head.positions, count)
        return Draft(tuple(tokens[:kept].tolist()), tuple(confidences[:kept].tolist()), steps=steps)

    def observe(self, tokens: Sequence[int], hidden_D: NDArray[np.float32]) -> None:
        """Move on: nothing to roll back, since the head reads the backbone's own cache."""
        if self.head.prompt_tokens:
            new = {token // GROUP for token in tokens}.difference(self._groups)
            if new:  # seldom: most tokens of an answer have been said before
                self._groups = sorted([*self._groups, *new])
        self._last_token = tokens[-1]
        self._hidden_D = hidden_D
