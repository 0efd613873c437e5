"""A suffix automaton over a growing text: which ending has been there before, and what followed.

The automaton of a text is the smallest one that reads all its substrings (Blumer et al., The
smallest automaton recognizing the subwords of a text, Theoretical Computer Science 40, 1985). Its
states are classes of substrings that end at the same places, and it grows token by token in
amortised constant time. Drafting from it is that of SAM-Decoding (arXiv 2411.10666).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

ROOT = 0


class Match(NamedTuple):
    """The longest ending of the text that occurs before.

    length: its tokens, 0 where the last token is new.  next: where in the text the token stands
    that followed its latest known occurrence.
    """

    length: int
    next: int


class SuffixAutomaton:
    """Grows with a text; nothing is ever taken back, so it is fed committed tokens only.

    State s stands for the substrings that end exactly where its longest one does, `_length[s]`
    tokens long. `_link[s]` is the state of the longest ending of that one which ends elsewhere too;
    `_next[s]` leads on by token; `_end[s]` is one of its places.

    The state of the whole text ends nowhere but at the text's end, so its link is the longest
    ending with an earlier occurrence: the match is one look-up, whatever its length.
    """

    def __init__(self, text: Iterable[int] = ()) -> None:
        self.text: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [-1]
        self._whole = ROOT
        self.match = Match(0, 0)
        self.extend(text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        place = len(self.text)
        self.text.append(token)
        state, before = self._state({}, self._length[self._whole] + 1, ROOT, place), self._whole
        while before >= 0 and token not in self._next[before]:
            self._next[before][token] = state
            before = self._link[before]
        if before >= 0:
            self._link[state] = self._exactly(before, token)
        self._whole = state
        self.match = self._matched(self._link[state], place)

    def _state(self, follow: dict[int, int], length: int, link: int, end: int) -> int:
        self._next.append(follow)
        self._length.append(length)
        self._link.append(link)
        self._end.append(end)
        return len(self._next) - 1

    def _exactly(self, before: int, token: int) -> int:
        """The state whose longest substring is that of `before` and the token.

        Where that substring shares its state with longer ones, which do not end here, it parts
        from them.
        """
        shared = self._next[before][token]
        length = self._length[before] + 1
        if self._length[shared] == length:
            return shared
        parted = self._state(
            dict(self._next[shared]), length, self._link[shared], self._end[shared]
        )
        while before >= 0 and self._next[before].get(token) == shared:
            self._next[before][token] = parted
            before = self._link[before]
        self._link[shared] = parted
        return parted

    def _matched(self, state: int, place: int) -> Match:
        """The match that ends at `place`, whose state remembers this place for the next time."""
        if state == ROOT:
            return Match(0, 0)
        earlier, self._end[state] = self._end[state], place
        return Match(self._length[state], earlier + 1)

    def following(self, count: int) -> list[int]:
        """What followed the match, `count` tokens; past the end of the text its own copy goes on.

        A text that repeats itself with a short period is thus continued with that period.
        """
        if not self.match.length:
            return []
        start, copied = self.match.next, self.text[self.match.next : self.match.next + count]
        period = len(self.text) - start
        while len(copied) < count:
            copied.append(copied[len(copied) - period])
        return copied
