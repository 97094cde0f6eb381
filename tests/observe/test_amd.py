"""What is read of AMD's GPUs, by a stand-in for the module amdsmi with its calls, units and errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.analysis.telemetry import gpu_view
from harness.observe.gpu import amd


class AmdSmiException(Exception):  # noqa: N818 - the name of the real one
    """The base of everything that amdsmi raises."""


# What an MI300X says of itself, in AMD SMI's own units; a figure that is an exception is raised.
MI300X: dict[str, Any] = {
    "gpu_device_uuid": "29ff74a1-0000-1000-80d4-c02a9f7e9d3e",
    "gpu_asic_info": {"market_name": "AMD Instinct MI300X", "vendor_name": "AMD"},
    "gpu_driver_info": {"driver_name": "amdgpu", "driver_version": "6.10.5", "driver_date": "N/A"},
    "gpu_activity": {"gfx_activity": 93, "umc_activity": 41, "mm_activity": "N/A"},
    "gpu_vram_usage": {"vram_total": 196_592, "vram_used": 150_000},  # MiB
    "power_info": {"current_socket_power": 710, "average_socket_power": "N/A", "power_limit": 750},
    "energy_count": {"energy_accumulator": 1_000_000, "counter_resolution": 15.3, "timestamp": 1},
    "clock_info": {"GFX": {"clk": 2100, "max_clk": 2100}, "MEM": {"clk": 1300, "max_clk": 1300}},
    "temp_metric": 67,
    "violation_status": {"active_ppt_pwr": True, "active_socket_thrm": False, "active_hbm_thrm": "N/A"},
}
# An older card: a mean of the power, no energy and no violations.
MI210 = MI300X | {
    "gpu_device_uuid": "11ff740f-0000-1000-80d4-c02a9f7e9d3e",
    "power_info": {"current_socket_power": "N/A", "average_socket_power": 250, "power_limit": 300},
    "energy_count": AmdSmiException,
    "violation_status": AmdSmiException,
}


class Smi:
    """A stand-in for the module amdsmi with these cards: the same names, units and errors."""

    AmdSmiException = AmdSmiException
    AmdSmiClkType = SimpleNamespace(GFX="GFX", MEM="MEM")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="HOTSPOT")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="CURRENT")

    def __init__(self, *cards: dict[str, Any], driver: bool = True) -> None:
        self.cards, self.driver, self.opened = cards, driver, 0
        for name in MI300X:
            setattr(self, f"amdsmi_get_{name}", self._function(name))

    def _function(self, name: str) -> Any:
        def function(handle: dict[str, Any], *arguments: Any) -> Any:
            value = handle[name]
            if isinstance(value, type):
                raise value
            return value[arguments[0]] if name == "clock_info" else value

        return function

    def amdsmi_init(self) -> None:
        if not self.driver:
            raise AmdSmiException
        self.opened += 1

    def amdsmi_shut_down(self) -> None:
        self.opened -= 1

    def amdsmi_get_processor_handles(self) -> list[dict[str, Any]]:
        return list(self.cards)


def figures(smi: Smi, environ: dict[str, str] | None = None) -> dict[str, float]:
    gpus = amd(smi, environ or {})
    assert gpus is not None
    return {sample.metric: sample.value for sample in gpus.samples(1.0)}


def test_figures_are_in_base_units() -> None:
    assert figures(Smi(MI300X)) == {
        "0/utilization": pytest.approx(0.93),
        "0/memory_used_bytes": 150_000 * 2**20,
        "0/power_w": 710.0,
        "0/energy_j": pytest.approx(15.3),
        "0/sm_clock_hz": 2.1e9,
        "0/memory_clock_hz": 1.3e9,
        "0/temperature_c": 67.0,
        "0/throttle_reasons": 4.0,
    }


def test_what_a_card_does_not_publish_is_left_out() -> None:
    found = figures(Smi(MI210))
    assert found["0/power_w"] == 250.0
    assert {"0/energy_j", "0/throttle_reasons"}.isdisjoint(found)


def test_a_window_s_energy_is_the_counter_s_growth() -> None:
    gpus = amd(Smi(card := dict(MI300X)), {})
    assert gpus is not None
    samples = gpus.samples(0.0)
    card["energy_count"] = card["energy_count"] | {"energy_accumulator": 1_000_000 + 500_000_000}
    got = gpu_view([*samples, *gpus.samples(10.0)], (0.0, 10.0))
    assert got is not None
    assert (got.gpus, got.energy_j, got.throttle) == (1, pytest.approx(7650.0), {"sw_power_cap": 1.0})


def test_the_operator_s_choice_of_gpus_is_kept() -> None:
    two = Smi(MI300X, MI210)
    assert {name.partition("/")[0] for name in figures(two, {"HIP_VISIBLE_DEVICES": "1"})} == {"1"}
    assert amd(two, {"ROCR_VISIBLE_DEVICES": ""}) is None


def test_facts_name_the_card_and_not_its_serial_number() -> None:
    gpus = amd(Smi(MI300X), {})
    assert gpus is not None
    (card,) = gpus.facts()
    assert (card.name, card.driver, card.power_limit_w) == ("AMD Instinct MI300X", "6.10.5", 750)
    assert card.memory_bytes == 196_592 * 2**20
    assert card.id is not None
    assert card.id not in MI300X["gpu_device_uuid"]


def test_a_machine_without_driver_or_cards_has_no_gpus() -> None:
    for smi in (Smi(driver=False), Smi()):
        assert amd(smi, {}) is None
        assert smi.opened == 0
