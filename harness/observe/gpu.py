"""What this machine's GPUs do while load runs: facts once, figures about once a second.

NVIDIA's are read by NVML, the driver's own library. A GPU that vanishes keeps what was read of it. AMD's are read by
AMD SMI, which comes with ROCm as the Python package amdsmi; names and units are those of its py-interface of ROCm
6.3. A figure that a card does not publish is left out, and a machine without a driver has no GPUs here. Which GPUs
serve is not known: `analysis.telemetry` counts those that were busy. Left out: other makers' cards, single processes,
and the traffic on NVLink and PCIe.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from harness.data.machines import Card
from harness.data.record import Sample

EVERY_S = 1.0  # between two samples; NVML's own power figure is a mean over a second from Ampere on


class _Driver(msgspec.Struct, frozen=True, kw_only=True):
    """A maker's library: how it is opened, and how what it knows of a GPU is read, by the GPU's handle."""

    open: Callable[[], object]
    close: Callable[[], object]
    handles: Callable[[], dict[str, Any]]  # of the visible GPUs, by the names that their samples get
    ways: Callable[[Any], dict[str, list[Callable[[], float | None]]]]  # to read each metric, in base units
    card: Callable[[str, Any], Card]
    error: type[Exception]  # of any call
    lacking: tuple[type[Exception], ...]  # of a figure that the card or the driver does not have
    gone: tuple[type[Exception], ...] = ()  # of a card that can no longer be read


class Gpus:
    """The visible GPUs of this machine, opened for reading.

    A library usually takes microseconds, but it calls the driver, which can hang with its card: open and read in a
    thread (these calls release the GIL), one call at a time.
    """

    def __init__(self, driver: _Driver, handles: Mapping[str, Any]) -> None:
        self._driver = driver
        self._handles = handles
        # Of each GPU and metric the ways to read it that are left; a way that the card or driver lacks is tried once.
        self._ways = {name: driver.ways(handle) for name, handle in handles.items()}

    def facts(self) -> list[Card]:
        """Return the manifest's facts of each GPU."""
        return [self._driver.card(name, handle) for name, handle in self._handles.items()]

    def samples(self, time_s: float) -> list[Sample]:
        """Return every figure that can be read now, as '0/power_w' and so on: the GPU's index, then the metric.

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
                except self._driver.lacking:
                    ways.pop(0)
                except self._driver.gone:
                    del self._ways[name]
                    return
                except self._driver.error:  # not this time
                    break
                else:
                    if value is not None:
                        yield metric, value
                    break

    def close(self) -> None:
        """Release the library; once. Nothing can be read afterwards."""
        self._ways.clear()
        with contextlib.suppress(self._driver.error):  # the driver went first
            self._driver.close()


def opened() -> Gpus | None:
    """Open NVIDIA's GPUs by NVML, else AMD's by AMD SMI; None where there are none."""
    return nvidia() or amd()


def _opened(driver: _Driver) -> Gpus | None:
    """Open the GPUs of one maker; None where there is no library, no driver or no visible GPU."""
    try:
        driver.open()
    except driver.error:
        return None
    handles: dict[str, Any] = {}
    with contextlib.suppress(driver.error):
        handles = driver.handles()
    if not handles:
        driver.close()
        return None
    return Gpus(driver, handles)


def nvidia(nvml: Any = None, environ: Mapping[str, str] = os.environ) -> Gpus | None:
    """Open the GPUs that CUDA_VISIBLE_DEVICES leaves, all without it; None where there is no driver or no GPU.

    `nvml` is the module pynvml or what replaces it.
    """
    if nvml is None:
        import ctypes

        try:
            ctypes.CDLL("libnvidia-ml.so.1")  # at once, where importing pynvml takes 50 ms to find no driver
        except OSError:
            return None
        import pynvml

        nvml = pynvml
    return _opened(
        _Driver(
            open=nvml.nvmlInit,
            close=nvml.nvmlShutdown,
            handles=lambda: _handles(nvml, environ.get("CUDA_VISIBLE_DEVICES")),
            ways=functools.partial(_ways, nvml),
            card=functools.partial(_card, nvml),
            error=nvml.NVMLError,
            lacking=(
                nvml.NVMLError_NotSupported,
                nvml.NVMLError_FunctionNotFound,
                nvml.NVMLError_NoPermission,
                nvml.NVMLError_InvalidArgument,  # what some drivers return for a MIG slice without such a figure
            ),
            gone=(
                nvml.NVMLError_GpuIsLost,
                nvml.NVMLError_ResetRequired,
                nvml.NVMLError_DriverNotLoaded,
                nvml.NVMLError_Uninitialized,  # closed meanwhile
            ),
        )
    )


def visible(setting: str | None, uuids: Mapping[int, str]) -> list[int | str]:
    """Return what a CUDA_VISIBLE_DEVICES leaves: indices of whole GPUs (`uuids` has them all) and UUIDs of MIG slices.

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
    """Return the handles of the visible GPUs and MIG slices, by the name that their samples get."""
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


