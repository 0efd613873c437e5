"""How a head package holds a matrix: blocks of 32 along K, each an f16 scale and small integers.

Legend: N rows, K columns, B = K / 32 blocks of a row, P bytes of the integers of a row.

The integers of a block are 32 bytes, int8, or 16: byte j has weight j in its lower half and weight
j + 16 in its upper one, each with 8 added. With the scale before them they are the blocks of GGML's
Q8_0 and Q4_0, which the core runs as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 32


@dataclass(frozen=True)
class BlockKind:
    """A kind of blocks. name: in config.json.  dtype: of safetensors.  ggml_type: of the core."""

    name: str
    dtype: str
    block_bytes: int
    ggml_type: int

    @property
    def short(self) -> str:
        """The name in recipes and in print."""
        return self.name.partition("_")[0]

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row's integers."""
        return columns // BLOCK * self.block_bytes


INT8 = BlockKind("int8_block32", "I8", 32, 8)
INT4 = BlockKind("int4_block32", "U8", 16, 2)
KINDS = {kind.name: kind for kind in (INT8, INT4)}


def ggml_blocks(values_NP: NDArray[Any], scales_NB: NDArray[np.float16]) -> NDArray[np.uint8]:
    """The bytes of a matrix as GGML has them: of each block its scale, then its integers; 1-D."""
    rows, blocks = scales_NB.shape
    integers = np.ascontiguousarray(values_NP).view(np.uint8).reshape(rows, blocks, -1)
    scales = np.ascontiguousarray(scales_NB).view(np.uint8).reshape(rows, blocks, 2)
    return np.concatenate([scales, integers], axis=2).reshape(-1)
