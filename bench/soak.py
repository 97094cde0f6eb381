"""Whether the load generator is the same after hours as at first: memory, descriptors and stamps of one long level.

The run is `knee run soak` as a user starts it, on the reference endpoint, which logs when it wrote each token. Memory
and descriptors of each process of the run are read every half second.

A heap has the size of the most that was ever in it at once. Of what varies and does not grow, the most so far is passed
ever more rarely: after n equal times the next one passes it with probability 1/n, so that a heap rises with the
logarithm of time for as long as it is used. What is kept for good rises with time itself. So the steps of the readings
are fitted by both, and what rises evenly over time is judged. A rise is within noise where 0 is in its interval, or
where it falls. The rise of the stamps' error is its slope times the time, by harness.analysis.timeline, which has no
interval where neighbouring parts of the window are much alike. So its limit is on the range of all parts: each is of
some 800,000 stamps, and the error cannot have changed by more.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import psutil

from harness.analysis import timeline
from harness.analysis.stats import t_quantile
from harness.results.result import Result
from harness.run.trial import pairs
from harness.sim.connection import entries
from harness.sim.process import Served, serving
from harness.sim.profile import Reference, StreamPace

EVERY_S = 0.5  # between two readings of the processes
BINS, FEWEST = 40, 20  # parts of the window
MOST_DRIFT_S = 5e-6  # by which the median error of the stamps may change
TTFT_S, ANSWER = 0.2, 120  # of a request
MIB = 2**20


class Reading(msgspec.Struct, frozen=True):
    """One process of the run at one time."""

    at_ns: int
    name: str
    memory: int  # bytes, resident
    descriptors: int


class Rise(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over the window: its mean, by how much it rose, and what of that rose evenly over time."""

    name: str
    unit: str
    mean: float
    whole: float  # from the first part of the window to the last
    rise: float  # evenly over time
    low: float | None  # of its 95 % interval; None: too few of its parts are independent
    high: float | None
    late: float = math.nan  # from the middle of the window to its last part
    varied: float = math.nan  # from its least part to its highest
    most: float = 0.0  # that `varied` may be; 0: the rise has to be within noise; inf: it is not judged

    @property
    def verdict(self) -> str:
        if self.most == math.inf:
            return ""
        if self.most:
            where = "within" if self.varied < self.most else "beyond"  # nan is not within
            return f"{where} {shown(self.most, self.unit)}: it varied by {shown(self.varied, self.unit)}"
        if self.low is None or self.high is None:
            return "too few independent readings"
        return "within noise" if self.low <= 0 else "rises"

    @property
    def ok(self) -> bool:
        return self.verdict.startswith("within") or not self.verdict


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one soak showed."""

    command: str
    window_s: float
    tokens: int
    errors: int
    rises: list[Rise]

    @property
    def ok(self) -> bool:
        return not self.errors and all(each.ok for each in self.rises)


# ---- while it runs ---------------------------------------------------------------------------------------------


def watched(process: subprocess.Popen[bytes]) -> list[Reading]:
    """Return the processes of a run until it ends: the main one, and its workers by their order."""
    main, found = psutil.Process(process.pid), []
    known: dict[int, psutil.Process] = {}
    while process.poll() is None:
        for each in main.children(recursive=True) if main.is_running() else []:
            known.setdefault(each.pid, each)
        for i, each in enumerate([main, *known.values()]):
            try:
                memory, descriptors = each.memory_info().rss, each.num_fds()
            except psutil.Error:  # it has ended
                continue
            if memory:
                found.append(
                    Reading(time.monotonic_ns(), f"worker {i - 1}" if i else "main process", memory, descriptors)
                )
        time.sleep(EVERY_S)
    return found


def soak(served: Served, streams: int, seconds: float, out: Path) -> tuple[str, list[Reading]]:
    """Run the soak; its command as it is to be shown, and the readings."""
    command = [
        *("run", "soak", "--url", served.url, "--levels", str(streams), "--duration", f"{seconds:g}s"),
        *("--input-tokens", "16", "--output-tokens", str(ANSWER), "--out", str(out)),
    ]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, "-m", "harness", *command], stdout=said, stderr=said)
        readings = watched(process)
        if not (out / "summary.json").exists():
            said.seek(0)
            sys.exit(f"error: the run ended with status {process.returncode}:\n{said.read().decode()}")
    shown = ["URL" if each == served.url else "DIR" if each == str(out) else each for each in command]
    return shlex.join(["knee", *shown]), readings


# ---- read afterwards -------------------------------------------------------------------------------------------


def grown(name: str, unit: str, points: Sequence[tuple[float, float]], window: tuple[float, float]) -> Rise:
    """By how much a figure that keeps its steps grew over a window, from its points there.

    `points` and `window` are in seconds since the load began. The steps between neighbouring parts of the window are
    a·Δ(ln t) + b·Δt; their variance falls as 1/t, as the number of the steps does, so they weigh in proportion to t.
    """
    values = timeline.means(points, *window, BINS)
    edges = np.linspace(*window, BINS + 1)
    t, values = ((edges[1:] + edges[:-1]) / 2)[: len(values)][~np.isnan(values)], values[~np.isnan(values)]
    if len(values) <= FEWEST:
        nan = math.nan
        return Rise(name=name, unit=unit, mean=nan, whole=nan, rise=nan, low=None, high=None)
    weight = np.sqrt((t[1:] + t[:-1]) / 2)
    steps, times = np.diff(values) * weight, np.column_stack([np.diff(np.log(t)), np.diff(t)]) * weight[:, None]
    fit = np.linalg.lstsq(times, steps)[0]
    left, degrees = steps - times @ fit, len(steps) - 2
    variance = float(left @ left) / degrees * float(np.linalg.inv(times.T @ times)[1, 1])
    span = float(t[-1] - t[0])
    rise, half = float(fit[1]) * span, t_quantile(0.975, degrees) * math.sqrt(variance) * span
    return Rise(
        name=name, unit=unit, mean=float(values.mean()), whole=float(values[-1] - values[0]),
        rise=round(rise, 1), low=round(rise - half, 1), high=round(rise + half, 1),
        late=float(values[-1] - values[len(values) // 2]),
    )  # fmt: skip


def of_bins(name: str, unit: str, values: np.ndarray, seconds: float, **more: float) -> Rise:
    """By how much a figure rose that varies about a line, from its values in equal parts of so many seconds."""
    found = timeline.trend(values, 0.0, seconds / len(values))
    if found is None or found.per_hour.value is None:
        nan = math.nan
        return Rise(name=name, unit=unit, mean=nan, whole=nan, rise=nan, low=None, high=None, **more)
    low, high = found.per_hour.ci95 or (None, None)
    hours = seconds / 3600
    ends = [None if each is None else each * hours for each in (low, high)]
    return Rise(
        name=name, unit=unit, mean=found.mean, whole=float(values[-1] - values[0]), rise=found.per_hour.value * hours,
        low=ends[0], high=ends[1], varied=float(np.nanmax(values) - np.nanmin(values)), **more,
    )  # fmt: skip


def stamps(run: Result, log: Path, window: tuple[float, float]) -> list[Rise]:
    """Return the error of the stamps over time: median and p99 of all tokens of a part of the window."""
    off: list[list[np.ndarray]] = [[] for _ in range(BINS)]
    start, end = window
    for arrived, written in pairs(run.records, entries(log), run.header.monotonic_ns_origin):
        part = ((written - start) / (end - start) * BINS).astype(np.int64)
        error = (arrived - written).astype(np.float32)
        for i in np.unique(part[(part >= 0) & (part < BINS)]).tolist():
            off[i].append(error[part == i])
    whole = [np.abs(np.concatenate(each)) if each else np.array([math.nan]) for each in off]
    found = [("stamp error, median", 50, MOST_DRIFT_S), ("stamp error, p99", 99, math.inf)]
    return [
        of_bins(name, "s", np.array([np.percentile(each, q) for each in whole]), end - start, most=most)
        for name, q, most in found
    ]


def summed(run: Result, readings: Sequence[Reading], log: Path, command: str) -> Found:
    """Return what the run's records, the endpoint's log and the readings say of the window of its level."""
    (level,) = run.levels
    start, end = level.window
    inside = [r for r in run.records if r.sent_s is not None and start <= r.sent_s < end]
    began_ns = run.header.monotonic_ns_origin + round(level.begin_s * 1e9)
    window = start - level.begin_s, end - level.begin_s
    rises = []
    for name in dict.fromkeys(each.name for each in readings):
        mine = [((each.at_ns - began_ns) * 1e-9, each) for each in readings if each.name == name]
        rises.append(grown(f"{name}, memory", "B", [(t, each.memory) for t, each in mine], window))
        rises.append(grown(f"{name}, descriptors", "", [(t, each.descriptors) for t, each in mine], window))
    return Found(
        command=command,
        window_s=end - start,
        tokens=sum(len(r.arrivals) // 8 for r in inside),
        errors=sum(bool(r.error) for r in inside),
        rises=[*rises, *stamps(run, log, (start, end))],
    )


def measure(minutes: float, streams: int, itl_s: float, folder: Path) -> Found:
    """Soak the reference endpoint; one result."""
    cpus = sorted(os.sched_getaffinity(0))
    log, out = folder / "writes", folder / "run"
    with serving(Reference(pace=StreamPace(ttft_s=TTFT_S, itl_s=itl_s)), log=log, cpu=cpus[0]) as served:
        command, readings = soak(served, streams, 60 * minutes, out)
    (folder / "readings.json").write_bytes(msgspec.json.encode(readings))
    return summed(Result.open(out), readings, log, command)


# ---- printed ---------------------------------------------------------------------------------------------------


def shown(value: float | None, unit: str) -> str:
    """Return a figure in the unit that a person reads.

    >>> shown(3 * 2**20, "B"), shown(2.5e-6, "s"), shown(None, "")
    ('3.00 MiB', '2.50 µs', '?')
    """
    if value is None:
        return "?"
    scale, name = {"B": (MIB, " MiB"), "s": (1e-6, " µs")}.get(unit, (1.0, ""))
    return f"{value / scale:.2f}{name}"


def text(found: Found) -> str:
    """Return the figures as a table, below the command."""
    lines = [
        f"$ {found.command}",
        f"a window of {found.window_s:.0f} s, {found.tokens:,} tokens, {found.tokens / found.window_s:,.0f} tok/s, "
        f"{found.errors} errors",
        "",
        "| what | mean | rise | of it evenly over time | 95 % interval | |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for each in found.rises:
        mean, whole, rise, low, high = (
            shown(value, each.unit) for value in (each.mean, each.whole, each.rise, each.low, each.high)
        )
        lines.append(f"| {each.name} | {mean} | {whole} | {rise} | {low} … {high} | {each.verdict} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="of the window")
    parser.add_argument("--streams", type=int, default=512, help="in flight")
    parser.add_argument("--itl", type=float, default=0.025, help="seconds between two tokens of a stream")
    parser.add_argument("--keep", type=Path, help="leave the result folder and the readings there")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="knee-bench-") as scratch:
        folder = Path(scratch) if options.keep is None else options.keep
        folder.mkdir(parents=True, exist_ok=True)
        found = measure(options.minutes, options.streams, options.itl, folder)
    print(json.dumps(msgspec.to_builtins(found), indent=1) if options.json else text(found))
    sys.exit(not found.ok)


if __name__ == "__main__":
    main()
