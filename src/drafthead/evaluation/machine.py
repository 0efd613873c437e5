"""What the numbers were measured on: processor, instruction set, memory bandwidth."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from drafthead import _native
from drafthead.backbone.handle import default_threads

BANDWIDTH_BYTES = 256 << 20
BANDWIDTH_ROUNDS = 5


def cpu_name() -> str:
    """The processor's own name for itself."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


class MemoryReader:
    """Reads one array as a pass reads weights: each thread its own part, in order.

    The 256 MiB are more than the caches of the machines meant here hold.
    """

    def __init__(self, threads: int) -> None:
        self._native = _native.MemoryReader(BANDWIDTH_BYTES, threads)

    def read(self) -> None:
        """Read it once."""
        self._native.read()


def memory_read_gb_s(threads: int) -> float:
    """Best read bandwidth over a few rounds, in 10^9 bytes a second."""
    reader = MemoryReader(threads)
    best_s = min(_timed_s(reader.read) for _ in range(BANDWIDTH_ROUNDS))
    return BANDWIDTH_BYTES / best_s / 1e9


def _timed_s(job: Callable[[], object]) -> float:
    started = perf_counter()
    job()
    return perf_counter() - started


def describe(threads: int) -> dict[str, object]:
    """The `machine` section of a report; measures the bandwidth, which takes about a second."""
    return {
        "cpu": cpu_name(),
        "cores": default_threads(),
        "isa": _native.active_isa(),
        "threads": threads,
        "memory_read_gb_s": round(memory_read_gb_s(threads), 1),
    }
