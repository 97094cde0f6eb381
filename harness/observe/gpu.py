"""What this machine's GPUs do while load runs: facts once, figures about once a second.

NVIDIA's are read by NVML, the driver's own library. A GPU that vanishes keeps what was read of it. AMD's are read by
AMD SMI, which comes with ROCm as the Python package amdsmi; names and units are those of its py-interface of ROCm
6.3. A figure that a card does not publish is left out, and a machine without a driver has no GPUs here. Which GPUs
serve is not known: `analysis.telemetry` counts those that were busy. Left out: other makers' cards, single processes,
and the traffic on NVLink and PCIe.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from harness.data.machines import Card
from harness.data.record import Sample

EVERY_S = 1.0  # between two samples; NVML's own power figure is a mean over a second from Ampere on


class Gpus:
    """The visible GPUs of this machine, opened for reading.

    NVML usually takes microseconds, but it calls the driver, which can hang with its card: call `open` and `samples` in
    a thread (they release the GIL), one call at a time.
    """

    def __init__(self, nvml: Any, handles: Mapping[str, Any]) -> None:
        self._nvml = nvml
        self._handles = dict(handles)
        # Of each GPU and metric the ways to read it that are left; a way that the card or driver lacks is tried once.
        self._ways = {name: _ways(nvml, handle) for name, handle in handles.items()}
        self._lacking = (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_FunctionNotFound,
            nvml.NVMLError_NoPermission,
            nvml.NVMLError_InvalidArgument,  # what some drivers return for a MIG slice without such a figure
        )
        self._gone = (
            nvml.NVMLError_GpuIsLost,
            nvml.NVMLError_ResetRequired,
            nvml.NVMLError_DriverNotLoaded,
            nvml.NVMLError_Uninitialized,  # closed meanwhile
        )

    @classmethod
    def open(cls, nvml: Any = None, environ: Mapping[str, str] = os.environ) -> Gpus | None:
        """The GPUs that CUDA_VISIBLE_DEVICES leaves, all without it; None where there is no driver or no GPU.

        `nvml` is the module pynvml or what stands in for it.
        """
        if nvml is None:
            import ctypes

            try:
                ctypes.CDLL("libnvidia-ml.so.1")  # at once, where importing pynvml takes 50 ms to find no driver
            except OSError:
                return None
            import pynvml

            nvml = pynvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:  # no library, no driver, or two that do not match
            return None
        try:
            handles = _handles(nvml, environ.get("CUDA_VISIBLE_DEVICES"))
        except nvml.NVMLError:
            handles = {}
        if not handles:
            nvml.nvmlShutdown()
            return None
        return cls(nvml, handles)

    def facts(self) -> list[Card]:
        """The manifest's facts of each GPU."""
        return [_card(self._nvml, name, handle) for name, handle in self._handles.items()]

    def samples(self, time_s: float) -> list[Sample]:
        """Every figure that can be read now, as '0/power_w' and so on: the GPU's index at NVML, then the metric.

        A slice of a GPU (MIG) is '0.2': GPU 0, slice 2.
        """
        return [
            Sample(time_s, "gpu", f"{name}/{metric}", float(value))
            for name in list(self._ways)
            for metric, value in self._read(name)
        ]

    def _read(self, name: str) -> Iterator[tuple[str, float]]:
        for metric, ways in self._ways[name].items():
            while ways:
                try:
                    value = ways[0]()
                except self._lacking:
                    ways.pop(0)
                except self._gone:
                    del self._ways[name]
                    return
                except self._nvml.NVMLError:  # not this time
                    break
                else:
                    yield metric, value
                    break

    def close(self) -> None:
        """Release the library; once. Nothing can be read afterwards."""
        self._ways.clear()
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:  # the driver went first
            pass


def visible(setting: str | None, uuids: Mapping[int, str]) -> list[int | str]:
    """What a CUDA_VISIBLE_DEVICES leaves: indices of whole GPUs (`uuids` has them all) and UUIDs of MIG slices.

    A GPU is named by its index, its UUID or the start of one; the first entry that names none ends the list, as it
    does for CUDA. CUDA's own indices put faster cards first unless CUDA_DEVICE_ORDER=PCI_BUS_ID, NVML's never do:
    that differs only where one machine has different cards.

    >>> two = {0: "GPU-4a1c", 1: "GPU-77e0"}
    >>> visible(None, two), visible("1", two), visible("GPU-77,0", two), visible("1,-1,0", two), visible("", two)
    ([0, 1], [1], [1, 0], [1], [])
    """
    if setting is None:
        return list(uuids)
    out: list[int | str] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.startswith("MIG-"):
            out.append(entry)
            continue
        whole = [i for i, uuid in uuids.items() if entry == str(i) or (entry[:4] == "GPU-" and uuid.startswith(entry))]
        if len(whole) != 1:
            break
        out += whole
    return list(dict.fromkeys(out))


