"""The backbone as Python holds it: typed, named, and nothing computed here.

Shapes: M rows of a pass, R output rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drafthead import _native
from drafthead._native import KvCache
from drafthead.backbone.cells import keep
from drafthead.backbone.registry import backbone_name
from drafthead.errors import CapacityError, NumericsError, RequestError
from drafthead.gguf.file import GgufFile
from drafthead.gguf.reader import read_gguf
from drafthead.gguf.spec import ModelSpec, model_spec, tensor_plan, vector_values
from drafthead.gguf.types import F32

__all__ = ["Backbone", "KvCache", "Pass", "Segment", "default_threads"]

KvType = Literal["f16", "f32"]
KV_TYPES: tuple[KvType, ...] = ("f16", "f32")
Want = Literal["hidden", "tokens", "logits"]
INT32 = np.iinfo(np.int32)
_LEVELS: dict[Want, int] = {"hidden": 0, "tokens": 1, "logits": 2}


class Segment(NamedTuple):
    """Tokens to append to one sequence: their rows take the positions from `cache.length` on."""

    cache: KvCache
    tokens: Sequence[int]


@dataclass(frozen=True)
class Pass:
    """What a forward pass gave for its output rows.

    hidden: (R, D) float32 after the final norm; with taps (R, (1 + taps) D), each tap the output of
    its layer scaled to RMS 1.  tokens: (R,) int32, the greedy choice, ties going
    to the lowest id; empty where not asked for.  logits: (R, V) float32 or None.
    """

    hidden: NDArray[np.float32]
    tokens: NDArray[np.int32]
    logits: NDArray[np.float32] | None


def default_threads() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _token_ids(tokens: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int32]:
    """Return the ids as the core takes them; ValueError where one would change on the way."""
    ids = np.asarray(tokens)
    if ids.size == 0 or ids.dtype == np.int32:
        return ids.astype(np.int32)
    if ids.dtype.kind not in "iu" or ids.min() < INT32.min or ids.max() > INT32.max:
        raise ValueError(
            f"Tokens must be integers inside the vocabulary, found {ids.dtype} values from "
            f"{ids.min()} to {ids.max()}."
        )
    return ids.astype(np.int32)


class Backbone:
    """A frozen model, packed for the native core.

    load_ms: the time that reading, checking and packing the file took.  taps: layers whose output
    every pass gives beside the hidden state, for a head that reads them.
    """

    def __init__(
        self,
        gguf: GgufFile,
        spec: ModelSpec,
        native: _native.Backbone,
        load_ms: float = 0.0,
        kv: KvType = "f16",
    ) -> None:
        self.gguf = gguf
        self.spec = spec
        self.native = native
        self.load_ms = load_ms
        self.kv: KvType = kv
        self.taps: tuple[int, ...] = ()
        self.path = Path(gguf.path)
        self.name = backbone_name(self.path)

    @classmethod
    def open(cls, path: str | Path, threads: int | None = None, kv: KvType = "f16") -> Backbone:
        """Read, check and pack a GGUF file.

        Args:
            path: the file.
            threads: 1 or more; by default one a core. Results do not depend on it.
            kv: type of the keys and values that its caches hold.

        Raises:
            GgufError, UnsupportedError: the file is damaged or asks for what is not there yet.
            CapacityError: the system does not start that many threads.
            RequestError: an unusable number of threads, an unknown type of cells, or an instruction
                set in DRAFTHEAD_ISA that this machine does not have.

        """
        if threads is None:
            threads = default_threads()
        if not 1 <= threads <= 1024:
            raise RequestError(f"The number of threads must be between 1 and 1024, not {threads}.")
        if kv not in KV_TYPES:
            raise RequestError(f"There is no cache of type {kv!r}; choose f16 or f32.")
        start = time.perf_counter()
        try:
            _native.active_isa()  # chosen at the first call
        except ValueError as error:
            raise RequestError(f"DRAFTHEAD_ISA: {error}.") from None
        gguf = read_gguf(path)
        spec = model_spec(gguf)
        try:
            native = _native.Backbone(spec.native(), threads)
        except RuntimeError as error:  # the system has no room for another thread
            raise CapacityError(
                f"{threads} threads could not be started ({error}): give fewer with --threads."
            ) from None
        for tensor in tensor_plan(spec):
            ggml_type, data = gguf.tensors[tensor.name].ggml_type, gguf.data(tensor.name)
            if tensor.kind == "vector":
                ggml_type, data = F32, vector_values(gguf, tensor.name).view(np.uint8)
            mapped = tensor.kind == "matrix"
            native.set_tensor(tensor.name, ggml_type, tensor.rows, tensor.columns, data, mapped)
        native.finish()
        gguf.release()  # the system maps neighbours of a page too
        return cls(gguf, spec, native, (time.perf_counter() - start) * 1e3, kv)

    @property
    def threads(self) -> int:
        """Threads of a pass."""
        return self.native.threads

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights."""
        return self.native.weight_bytes

    @property
    def pass_bytes(self) -> int:
        """Weight bytes that one pass streams."""
        return self.native.pass_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that a token takes, before a window's ring is full."""
        cell = 2 if self.kv == "f16" else 4
        return 2 * cell * self.spec.n_layers * self.spec.n_kv_heads * self.spec.head_dim

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the tensors of the file: names, types, shapes and bytes."""
        return self.gguf.fingerprint()

    @cached_property
    def tokenizer_fingerprint(self) -> str:
        """SHA-256 over the file's vocabulary, merges and special ids."""
        return self.gguf.tokenizer_fingerprint()

    def new_cache(self, capacity: int, dtype: KvType | None = None) -> KvCache:
        """Make an empty cache of `capacity` positions, at most the model's context length.

        Layers with a sliding window keep a ring of cells. dtype: of the keys and values,
        the backbone's own where None.
        """
        return _native.KvCache(self.native, capacity, dtype or self.kv)

    def give_taps(self, layers: Sequence[int]) -> None:
        """Give the outputs of these layers in every pass from now on.

        Heads share a backbone where the taps of one begin with those of the other.

        Raises:
            RequestError: another head reads others.
        """
        shared = min(len(layers), len(self.taps))
        if tuple(layers[:shared]) != self.taps[:shared]:
            raise RequestError(
                f"{self.name} already gives the outputs of layers {list(self.taps)} to another "
                f"head, and this one reads {list(layers)}; load the backbone a second time for it."
            )
        self.taps = max(self.taps, tuple(layers), key=len)

    def forward(
        self,
        segments: Sequence[Segment],
        *,
        rows: Literal["all", "last"] = "all",
        want: Want = "tokens",
        taps: Sequence[int] | None = None,
    ) -> Pass:
        """Run one pass over the rows of any number of sequences.

        The bits of a row depend on its own sequence only. Each cache grows by its segment.

        Args:
            segments: at least one; no cache twice, none empty.
            rows: which rows give output: all M, or the last of each segment.
            want: hidden states alone, greedy tokens too, or logits too.
            taps: layers whose outputs are given instead of those in `taps`.

        Raises:
            ValueError: a token outside the vocabulary or rows that do not fit; nothing is written.
            NumericsError: a row asked for tokens has no finite logit. The caches are as before, or
                empty where a sliding window has overwritten what that needs.

        """
        counts = [len(segment.tokens) for segment in segments]
        tokens_M = np.concatenate([_token_ids(segment.tokens) for segment in segments])
        if rows == "last":
            outputs_R = np.cumsum(counts, dtype=np.int32) - 1
        else:
            outputs_R = np.arange(len(tokens_M), dtype=np.int32)
        hidden, tokens, logits = self.native.forward(
            [segment.cache for segment in segments],
            counts,
            tokens_M,
            outputs_R.astype(np.int32),
            _LEVELS[want],
            list(self.taps if taps is None else taps),
        )
        if tokens is None:
            tokens = np.zeros(0, np.int32)
        elif (tokens < 0).any():
            for segment, count in zip(segments, counts, strict=True):
                keep(segment.cache, segment.cache.length - count)
            raise NumericsError(
                f"{self.path}: row {int(np.argmax(tokens < 0))} of a pass has no finite logit; the "
                "weights hold values that the model cannot have been trained with."
            )
        return Pass(hidden, tokens, logits)
