"""Does a disturbed client void what is wrong, and only that? Throughput by Knee against the server's own log.

The simulated endpoint is on the first core, `knee run` on the second; meanwhile a process a core takes both for half
of every second, at a higher priority where that is permitted. Each level is compared with the endpoint's log of what it
wrote when: its throughput in its window, and the time of its request slots between the last write of an answer and the
next send. A level that moved by more than 2 % has to be void, and no other may be; else this exits 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from harness.data.levels import LevelSummary
from harness.data.record import Record
from harness.data.summary import Summary
from harness.results.result import Result
from harness.sim.connection import Entry, entries
from harness.sim.process import running
from harness.sim.profile import Profile, Reference, StreamPace, profile

MOVED = 0.02
DISTURB = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
nice = int(sys.argv[2])
try:
    os.nice(nice)
    os.setsid()  # sched(7), autogroup: where there are groups, it is the session's priority that counts
    with open("/proc/self/autogroup", "w") as file:
        file.write(str(nice))
except OSError:
    pass
print(os.getpriority(os.PRIO_PROCESS, 0), flush=True)
parent = os.getppid()
while os.getppid() == parent:
    if time.monotonic() % 1.0 < 0.5:
        until = time.monotonic() // 1.0 + 0.5
        while time.monotonic() < until:
            pass
    time.sleep(1.0 - time.monotonic() % 1.0)
"""


class Case(NamedTuple):
    """A server, and the load that it gets."""

    name: str
    server: Profile | Reference
    levels: tuple[int, ...]
    tokens: tuple[int, int]


_MANY = (1, 4, 8, 16, 32, 48, 64, 96, 128, 192)
CASES = [
    Case("vLLM's steps", profile(max_num_seqs=16, speed=1.0), (1, 2, 4, 6, 8, 12, 16, 24, 32, 48), (64, 64)),
    Case("short answers", profile(max_num_seqs=16, speed=1.0), (1, 2, 4, 6, 8, 12, 16, 24, 32, 48), (64, 16)),
    Case("64 phases", Reference(pace=StreamPace(ttft_s=0.05, itl_s=0.01)), _MANY, (32, 64)),
    Case("four a chunk", Reference(pace=StreamPace(ttft_s=0.05, itl_s=0.01, lump=4)), _MANY, (32, 64)),
]  # fmt: skip


class Row(NamedTuple):
    """One level, by both sides."""

    concurrency: int
    off: float  # throughput over the log's, less one
    late: float  # share of the slots' time between the last write of an answer and the next send
    late_reported: float | None  # the same by the summary
    invalid: tuple[str, ...]
    lumps: bool  # noted as the server's
    busy: bool  # doubted: processor, ceiling, merged or late reads

    @property
    def moved(self) -> bool:
        return abs(self.off) > MOVED or self.late > MOVED


@contextlib.contextmanager
def disturbed(cpus: list[int], nice: int) -> Iterator[list[int]]:
    """Yield a process on each core that takes it for half of every second; gives their priorities."""
    command = [sys.executable, "-S", "-c", DISTURB]
    processes = [subprocess.Popen([*command, str(cpu), str(nice)], stdout=subprocess.PIPE, text=True) for cpu in cpus]
    try:
        yield [int(p.stdout.readline()) for p in processes if p.stdout is not None]
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def late_by_log(records: list[Record], written: dict[str, Entry], s: LevelSummary, origin_ns: int) -> float:
    """Return the share of the slots' time in the window from the last write of an answer to the next send there."""
    start, end = s.window
    before = {r.done_s: r.request_id for r in records if r.done_s is not None}
    empty = 0.0
    for r in records:
        last = written.get(before.get(r.scheduled_s, ""))
        if r.sent_s is not None and start <= r.sent_s and last is not None and len(last.writes_ns):
            empty += max(0.0, min(end, r.sent_s) - max(start, (last.writes_ns[-1] - origin_ns) * 1e-9))
    return empty / ((s.concurrency or 1) * (end - start))


def compared(folder: Path, log: Path, lump: int) -> list[Row]:
    run = Result.open(folder)
    summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary)
    origin_ns = run.header.monotonic_ns_origin
    log_entries = entries(log)
    stamps, tokens = [], []
    for entry in log_entries:
        writes = np.frombuffer(entry.writes_ns, dtype=np.int64)
        each = np.full(len(writes), lump)
        if len(writes):
            each[-1] = entry.tokens - lump * (len(writes) - 1)
        stamps.append((writes - origin_ns) * 1e-9)
        tokens.append(each)
    at, count = np.concatenate(stamps), np.concatenate(tokens)
    written = {entry.id: entry for entry in log_entries}
    rows = []
    for s in summary.levels:
        start, end = s.window
        true = float(count[(at >= start) & (at < end)].sum()) / (end - start)
        rows.append(
            Row(
                concurrency=s.concurrency or 0,
                off=(s.output_tokens_per_s.mean or 0.0) / true - 1,
                late=late_by_log(run.records, written, s, origin_ns),
                late_reported=s.client.late_fraction,
                invalid=tuple(v.code for v in s.verdicts if v.level == "invalid"),
                lumps=any(v.code == "server_lumps" for v in s.verdicts),
                busy=any(v.code == "client_busy" for v in s.verdicts),
            )
        )
    return rows


