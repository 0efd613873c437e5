"""The native core. Shapes: M rows of a pass, R output rows, D hidden size, V vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

def available_isas() -> list[str]: ...  # best first, e.g. ["avx512", "avx2", "scalar"]
def active_isa() -> str: ...
def set_isa(name: str) -> None: ...  # ValueError where unknown or not on this machine
def integer_peak(threads: int) -> float: ...  # multiply-adds a second, integer dots alone

class MemoryReader:
    def __init__(self, nbytes: int, threads: int) -> None: ...
    def read(self) -> None: ...  # all of its memory once, in order

class Backbone:
    # The keys of ModelSpec.native().
    def __init__(self, spec: Mapping[str, object], threads: int) -> None: ...
    def set_tensor(
        self,
        name: str,
        ggml_type: int,
        rows: int,
        columns: int,
        data: NDArray[np.uint8],
        mapped: bool = False,  # data is a map of a file: its pages are given back when packed
    ) -> None: ...
    def finish(self) -> None: ...
    def forward(
        self,
        caches: Sequence[KvCache],
        counts: Sequence[int],
        tokens: NDArray[np.int32],  # (M,), the segments one after the other
        outputs: NDArray[np.int32],  # (R,), indices into the M rows
        level: int,  # 0 hidden only, 1 + argmax tokens, 2 + logits
        taps: Sequence[int] = (),  # layers whose output follows each hidden state, scaled to RMS 1
    ) -> tuple[NDArray[np.float32], NDArray[np.int32] | None, NDArray[np.float32] | None]: ...
    def embed(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]: ...  # (n, D)
    def output_rows(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]: ...  # (n, D)
    threads: int
    @property
    def weight_bytes(self) -> int: ...  # packed weights
    @property
    def pass_bytes(self) -> int: ...  # weights streamed by a one-row pass

class KvCache:
    def __init__(
        self, backbone: Backbone, capacity: int, dtype: Literal["f16", "f32"] = "f16"
    ) -> None: ...
    @property
    def length(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def rollback_floor(self) -> int: ...  # the smallest length, beside 0, that rollback can reach
    def rollback(self, length: int) -> None: ...  # ValueError below the floor
    # Cells written through the views are the sequence from now on.
    def adopt(self, length: int, floor: int) -> None: ...  # ValueError where they do not fit
    # A layer with a sliding window keeps a ring: position p lies in cell p % cells(layer). The
    # views show cells of the cache's type, float16 or float32.
    def cells(self, layer: int) -> int: ...
    def key_view(self, layer: int) -> NDArray[Any]: ...  # (kv_heads, cells / 16, head_dim, 16)
    def value_view(self, layer: int) -> NDArray[Any]: ...  # (kv_heads, cells, head_dim)

class Matrix:
    def __init__(
        self, ggml_type: int, rows: int, columns: int, data: NDArray[np.uint8]
    ) -> None: ...
    def multiply(self, x: NDArray[np.float32]) -> NDArray[np.float32]: ...  # (M, K) -> (M, N)
    def time_products(
        self, rows: int, repeats: int, threads: int
    ) -> list[float]: ...  # seconds of each product
    def dequantize(self) -> NDArray[np.float32]: ...  # (N, K)
    @property
    def nbytes(self) -> int: ...

class MtpHead:
    # spec: d_ff, attention_bias, qk_norm, markov_rank, taps (how many), positions, prompt_tokens.
    # kv_layers: -1 for a layer without attention.
    def __init__(
        self,
        backbone: Backbone,
        spec: Mapping[str, int | float],
        kv_layers: Sequence[int],
        draft_token_ids: NDArray[np.int32],
    ) -> None: ...
    def set_tensor(
        self, name: str, ggml_type: int, rows: int, columns: int, data: NDArray[np.uint8]
    ) -> None: ...
    def finish(self) -> None: ...
    def draft(
        self,
        cache: KvCache,
        token: int,
        hidden: NDArray[np.float32],  # (D) of a pass, and its taps
        max_tokens: int,
        floors: Sequence[float],  # of the product of confidences; the last counts for all behind
        calibration: Sequence[tuple[float, float]] = (),  # temperature and shift of log-odds
        more_groups: Sequence[int] = (),  # of 16 ids, ascending; a head with prompt_tokens
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]: ...
    @property
    def prompt_tokens(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...  # own weights and scratch; independent of the context
    @property
    def step_bytes(self) -> int: ...  # bytes streamed by one draft step, shared rows included
    @property
    def positions(self) -> int: ...  # drafted by one pass; 1 for a recurrent head
    def attended_addresses(self, cache: KvCache) -> list[tuple[int, int]]: ...  # (key, value) data
