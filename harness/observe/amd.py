"""What this machine's AMD GPUs do while load runs, by AMD SMI: as `observe.gpu` has it of NVIDIA's.

AMD's library comes with ROCm as the Python package amdsmi; names and units are those of its py-interface of ROCm 6.3.
A figure that a card does not publish, by "N/A" or an error, is left out.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

from harness.data.machines import Card
from harness.data.record import Sample
from harness.observe.gpu import visible

_VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
# What holds the clock down, as the bits that NVML has for it: the power limit, heat, and the board's own brake.
_VIOLATIONS = {
    "active_ppt_pwr": 0x04,
    "active_socket_thrm": 0x40,
    "active_vr_thrm": 0x40,
    "active_hbm_thrm": 0x40,
    "active_prochot_thrm": 0x80,
}


class AmdGpus:
    """The visible AMD GPUs of this machine, opened for reading; as `observe.gpu.Gpus`."""

    def __init__(self, smi: Any, handles: Mapping[int, Any]) -> None:
        self._smi = smi
        self._handles = dict(handles)
        self._ways = {index: _ways(smi, handle) for index, handle in handles.items()}

    @classmethod
    def open(cls, smi: Any = None, environ: Mapping[str, str] = os.environ) -> AmdGpus | None:
        """The GPUs that ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES leaves; None where there is no library or no GPU.

        `smi` is the module amdsmi or what stands in for it.
        """
        if smi is None:
            if importlib.util.find_spec("amdsmi") is None:
                return None
            try:
                import amdsmi
            except (ImportError, OSError):  # the package is there and its library is not
                return None
            smi = amdsmi
        try:
            smi.amdsmi_init()
        except smi.AmdSmiException:  # no driver
            return None
        found: dict[int, Any] = {}
        try:
            handles = smi.amdsmi_get_processor_handles()
            uuids = {index: smi.amdsmi_get_gpu_device_uuid(handle) for index, handle in enumerate(handles)}
            setting = next((environ[name] for name in _VISIBLE if name in environ), None)
            found = {index: handles[index] for index in visible(setting, uuids) if isinstance(index, int)}
        except smi.AmdSmiException:
            pass
        if not found:
            smi.amdsmi_shut_down()
            return None
        return cls(smi, found)

    def facts(self) -> list[Card]:
        """The manifest's facts of each GPU."""
        return [_card(self._smi, index, handle) for index, handle in self._handles.items()]

    def samples(self, time_s: float) -> list[Sample]:
        """Every figure that can be read now, as '0/power_w' and so on."""
        found = []
        for index, ways in self._ways.items():
            for metric, way in list(ways.items()):
                try:
                    value = way()
                except (self._smi.AmdSmiException, KeyError):  # this card or library has no such figure
                    del ways[metric]
                    continue
                if value is not None:
                    found.append(Sample(time_s, "gpu", f"{index}/{metric}", value))
        return found

    def close(self) -> None:
        """Release the library; once. Nothing can be read afterwards."""
        self._ways.clear()
        try:
            self._smi.amdsmi_shut_down()
        except self._smi.AmdSmiException:  # the driver went first
            pass


def _number(value: Any, scale: float = 1.0) -> float | None:
    """A figure in base units; None for "N/A"."""
    return float(value) * scale if isinstance(value, int | float) else None


def _ways(smi: Any, handle: Any) -> dict[str, Callable[[], float | None]]:
    """How each metric of one GPU is read, in base units."""

    def power() -> float | None:
        """Of the cards some have a mean, others the present figure."""
        info = smi.amdsmi_get_power_info(handle)
        return _number(info["current_socket_power"]) or _number(info["average_socket_power"])

    def energy() -> float | None:
        """The counter's unit is its resolution, in microjoules."""
        info = smi.amdsmi_get_energy_count(handle)
        return _number(info["energy_accumulator"], info["counter_resolution"] * 1e-6)

    def throttled() -> float:
        status = smi.amdsmi_get_violation_status(handle)
        bits = 0
        for name, bit in _VIOLATIONS.items():
            bits |= bit if status.get(name) is True else 0
        return float(bits)

    def clock(kind: Any) -> float | None:
        return _number(smi.amdsmi_get_clock_info(handle, kind)["clk"], 1e6)

    hotspot, current = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
    return {
        "utilization": lambda: _number(smi.amdsmi_get_gpu_activity(handle)["gfx_activity"], 1e-2),
        "memory_used_bytes": lambda: _number(smi.amdsmi_get_gpu_vram_usage(handle)["vram_used"], 2.0**20),
        "power_w": power,
        "energy_j": energy,
        "sm_clock_hz": lambda: clock(smi.AmdSmiClkType.GFX),
        "memory_clock_hz": lambda: clock(smi.AmdSmiClkType.MEM),
        "temperature_c": lambda: _number(smi.amdsmi_get_temp_metric(handle, hotspot, current)),
        "throttle_reasons": throttled,
    }


def _card(smi: Any, index: int, handle: Any) -> Card:
    def query(function: Callable[..., Any], field: str) -> Any:
        try:
            value = function(handle)[field]
        except (smi.AmdSmiException, KeyError):
            return None
        return None if value == "N/A" else value

    uuid = smi.amdsmi_get_gpu_device_uuid(handle)
    return Card(
        index=str(index),
        name=query(smi.amdsmi_get_gpu_asic_info, "market_name"),
        id=hashlib.sha256(uuid.encode()).hexdigest()[:12],
        memory_bytes=_number(query(smi.amdsmi_get_gpu_vram_usage, "vram_total"), 2.0**20),
        driver=query(smi.amdsmi_get_gpu_driver_info, "driver_version"),
        power_limit_w=_number(query(smi.amdsmi_get_power_info, "power_limit")),
    )