def measured(case: Case, seconds: float, cpus: list[int], folder: Path) -> tuple[list[Row], int]:
    log, out = folder / "log", folder / "out"
    lump = case.server.pace.lump if isinstance(case.server, Reference) else 1
    command = [
        sys.executable, "-m", "harness", "run", "--levels", ",".join(map(str, case.levels)),
        "--level-seconds", str(seconds), "--input-tokens", str(case.tokens[0]), "--output-tokens", str(case.tokens[1]),
        "--out", str(out), "--quiet", "--no-plots", "--workers", "1",
    ]  # fmt: skip
    with running(case.server, log=log, cpu=cpus[0]) as url:
        done = subprocess.run(
            ["taskset", "-c", str(cpus[-1]), *command, "--url", url],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    if done.returncode not in (0, 3):
        raise SystemExit(f"knee run ended with status {done.returncode}: {done.stderr[-500:]}")
    return compared(out, log, lump), done.returncode


def line(name: str, rows: list[Row], exits: Counter[int]) -> str:
    off = [r for r in rows if abs(r.off) > MOVED]
    late = [r for r in rows if abs(r.off) <= MOVED and r.late > MOVED]
    fine = [r for r in rows if not r.moved]
    void = [sum(bool(r.invalid) for r in some) for some in (off, late, fine)]
    worst = max((abs(r.off) for r in rows), default=0.0)
    status = ", ".join(f"{code} × {n}" for code, n in sorted(exits.items()))
    return (
        f"| {name} | {len(rows)} | {worst:.2%} | {len(off)}: {void[0]} / {len(off) - void[0]} "
        f"| {len(late)}: {void[1]} / {len(late) - void[1]} | {len(fine)}: {void[2]} | {status} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", type=int, default=120, help="at least so many in all (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.2, help="of a window (default %(default)s)")
    parser.add_argument("--nice", type=int, default=-5, help="of the disturbing process (default %(default)s)")
    parser.add_argument("--calm", action="store_true", help="without the disturbing process")
    parser.add_argument("--each", action="store_true", help="print every level")
    parser.add_argument("--only", default="", metavar="WORDS", help="servers whose name has these words")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in case.name]
    if not cases:
        parser.error(f"no server {options.only!r}; there are {', '.join(case.name for case in CASES)}")
    cpus = sorted(os.sched_getaffinity(0))[:2]
    found: dict[str, list[Row]] = {case.name: [] for case in CASES}
    exits: dict[str, Counter[int]] = {case.name: Counter() for case in CASES}
    began, load = time.monotonic(), os.getloadavg()[0]
    with disturbed([] if options.calm else cpus, options.nice) as priorities:
        while sum(map(len, found.values())) < options.levels:
            for case in cases:
                if sum(map(len, found.values())) >= options.levels:
                    break
                with tempfile.TemporaryDirectory(prefix="knee-") as folder:
                    rows, status = measured(case, options.seconds, cpus, Path(folder))
                found[case.name] += rows
                exits[case.name][status] += 1
                for row in rows if options.each else ():
                    print(json.dumps({"case": case.name, **row._asdict()}), file=sys.stderr, flush=True)
    rows = [row for each in found.values() for row in each]
    print(f"bench/disturbed {' '.join(sys.argv[1:])}".rstrip())
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {len(cpus)} processors, load {load:.2f} "
        f"before; disturbed at priority {', '.join(map(str, priorities)) or '–'}; {time.monotonic() - began:.0f} s\n"
    )
    print(
        "| server | levels | largest difference from the log | differ by > 2 %: void / not | only sent late by > 2 %: "
        "void / not | neither: void | exit statuses |\n|---|---|---|---|---|---|---|"
    )
    for name, some in found.items():
        if some:
            print(line(name, some, exits[name]))
    print(line("all", rows, sum(exits.values(), Counter())))
    codes = Counter(code for row in rows for code in row.invalid)
    print(f"\ninvalid: {', '.join(f'{code} {n}' for code, n in codes.most_common()) or 'none'}")
    doubted = [row for row in rows if row.busy]
    print(f"doubted as busy: {len(doubted)}, of these moved by more than 2 %: {sum(r.moved for r in doubted)}")
    apart = [abs(row.late_reported - row.late) for row in rows if row.late_reported is not None]
    print(
        f"share sent late, by the summary against the log: at most {max(apart, default=0.0):.2%} of the slots' time "
        "apart"
    )
    sys.exit(1 if any(bool(row.invalid) != row.moved for row in rows) else 0)


if __name__ == "__main__":
    main()
