"""One command and every process that it begets: CPU seconds, resident memory, start and end.

    python bench/research/peers_measure.py --cpu 1 --limit 300 --log OUTPUT --out MEASURED.json -- COMMAND…

CPU is the kernel's account of each process when it is reaped. This process is the reaper of all orphans below it, so a
worker that its tool never waited for is counted too. Besides, samples are taken, 50 a second in ticks of 10 ms, only to
see when the CPU was spent. Resident memory is summed over the processes: what two of them share counts twice. Linux
only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

_SAMPLE_S = 0.02
_SCAN_EVERY = 10  # samples between two scans for new processes
_GRACE_S = 10.0  # for what is left when the command itself has ended
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ToolRun(msgspec.Struct, frozen=True):
    """What one command cost. Times are CLOCK_MONOTONIC in nanoseconds."""

    start_ns: int
    end_ns: int  # of the command's own process; children may have outlived it
    status: int  # exit status; negative: the signal
    timed_out: bool
    cpu_s: float
    peak_bytes: int
    samples: list[tuple[int, float]]  # (when, CPU seconds until then)


class Stat(msgspec.Struct, frozen=True):
    """A line of /proc/PID/stat: the parent, CPU seconds of its own, resident bytes."""

    parent: int
    cpu_s: float
    resident: int


def read_stat(line: str) -> Stat:
    """Return the fields after the command's name, which may itself contain spaces and brackets (proc(5)).

    >>> read_stat("7 (a) b) S 3 " + "0 " * 9 + "150 50 " + "0 " * 8 + "2 0").parent
    3
    """
    fields = line.rpartition(")")[2].split()
    return Stat(int(fields[1]), (int(fields[11]) + int(fields[12])) * _TICK_S, int(fields[21]) * _PAGE)


def stats_of(pids: Iterable[int]) -> dict[int, Stat]:
    """Those of the processes that are still there."""
    seen = {}
    for pid in pids:
        try:
            seen[pid] = read_stat(Path(f"/proc/{pid}/stat").read_text())
        except (FileNotFoundError, ProcessLookupError):
            pass  # it ended meanwhile
    return seen


def descendants(root: int) -> set[int]:
    """Return all processes below `root`, by one scan of /proc."""
    children: dict[int, list[int]] = {}
    for pid, stat in stats_of(int(each) for each in os.listdir("/proc") if each.isdecimal()).items():
        children.setdefault(stat.parent, []).append(pid)
    found, ahead = set(), [root]
    while ahead:
        below = children.get(ahead.pop(), [])
        found.update(below)
        ahead += below
    return found


def kill_all() -> None:
    """End all processes below this one."""
    for left in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)


class _Tree:
    """The processes below this one, as the samples show them."""

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.spent: dict[int, float] = {}  # CPU seconds as last seen, of the dead too
        self.peak_bytes = 0
        self.samples: list[tuple[int, float]] = []

    def sample(self) -> None:
        if len(self.samples) % _SCAN_EVERY == 0:
            self.known = descendants(os.getpid())
        seen = stats_of(self.known)
        self.spent.update((pid, stat.cpu_s) for pid, stat in seen.items())
        self.peak_bytes = max(self.peak_bytes, sum(stat.resident for stat in seen.values()))
        self.samples.append((time.monotonic_ns(), sum(self.spent.values())))


def measure(command: list[str], *, cpu: int, limit_s: float, log: Path) -> ToolRun:
    """Run the command on one core until it ends or its time is over; nothing of it is left behind."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    tree = _Tree()
    status = end_ns = None
    cpu_s, timed_out = 0.0, False
    with log.open("wb") as output:
        start_ns = time.monotonic_ns()
        process = subprocess.Popen(
            ["taskset", "-c", str(cpu), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    watch = os.pidfd_open(process.pid)
    deadline = start_ns + limit_s * 1e9
    while True:
        try:
            pid, how, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            break  # the last one has been reaped
        if pid:
            cpu_s += usage.ru_utime + usage.ru_stime
            if pid == process.pid:
                end_ns, status = time.monotonic_ns(), os.waitstatus_to_exitcode(how)
                deadline = end_ns + _GRACE_S * 1e9
            continue
        if time.monotonic_ns() > deadline:
            timed_out = timed_out or status is None
            kill_all()
        tree.sample()
        if status is None:
            select.select([watch], [], [], _SAMPLE_S)  # wakes at once when the command ends
        else:
            time.sleep(_SAMPLE_S)
    process.returncode = status
    os.close(watch)
    assert status is not None
    assert end_ns is not None
    return ToolRun(start_ns, end_ns, status, timed_out, cpu_s, tree.peak_bytes, tree.samples)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one command with all its processes.")
    parser.add_argument("--cpu", type=int, required=True)
    parser.add_argument("--limit", type=float, required=True, help="seconds after which it is killed")
    parser.add_argument("--log", type=Path, required=True, help="file of what it prints")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    try:
        measured = measure(arguments.command, cpu=arguments.cpu, limit_s=arguments.limit, log=arguments.log)
    finally:
        kill_all()  # the command has a session of its own, so a Ctrl-C ends this process only
    arguments.out.write_bytes(msgspec.json.encode(measured))


if __name__ == "__main__":
    main()
