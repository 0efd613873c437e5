"""What the backbone showed for each answer, in f16, in files that only grow.

Legend: A anchors, R positions kept of a sequence, D hidden size, G KV heads, H head size,
L stored layers.

    features.json   which backbone, which layers, which sizes
    hidden.f16      (A, D) post-final-norm states of the anchors, answer after answer; where taps
                    are kept (A, (1 + taps) D)
    kv.f16          (R, L, 2, G, H) keys (after rope) and values of every position up to the last
                    anchor: the very bits of the cache
    index.jsonl     one line an answer: its key, A and R; written after its data is on the disk

`regen` fills them while it answers, at no further cost; `train` computes what is missing. The
states are the engine's, rounded to f16, or those of another source, which the header then names.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from drafthead.backbone.cells import keep
from drafthead.backbone.handle import Backbone, KvCache, Segment
from drafthead.errors import TrainingError
from drafthead.training.answers import Answer, write_atomic
from drafthead.training.data import anchor_count, common_prefix

FORMAT_VERSION = 2
CHUNK_ROWS = 512
SOURCE_ROWS = 4096  # of a batch that a source is given
ANSWERS_PER_SYNC = 64
HEADER, INDEX, HIDDEN, KV = "features.json", "index.jsonl", "hidden.f16", "kv.f16"


@dataclass(frozen=True)
class FeaturePlan:
    """What the features of some answers take, known before any is computed.

    missing_rows: positions that are not on the disk yet.  nbytes: of all, those on the disk too.
    """

    sequences: int
    anchors: int
    rows: int
    missing_rows: int
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


def answer_key(answer: Answer) -> str:
    """Hash the tokens of an answer: the same tokens have the same features."""
    tokens = np.array([len(answer.prompt_tokens), *answer.prompt_tokens, *answer.answer], "<i4")
    return hashlib.sha256(tokens.tobytes()).hexdigest()[:32]


def gather_kv(cache: KvCache, layer: int, rows: int) -> NDArray[np.float16]:
    """K and V of the first positions of a layer, from the cache's views, as (R, 2, G, H)."""
    keys = cache.key_view(layer)  # (G, blocks, H, 16)
    values = cache.value_view(layer)  # (G, cells, H)
    groups, blocks, size, width = keys.shape
    if rows > blocks * width:
        raise TrainingError(
            f"Layer {layer} has a sliding window of fewer than {rows} positions; read another "
            "layer or use shorter answers."
        )
    keys_RGH = keys.transpose(1, 3, 0, 2).reshape(blocks * width, groups, size)[:rows]
    values_RGH = values.transpose(1, 0, 2)[:rows]
    return np.stack([keys_RGH, values_RGH], axis=1).astype(np.float16, copy=False)


class Source(Protocol):
    """What computes features in place of the engine."""

    name: str

    def show(
        self, answers: Sequence[Answer], kv_layers: Sequence[int]
    ) -> list[tuple[NDArray[np.float16], NDArray[np.float16]]]:
        """States (A, D), K and V (R, L, 2, G, H) of each answer."""


@dataclass(frozen=True)
class _Place:
    """Where the features of an answer begin, and how many they are."""

    anchor: int
    anchors: int
    row: int
    rows: int


@dataclass(frozen=True)
class FeatureSizes:
    """What the features depend on of a backbone: which one it is, and its sizes."""

    fingerprint: str
    d_model: int
    n_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, backbone: Backbone) -> FeatureSizes:
        """Those of a backbone."""
        spec = backbone.spec
        return cls(backbone.fingerprint, spec.d_model, spec.n_kv_heads, spec.head_dim)


