"""The machine that the load generator runs on: facts once, how busy it was while load ran, and its wall clock."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import time
from pathlib import Path

import psutil

from harness.base import kernel
from harness.data.machines import Host
from harness.data.manifest import WallClock
from harness.data.record import Sample


def facts() -> Host:
    """Return what could explain a difference between two hosts."""
    return Host(
        system=platform.platform(),
        machine=platform.machine(),
        python=platform.python_version(),
        cpus=os.cpu_count(),
        cpus_allowed=kernel.cpus(),
        memory_bytes=psutil.virtual_memory().total,
        load_average=list(os.getloadavg()),
    )


def boot() -> str | None:
    """Return a digest that names this boot of this machine, and with it what CLOCK_MONOTONIC counts from."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return None
    return hashlib.sha256(text).hexdigest()[:16]


def samples(time_s: float) -> list[Sample]:
    """Return how busy each processor was since the last call, 0 to 1, and the 1-minute load average."""
    busy = psutil.cpu_percent(interval=None, percpu=True)
    out = [Sample(time_s, "host", f"cpu{i}_fraction", value / 100.0) for i, value in enumerate(busy)]
    out += [Sample(time_s, "host", name, value) for name, value in _LOST_TIME.shares(time_s).items()]
    return [*out, Sample(time_s, "host", "load1", os.getloadavg()[0])]


class _LostTime:
    """CPU time that this machine did not get, as shares since the previous call."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}

    def shares(self, time_s: float) -> dict[str, float]:
        """Steal: taken by the hypervisor, of all CPUs' time; throttled: by the container's limit, of elapsed time."""
        times = psutil.cpu_times()
        now = {"at": time_s, "all": sum(times[:8]), "steal": getattr(times, "steal", 0.0)}
        if (throttled := throttled_s()) is not None:
            now["throttled"] = throttled
        before, self._before = self._before, now
        out = {}
        if before and now["all"] > before["all"]:
            out["steal_fraction"] = max(0.0, now["steal"] - before["steal"]) / (now["all"] - before["all"])
        if "throttled" in before and "throttled" in now and time_s > before["at"]:
            out["throttled_fraction"] = min(1.0, (now["throttled"] - before["throttled"]) / (time_s - before["at"]))
        return out


_LOST_TIME = _LostTime()


def throttled_s(folder: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the seconds that a CPU limit has held this container's processors, summed; None if none are counted."""
    for file, unit in ((folder / "cpu.stat", 1e-6), (folder / "cpu" / "cpu.stat", 1e-9)):  # cgroup 2, cgroup 1
        try:
            # Read bytes: a text file's decoder leaves a string in Python's cache of attributes, which fills for hours.
            figures = dict(line.split() for line in file.read_bytes().decode().splitlines())
        except (OSError, ValueError):
            continue
        if (throttled := figures.get("throttled_usec", figures.get("throttled_time"))) is not None:
            return float(throttled) * unit
    return None


_UNSYNCHRONISED = 0x0040  # STA_UNSYNC of adjtimex(2)


class _Timex(ctypes.Structure):
    """`struct timex` of adjtimex(2), as far as it is read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),  # microseconds
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def ahead_ns() -> int:
    """Return the wall clock minus CLOCK_MONOTONIC; it changes only where the wall clock is set."""
    before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
    return wall - (before + after) // 2


def clock_error() -> WallClock:
    """Return what the kernel knows of the wall clock's error; nothing where it may not be asked.

    The error is the largest possible one, which a daemon (chrony, ntpd, systemd-timesyncd) keeps up to date.
    """
    timex = _Timex()
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return WallClock()
    if state < 0:
        return WallClock()
    synchronised = not timex.status & _UNSYNCHRONISED
    return WallClock(synchronised=synchronised, error_s=timex.maxerror * 1e-6 if synchronised else None)
