"""Does this machine give the same bits whatever shares a pass? The numerics contract, checked.

The reference is the backbone fed one row a pass. Everything else (more rows, other prompt chunks,
threads, instruction sets, rollbacks, strangers in the pass) must give the same hidden states and
logits, compared as raw 32-bit words.

R is rows, D the hidden size, V the vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from drafthead import _native
from drafthead.backbone.handle import Backbone, KvCache, Segment
from drafthead.drafters.base import NoDrafter
from drafthead.drafters.rehearsed import RehearsedDrafter
from drafthead.errors import RequestError
from drafthead.session import Session

ROWS = range(1, 18)
CHUNKS = (1, 2, 7, 32, 512)
THREADS = (1, 2, 4)
SHORT_TOKENS = 40
DRAFT_STEPS = 8

Bits = NDArray[np.uint32]


@dataclass(frozen=True)
class Sizes:
    """How much is computed: long prompt, rows for each instruction set, decoded tokens.

    rejected_tokens: length of the answer whose drafts are rejected on purpose; it starts close to
    the end of the window where layers have one, and so crosses it.
    """

    long_tokens: int
    isa_rows: int
    decoded_tokens: int
    rejected_tokens: int


FULL = Sizes(long_tokens=544, isa_rows=24, decoded_tokens=64, rejected_tokens=480)
QUICK = Sizes(long_tokens=96, isa_rows=8, decoded_tokens=32, rejected_tokens=32)
WINDOW_MARGIN = 112


@dataclass
class Check:
    """One law: how many buffers were compared, and how many differed."""

    name: str
    cases: int = 0
    mismatches: int = 0

    def compare(self, expected: Iterable[Bits], found: Iterable[Bits]) -> None:
        """Compare buffers pairwise; a missing one differs too."""
        for want, got in zip(expected, found, strict=True):
            self.cases += 1
            self.mismatches += not (want.shape == got.shape and bool((want == got).all()))


def bits(values: NDArray[np.float32] | NDArray[np.int32] | None) -> Bits:
    """The raw words of an array."""
    assert values is not None
    return np.ascontiguousarray(values).view(np.uint32)


def feed(
    backbone: Backbone, cache: KvCache, tokens: Sequence[int], sizes: Iterable[int]
) -> list[Bits]:
    """Feed tokens in passes of the given sizes; for each token its row [hidden, logits]."""
    rows: list[Bits] = []
    start = 0
    for size in sizes:
        chunk = tokens[start : start + size]
        rows += rows_of(backbone, [Segment(cache, chunk)])
        start += size
    return rows


def rows_of(backbone: Backbone, segments: Sequence[Segment]) -> list[Bits]:
    """One pass: for each of its rows the words of hidden state and logits, shape (D + V,)."""
    done = backbone.forward(segments, rows="all", want="logits")
    return list(np.concatenate([bits(done.hidden), bits(done.logits)], axis=1))


def hidden_rows(
    backbone: Backbone, cache: KvCache, tokens: Sequence[int], chunk: int
) -> list[Bits]:
    """Feed tokens in chunks; for each token the words of its hidden state, shape (D,)."""
    rows: list[Bits] = []
    for start in range(0, len(tokens), chunk):
        segment = Segment(cache, tokens[start : start + chunk])
        rows += list(bits(backbone.forward([segment], rows="all", want="hidden").hidden))
    return rows


def cut_sizes(total: int, sizes: Sequence[int]) -> list[int]:
    """Pass sizes taken in turn from `sizes` until they add up to `total`."""
    cut: list[int] = []
    while sum(cut) < total:
        cut.append(min(sizes[len(cut) % len(sizes)], total - sum(cut)))
    return cut


@contextmanager
def instruction_set(name: str) -> Iterator[None]:
    """Compute with another instruction set for a while."""
    before = _native.active_isa()
    _native.set_isa(name)
    try:
        yield
    finally:
        _native.set_isa(before)


class SelfTest:
    """All checks of one session. References are computed once, in the constructor."""

    def __init__(self, session: Session, sizes: Sizes) -> None:
        self.session = session
        self.backbone = session.backbone
        self.sizes = sizes
        random = Random(0)
        vocabulary = self.backbone.spec.vocab_size
        self.short = [random.randrange(vocabulary) for _ in range(SHORT_TOKENS)]
        self.long = [random.randrange(vocabulary) for _ in range(sizes.long_tokens)]
        self.short_rows = feed(self.backbone, self.cache(), self.short, [1] * SHORT_TOKENS)
        self.long_rows = hidden_rows(self.backbone, self.cache(), self.long, 1)

    def cache(self, backbone: Backbone | None = None) -> KvCache:
        """A fresh cache that holds the long prompt and then some."""
        return (backbone or self.backbone).new_cache(self.sizes.long_tokens + SHORT_TOKENS)

    def rows(self, check: Check) -> None:
        """A pass of M rows gives each row the bits of a one-row pass, M in 1..17."""
        cache, start = self.cache(), SHORT_TOKENS - ROWS[-1]
        feed(self.backbone, cache, self.short[:start], [start])
        long_cache, long_start = self.cache(), len(self.long) - ROWS[-1]
        hidden_rows(self.backbone, long_cache, self.long[:long_start], 512)
        for count in ROWS:
            found = feed(self.backbone, cache, self.short[start : start + count], [count])
            check.compare(self.short_rows[start : start + count], found)
            cache.rollback(start)
            chunk = self.long[long_start : long_start + count]
            found = hidden_rows(self.backbone, long_cache, chunk, count)
            check.compare(self.long_rows[long_start : long_start + count], found)
            long_cache.rollback(long_start)

    def chunks(self, check: Check) -> None:
        """However a prompt is cut into passes, its rows are the same."""
        for chunk in CHUNKS:
            sizes = cut_sizes(SHORT_TOKENS, [chunk])
            check.compare(self.short_rows, feed(self.backbone, self.cache(), self.short, sizes))
            if chunk > 1:  # the long reference is this cut already
                found = hidden_rows(self.backbone, self.cache(), self.long, chunk)
                check.compare(self.long_rows, found)

    def rollback(self, check: Check) -> None:
        """After wrong tokens and a rollback the rows are as if the wrong ones had never been."""
        cache, middle = self.cache(), SHORT_TOKENS // 2
        feed(self.backbone, cache, self.short[:middle], [middle])
        for wrong in (1, 4, 9, 17):
            for back in (0, 1, 7):
                feed(self.backbone, cache, self.long[:wrong], [wrong])
                cache.rollback(middle - back)
                count = SHORT_TOKENS - middle + back
                found = feed(self.backbone, cache, self.short[middle - back :], [count])
                check.compare(self.short_rows[middle - back :], found)
                cache.rollback(middle)

    def strangers(self, check: Check) -> None:
        """Sequences that ride along in a pass change nothing, and are not changed."""
        stranger_tokens = self.long[:19]
        alone = feed(self.backbone, self.cache(), stranger_tokens, [1] * len(stranger_tokens))
        for ours in (1, 2, 5, 17):
            for theirs in (1, 3, 8):
                caches = [self.cache() for _ in range(3)]
                start, before = SHORT_TOKENS - ours, len(stranger_tokens) - theirs
                feed(self.backbone, caches[0], stranger_tokens[:before], [before])
                feed(self.backbone, caches[1], self.short[:start], [start])
                together = [
                    Segment(caches[0], stranger_tokens[before:]),
                    Segment(caches[1], self.short[start:]),
                    Segment(caches[2], stranger_tokens[:theirs]),
                ]
                expected = [*alone[before:], *self.short_rows[start:], *alone[:theirs]]
                check.compare(expected, rows_of(self.backbone, together))

    def threads(self, check: Check) -> None:
        """Any number of threads gives the same rows, and the same drafts."""
        drafts = self.drafts(self.backbone)
        for count in THREADS:
            other = Backbone.open(self.backbone.path, count, self.backbone.kv)
            sizes = cut_sizes(SHORT_TOKENS, [1, 2, 4, 17])
            check.compare(self.short_rows, feed(other, self.cache(other), self.short, sizes))
            check.compare(self.long_rows, hidden_rows(other, self.cache(other), self.long, 512))
            check.compare(drafts, self.drafts(other))

    def isas(self, check: Check) -> None:
        """Every instruction set of this machine gives the same rows, and the same drafts."""
        count = self.sizes.isa_rows
        drafts = self.drafts(self.backbone)
        for name in _native.available_isas():
            with instruction_set(name):
                sizes = cut_sizes(count, [1, 2, 5, 17])
                found = feed(self.backbone, self.cache(), self.short[:count], sizes)
                check.compare(self.short_rows[:count], found)
                check.compare(drafts, self.drafts(self.backbone))

    def drafts(self, backbone: Backbone) -> list[Bits]:
        """What the head drafts after two prefixes: tokens and confidences; empty without a head."""
        if self.session.head is None:
            return []
        head = self.session.head.build(backbone)
        cache, found = self.cache(backbone), []
        for start, end in ((0, 3), (3, 8)):
            segment = Segment(cache, self.short[start:end])
            hidden_D = backbone.forward([segment], rows="last", want="hidden").hidden[-1]
            tokens, confidences = head.draft(cache, self.short[end], hidden_D, DRAFT_STEPS, [0.0])
            found += [bits(tokens), bits(confidences)]
        return found

    def rejections(self, check: Check) -> None:
        """Drafts rejected at every row, across the window of windowed layers, change no token."""
        spec, count = self.backbone.spec, self.sizes.rejected_tokens
        window = max(layer.window for layer in spec.layers)
        start = min(max(SHORT_TOKENS, window - WINDOW_MARGIN), spec.context_length - count)
        prompt = [Random(1).randrange(spec.vocab_size) for _ in range(start)]
        how = {"max_tokens": count, "ignore_eos": True}
        plain = self.session.using(NoDrafter()).generate(prompt, **how).tokens  # type: ignore[arg-type]
        drafter = RehearsedDrafter(plain, spec.vocab_size)
        found = self.session.using(drafter).generate(prompt, **how).tokens  # type: ignore[arg-type]
        check.compare([np.array(plain, np.uint32)], [np.array(found, np.uint32)])

    def drafted_tokens(self, check: Check) -> None:
        """Decoding with the session's drafter gives the tokens of plain decoding."""
        plain = self.session.using(NoDrafter())
        for prompt in (self.short[:1], self.short, self.long[:60]):
            how = {"max_tokens": self.sizes.decoded_tokens, "ignore_eos": True}
            want, got = (s.generate(prompt, **how).tokens for s in (plain, self.session))  # type: ignore[arg-type]
            check.compare([np.array(want, np.uint32)], [np.array(got, np.uint32)])


