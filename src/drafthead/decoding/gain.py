"""Whether drafting pays in this request: off where it does not, and tried ever more rarely."""

from __future__ import annotations

# Passes are forgotten by this factor each: some forty of them count.
KEPT = 0.975
# A request starts as if so many passes had gained this: one bad draft proves nothing.
PRIOR_PASSES, PRIOR_GAIN = 8.0, 1.25
# Passes without a draft before the first trial; each trial that fails doubles them.
FIRST_REST, LONGEST_REST = 8, 256
# Passes of a trial. Its drafts are short, so that a failure costs little.
TRIAL_PASSES = 3


class GainSwitch:
    """Compares what passes with drafts gave with what plain ones would have in the same time.

    gain = tokens committed x time of a one-row pass / time taken, of the passes while it was on.
    Below 1 drafting rests; then a few passes try again. A head owns no cache, so nothing has to be
    caught up with.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new request: nothing is known, and drafting is on."""
        self._tokens, self._spent = PRIOR_PASSES * PRIOR_GAIN, PRIOR_PASSES
        self._rest, self._resting = FIRST_REST, 0
        self._trial_passes, self._trial_tokens, self._trial_spent = 0, 0.0, 0.0
        self.on = True

    @property
    def gain(self) -> float:
        """Tokens a plain pass's time."""
        return self._tokens / self._spent

    @property
    def trying(self) -> bool:
        """Whether drafting is on for a trial only."""
        return self._trial_passes > 0

    def plain_pass(self) -> None:
        """A pass without a draft because drafting rests."""
        self._resting -= 1
        if self._resting <= 0:
            self.on, self._trial_passes = True, TRIAL_PASSES
            self._trial_tokens = self._trial_spent = 0.0

    def drafted_pass(self, tokens: int, spent: float) -> None:
        """A pass while drafting was on.

        Args:
            tokens: that it committed.
            spent: the time of draft and pass over that of a one-row pass.
        """
        if self.trying:
            self._trial_tokens += tokens
            self._trial_spent += spent
            self._trial_passes -= 1
            if not self._trial_passes:
                self._end_trial()
            return
        self._tokens = KEPT * self._tokens + tokens
        self._spent = KEPT * self._spent + spent
        if self.gain < 1.0:
            self._stop(FIRST_REST)

    def _end_trial(self) -> None:
        gain = self._trial_tokens / self._trial_spent
        if gain < 1.0:
            self._stop(min(2 * self._rest, LONGEST_REST))
        else:
            self._tokens, self._spent = PRIOR_PASSES * gain, PRIOR_PASSES

    def _stop(self, rest: int) -> None:
        self.on, self._rest, self._resting = False, rest, rest
