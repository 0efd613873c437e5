"""Laws of the joules: packages and batteries are summed, and where there is neither it says why."""

from __future__ import annotations

import re

import pytest

from drafthead.evaluation.energy import EnergyMeter


def put(folder, **values):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")


def meter(root):
    return EnergyMeter(root / "powercap", root / "power_supply")


def test_processor_counters_come_first_and_are_named(tmp_path):
    """Sub-zones are part of their package; a counter that wrapped goes on."""
    package = tmp_path / "powercap" / "intel-rapl:0"
    put(package, energy_uj=900, max_energy_range_uj=1000)
    put(tmp_path / "powercap" / "intel-rapl:0:0", energy_uj=5)
    put(tmp_path / "power_supply" / "BAT0", type="Battery", status="Discharging", energy_now=1)
    found = meter(tmp_path)
    put(package, energy_uj=50)
    assert found.lap_joules() == pytest.approx(150e-6)
    assert found.lap_joules() == 0
    assert found.section() == {"source": "rapl", "reason": None}


def test_a_battery_that_counts_energy(tmp_path):
    """Microwatt-hours; a device with two batteries uses both, and the mains is none."""
    supply = tmp_path / "power_supply"
    for name in ("BAT0", "BAT1"):
        put(supply / name, type="Battery", status="Discharging", energy_now=50_000_000)
    put(supply / "AC", type="Mains", online=0)
    found = meter(tmp_path)
    assert found.section() == {"source": "battery", "reason": None}
    put(supply / "BAT0", energy_now=49_990_000)
    put(supply / "BAT1", energy_now=49_995_000)
    assert found.lap_joules() == pytest.approx(36 + 18)
    assert found.lap_joules() == 0


def test_a_battery_that_counts_charge(tmp_path):
    """Microampere-hours at the voltage of now: what sags is not what was used."""
    battery = tmp_path / "power_supply" / "battery"
    put(battery, type="Battery", status="Discharging", charge_now=3_000_000, voltage_now=4_000_000)
    found = meter(tmp_path)
    put(battery, voltage_now=3_800_000)
    assert found.lap_joules() == 0
    put(battery, charge_now=2_999_000)
    assert found.lap_joules() == pytest.approx(1e-3 * 3600 * 3.8)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "no counter in .*powercap and no battery in .*power_supply"),
        ({"powercap/intel-rapl:0": {"name": "package-0"}}, "cannot be read by this user"),
        (
            {"power_supply/B": {"type": "Battery", "status": "Charging", "energy_now": 5}},
            "not discharging: unplug",
        ),
        ({"power_supply/B": {"type": "Battery", "status": "Discharging"}}, "no battery"),
        (
            {"power_supply/B": {"type": "Battery", "status": "Discharging", "charge_now": 5}},
            "no battery",
        ),
    ],
)
def test_without_a_source_there_is_a_reason_and_no_number(tmp_path, files, reason):
    for folder, values in files.items():
        put(tmp_path / folder, **values)
    found = meter(tmp_path)
    assert found.lap_joules() is found.section()["source"] is None
    assert re.search(reason, found.section()["reason"])


def test_a_source_that_goes_away_adds_nothing(tmp_path):
    package = tmp_path / "powercap" / "intel-rapl:0"
    put(package, energy_uj=900)
    found = meter(tmp_path)
    (package / "energy_uj").unlink()
    assert found.lap_joules() == 0
