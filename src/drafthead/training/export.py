"""From trained weights to a head package, written atomically."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as pack

from drafthead.errors import HeadError
from drafthead.heads.config import HeadConfig
from drafthead.heads.package import CONFIG, WEIGHTS, HeadPackage, expected_tensors
from drafthead.training.quantize import quantize


def package_tensors(
    config: HeadConfig, weights: Mapping[str, NDArray[np.float32]], token_ids: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """Every tensor of a package, by the name and in the type that the package demands."""
    tensors: dict[str, NDArray[Any]] = {"draft_token_ids": token_ids.astype(np.int32)}
    for name in config.vectors():
        tensors[name] = weights[name].astype(np.float32)
    for name in config.matrices():
        tensors[name], tensors[name + "_scale"] = quantize(weights[name], config.blocks)
    return {name: np.ascontiguousarray(tensors[name]) for name in expected_tensors(config)}


def check_place(folder: Path) -> None:
    """Refuse a folder that holds something else than a head package: HeadError."""
    if folder.exists() and not (folder / CONFIG).is_file():
        raise HeadError(f"{folder} exists and is not a head package; choose another --out.")


def export(
    folder: Path,
    config: HeadConfig,
    weights: Mapping[str, NDArray[np.float32]],
    token_ids: NDArray[np.int64],
) -> HeadPackage:
    """Write a head package and read it back.

    The folder appears complete or not at all; one that is there already is replaced if it is a
    head package.

    Raises:
        HeadError: the folder holds something else, or a weight is not finite.
    """
    check_place(folder)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        content = json.dumps(config.to_json(), indent=2) + "\n"
        (temporary / CONFIG).write_text(content, encoding="utf-8")
        packed = pack(package_tensors(config, weights, token_ids))
        (temporary / WEIGHTS).write_bytes(packed)
        HeadPackage.load(temporary)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return HeadPackage.load(folder)