class FeatureFiles:
    """The growing files of one backbone, one list of layers and one of taps.

    The first write cuts off what a crash left behind the last indexed answer, and begins files of
    another backbone, other layers or another source anew; opening changes nothing.
    """

    def __init__(
        self,
        folder: Path,
        sizes: FeatureSizes,
        kv_layers: Sequence[int],
        taps: Sequence[int] = (),
        source: str | None = None,
    ) -> None:
        self.folder, self.sizes, self.source = folder, sizes, source
        self.header: dict[str, object] = {"format_version": FORMAT_VERSION, **asdict(sizes)}
        if source is not None:
            self.header["source"] = source
        self.layers, self.taps = self._stored(kv_layers, taps)
        self.header["kv_layers"] = list(self.layers)
        if self.taps:
            self.header["taps"] = list(self.taps)
        self._state_shape = ((1 + len(self.taps)) * sizes.d_model,)
        self._kv_shape = (len(self.layers), 2, sizes.n_kv_heads, sizes.head_dim)
        self._places: dict[str, _Place] = {}
        self._anchors = self._rows = 0
        self._spoken_of: dict[str, int] = {}  # bytes of each file that the index tells of
        self._pending: list[tuple[str, NDArray[np.float16], NDArray[np.float16]]] = []
        if not self._anew:
            self._read_index()

    @classmethod
    def stored(cls, folder: Path) -> FeatureFiles:
        """Open the files of a folder as they are; TrainingError where it holds none."""
        try:
            found = json.loads((folder / HEADER).read_text(encoding="utf-8"))
            if found.pop("format_version") != FORMAT_VERSION:
                raise ValueError("another format")
            layers, taps = found.pop("kv_layers"), found.pop("taps", [])
            source = found.pop("source", None)
            sizes = FeatureSizes(**found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TrainingError(f"{folder} holds no features ({error}).") from None
        return cls(folder, sizes, layers, taps, source)

    def like(self, folder: Path) -> FeatureFiles:
        """Files of the same backbone, layers, taps and source in another folder."""
        return FeatureFiles(folder, self.sizes, self.layers, self.taps, self.source)

    def _stored(
        self, layers: Sequence[int], taps: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Layers and taps on the disk where they hold all that are wanted; else it begins anew."""
        try:
            found = json.loads((self.folder / HEADER).read_text(encoding="utf-8"))
            stored = found["kv_layers"], found.get("taps", [])
            same = {**found, **self.header} == found
            same &= found.get("source") == self.header.get("source")
            same &= set(layers) <= set(stored[0]) and set(taps) <= set(stored[1])
        except (OSError, ValueError, KeyError, TypeError):
            same = False
        self._anew = not same
        if same:
            return tuple(stored[0]), tuple(stored[1])
        return tuple(layers), tuple(taps)

    @property
    def bytes_per_anchor(self) -> int:
        """Bytes of one state."""
        return 2 * int(np.prod(self._state_shape))

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one position's keys and values."""
        return 2 * int(np.prod(self._kv_shape))

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept, pending ones too."""
        return self._anchors * self.bytes_per_anchor + self._rows * self.bytes_per_row

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def place(self, key: str) -> _Place:
        """Where an answer's features are; nowhere for an answer without anchors."""
        return self._places.get(key, _Place(0, 0, 0, 0))

    def append(self, answer: Answer, hidden_AD: NDArray[Any], cache: KvCache) -> None:
        """Keep the states of an answer's anchors, and K and V from the cache that answered it."""
        rows = kept_rows(answer)
        if not rows or answer_key(answer) in self._places:
            return
        layers = [gather_kv(cache, layer, rows) for layer in self.layers]
        kv = np.stack(layers, axis=1) if layers else np.zeros((rows, *self._kv_shape), np.float16)
        self.keep(answer, hidden_AD.astype(np.float16), kv)

    def keep(self, answer: Answer, hidden_AD: NDArray[np.float16], kv: NDArray[np.float16]) -> None:
        """Keep the states of a new answer, and K and V (R, L, 2, G, H) of the stored layers."""
        key = answer_key(answer)
        self._add(key, len(hidden_AD), len(kv))
        self._pending.append((key, hidden_AD, kv))
        if len(self._pending) >= ANSWERS_PER_SYNC:
            self.flush()

    def flush(self) -> None:
        """Write and sync what is pending, the data before the index that speaks of it."""
        if not self._pending:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._anew:
            for name in (HEADER, HIDDEN, KV, INDEX):
                (self.folder / name).unlink(missing_ok=True)
            write_atomic(self.folder / HEADER, json.dumps(self.header))
            self._anew = False
        self._trim()
        lines = [
            json.dumps({"key": key, "anchors": len(hidden), "rows": len(kv)}) + "\n"
            for key, hidden, kv in self._pending
        ]
        self._extend(HIDDEN, [hidden.tobytes() for _, hidden, _ in self._pending])
        self._extend(KV, [kv.tobytes() for _, _, kv in self._pending])
        self._extend(INDEX, [line.encode() for line in lines])
        self._pending.clear()

    def _extend(self, name: str, parts: list[bytes]) -> None:
        with (self.folder / name).open("ab") as out:
            out.writelines(parts)
            out.flush()
            os.fsync(out.fileno())

    def _add(self, key: str, anchors: int, rows: int) -> None:
        self._places[key] = _Place(self._anchors, anchors, self._rows, rows)
        self._anchors += anchors
        self._rows += rows

    def _read_index(self) -> None:
        path = self.folder / INDEX
        content = path.read_bytes() if path.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        for line in whole.splitlines():
            entry = json.loads(line)
            self._add(entry["key"], entry["anchors"], entry["rows"])
        self._spoken_of = {
            INDEX: len(whole),
            HIDDEN: self._anchors * self.bytes_per_anchor,
            KV: self._rows * self.bytes_per_row,
        }
        for name, size in self._spoken_of.items():
            file = self.folder / name
            found = file.stat().st_size if file.is_file() else 0
            if found < size:
                raise TrainingError(
                    f"{file} has {found} of {size} bytes; delete {self.folder} to compute the "
                    "features anew."
                )

    def _trim(self) -> None:
        """Cut what a killed process left behind the index, before the first write.

        Not while reading: it may be what another process is writing.
        """
        for name, size in self._spoken_of.items():
            file = self.folder / name
            if file.is_file() and file.stat().st_size > size:
                os.truncate(file, size)
        self._spoken_of = {}

    def open(self) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
        """Map the files: states (all A, D), K and V (all R, L, 2, G, H)."""
        self.flush()

        def map_one(name: str, count: int, shape: tuple[int, ...]) -> NDArray[np.float16]:
            if not count or 0 in shape:  # an empty file cannot be mapped
                return np.zeros((count, *shape), np.float16)
            return np.memmap(self.folder / name, np.float16, "r", shape=(count, *shape))

        hidden = map_one(HIDDEN, self._anchors, self._state_shape)
        return hidden, map_one(KV, self._rows, self._kv_shape)


class FeatureStore:
    """The features of a list of answers, by place in the list, for the layers a head reads.

    source: what computes them; None: the engine.
    """

    def __init__(
        self, folder: Path, backbone: Backbone, answers: Sequence[Answer],
        kv_layers: Sequence[int], taps: Sequence[int] = (), source: Source | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        self._backbone, self._answers, self._source = backbone, list(answers), source
        if source is not None and taps:
            raise TrainingError("Taps are given by the engine alone: use --host engine.")
        name = source.name if source else None
        sizes = FeatureSizes.of(backbone)
        self._files = FeatureFiles(folder, sizes, kv_layers, taps, name)
        self._keys = [answer_key(answer) for answer in answers]
        self._chosen = [self._files.layers.index(layer) for layer in kv_layers]
        self._columns = self._columns_of(backbone.spec.d_model, tuple(taps))
        self._maps: tuple[NDArray[np.float16], NDArray[np.float16]] | None = None

    @property
    def plan(self) -> FeaturePlan:
        """Sizes, before anything is computed."""
        anchors = rows = missing = 0
        for key, answer in zip(self._keys, self._answers, strict=True):
            anchors += anchor_count(len(answer.prompt_tokens), len(answer.answer))
            rows += kept_rows(answer)
            missing += kept_rows(answer) if key not in self._files else 0
        nbytes = anchors * self._files.bytes_per_anchor + rows * self._files.bytes_per_row
        return FeaturePlan(len(self._answers), anchors, rows, missing, nbytes)

    def build(self, on_rows: Callable[[int], None] = lambda _rows: None) -> None:
        """Compute what is missing; a run that was killed goes on after the last synced answer.

        on_rows: told how many of the missing positions are done.
        """
        plan = self.plan
        self._check_room(plan)
        pairs = zip(self._keys, self._answers, strict=True)
        missing = {k: a for k, a in pairs if kept_rows(a) and k not in self._files}
        answers = list(missing.values())
        compute = self._by_engine if self._source is None else self._by_source
        done = 0
        for rows in compute(answers):
            done += rows
            on_rows(done)
        self._maps = self._files.open()

    def _columns_of(self, width: int, taps: tuple[int, ...]) -> slice | NDArray[np.int64]:
        """Where the state and the wanted taps are in a stored row."""
        stored = self._files.taps
        if taps == stored:
            return slice(None)
        parts = np.array([0, *(1 + stored.index(layer) for layer in taps)])
        return (width * parts[:, None] + np.arange(width)).reshape(-1)

    def _by_engine(self, missing: Sequence[Answer]) -> Iterator[int]:
        """Compute answers one after the other; yields the rows of each."""
        capacity = max((kept_rows(answer) for answer in missing), default=0)
        cache = self._backbone.new_cache(max(capacity, 1))
        cached = list[int]()
        for answer in missing:
            cached = self._compute(answer, cache, cached)
            yield kept_rows(answer)

    def _by_source(self, missing: Sequence[Answer]) -> Iterator[int]:
        """Compute answers of about one length together; yields the rows of each batch."""
        assert self._source is not None
        ordered = sorted(missing, key=kept_rows)
        while ordered:
            count = max(1, SOURCE_ROWS // kept_rows(ordered[-1]))
            batch, ordered = ordered[-count:], ordered[:-count]
            shown = self._source.show(batch, self._files.layers)
            for answer, (hidden, kv) in zip(batch, shown, strict=True):
                self._files.keep(answer, hidden, kv)
            yield sum(map(kept_rows, batch))

    def _check_room(self, plan: FeaturePlan) -> None:
        folder = self._files.folder
        folder.mkdir(parents=True, exist_ok=True)
        needed = plan.nbytes * plan.missing_rows // max(plan.rows, 1)
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise TrainingError(
                f"The features need {needed / 1e9:.2f} GB and {folder} has {free / 1e9:.2f} GB "
                "left; use fewer answers."
            )

    def _compute(self, answer: Answer, cache: KvCache, cached: list[int]) -> list[int]:
        rows = kept_rows(answer)
        tokens = [*answer.prompt_tokens, *answer.answer][:rows]
        # What the last sequence began with too (a system text) is in the cache with the same bits.
        known = keep(cache, common_prefix(cached, answer.prompt_tokens[:-1]))
        taps = self._files.taps
        chunks = [tokens[start : start + CHUNK_ROWS] for start in range(known, rows, CHUNK_ROWS)]
        states = [
            self._backbone.forward([Segment(cache, chunk)], want="hidden", taps=taps).hidden
            for chunk in chunks
        ]
        first = len(answer.prompt_tokens) - 1 - known
        self._files.append(answer, np.concatenate(states)[first:], cache)
        return tokens

    def hidden(self, index: int) -> NDArray[np.float16]:
        """States of the anchors of one answer and the wanted taps, (A, (1 + taps) D)."""
        assert self._maps is not None, "build() comes first"
        place = self._files.place(self._keys[index])
        return self._maps[0][place.anchor : place.anchor + place.anchors, self._columns]

    def kv(self, index: int) -> NDArray[np.float16]:
        """K and V of one answer's positions, (R, L, 2, G, H)."""
        assert self._maps is not None, "build() comes first"
        place = self._files.place(self._keys[index])
        return self._maps[1][place.row : place.row + place.rows][:, self._chosen]
