"""What this machine's NVIDIA GPUs do while load runs: facts once, figures about once a second.

They are read by NVML, the driver's own library. A figure that a card does not publish is left out, a GPU that vanishes
keeps what was read of it, and a machine without a driver has no GPUs here. Which GPUs serve is not known:
`analysis.telemetry` counts those that were busy. Left out: other makers' cards, single processes, and the traffic on
NVLink and PCIe.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from harness.data.machines import Card
from harness.data.record import Sample

EVERY_S = 1.0  # between two samples; NVML's own power figure is a mean over a second from Ampere on


class Gpus:
    """The visible GPUs of this machine, opened for reading.

    NVML usually takes microseconds, but it calls the driver, which can hang with its card: open and read in a thread
    (these calls release the GIL), one call at a time.
    """

    def __init__(self, nvml: Any, handles: Mapping[str, Any]) -> None:
        self._nvml = nvml
        self._handles = handles
        self._ways = {name: _ways(nvml, handle) for name, handle in handles.items()}

    def facts(self) -> list[Card]:
        """Return the manifest's facts of each GPU."""
        return [_card(self._nvml, name, handle) for name, handle in self._handles.items()]

    def samples(self, time_s: float) -> list[Sample]:
        """Return every figure that can be read now, as '0/power_w' and so on: the GPU's index, then the metric.

        A slice of a GPU (MIG) is '0.2': GPU 0, slice 2.
        """
        return [
            Sample(time_s, "gpu", f"{name}/{metric}", float(value))
            for name, metrics in self._ways.items()
            for metric, ways in metrics.items()
            if (value := _first(self._nvml, *ways)) is not None
        ]

    def close(self) -> None:
        """Release the library; once. Nothing can be read afterwards."""
        self._ways.clear()
        with contextlib.suppress(self._nvml.NVMLError):  # the driver went first
            self._nvml.nvmlShutdown()


def opened(nvml: Any = None, environ: Mapping[str, str] = os.environ) -> Gpus | None:
    """Open the GPUs that CUDA_VISIBLE_DEVICES leaves, all without it; None if there is no driver or no GPU.

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
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    handles: dict[str, Any] = {}
    with contextlib.suppress(nvml.NVMLError):
        handles = _handles(nvml, environ.get("CUDA_VISIBLE_DEVICES"))
    if not handles:
        nvml.nvmlShutdown()
        return None
    return Gpus(nvml, handles)


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
    handles: dict[str, Any] = {}
    for entry in visible(setting, uuids):
        if isinstance(entry, int):
            handles[str(entry)] = whole[entry]
            continue
        try:
            slice_ = nvml.nvmlDeviceGetHandleByUUID(entry)
            card = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_)
            handles[f"{nvml.nvmlDeviceGetIndex(card)}.{nvml.nvmlDeviceGetIndex(slice_)}"] = slice_
        except nvml.NVMLError:
            break
    return handles


def _ways(nvml: Any, handle: Any) -> dict[str, list[Callable[[], float]]]:
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


def _first(nvml: Any, *ways: Callable[[], Any]) -> Any:
    """Return a figure by the first of its ways that reads it; None if none does."""
    for way in ways:
        with contextlib.suppress(nvml.NVMLError):
            return way()
    return None


def _card(nvml: Any, index: str, handle: Any) -> Card:
    """Return what NVML says of a GPU; None for each figure that it does not know."""

    def query(way: Callable[[], Any]) -> Any:
        return _first(nvml, way)

    cuda = query(nvml.nvmlSystemGetCudaDriverVersion_v2)
    return Card(
        index=index,
        name=query(lambda: nvml.nvmlDeviceGetName(handle)),
        id=query(lambda: hashlib.sha256(nvml.nvmlDeviceGetUUID(handle).encode()).hexdigest()[:12]),
        memory_bytes=query(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
        driver=query(nvml.nvmlSystemGetDriverVersion),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        power_limit_w=query(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) * 1e-3),
        sm_clock_max_hz=query(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6),
        memory_clock_max_hz=query(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6),
        mig=query(lambda: nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE),
        # The most that card and slot agree on: the present generation falls while the card idles.
        pcie_generation=query(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        pcie_width=query(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
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
