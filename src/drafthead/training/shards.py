"""Regeneration in parts: each machine answers a shard, and the shards merge into one folder.

A prompt's digest decides its shard. A shard's folder holds, beside answers and manifest, the place
of each of its prompts in the whole list (shard.json); merged, the rows take those places, so that
the folder has the very bytes of a run that was never divided.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafthead.errors import TrainingError
from drafthead.evaluation.prompts import PromptRow
from drafthead.training.answers import AnswerStore, write_atomic
from drafthead.training.prompts import digest
from drafthead.training.tally import tally

SHARD = "shard.json"
SAME = ("format_version", "backbone", "fingerprint", "tokenizer_fingerprint", "settings")


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 1) of `count`."""

    index: int
    count: int

    def holds(self, prompt: PromptRow) -> bool:
        """Whether a prompt belongs to this part."""
        return int(digest(prompt)[:16], 16) % self.count == self.index - 1


def cut(prompts: Sequence[PromptRow], part: Shard, out: Path) -> list[PromptRow]:
    """The prompts of one part, in order; their places go to the folder that will hold the answers.

    Raises:
        TrainingError: the folder holds answers of another part, or of no part.
    """
    path = out / SHARD
    kept = {place: prompt for place, prompt in enumerate(prompts) if part.holds(prompt)}
    if path.is_file():
        found = _read(path)
        if (found["index"], found["count"]) != (part.index, part.count):
            raise TrainingError(
                f"{out} holds part {found['index']}/{found['count']}, not "
                f"{part.index}/{part.count}; use another --out folder."
            )
    elif AnswerStore(out).manifest() is not None:
        raise TrainingError(f"{out} holds answers of a run without --shard; use another folder.")
    out.mkdir(parents=True, exist_ok=True)
    ids = "\n".join(prompt.id for prompt in prompts)
    content = {
        "index": part.index,
        "count": part.count,
        "prompts_digest": hashlib.sha256(ids.encode()).hexdigest(),
        "places": {prompt.id: place for place, prompt in kept.items()},
    }
    write_atomic(path, json.dumps(content) + "\n")
    return list(kept.values())


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        places = content["places"]
        whole = all(type(content[name]) is int for name in ("index", "count"))
        if not whole or any(type(place) is not int for place in places.values()):
            raise TypeError("a number is missing")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{path.name}: {getattr(error, 'strerror', None) or error}"
        raise TrainingError(
            f"{path.parent} is no part of a divided run ({why}); make parts with --shard."
        ) from None
    return dict(content)


def _check_parts(folders: Sequence[Path], parts: Sequence[dict[str, Any]]) -> None:
    count = parts[0]["count"]
    for folder, part in zip(folders, parts, strict=True):
        for name in ("count", "prompts_digest"):
            if part.get(name) != parts[0].get(name):
                raise TrainingError(
                    f"{folder} and {folders[0]} are parts of different lists of prompts ({name} "
                    f"{part.get(name)!r} and {parts[0].get(name)!r}); make all parts with the same "
                    "prompts, --limit and --seed."
                )
    found = sorted(part["index"] for part in parts)
    if found != list(range(1, count + 1)):
        listed = ", ".join(map(str, found))
        raise TrainingError(f"A merge needs each of the parts 1 to {count} once, found {listed}.")


def _check_manifests(folders: Sequence[Path]) -> list[dict[str, Any]]:
    manifests = [AnswerStore(folder).manifest() or {} for folder in folders]
    for folder, manifest in zip(folders, manifests, strict=True):
        if not manifest.get("complete"):
            raise TrainingError(f"{folder} is not finished: run `regen` with its --shard again.")
        for key in SAME:
            if manifest.get(key) != manifests[0].get(key):
                raise TrainingError(
                    f"{folder} was made with {key} {manifest.get(key)!r}, {folders[0]} with "
                    f"{manifests[0].get(key)!r}: parts of one run share it."
                )
    return manifests


def merge(folders: Sequence[Path], out: Path) -> dict[str, object]:
    """Put the finished parts of a divided run together in a new folder.

    Returns:
        The manifest, as written.

    Raises:
        TrainingError: a part is missing, doubled, unfinished, or of another backbone, other
            settings or other prompts; or `out` holds something already.
    """
    parts = [_read(folder / SHARD) for folder in folders]
    _check_parts(folders, parts)
    manifests = _check_manifests(folders)
    merged = AnswerStore(out)
    if merged.manifest() is not None:
        raise TrainingError(f"{out} holds answers already; merge into a new folder.")
    places = {key: place for part in parts for key, place in part["places"].items()}

    manifest = {key: manifests[0][key] for key in SAME}
    merged.write_manifest(manifest | {"complete": False})
    for folder in folders:
        for row in AnswerStore(folder).rows():
            merged.append(row)
    merged.finish(sorted(places, key=places.__getitem__))
    manifest |= {"complete": True} | tally(merged.rows())
    manifest["skipped"] = sum(part["skipped"] for part in manifests)
    merged.write_manifest(manifest)
    return manifest