def _ways(nvml: Any, handle: Any) -> dict[str, list[Callable[[], float | None]]]:
    """Return how each metric of a GPU is read; where drivers differ in a function's name, by each of them."""
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
    """Return how many NVLinks are up; None for a card that has none."""
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


def amd(smi: Any = None, environ: Mapping[str, str] = os.environ) -> Gpus | None:
    """Open the GPUs that ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES leaves; None where there is no library or no GPU.

    `smi` is the module amdsmi or what replaces it.
    """
    if smi is None:
        if importlib.util.find_spec("amdsmi") is None:
            return None
        try:
            import amdsmi
        except (ImportError, OSError):  # the package is there and its library is not
            return None
        smi = amdsmi
    return _opened(
        _Driver(
            open=smi.amdsmi_init,
            close=smi.amdsmi_shut_down,
            handles=lambda: _amd_handles(smi, environ),
            ways=functools.partial(_amd_ways, smi),
            card=functools.partial(_amd_card, smi),
            error=smi.AmdSmiException,
            lacking=(smi.AmdSmiException, KeyError),
        )
    )


def _amd_handles(smi: Any, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the handles of the visible GPUs, by the name that their samples get."""
    handles = smi.amdsmi_get_processor_handles()
    uuids = {index: smi.amdsmi_get_gpu_device_uuid(handle) for index, handle in enumerate(handles)}
    setting = next((environ[name] for name in _VISIBLE if name in environ), None)
    return {str(index): handles[index] for index in visible(setting, uuids) if isinstance(index, int)}


def _number(value: Any, scale: float = 1.0) -> float | None:
    """Return a figure in base units; None for "N/A"."""
    return float(value) * scale if isinstance(value, int | float) else None


def _amd_ways(smi: Any, handle: Any) -> dict[str, list[Callable[[], float | None]]]:
    """Return how each metric of a GPU is read."""

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
        "utilization": [lambda: _number(smi.amdsmi_get_gpu_activity(handle)["gfx_activity"], 1e-2)],
        "memory_used_bytes": [lambda: _number(smi.amdsmi_get_gpu_vram_usage(handle)["vram_used"], 2.0**20)],
        "power_w": [power],
        "energy_j": [energy],
        "sm_clock_hz": [lambda: clock(smi.AmdSmiClkType.GFX)],
        "memory_clock_hz": [lambda: clock(smi.AmdSmiClkType.MEM)],
        "temperature_c": [lambda: _number(smi.amdsmi_get_temp_metric(handle, hotspot, current))],
        "throttle_reasons": [throttled],
    }


def _amd_card(smi: Any, index: str, handle: Any) -> Card:
    def query(function: Callable[..., Any], field: str) -> Any:
        try:
            value = function(handle)[field]
        except (smi.AmdSmiException, KeyError):
            return None
        return None if value == "N/A" else value

    uuid = smi.amdsmi_get_gpu_device_uuid(handle)
    return Card(
        index=index,
        name=query(smi.amdsmi_get_gpu_asic_info, "market_name"),
        id=hashlib.sha256(uuid.encode()).hexdigest()[:12],
        memory_bytes=_number(query(smi.amdsmi_get_gpu_vram_usage, "vram_total"), 2.0**20),
        driver=query(smi.amdsmi_get_gpu_driver_info, "driver_version"),
        power_limit_w=_number(query(smi.amdsmi_get_power_info, "power_limit")),
    )
