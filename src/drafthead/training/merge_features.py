"""The features of a divided regeneration, put together in the order of the merged answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drafthead.errors import TrainingError
from drafthead.training.answers import Answer
from drafthead.training.features import HEADER, FeatureFiles, answer_key, kept_rows


def open_parts(folders: Sequence[Path], out: Path, fingerprint: object) -> list[FeatureFiles]:
    """The feature files of all parts, seen to fit each other.

    Args:
        folders: of the parts; a part that kept none has none.
        out: where they are to be put together.
        fingerprint: of the backbone that gave the answers.

    Raises:
        TrainingError: a folder holds no features, those of another backbone, or of other layers
            or taps than the first one, or `out` holds some already; it is named.
    """
    if (out / HEADER).is_file():
        raise TrainingError(f"{out} holds features already; merge into a new folder.")
    parts = [FeatureFiles.stored(folder) for folder in folders]
    first = {**parts[0].header, "fingerprint": fingerprint}
    for folder, part in zip(folders, parts, strict=True):
        for name in sorted({*first, *part.header}):
            if part.header.get(name) != first.get(name):
                raise TrainingError(
                    f"The features in {folder} have {name} {part.header.get(name)!r}, expected "
                    f"{first.get(name)!r}: all parts keep the same layers of the backbone that "
                    "answered."
                )
    return parts


def merge_features(parts: Sequence[FeatureFiles], out: Path, answers: Sequence[Answer]) -> int:
    """Copy the features of answers into a new folder, in the answers' order.

    So the bytes do not depend on which part was done first. `train` computes what no part has.

    Returns:
        The number of answers without features.
    """
    merged = parts[0].like(out)
    maps = [part.open() for part in parts]
    missing = 0
    for answer in answers:
        key = answer_key(answer)
        if not kept_rows(answer) or key in merged:
            continue
        holder = next((at for at, part in enumerate(parts) if key in part), None)
        if holder is None:
            missing += 1
            continue
        (hidden, kv), place = maps[holder], parts[holder].place(key)
        merged.keep(
            answer, hidden[place.anchor : place.anchor + place.anchors],
            kv[place.row : place.row + place.rows],
        )  # fmt: skip
    merged.flush()
    return missing
