"""A mutator that knows the format: it takes a file apart, damages some parts, and joins them.

What cannot be taken apart is damaged as bytes. Everything follows from the given generator.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.corpus import HUGE, METADATA, TENSORS
from tests.unit import gguf_bytes as made

NUMBERS = (0, 1, 2, 3, 31, 32, 33, 255, 256, 257, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 33)
NUMBERS += (1 << 62, 1 << 63, HUGE - 1, HUGE)
TEXTS = (
    "", "a", "a b", "ab", "\0", "\n" * 99, "\ud7ff\ue000😀", "x" * 2000, "<|im_end|>", "llama",
    "gpt2", "{{ messages }}", "{% for m in messages %}", "{{ m.content * 99999999 }}",
    "{% endfor %}", "{{ raise_exception('no') }}", "{% set x = x ~ x %}", "{{ ''.__class__ }}",
    "{{ [[[[[] + 1 }}",
)  # fmt: skip
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


@dataclass
class Parts:
    """A file in parts: entries (key, type, payload) and tensors (name, shape, type, offset)."""

    entries: list[tuple[bytes, int, bytes]]
    tensors: list[tuple[bytes, tuple[int, ...], int, int]]
    data: bytes
    extra_entries: int = 0
    extra_tensors: int = 0

    def join(self) -> bytes:
        """The file; its counts are right unless they were damaged."""
        counts = len(self.tensors) + self.extra_tensors, len(self.entries) + self.extra_entries
        front = made.header(*(count % (HUGE + 1) for count in counts))
        front += b"".join(made.entry(*entry) for entry in self.entries)
        front += b"".join(made.tensor(*tensor) for tensor in self.tensors)
        return made.padded(front) + self.data


def take_apart(raw: bytes) -> Parts | None:
    """The parts of a file with a sound table; None for any other."""
    at = 24

    def number(code: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(code, raw, at)
        at += struct.calcsize(code)
        return int(value)

    def text() -> bytes:
        nonlocal at
        size = number("<Q")
        if size > len(raw):
            raise struct.error
        at += size
        return raw[at - size : at]

    def payload(kind: int) -> None:
        nonlocal at
        if kind == made.STRING:
            text()
        elif kind == made.ARRAY:
            element, count = number("<I"), number("<Q")
            if count > len(raw) or element == made.ARRAY:
                raise struct.error
            for _ in range(count):
                payload(element)
        else:
            at += SIZES.get(kind, 0)

    try:
        n_tensors, n_entries = struct.unpack_from("<QQ", raw, 8)
        if max(n_tensors, n_entries) > len(raw):
            return None
        entries, tensors = [], []
        for _ in range(n_entries):
            key, kind, start = text(), number("<I"), at
            payload(kind)
            entries.append((key, kind, raw[start:at]))
        for _ in range(n_tensors):
            name, n_dims = text(), number("<I")
            shape = tuple(number("<Q") for _ in range(min(n_dims, 5)))
            tensors.append((name, shape, number("<I"), number("<Q")))
    except struct.error:
        return None
    return Parts(entries, tensors, raw[-(-at // made.ALIGNMENT) * made.ALIGNMENT :])


def random_value(rng: random.Random) -> tuple[int, bytes]:
    """A metadata value of any type, often at a limit."""
    kind = rng.choice((*SIZES, made.STRING, made.ARRAY, made.ARRAY))
    if kind == made.STRING:
        return kind, made.text(rng.choice(TEXTS).encode("utf-8", "surrogatepass"))
    if kind == made.ARRAY and rng.random() < 0.5:
        strings = [rng.choice(TEXTS) for _ in range(rng.randrange(20))]
        return kind, made.value(strings)[1]
    if kind == made.ARRAY:
        element, count = rng.choice(tuple(SIZES)), rng.randrange(20)
        return kind, made.u32(element) + made.u64(count) + rng.randbytes(SIZES[element] * count)
    if rng.random() < 0.3:
        return kind, rng.randbytes(SIZES[kind])
    return kind, made.u64(rng.choice(NUMBERS))[: SIZES[kind]]


def _change_entry(parts: Parts, rng: random.Random) -> None:
    index = rng.randrange(len(parts.entries))
    key, kind, payload = parts.entries[index]
    choice = rng.randrange(5)
    if choice == 0:
        del parts.entries[index]
    elif choice == 1:
        parts.entries[index] = (rng.choice(tuple(METADATA)).encode(), kind, payload)
    elif choice == 2:
        parts.entries[index] = (key, kind, damaged(payload, rng))
    else:
        parts.entries[index] = (key, *random_value(rng))


def _change_tensor(parts: Parts, rng: random.Random) -> None:
    index = rng.randrange(len(parts.tensors))
    name, shape, kind, offset = parts.tensors[index]
    choice = rng.randrange(5)
    if choice == 0:
        del parts.tensors[index]
    elif choice == 1:
        name = rng.choice(tuple(TENSORS)).encode()
    elif choice == 2:
        kind = rng.randrange(45)
    elif choice == 3:
        offset = rng.choice((*NUMBERS, 32 * rng.randrange(300)))
    else:
        size = rng.choice(NUMBERS)
        shape = (*shape[:-1], size) if rng.random() < 0.5 else (*shape, size)
    if choice:
        parts.tensors[index] = (name, shape, kind, offset)


def _repeat_part(parts: Parts, rng: random.Random) -> None:
    some: list[object] = rng.choice((parts.entries, parts.tensors))  # type: ignore[assignment]
    some.insert(rng.randrange(len(some) + 1), rng.choice(some))


def _change_counts(parts: Parts, rng: random.Random) -> None:
    wrong = rng.choice((-1, 1, 2, *NUMBERS))
    if rng.random() < 0.5:
        parts.extra_entries = wrong
    else:
        parts.extra_tensors = wrong


def _change_data(parts: Parts, rng: random.Random) -> None:
    if rng.random() < 0.5:
        parts.data = parts.data[: rng.randrange(len(parts.data) + 1)]
    else:
        size = rng.randrange(2 * len(TENSORS) * 640)
        parts.data = (rng.choice((b"\xff", b"\x00", rng.randbytes(64))) * size)[:size]


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """Bytes with a few flipped, overwritten, cut out, put in or cut off."""
    found = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(found) + 1)
        choice = rng.randrange(5)
        if choice == 0:
            found[at : at + 8] = made.u64(rng.choice(NUMBERS))
        elif choice == 1:
            del found[at : at + rng.randrange(1, 32)]
        elif choice == 2:
            found[at:at] = rng.choice(TEXTS).encode("utf-8", "surrogatepass")
        elif choice == 3:
            del found[at:]
        elif at < len(found):
            found[at] ^= 1 << rng.randrange(8)
    return bytes(found)


_CHANGES: tuple[Callable[[Parts, random.Random], None], ...] = (
    _change_entry, _change_entry, _change_tensor, _change_tensor, _repeat_part, _change_counts,
    _change_data,
)  # fmt: skip


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """Another file made from this one."""
    parts = take_apart(raw)
    if parts is None or rng.random() < 0.2:
        return damaged(raw, rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if parts.entries and parts.tensors:
            rng.choice(_CHANGES)(parts, rng)
    return parts.join()
