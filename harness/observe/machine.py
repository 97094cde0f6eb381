"""This machine as a predictor needs it: the rate at which its cores read memory, and multiply.

A data sheet has the figures of all cores at turbo clocks. What the server's cores reach here, under this hypervisor, is
measured instead, in a process of its own that is pinned to them. It takes about two seconds and loads these cores
fully: measure before load, never while it runs. Left out: caches (a model that fits into them is faster than predicted
from this), the traffic between sockets, and bf16 multiplication, which numpy does not have.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psutil

from harness.base import interpreter, kernel
from harness.base.errors import HarnessError
from harness.data.machines import BF16_OVER_FP32, Machine

_PLACE = "--gpu host"
_SYS = Path("/sys/devices/system/cpu")
_LARGER = 4  # times the last-level cache: an array that cannot stay in it
_USUAL_CACHE = 32 * 2**20  # bytes, if the machine has no figure
_PIECE = 16 * 2**20  # bytes of an array at once: half a millisecond of a core, so that few are interrupted
_EDGE = 512  # side of the multiplied matrices: 3 MiB together, so that they come from the cache
_WAIT_S = 60.0  # for the measuring process


def measure(cores: int = 1, cpus: Sequence[int] | None = None, *, seconds: float = 1.6) -> Machine:
    """Return what `cpus`, else the first `cores` that this process may use, reach within so many seconds.

    Every figure is the best of many pieces of some milliseconds each, so that a core that something else uses for a
    part of the time still shows what it can do.
    """
    allowed = kernel.cpus()
    if cpus is None and not 1 <= cores <= len(allowed):
        way_out = f"this process may use {len(allowed)}: {_list(allowed)}"
        raise HarnessError(f"{cores} cores cannot be measured", place=_PLACE, way_out=way_out)
    chosen = tuple(allowed[:cores] if cpus is None else dict.fromkeys(cpus))
    there = range(os.cpu_count() or 1)
    if not chosen or any(cpu not in there for cpu in chosen):
        way_out = f"they are numbered {there[0]} to {there[-1]}"
        raise HarnessError(f"no cores {_list(chosen)!r} on this machine", place=_PLACE, way_out=way_out)
    memory = _memory()
    size = int(min(_LARGER * _cache(chosen), memory / 16))
    flags = _cpuinfo("flags", "Features").split()
    streams, flops = _in_subprocess(chosen, size, seconds)
    return Machine(
        cpu=cpu_name(),
        cpus=chosen,
        memory_bytes=memory,
        read_bytes_per_s=streams["read"],
        copy_bytes_per_s=streams["copy"],
        add_bytes_per_s=streams["add"],
        fp32_flops=flops,
        extension=next((name for name in BF16_OVER_FP32 if name in flags), ""),
    )


# ---- the machine itself ---------------------------------------------------------------------------------


def _list(cpus: Iterable[int]) -> str:
    return ",".join(map(str, cpus))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _cpuinfo(*names: str) -> str:
    """Return the first value in /proc/cpuinfo that has one of these names, which differ by maker."""
    lines = (line.partition(":") for line in _text(Path("/proc/cpuinfo")).splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() in names), "")


def cpu_name() -> str:
    """Return the name of this machine's processor."""
    return _cpuinfo("model name") or platform.machine()


def _memory() -> float:
    """Return the bytes of the machine's memory, or of the container's share of it."""
    total = float(psutil.virtual_memory().total)
    limit = _text(Path("/sys/fs/cgroup/memory.max")).strip()
    return min(total, float(limit)) if limit.isdigit() else total


def _cache(cpus: Sequence[int]) -> int:
    """Return the bytes of the last-level caches of these cores, each counted once."""
    caches: dict[tuple[int, str], int] = {}
    for cpu in cpus:
        for path in (_SYS / f"cpu{cpu}" / "cache").glob("index*"):
            size, level = _text(path / "size").strip(), _text(path / "level").strip()
            if size.endswith("K") and level.isdigit():
                caches[int(level), _text(path / "shared_cpu_list")] = int(size[:-1]) * 1024
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last) or _USUAL_CACHE


# ---- measuring, in a process of its own -----------------------------------------------------------------


def _in_subprocess(cpus: Sequence[int], size: int, seconds: float) -> tuple[dict[str, float], float]:
    """Return streams by name in bytes/s and FLOP/s, from a process whose BLAS has one thread a core."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = interpreter.module(__name__, _list(cpus), str(size), str(seconds))
    try:
        done = subprocess.run(command, env=os.environ | one, capture_output=True, timeout=_WAIT_S + seconds, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        message = (error.stderr or b"").decode(errors="replace").strip().rpartition("\n")[2]
        fact = f"cores {_list(cpus)} could not be measured ({message or 'no answer in time'})"
        raise HarnessError(fact, place=_PLACE, way_out="name cores that this process may use") from None
    return msgspec.json.decode(done.stdout, type=tuple[dict[str, float], float])


def _measured(cpus: Sequence[int], size: int, seconds: float) -> tuple[dict[str, float], float]:
    """Return streams by name in bytes/s and FLOP/s, measured in this process, each core a thread with its own arrays.

    All cores are at work in every piece.
    """
    import numpy as np

    kernel.bind(cpus)
    free, own, all_here = iter(cpus), threading.local(), threading.Barrier(len(cpus))
    parts = max(1, size // len(cpus) // _PIECE)

    def settle() -> None:
        """In the thread, so that memory lies with the core that reads it; arrays in parts, each of one piece."""
        kernel.bind({next(free)})
        own.a, own.b, own.c = (np.ones((parts, _PIECE // 4), np.float32) for _ in range(3))
        own.x, own.y, own.z = (np.ones((_EDGE, _EDGE), np.float32) for _ in range(3))

    def together(piece: Callable[[int], Any], turn: int) -> tuple[float, float]:
        all_here.wait()  # so that no thread takes two
        began = time.perf_counter()
        piece(turn % parts)  # one part after another: none is in a cache when its turn comes again
        return began, time.perf_counter()

    with ThreadPoolExecutor(len(cpus), initializer=settle) as pool:

        def best(piece: Callable[[int], Any], share: float) -> float:
            """Return the seconds of the shortest turn in that share of the time, after one that warms up."""
            shortest, turn, end = math.inf, 0, time.perf_counter() + share * seconds
            while turn < 2 or time.perf_counter() < end:
                spans = [done.result() for done in [pool.submit(together, piece, turn) for _ in cpus]]
                if turn:
                    shortest = min(shortest, max(ended for _, ended in spans) - min(began for began, _ in spans))
                turn += 1
            return shortest

        streams: dict[str, tuple[int, Callable[[int], Any]]] = {
            "read": (1, lambda i: np.dot(own.a[i], own.a[i])),
            "copy": (2, lambda i: np.copyto(own.b[i], own.a[i])),
            "add": (3, lambda i: np.add(own.a[i], own.b[i], out=own.c[i])),
        }
        moved = len(cpus) * _PIECE
        rates = {name: transfers * moved / best(piece, 1 / 6) for name, (transfers, piece) in streams.items()}
        product = best(lambda _: np.matmul(own.x, own.y, out=own.z), 1 / 2)
        return rates, 2 * _EDGE**3 * len(cpus) / product


if __name__ == "__main__":
    _cpus = [int(cpu) for cpu in sys.argv[1].split(",")]
    sys.stdout.buffer.write(msgspec.json.encode(_measured(_cpus, int(sys.argv[2]), float(sys.argv[3]))))
