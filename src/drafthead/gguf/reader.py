"""Read a GGUF file: validate everything, then map it.

Nothing in the file is trusted: each count, length and offset is compared with its cap and with
the bytes that are really there before it is used, so a damaged or hostile file costs one sentence.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3).
"""

from __future__ import annotations

import mmap
import stat
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from drafthead.errors import GgufError, UnsupportedError
from drafthead.gguf.cursor import ARRAY, BOOL, DTYPES, MAX_STRING_BYTES, STRING, Cursor
from drafthead.gguf.file import GgufFile, TensorInfo, quoted
from drafthead.gguf.types import GGML_TYPES

__all__ = ["GgufFile", "TensorInfo", "read_gguf"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ENTRIES = 1 << 14  # metadata entries, and tensors: ten times what the largest models have
MIN_ENTRY_BYTES, MIN_TENSOR_BYTES = 13, 32  # the shortest entries that can exist
MAX_KEY_BYTES = 65_535
MAX_TENSOR_NAME_BYTES = 256
MAX_DIMS = 4
ALIGNMENTS = tuple(1 << power for power in range(3, 17))
DEFAULT_ALIGNMENT = 32


def read_gguf(path: str | Path) -> GgufFile:
    """Validate and map a GGUF file.

    Raises:
        GgufError: the file is missing, empty, of another kind, truncated or inconsistent.
        UnsupportedError: it is sound, but split in parts, big-endian, or of an unknown version or
            tensor type.
    """
    path = Path(path)
    mapped = _map(path)
    cursor = Cursor(path, memoryview(mapped))
    version, n_tensors, n_entries = _read_header(cursor)
    metadata = _read_metadata(cursor, n_entries)
    _refuse_split(path, metadata)
    alignment = _alignment(path, metadata)
    tensors = _read_tensor_table(cursor, n_tensors, alignment)
    _check_data_section(path, tensors, len(mapped))
    return GgufFile(path, version, metadata, {t.name: t for t in tensors}, mapped)


def _map(path: Path) -> mmap.mmap:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            found = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
            raise GgufError(f"{path} is {found}; give the path of a .gguf file.")
        if status.st_size == 0:
            raise GgufError(f"{path} is empty (0 bytes); download it again.")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise GgufError(f"{path} does not exist; give the path of a .gguf file.") from None
    except OSError as error:
        raise GgufError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise GgufError(f"{path} cannot be read: {error}.") from None


def _read_header(cursor: Cursor) -> tuple[int, int, int]:
    start = bytes(cursor.bytes[:64])
    if not start.startswith(MAGIC[: len(start)]):
        raise GgufError(f"{cursor.path} is not a GGUF file: it {_looks_like(start)}.")
    cursor.need(len(MAGIC))
    cursor.position = len(MAGIC)
    version = cursor.u32()
    if version not in VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
            raise UnsupportedError(
                f"{cursor.path} is a big-endian GGUF file; convert it to little-endian first."
            )
        raise UnsupportedError(
            f"{cursor.path} has GGUF version {version}; this version reads 2 and 3: convert the "
            "model again."
        )
    n_tensors = cursor.count("tensors", MAX_ENTRIES, 0)
    n_entries = cursor.count("metadata entries", MAX_ENTRIES, 0)
    cursor.need(n_entries * MIN_ENTRY_BYTES + n_tensors * MIN_TENSOR_BYTES)
    return version, n_tensors, n_entries


def _looks_like(start: bytes) -> str:
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "holds a web page; the link was not a direct download link"
    if text.startswith(b"version https://git-lfs"):
        return "holds a Git LFS pointer; fetch the file itself with git lfs pull"
    if text.startswith((b"pk\x03\x04", b"ggjt", b"tjgg", b"ggml", b"lmgg")):
        return f"starts with {start[:4]!r}, another format; convert the model to GGUF"
    return f"starts with {start[:4]!r} where b'GGUF' is expected"


def _read_metadata(cursor: Cursor, count: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for index in range(count):
        cursor.section = f"metadata entry {index + 1} of {count}"
        key = cursor.string("key", MAX_KEY_BYTES)
        if not key:
            cursor.fail("the key is empty")
        cursor.section += f" ({quoted(key)})"
        if key in metadata:
            cursor.fail("the key is there twice")
        metadata[key] = _read_value(cursor, cursor.u32())
    return metadata


def _read_value(cursor: Cursor, kind: int) -> object:
    if kind == STRING:
        return cursor.string("string", MAX_STRING_BYTES)
    if kind == ARRAY:
        return _read_array(cursor)
    if kind not in DTYPES:
        cursor.fail(f"value type {kind} is unknown (0 to 12 exist)")
    value = cursor.number(kind)
    if kind != BOOL:
        return value
    if value not in (0, 1):
        cursor.fail(f"a boolean is 0 or 1, found {value}")
    return bool(value)


def _read_array(cursor: Cursor) -> list[str] | NDArray[np.generic]:
    kind = cursor.u32()
    if kind == STRING:
        return cursor.strings()
    if kind == ARRAY:
        cursor.fail("arrays of arrays are not supported")
    if kind not in DTYPES:
        cursor.fail(f"array element type {kind} is unknown (0 to 12 exist)")
    values = cursor.numbers(DTYPES[kind])
    if kind != BOOL:
        return values
    if (values.view(np.uint8) > 1).any():
        cursor.fail("a boolean is 0 or 1, found another value")
    return values.view(np.bool_)


def _refuse_split(path: Path, metadata: dict[str, object]) -> None:
    parts = metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        number = metadata.get("split.no")
        which = f"part {number + 1}" if isinstance(number, int) else "one part"
        raise UnsupportedError(
            f"{path} is {which} of a model split in {parts} parts; join them with "
            "llama-gguf-split --merge first."
        )


def _alignment(path: Path, metadata: dict[str, object]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if isinstance(value, int) and value in ALIGNMENTS:
        return value
    raise GgufError(
        f"{path}: general.alignment must be a power of two from {ALIGNMENTS[0]} to "
        f"{ALIGNMENTS[-1]}, found {quoted(value)}."
    )


def _read_tensor_table(cursor: Cursor, count: int, alignment: int) -> list[TensorInfo]:
    """Read the table; offsets become absolute once the table's end is known."""
    tensors: list[TensorInfo] = []
    names: set[str] = set()
    for index in range(count):
        cursor.section = f"tensor table entry {index + 1} of {count}"
        tensor = _read_tensor_info(cursor, alignment)
        if tensor.name in names:
            cursor.fail("the name is there twice")
        names.add(tensor.name)
        tensors.append(tensor)
    data_start = -(-cursor.position // alignment) * alignment
    return [t._replace(offset=data_start + t.offset) for t in tensors]


def _read_tensor_info(cursor: Cursor, alignment: int) -> TensorInfo:
    name = cursor.string("tensor name", MAX_TENSOR_NAME_BYTES)
    if not name:
        cursor.fail("the name is empty")
    cursor.section += f" ({quoted(name)})"
    n_dims = cursor.u32()
    if not 1 <= n_dims <= MAX_DIMS:
        cursor.fail(f"a tensor has 1 to {MAX_DIMS} dimensions, found {n_dims}")
    shape = tuple(cursor.u64() for _ in range(n_dims))
    if 0 in shape:
        cursor.fail(f"a dimension is zero in shape {shape}")
    type_id = cursor.u32()
    if type_id not in GGML_TYPES:
        raise UnsupportedError(
            f"{cursor.path}: tensor {quoted(name)} has ggml type {type_id}, which this version "
            "does not know."
        )
    kind = GGML_TYPES[type_id]
    if shape[0] % kind.block_size:
        cursor.fail(f"{kind.name} rows are multiples of {kind.block_size}, found {shape[0]}")
    nbytes = prod(shape) // kind.block_size * kind.block_bytes
    if nbytes > len(cursor.bytes):
        cursor.fail(
            f"shape {shape} of {kind.name} takes {nbytes} bytes, the whole file has "
            f"{len(cursor.bytes)}; the file is truncated or damaged"
        )
    offset = cursor.u64()
    if offset % alignment:
        cursor.fail(f"offset {offset} is not a multiple of the alignment {alignment}")
    return TensorInfo(name, type_id, shape, offset, nbytes)


def _check_data_section(path: Path, tensors: list[TensorInfo], file_bytes: int) -> None:
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    for first, second in pairwise(ordered):
        if first.offset + first.nbytes > second.offset:
            raise GgufError(
                f"{path}: tensors {quoted(first.name)} and {quoted(second.name)} overlap at byte "
                f"{second.offset}."
            )
    if ordered and ordered[-1].offset + ordered[-1].nbytes > file_bytes:
        last = ordered[-1]
        raise GgufError(
            f"{path}: tensor data: truncated, {quoted(last.name)} ends at byte "
            f"{last.offset + last.nbytes} and the file has {file_bytes}; download the file again."
        )
