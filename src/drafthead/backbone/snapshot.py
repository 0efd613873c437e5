"""A cache as a file: safetensors, with what it belongs to as JSON strings in its header.

Tensors: `tokens` (T,) int32; for each layer n `n.keys` and `n.values` (N, H, D) of the cache's own
type, the positions that the layer still holds, in order. A head's state needs no place: drafting
starts from the hidden state of the prompt's last token, which is always fed again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

import drafthead
from drafthead.backbone.cells import Cells, first_position, read_cells, write_cells
from drafthead.backbone.handle import Backbone, KvCache
from drafthead.errors import CapacityError, FileError
from drafthead.gguf.file import quoted

FORMAT, VERSION = "drafthead-session", "1"
_NAMES = {"version": "file version", "drafthead": "version of drafthead"}


def write_snapshot(path: Path, backbone: Backbone, cache: KvCache, tokens: Sequence[int]) -> None:
    """Write a cache and its tokens; a reader sees the old file or the new one.

    Raises:
        FileError: the file cannot be written.
    """
    tensors: dict[str, NDArray[Any]] = {"tokens": np.asarray(tokens, np.int32)}
    for index, layer in enumerate(backbone.spec.layers):
        cells = read_cells(cache, index, layer.window)
        tensors[f"{index}.keys"] = np.ascontiguousarray(cells.keys)
        tensors[f"{index}.values"] = np.ascontiguousarray(cells.values)
    metadata = _belongs_to(backbone) | {
        "length": str(cache.length),
        "floor": str(cache.rollback_floor),
        "digest": _digest(tensors),
    }
    try:
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".part")
        os.close(handle)
        try:
            save_file(tensors, part, metadata)
            Path(part).replace(path)
        finally:
            Path(part).unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} cannot be written: {error}.") from None


def read_snapshot(path: Path, backbone: Backbone, context: int) -> tuple[KvCache, list[int]]:
    """Read a file into a new cache.

    Args:
        path: what write_snapshot wrote.
        backbone: must be the one it was written for, run by the same version of drafthead.
        context: positions that no cache may exceed.

    Raises:
        FileError: it is missing, damaged, or of another backbone, version or cache type.
        CapacityError: it holds more tokens than the context.
    """
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            _check_belongs(path, metadata, backbone)
            length, floor = int(metadata["length"]), int(metadata["floor"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise FileError(f"{path} cannot be read: {_reason(error)}.") from None
    except (SafetensorError, KeyError, ValueError) as error:
        raise FileError(f"{path} is no saved session: {_reason(error)}.") from None
    if not 0 <= floor <= length or length < 1:
        raise FileError(f"{path} is damaged: length {length} and floor {floor}; delete it.")
    if length > context:
        raise CapacityError(f"{path} holds {length} tokens, more than the context of {context}.")
    if metadata.get("digest") != _digest(tensors):
        raise FileError(f"{path} is damaged: its content does not fit its checksum; delete it.")
    cache = backbone.new_cache(length)
    _fill(path, backbone, cache, tensors, length, floor)
    return cache, [int(token) for token in tensors["tokens"]]


def _belongs_to(backbone: Backbone) -> dict[str, str]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "drafthead": drafthead.__version__,
        "backbone": backbone.fingerprint,
        "tokenizer": backbone.tokenizer_fingerprint,
    }


def _check_belongs(path: Path, metadata: Mapping[str, str], backbone: Backbone) -> None:
    if metadata.get("format") != FORMAT:
        raise FileError(f"{path} is no saved session: its header does not say {FORMAT!r}.")
    for key, ours in _belongs_to(backbone).items():
        theirs = metadata.get(key)
        if theirs != ours:
            raise FileError(
                f"{path} was saved with another {_NAMES.get(key, key)} (expected {ours[:12]!r}, "
                f"found {theirs and theirs[:12]!r}): start the conversation again."
            )


def _fill(
    path: Path,
    backbone: Backbone,
    cache: KvCache,
    tensors: Mapping[str, NDArray[Any]],
    length: int,
    floor: int,
) -> None:
    """Write the cells of a file into an empty cache, after checking each."""
    spec = backbone.spec
    expected: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    firsts = [first_position(layer.window, floor) for layer in spec.layers]
    kind = cache.key_view(0).dtype
    for index, first in enumerate(firsts):
        shape = (length - first, spec.n_kv_heads, spec.head_dim)
        expected[f"{index}.keys"] = expected[f"{index}.values"] = shape, kind
    ids = tensors.get("tokens", np.zeros(0, np.int32))
    expected["tokens"] = (max(ids.size, length),), np.dtype(np.int32)
    found = {name: (values.shape, values.dtype) for name, values in tensors.items()}
    if found != expected:
        name = min(
            name for name in found.keys() | expected if found.get(name) != expected.get(name)
        )
        raise FileError(
            f"{path}: {quoted(name)} should be {expected.get(name, 'absent')}, found "
            f"{found.get(name, 'nothing')}: start the conversation again."
        )
    if ids.min() < 0 or ids.max() >= spec.vocab_size:
        raise FileError(f"{path} holds tokens outside the vocabulary of {spec.vocab_size}.")
    for index, first in enumerate(firsts):
        cells = Cells(first, tensors[f"{index}.keys"], tensors[f"{index}.values"])
        write_cells(cache, index, cells)
    cache.adopt(length, floor)


def _digest(tensors: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 (hex) over names and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + b"\0")
        digest.update(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    text = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return quoted(text)[1:-1]
