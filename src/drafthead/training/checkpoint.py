"""Training state as one safetensors file, replaced atomically; nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as pack
from torch import Tensor

from drafthead.errors import TrainingError
from drafthead.training.answers import write_atomic


def save(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and a JSON state; a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, pack(contiguous, metadata={"state": json.dumps(state)}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read back what `save` wrote; TrainingError where the file is not one."""
    try:
        with safe_open(str(path), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            state = json.loads((file.metadata() or {})["state"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise TrainingError(
            f"{path} is not a checkpoint ({error}); delete it to begin again."
        ) from error
    return tensors, state
