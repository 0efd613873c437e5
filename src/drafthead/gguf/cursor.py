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

UINT32, BOOL, STRING, ARRAY, UINT64 = 4, 7, 8, 9, 10
DTYPES = {
    kind: np.dtype(code)
    for kind, code in {
        0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", UINT32: "<u4", 5: "<i4",
        6: "<f4", BOOL: "<u1", UINT64: "<u8", 11: "<i8", 12: "<f8",
    }.items()
}  # fmt: skip
_LENGTH = struct.Struct("<Q")


class Cursor:
    """A position in the mapped file that never moves past its end.

    section says where the position is, for the messages.
    """

    def __init__(self, path: Path, mapped: NDArray[np.uint8]) -> None:
        self.path = path
        self.bytes = mapped.data
        self.limit = min(mapped.size, MAX_HEADER_BYTES)
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
        dtype = DTYPES[kind]
        self.need(dtype.itemsize)
        start = self.position
        self.position += dtype.itemsize
        value: int | float = np.frombuffer(self.bytes, dtype, 1, start)[0].item()
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

    def strings(self, count: int) -> list[str]:
        """Read count strings; 100,000 of a vocabulary take about 40 ms."""
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
