"""Joules, from what the machine exposes: processor counters (RAPL), else the battery's gauge.

Where there is neither, there is no number and a reason. RAPL counts the processor packages in steps
of microjoules; a battery's gauge counts the whole device, in steps of milliwatt-hours (3.6 J) and
more and seldom more than once a second, so only sums over many answers say something.
"""

from __future__ import annotations

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
POWER_SUPPLY = Path("/sys/class/power_supply")
JOULES_PER_MICROWATT_HOUR = 3.6e-3
# Microampere-hours times microvolts.
JOULES_PER_CHARGE_VOLT = 3.6e-9


class EnergyMeter:
    """Joules since the last lap.

    source: "rapl", "battery", or None.  reason: why there is no source.
    """

    def __init__(self, powercap: Path = POWERCAP, power_supply: Path = POWER_SUPPLY) -> None:
        # Sub-zones such as intel-rapl:0:1 are part of their package and would count twice.
        zones = sorted(zone for zone in powercap.glob("*rapl:*") if zone.name.count(":") == 1)
        batteries = sorted(
            path for path in power_supply.glob("*") if _word(path / "type") == "battery"
        )
        self._counters = [
            Package(zone) for zone in zones if _read_int(zone / "energy_uj") is not None
        ]
        self._gauges = [gauge for gauge in map(Gauge, batteries) if gauge.readable]
        discharging = all(_word(gauge.path / "status") == "discharging" for gauge in self._gauges)
        self.source: str | None = None
        self.reason: str | None = None
        if self._counters:
            self.source = "rapl"
        elif self._gauges and discharging:
            self.source = "battery"
        elif self._gauges:
            self.reason = "the battery is not discharging: unplug the device to measure"
        elif zones:
            self.reason = f"the counters in {powercap} cannot be read by this user"
        else:
            self.reason = f"no counter in {powercap} and no battery in {power_supply}"

    def lap_joules(self) -> float | None:
        """Joules since the last lap; None where nothing is exposed."""
        if self.source == "rapl":
            return sum(counter.lap_joules() for counter in self._counters)
        if self.source == "battery":
            return sum(gauge.lap_joules() for gauge in self._gauges)
        return None

    def section(self) -> dict[str, str | None]:
        """The `energy` section of a report."""
        return {"source": self.source, "reason": self.reason}


class Package:
    """The counter of one processor package, which starts again at its range."""

    def __init__(self, zone: Path) -> None:
        self._zone = zone
        self._last = _read_int(zone / "energy_uj") or 0

    def lap_joules(self) -> float:
        """Joules since the last lap."""
        now = _read_int(self._zone / "energy_uj")
        if now is None:
            return 0.0
        change = now - self._last
        if change < 0:
            change += _read_int(self._zone / "max_energy_range_uj") or 0
        self._last = now
        return change / 1e6


class Gauge:
    """What is left in one battery: energy, or charge whose change counts at the voltage of now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        by_energy = _read_int(path / "energy_now") is not None
        self._left = "energy_now" if by_energy else "charge_now"
        self._voltage = None if by_energy else "voltage_now"
        self._last = _read_int(path / self._left)

    @property
    def readable(self) -> bool:
        """Whether it tells what is left."""
        voltage = 1 if self._voltage is None else _read_int(self.path / self._voltage)
        return self._last is not None and voltage is not None

    def lap_joules(self) -> float:
        """Joules since the last lap."""
        now = _read_int(self.path / self._left)
        if now is None or self._last is None:
            return 0.0
        used, self._last = self._last - now, now
        if self._voltage is None:
            return used * JOULES_PER_MICROWATT_HOUR
        return used * (_read_int(self.path / self._voltage) or 0) * JOULES_PER_CHARGE_VOLT


def _word(path: Path) -> str:
    return (_read(path) or "").strip().lower()


def _read_int(path: Path) -> int | None:
    text = _read(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
