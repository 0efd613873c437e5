"""A position in a mapped GGUF file that is checked before each step."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from drafthead.errors import GgufError

MAX_STRING_BYTES = 1 << 24
MAX_HEADER_BYTES = 1 << 26  # everything before the tensor data
# Elements of all arrays of a file together; the largest vocabularies have 0.7 million strings
# (tokens and merges) and 0.6 million numbers (scores and types).
MAX_ELEMENTS = {"array strings": 1 << 20, "array numbers": 1 << 22}

UINT32, BOOL, STRING, ARRAY, UINT64 = 4, 7, 8, 9, 10
_CODES = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", UINT32: "<I", 5: "<i", 6: "<f", BOOL: "<B", UINT64: "<Q",
    11: "<q", 12: "<d",
}  # fmt: skip
SCALARS = {kind: struct.Struct(code) for kind, code in _CODES.items()}
DTYPES = {kind: np.dtype(code) for kind, code in _CODES.items()}
_LENGTH = struct.Struct("<Q")


class Cursor:
    """A position in the mapped file that never moves past its end.

    section says where the position is, for the messages.
    """

    def __init__(self, path: Path, mapped: memoryview) -> None:
        self.path = path
        self.bytes = mapped
        self.limit = min(len(mapped), MAX_HEADER_BYTES)
        self.elements = dict.fromkeys(MAX_ELEMENTS, 0)
        self.position = 0
        self.section = "header"

    def fail(self, problem: str) -> NoReturn:
        """Raise a GgufError that says where the position is."""
        raise GgufError(f"{self.path}: {self.section}: {problem}.")

    def need(self, nbytes: int) -> None:
        """Fail unless nbytes more bytes are there."""
        left = self.limit - self.position
        if nbytes <= left:
            return
        if self.limit < len(self.bytes):
            self.fail(
                f"the part before the tensor data exceeds its cap of {MAX_HEADER_BYTES} bytes"
            )
        self.fail(
            f"truncated, {nbytes} bytes expected at offset {self.position} and {left} found; "
            "download the file again"
        )

    def number(self, kind: int) -> int | float:
        """Read a scalar of a metadata value type; a boolean comes as its byte."""
        scalar = SCALARS[kind]
        self.need(scalar.size)
        value: int | float = scalar.unpack_from(self.bytes, self.position)[0]
        self.position += scalar.size
        return value

    def u32(self) -> int:
        """Read a uint32."""
        return int(self.number(UINT32))

    def u64(self) -> int:
        """Read a uint64."""
        return int(self.number(UINT64))

    def count(self, what: str, cap: int, least_bytes: int) -> int:
        """Read how many things follow, each of them at least least_bytes long."""
        count = self.u64()
        if count > cap:
            self.fail(f"{count} {what} exceed the cap of {cap}")
        self.need(count * least_bytes)
        return count

    def array_count(self, what: str, least_bytes: int) -> int:
        """Read how many elements an array has; the caps are for all arrays of a file together."""
        count = self.count(what, 1 << 64, least_bytes)
        self.elements[what] += count
        if self.elements[what] > MAX_ELEMENTS[what]:
            self.fail(f"{self.elements[what]} {what} exceed the cap of {MAX_ELEMENTS[what]}")
        return count

    def string(self, what: str, cap: int) -> str:
        """Read a length and as many bytes of UTF-8, at most cap."""
        length = self.u64()
        if length > cap:
            self.fail(f"a {what} of {length} bytes exceeds the cap of {cap}")
        self.need(length)
        start = self.position
        self.position += length
        try:
            return str(self.bytes[start : self.position], "utf-8")
        except UnicodeDecodeError:
            self.fail(f"the {what} at offset {start} is not valid UTF-8")

    def numbers(self, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        """Read an array of numbers; a copy, so that it stays when the file changes."""
        count = self.array_count("array numbers", dtype.itemsize)
        values: NDArray[np.generic]
        values = np.frombuffer(self.bytes, dtype, count, self.position).copy()
        values.flags.writeable = False
        self.position += values.nbytes
        return values

    def strings(self) -> list[str]:
        """Read an array of strings; 100,000 of a vocabulary take about 40 ms."""
        count = self.array_count("array strings", _LENGTH.size)
        data, limit, unpack = self.bytes, self.limit, _LENGTH.unpack_from
        position = self.position
        strings = []
        try:
            for _ in range(count):
                start = position + 8
                end = start + unpack(data, position)[0]
                if end > limit:
                    break
                strings.append(str(data[start:end], "utf-8"))
                position = end
        except UnicodeDecodeError:
            self.fail(f"string {len(strings)} of the array is not valid UTF-8")
        except struct.error:
            pass  # the length itself is cut off: told below
        self.position = position
        if len(strings) < count:
            self.string("string", MAX_STRING_BYTES)  # fails, and says why
            self.fail(f"string {len(strings)} of the array cannot be read")
        return strings
