"""Keys and values out of one cache and into another, however each lays out its cells.

N positions, H key/value heads, D dimensions of a head.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drafthead._native import KvCache

BLOCK = 16  # cells whose keys lie side by side


class Cells(NamedTuple):
    """The cells of one layer from position `first` on: (N, H, D) keys and values."""

    first: int
    keys: NDArray[Any]
    values: NDArray[Any]


def first_position(window: int, floor: int) -> int:
    """The first position that a layer still holds where lengths from `floor` on can be reached.

    window: positions that a query of this layer sees; 0: all.
    """
    return max(0, floor + 1 - window) if window and floor else 0


def reachable(cache: KvCache, length: int) -> int:
    """The length, or 0 where sliding windows have overwritten what a rollback to it needs."""
    return length if length >= cache.rollback_floor else 0


def keep(cache: KvCache, length: int) -> int:
    """Roll back to a length where it can be reached, else to 0; returns the length kept."""
    kept = reachable(cache, length)
    cache.rollback(kept)
    return kept


def read_cells(cache: KvCache, layer: int, window: int) -> Cells:
    """Copy what a layer with this window holds below the cache's length."""
    first = first_position(window, cache.rollback_floor)
    at = np.arange(first, cache.length) % cache.cells(layer)
    keys = cache.key_view(layer)[:, at // BLOCK, :, at % BLOCK]
    return Cells(first, keys, cache.value_view(layer)[:, at].swapaxes(0, 1))


def write_cells(cache: KvCache, layer: int, cells: Cells) -> None:
    """Put cells where this cache keeps their positions; it takes them when it adopts a length."""
    at = (cells.first + np.arange(len(cells.keys))) % cache.cells(layer)
    cache.key_view(layer)[:, at // BLOCK, :, at % BLOCK] = cells.keys
    cache.value_view(layer)[:, at] = cells.values.swapaxes(0, 1)


def copy_cells(source: KvCache, target: KvCache, windows: Iterable[int]) -> None:
    """Make an empty cache of the same backbone and type a copy; rollbacks are refused alike."""
    for layer, window in enumerate(windows):
        write_cells(target, layer, read_cells(source, layer, window))
    target.adopt(source.length, source.rollback_floor)
