"""Weights as blocks of small integers, and back (heads/blocks.py says how they lie).

Legend: N rows, K columns, B = K / 32 blocks of a row, P bytes of the integers of a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from drafthead.heads.blocks import BLOCK, INT4, BlockKind

Quantized = tuple[NDArray[Any], NDArray[np.float16]]  # integers (N, P) and scales (N, B)
ZERO = 8  # added to 4-bit integers, -8 .. 7
# What the largest weight of a block may become; -8 alone wastes the steps that few weights need.
FURTHEST = (6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5)


def quantize(weights_NK: NDArray[np.float32], kind: BlockKind) -> Quantized:
    """Blocks of one kind; a weight that no scale can hold, or no number, gives one not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _quantize4(weights_NK) if kind is INT4 else _quantize8(weights_NK)


def _quantize8(weights_NK: NDArray[np.float32]) -> Quantized:
    """The integers q = round(w / d), d = max|w| / 127 as f16."""
    blocks = _blocks(weights_NK)
    scales = (np.abs(blocks).max(axis=2) / 127.0).astype(np.float16)
    values = np.clip(_divided(blocks, scales), -127, 127)
    return values.astype(np.int8).reshape(weights_NK.shape), scales


def _quantize4(weights_NK: NDArray[np.float32]) -> Quantized:
    """The integers q = round(w / d) in -8 .. 7, by the d with the smallest squared error of some.

    The weight m with the largest size becomes about -s for each s of FURTHEST: d = -m / s rounds
    all weights, and what then fits them best, sum(w q) / sum(q q) as f16, stands for them.
    """
    blocks = _blocks(weights_NK)
    place = np.abs(blocks).argmax(axis=2, keepdims=True)
    largest = np.take_along_axis(blocks, place, axis=2)[:, :, 0]
    kept, scales = np.zeros(blocks.shape, np.int8), np.zeros(largest.shape, np.float16)
    least = np.square(blocks).sum(axis=2)  # of zeros
    for furthest in FURTHEST:
        values = np.clip(_divided(blocks, (largest / -furthest).astype(np.float16)), -8, 7)
        squares = np.square(values).sum(axis=2)
        fitted = np.divide((values * blocks).sum(axis=2), squares, where=squares > 0,
                           out=np.zeros_like(squares)).astype(np.float16)  # fmt: skip
        errors = np.square(values * fitted[:, :, None].astype(np.float32) - blocks).sum(axis=2)
        better = errors < least
        kept[better], scales[better], least[better] = values[better], fitted[better], errors[better]
    # As of int8, so that the package refuses what no scale can hold.
    scales[~np.isfinite((largest / FURTHEST[-1]).astype(np.float16))] = np.inf
    halves = (kept + ZERO).astype(np.uint8)
    packed = halves[:, :, : BLOCK // 2] | halves[:, :, BLOCK // 2 :] << 4
    return packed.reshape(len(weights_NK), -1), scales


def _blocks(weights_NK: NDArray[np.float32]) -> NDArray[np.float32]:
    rows, columns = weights_NK.shape
    return weights_NK.astype(np.float32).reshape(rows, columns // BLOCK, BLOCK)


def _divided(
    blocks_NB32: NDArray[np.float32], scales_NB: NDArray[np.float16]
) -> NDArray[np.float32]:
    """Each weight in whole steps of its block; zeros where the scale is too small for f16."""
    divisors = np.where(scales_NB != 0, scales_NB.astype(np.float32), np.float32(np.inf))
    return np.rint(blocks_NB32 / divisors[:, :, None])


def dequantize(values_NP: NDArray[Any], scales_NB: NDArray[np.float16]) -> NDArray[np.float32]:
    """What blocks of either kind stand for, (N, K)."""
    rows, blocks = scales_NB.shape
    integers = values_NP.reshape(rows, blocks, -1)
    if values_NP.dtype == np.uint8:
        integers = np.concatenate([integers & 15, integers >> 4], axis=2).astype(np.int8) - ZERO
    weights = integers.astype(np.float32) * scales_NB.astype(np.float32)[:, :, None]
    return weights.reshape(rows, -1)
