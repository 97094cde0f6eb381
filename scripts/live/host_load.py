"""Runs a command next to a server and prints what else kept the host busy: a knee measured on a shared machine
is only worth as much as the cores it had.

    python scripts/live/host_load.py --server PID --out LOAD.json -- COMMAND…

CPU is counted in cores (seconds of CPU per second): the server's process tree, the command's, the time that
the hypervisor gave to others (steal), and `others`, which is everything that is left.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil


class CpuSample(NamedTuple):
    """CPU seconds spent so far, and when that was."""

    at: float
    busy: float
    steal: float
    server: float
    command: float


def sample(server: int) -> CpuSample:
    cpu = psutil.cpu_times()
    tree = [psutil.Process(server), *psutil.Process(server).children(recursive=True)]
    spent = [process.cpu_times() for process in tree]
    command = resource.getrusage(resource.RUSAGE_CHILDREN)
    return CpuSample(
        at=time.monotonic(),
        busy=cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq,
        steal=cpu.steal,
        server=sum(times.user + times.system for times in spent),
        command=command.ru_utime + command.ru_stime,
    )


def cores(first: CpuSample, last: CpuSample) -> dict[str, float]:
    """Cores busy between two samples, by whom.

    >>> cores(CpuSample(0, 0, 0, 0, 0), CpuSample(10, 16, 0, 10, 5))
    {'server': 1.0, 'command': 0.5, 'others': 0.1, 'steal': 0.0}
    """
    seconds = last.at - first.at
    server, command = last.server - first.server, last.command - first.command
    shares = {
        "server": server,
        "command": command,
        "others": last.busy - first.busy - server - command,
        "steal": last.steal - first.steal,
    }
    return {name: round(spent / seconds, 3) for name, spent in shares.items()}


def text(shares: dict[str, float]) -> str:
    return "  ".join(f"{name} {share:.2f}" for name, share in shares.items())


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a command and print how busy the host was meanwhile.")
    parser.add_argument("--server", type=int, required=True, help="process id of the server")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()

    load_before = os.getloadavg()[0]
    quiet = sample(arguments.server)
    time.sleep(2.0)
    first = sample(arguments.server)
    before = cores(quiet, first)
    print(f"host before: load {load_before:.2f}, cores: {text(before)}", file=sys.stderr)
    process = subprocess.Popen(arguments.command)
    while True:
        try:
            status = process.wait()
            break
        except KeyboardInterrupt:
            continue  # the command has had the same Ctrl-C and is writing down what it measured
    during = cores(first, sample(arguments.server))
    print(f"host during: load {os.getloadavg()[0]:.2f}, cores: {text(during)}", file=sys.stderr)
    if arguments.out.parent.is_dir():  # else the command was refused before it measured anything
        figures = {"load_before": load_before, "cores_before": before, "cores_during": during}
        arguments.out.write_text(json.dumps(figures, indent=1) + "\n")
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
