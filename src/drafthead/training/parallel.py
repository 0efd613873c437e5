"""Data parallel training: one seam between the trainer and torch.distributed.

`torchrun` starts the processes; each trains the same head on its part of a batch. What is summed
over them, gradients and counts, makes N processes one process with the same batch, up to the
rounding of sums. Every process of one machine or many reads the same folders; the first one writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist

from drafthead.training.device import CPU

LONGEST_WAIT = timedelta(days=7)  # for the first process, which makes answers and features alone


@dataclass(frozen=True)
class Workers:
    """This process's place among those that train one head: number `rank` of `size`.

    device: where its weights and batches are.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """Whether this process writes and reports."""
        return self.rank == 0

    def share(self, indices: Sequence[int], weights: Sequence[int]) -> list[int]:
        """The part of a batch that is this process's own: every process about as much.

        Args:
            indices: the sequences of the batch.
            weights: of each sequence there is, by its index, its anchors.
        """
        parts: list[list[int]] = [[] for _ in range(self.size)]
        loads = [0] * self.size
        for index in sorted(indices, key=lambda index: -weights[index]):
            lightest = loads.index(min(loads))
            parts[lightest].append(index)
            loads[lightest] += weights[index]
        mine = set(parts[self.rank])
        return [index for index in indices if index in mine]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over all processes, in f64: exact for counts."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def from_first(self, value: float) -> float:
        """The first process's value, in all of them."""
        return self.sum([value if self.first else 0.0])[0]

    def sum_gradients(self, weights: Iterable[Tensor]) -> None:
        """Sum the gradients of all processes; one without a gradient counts as zero."""
        if self.size == 1:
            return
        learnt = [weight for weight in weights if weight.requires_grad]
        flat = torch.cat(
            [
                (torch.zeros_like(weight) if weight.grad is None else weight.grad).reshape(-1)
                for weight in learnt
            ]
        )
        dist.all_reduce(flat)
        for weight, part in zip(learnt, flat.split([w.numel() for w in learnt]), strict=True):
            weight.grad = part.view_as(weight)

    def copy_first(self, weights: Iterable[Tensor]) -> None:
        """Give every process the first one's weights."""
        if self.size > 1:
            for weight in weights:
                dist.broadcast(weight.data, src=0)

    def wait(self) -> None:
        """Go on when every process has come here."""
        self.sum([0.0])


ALONE = Workers()


def processes_here() -> int:
    """How many processes `torchrun` started on this machine; they share its cores."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@contextmanager
def joined(device: torch.device = CPU) -> Iterator[Workers]:
    """The processes that `torchrun` started this one with, or this one alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Workers(device=device)
        return
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)  # what nccl's own buffers are on
    dist.init_process_group("nccl" if cuda else "gloo", timeout=LONGEST_WAIT)
    try:
        yield Workers(dist.get_rank(), dist.get_world_size(), device)
        dist.barrier()  # a process that closes its connections early can abort the others
    finally:
        dist.destroy_process_group()