def _handles(nvml: Any, setting: str | None) -> dict[str, Any]:
    """Handles of the visible GPUs and MIG slices, by the name that their samples get."""
    whole: dict[int, Any] = {}
    uuids: dict[int, str] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            whole[index] = nvml.nvmlDeviceGetHandleByIndex(index)
            uuids[index] = nvml.nvmlDeviceGetUUID(whole[index])
        except nvml.NVMLError:  # not visible to us, or lost
            whole.pop(index, None)
    found: dict[str, Any] = {}
    for entry in visible(setting, uuids):
        if isinstance(entry, int):
            found[str(entry)] = whole[entry]
            continue
        try:
            slice_ = nvml.nvmlDeviceGetHandleByUUID(entry)
            card = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_)
            found[f"{nvml.nvmlDeviceGetIndex(card)}.{nvml.nvmlDeviceGetIndex(slice_)}"] = slice_
        except nvml.NVMLError:
            break
    return found


def _ways(nvml: Any, handle: Any) -> dict[str, list[Callable[[], float]]]:
    """How each metric of one GPU is read, in base units; where drivers differ in a function's name, each of them."""
    return {
        "utilization": [lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100],
        "memory_used_bytes": [lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used],  # the driver's own part included
        "power_w": [lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3],
        "energy_j": [lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3],  # since the driver was loaded
        "sm_clock_hz": [lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6],
        "memory_clock_hz": [lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6],
        "temperature_c": [
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),  # until CUDA 14
            lambda: nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU),
        ],
        "throttle_reasons": [
            lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),  # its name before driver 535
        ],
    }


def _card(nvml: Any, index: str, handle: Any) -> Card:
    def query(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except nvml.NVMLError:
            return None

    def scaled(value: float | None, factor: float) -> float | None:
        return None if value is None else value * factor

    uuid = query(nvml.nvmlDeviceGetUUID, handle)
    memory = query(nvml.nvmlDeviceGetMemoryInfo, handle)
    mig = query(nvml.nvmlDeviceGetMigMode, handle)
    cuda = query(nvml.nvmlSystemGetCudaDriverVersion_v2)
    return Card(
        index=index,
        name=query(nvml.nvmlDeviceGetName, handle),
        id=None if uuid is None else hashlib.sha256(uuid.encode()).hexdigest()[:12],
        memory_bytes=None if memory is None else memory.total,
        driver=query(nvml.nvmlSystemGetDriverVersion),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        power_limit_w=scaled(query(nvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1e-3),
        sm_clock_max_hz=scaled(query(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM), 1e6),
        memory_clock_max_hz=scaled(query(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_MEM), 1e6),
        mig=None if mig is None else mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        # The most that card and slot agree on: the present generation falls while the card idles.
        pcie_generation=query(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_width=query(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        nvlinks=_nvlinks(nvml, handle),
    )


def _nvlinks(nvml: Any, handle: Any) -> int | None:
    """How many NVLinks are up; None for a card that has none."""
    states = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(nvml.nvmlDeviceGetNvLinkState(handle, link))
        except nvml.NVMLError:  # past the last one
            break
    return sum(states) if states else None


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
        self._ways = {index: _amd_ways(smi, handle) for index, handle in handles.items()}

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
        return [_amd_card(self._smi, index, handle) for index, handle in self._handles.items()]

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


def _amd_ways(smi: Any, handle: Any) -> dict[str, Callable[[], float | None]]:
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


def _amd_card(smi: Any, index: int, handle: Any) -> Card:
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


class Cards(Protocol):
    """GPUs that are opened for reading."""

    def facts(self) -> list[Card]: ...

    def samples(self, time_s: float) -> list[Sample]: ...

    def close(self) -> None: ...


def opened() -> Cards | None:
    """NVIDIA's by NVML, else AMD's by AMD SMI; None where there are none."""
    return Gpus.open() or AmdGpus.open()