CHECKS = (
    "rows", "chunks", "rollback", "strangers", "threads", "isas", "rejections", "drafted_tokens"
)  # fmt: skip


def run_selftest(
    session: Session,
    quick: bool = False,
    tokens: int | None = None,
    on_check: Callable[[str], None] = lambda name: None,
) -> dict[str, object]:
    """Run every check and return the report of `selftest --json`.

    Args:
        session: a loaded backbone, with or without a head.
        quick: compute less.
        tokens: length of the answer with forced rejections, if not the usual one.
        on_check: told what begins.

    Raises:
        RequestError: the answer would not fit the context.
    """
    context = session.backbone.spec.context_length
    if tokens is not None and tokens >= context:
        raise RequestError(
            f"An answer of {tokens} tokens does not fit the context of {context}: give a smaller "
            "--tokens."
        )
    on_check("reference")
    sizes = QUICK if quick else FULL
    test = SelfTest(session, replace(sizes, rejected_tokens=tokens) if tokens else sizes)
    checks = []
    for name in CHECKS:
        on_check(name)
        check = Check(name)
        getattr(test, name)(check)
        checks.append(check)
    return {
        "exact": all(check.mismatches == 0 for check in checks),
        "isa": _native.active_isa(),
        "threads": session.backbone.threads,
        "checks": [vars(check) for check in checks],
    }
