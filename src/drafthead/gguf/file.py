"""A validated GGUF file in memory: typed metadata, the tensor table, and the mapped bytes.

A file that is made shorter while it is mapped kills the process that reads past its new end, so
its size is looked at again before each tensor is read. Downloads replace a file and never write
into it; a program that does so in the moment of reading is not guarded against.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from drafthead.errors import GgufError

SHOWN_CHARACTERS = 80


def quoted(value: object) -> str:
    """Return a value from a file as a short printable text, safe in an error message."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} {value.dtype.name} values"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"an array of {len(value)} strings"
    # Cut before repr too: the string may have megabytes.
    text = repr(value[: SHOWN_CHARACTERS + 1] if isinstance(value, str) else value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


class TensorInfo(NamedTuple):
    """Where a tensor lies.

    shape is in ggml order, columns first; offset counts bytes from the start of the file.
    """

    name: str
    ggml_type: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class GgufFile:
    """One file, mapped once.

    metadata holds str, int, float, bool, lists of str and numpy arrays; the getters check the type
    and raise a GgufError that names the key, what was expected and what was found. A getter with a
    default returns it where the key is absent.
    """

    path: Path
    version: int
    metadata: dict[str, object]
    tensors: dict[str, TensorInfo]
    mapped: mmap.mmap = field(repr=False)

    def data(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor as a read-only view of the map, shape (nbytes,).

        Raises:
            GgufError: the file has become shorter since it was opened.
        """
        if self.mapped.size() < len(self.mapped):
            raise GgufError(
                f"{self.path} shrank from {len(self.mapped)} to {self.mapped.size()} bytes while "
                "it was open; download it again."
            )
        tensor = self.tensors[name]
        return np.frombuffer(self.mapped, np.uint8, tensor.nbytes, tensor.offset)

    def release(self) -> None:
        """Give every page of the map back; whoever reads one again gets it from the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)

    def fingerprint(self) -> str:
        """Return the SHA-256 (hex) of the tensors: names, types, shapes and all their bytes.

        Metadata such as the chat template is not part of it. Reads the whole file.
        """
        names = sorted(self.tensors)
        table = [[t.name, t.ggml_type, t.shape] for t in (self.tensors[name] for name in names)]
        digest = hashlib.sha256(json.dumps(table).encode())
        for name in names:
            digest.update(self.data(name).data)
        return digest.hexdigest()

    def tokenizer_fingerprint(self) -> str:
        """Return the SHA-256 (hex) of every tokenizer.ggml key: vocabulary, merges, special ids."""
        items = sorted(i for i in self.metadata.items() if i[0].startswith("tokenizer.ggml."))
        digest = hashlib.sha256(b"[")  # of a JSON list, one element after the other: they are long
        for number, (key, value) in enumerate(items):
            plain = value.tolist() if isinstance(value, np.ndarray) else value
            digest.update((", " if number else "").encode() + json.dumps([key, plain]).encode())
        digest.update(b"]")
        return digest.hexdigest()

    def string(self, key: str, default: str | None = None) -> str:
        """Return a string value."""
        value = self._get(key, default)
        return value if isinstance(value, str) else self._wrong(key, "a string", value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """Return a boolean value."""
        value = self._get(key, default)
        return value if isinstance(value, bool) else self._wrong(key, "a boolean", value)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer value in low..high."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self._wrong(key, f"an integer from {low} to {high}", value)
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """Return a float value in low..high."""
        value = self._get(key, default)
        if not isinstance(value, float) or not low <= value <= high:  # a NaN is in no range
            self._wrong(key, f"a float from {low:g} to {high:g}", value)
        return value

    def strings(self, key: str) -> list[str]:
        """Return an array of strings."""
        value = self._get(key, None)
        return value if isinstance(value, list) else self._wrong(key, "an array of strings", value)

    def integers(self, key: str) -> list[int]:
        """Return an array of integers."""
        value = self._get(key, None)
        if not isinstance(value, np.ndarray) or not np.issubdtype(value.dtype, np.integer):
            self._wrong(key, "an array of integers", value)
        elements: list[int] = value.tolist()
        return elements

    def _get(self, key: str, default: object) -> object:
        value = self.metadata.get(key, default)
        if value is None:
            raise GgufError(f"{self.path}: the metadata key {key} is missing.")
        return value

    def _wrong(self, key: str, expected: str, value: object) -> NoReturn:
        raise GgufError(f"{self.path}: {key} must be {expected}, found {_described(value)}.")


def _described(value: object) -> str:
    scalar = isinstance(value, str | int | float)
    return f"the {type(value).__name__} {quoted(value)}" if scalar else quoted(value)
