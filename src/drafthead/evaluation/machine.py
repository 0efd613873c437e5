"""What the numbers were measured on: processor, instruction set, memory bandwidth, energy."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from drafthead import _native
from drafthead.backbone.handle import default_threads

POWERCAP = Path("/sys/class/powercap")
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


class EnergyMeter:
    """Joules of the processor packages since the start, from the kernel's powercap counters."""

    def __init__(self, root: Path = POWERCAP) -> None:
        # Sub-zones such as intel-rapl:0:1 are part of their package and would count twice.
        zones = [zone for zone in root.glob("*rapl:*") if zone.name.count(":") == 1]
        self._zones = [zone for zone in zones if _read_int(zone / "energy_uj") is not None]
        self._last = [_read_int(zone / "energy_uj") or 0 for zone in self._zones]

    def lap_joules(self) -> float | None:
        """Joules since the last lap, wrapped counters put right; None where nothing is exposed."""
        if not self._zones:
            return None
        microjoules = 0
        for index, zone in enumerate(self._zones):
            now = _read_int(zone / "energy_uj") or self._last[index]
            change = now - self._last[index]
            if change < 0:
                change += _read_int(zone / "max_energy_range_uj") or 0
            microjoules += change
            self._last[index] = now
        return microjoules / 1e6


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
