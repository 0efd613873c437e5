"""The device that a training runs on: the processor, or an accelerator for each process."""

from __future__ import annotations

import os

import torch

from drafthead.errors import TrainingError

CPU = torch.device("cpu")


def usable_device(name: str) -> torch.device:
    """The device of a name; TrainingError where this machine has none."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise TrainingError(
            f"There is no device {name!r} here; use --device cpu, or cuda with a torch that has it."
        ) from error
    return device


def device_here(name: str) -> torch.device:
    """The device of this process; of `cuda` each one that `torchrun` started has its own."""
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    return usable_device(name)
