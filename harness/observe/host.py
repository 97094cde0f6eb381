"""The machine that the load generator runs on: facts once, and how busy it was while load ran."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import psutil

from harness.store import Sample


def facts() -> dict[str, Any]:
    """What could explain a difference between two hosts."""
    return {
        "system": platform.platform(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "cpus_allowed": sorted(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": list(os.getloadavg()),
    }


def boot() -> str | None:
    """A digest that names this boot of this machine, and with it what CLOCK_MONOTONIC counts from."""
    try:
        said = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return None
    return hashlib.sha256(said).hexdigest()[:16]


def samples(time_s: float) -> list[Sample]:
    """How busy each processor was since the last call, 0 to 1, and the 1-minute load average."""
    busy = psutil.cpu_percent(interval=None, percpu=True)
    out = [Sample(time_s, "host", f"cpu{i}_fraction", value / 100.0) for i, value in enumerate(busy)]
    return [*out, Sample(time_s, "host", "load1", os.getloadavg()[0])]
