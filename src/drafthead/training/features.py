"""What the backbone shows the head, computed once by the native engine and kept in f16.

Legend: A anchors, R positions kept of a sequence, D hidden size, G KV heads, H head size,
L read layers.

Only what training reads is kept: the post-final-norm hidden state of every anchor, and K and V of
the read layers for every position up to the last anchor. The keys (after rope) and values are the
very ones in the cache; the states are the engine's, rounded to f16.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from drafthead.backbone.handle import Backbone, KvCache, Segment
from drafthead.errors import TrainingError
from drafthead.training.answers import Answer, write_atomic
from drafthead.training.data import anchor_count, common_prefix, data_digest

CHUNK_ROWS = 512
SEQUENCES_PER_SYNC = 64
STATE, HIDDEN, KV = "features.json", "hidden.f16", "kv.f16"


@dataclass(frozen=True)
class FeaturePlan:
    """What the features of some answers will take, known before any is computed."""

    sequences: int
    anchors: int
    rows: int
    nbytes: int

    def check(self, max_bytes: int) -> None:
        """Refuse a plan over the limit: TrainingError with both numbers."""
        if self.nbytes > max_bytes:
            raise TrainingError(
                f"The features of {self.sequences} answers need {self.nbytes / 1e9:.2f} GB and the "
                f"limit is {max_bytes / 1e9:.2f} GB; use fewer answers or raise --max-disk."
            )


def kept_rows(answer: Answer) -> int:
    """Positions whose K and V some anchor reads: all but the last two."""
    if not anchor_count(len(answer.prompt_tokens), len(answer.answer)):
        return 0
    return len(answer.prompt_tokens) + len(answer.answer) - 2


def gather_kv(cache: KvCache, layer: int, rows: int) -> NDArray[np.float16]:
    """K and V of the first positions of a layer, from the cache's views, as (R, 2, G, H)."""
    keys = cache.key_view(layer)  # (G, blocks, H, 16)
    values = cache.value_view(layer)  # (G, cells, H)
    groups, blocks, size, width = keys.shape
    keys_RGH = keys.transpose(1, 3, 0, 2).reshape(blocks * width, groups, size)[:rows]
    values_RGH = values.transpose(1, 0, 2)[:rows]
    return np.stack([keys_RGH, values_RGH], axis=1)


class FeatureStore:
    """Features of a list of answers, on disk, computed on first use and resumable."""

    def __init__(
        self, folder: Path, backbone: Backbone, answers: Sequence[Answer], kv_layers: Sequence[int]
    ) -> None:
        spec = backbone.spec
        self.folder = folder
        self._backbone, self._answers, self._layers = backbone, list(answers), tuple(kv_layers)
        counts = [anchor_count(len(a.prompt_tokens), len(a.answer)) for a in answers]
        rows = [kept_rows(a) for a in answers]
        self._anchor_at = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._row_at = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        self._hidden_shape = (int(self._anchor_at[-1]), spec.d_model)
        self._kv_shape = (
            int(self._row_at[-1]), len(self._layers), 2, spec.n_kv_heads, spec.head_dim
        )  # fmt: skip
        self._cached: list[int] = []
        self._maps: tuple[NDArray[np.float16], NDArray[np.float16]] | None = None

    @property
    def plan(self) -> FeaturePlan:
        """Sizes, before anything is computed."""
        values = int(np.prod(self._hidden_shape)) + int(np.prod(self._kv_shape))
        return FeaturePlan(len(self._answers), self._hidden_shape[0], self._kv_shape[0], 2 * values)

    def _digest(self) -> str:
        order = "\n".join(answer.id for answer in self._answers)
        parts = (
            self._backbone.fingerprint, data_digest(self._answers), order, list(self._layers)
        )  # fmt: skip
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _done(self, digest: str) -> int:
        path = self.folder / STATE
        if not path.is_file():
            return 0
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return 0
        same = isinstance(state, dict) and state.get("digest") == digest
        return int(state["sequences"]) if same else 0

    def build(self, on_rows: Callable[[int], None] = lambda _rows: None) -> None:
        """Compute what is missing; a run that was killed goes on after the last synced sequence."""
        digest = self._digest()
        done = self._done(digest)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not done:
            (self.folder / STATE).unlink(missing_ok=True)  # it spoke of what is overwritten now
            needed, free = self.plan.nbytes, shutil.disk_usage(self.folder).free
            if needed > free:
                raise TrainingError(
                    f"The features need {needed / 1e9:.2f} GB and {self.folder} has "
                    f"{free / 1e9:.2f} GB left; use fewer answers."
                )
        hidden, kv = self._open("r+" if done else "w+")
        on_rows(int(self._row_at[done]))
        self._cached = []
        capacity = max((kept_rows(answer) for answer in self._answers), default=0)
        cache = self._backbone.new_cache(max(capacity, 1))
        for index in range(done, len(self._answers)):
            self._fill(index, cache, hidden, kv)
            on_rows(int(self._row_at[index + 1]))
            if (index + 1) % SEQUENCES_PER_SYNC == 0 or index + 1 == len(self._answers):
                self._sync(hidden, kv, digest, index + 1)
        self._maps = self._open("r")

    def _open(
        self, mode: Literal["r", "r+", "w+"]
    ) -> tuple[np.memmap[Any, Any], np.memmap[Any, Any]]:
        def open_one(name: str, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
            at_least_one = (max(shape[0], 1), *shape[1:])  # an empty file cannot be mapped
            return np.memmap(self.folder / name, np.float16, mode, shape=at_least_one)

        return open_one(HIDDEN, self._hidden_shape), open_one(KV, self._kv_shape)

    def _sync(
        self, hidden: np.memmap[Any, Any], kv: np.memmap[Any, Any], digest: str, done: int
    ) -> None:
        hidden.flush()
        kv.flush()
        write_atomic(self.folder / STATE, json.dumps({"digest": digest, "sequences": done}))

    def _fill(
        self, index: int, cache: KvCache, hidden: NDArray[np.float16], kv: NDArray[np.float16]
    ) -> None:
        answer = self._answers[index]
        rows = kept_rows(answer)
        if not rows:
            return
        tokens = [*answer.prompt_tokens, *answer.answer][:rows]
        # What the last sequence began with too (a system text) is in the cache with the same bits.
        known = common_prefix(self._cached, answer.prompt_tokens[:-1])
        cache.rollback(known)
        self._cached = tokens
        states = [
            self._backbone.forward(
                [Segment(cache, tokens[start : start + CHUNK_ROWS])], rows="all", want="hidden"
            ).hidden
            for start in range(known, rows, CHUNK_ROWS)
        ]
        first = len(answer.prompt_tokens) - 1 - known
        hidden[self._anchor_at[index] : self._anchor_at[index + 1]] = np.concatenate(states)[first:]
        span = slice(self._row_at[index], self._row_at[index + 1])
        for place, layer in enumerate(self._layers):
            kv[span, place] = gather_kv(cache, layer, rows)

    def hidden(self, index: int) -> NDArray[np.float16]:
        """States of the anchors of one answer, (A, D)."""
        assert self._maps is not None, "build() comes first"
        return self._maps[0][self._anchor_at[index] : self._anchor_at[index + 1]]

    def kv(self, index: int) -> NDArray[np.float16]:
        """K and V of one answer's positions, (R, L, 2, G, H)."""
        assert self._maps is not None, "build() comes first"
        return self._maps[1][self._row_at[index] : self._row_at[index + 1]]
