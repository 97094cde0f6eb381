"""`knee calibrate client`: how fast this machine's load generator is, and how exact its times are.

A worker of `knee run`, in its own process and with the same requests, loads the reference endpoint in another process.
Floods give the ceilings. Paced streams give the errors: each arrival is compared with the endpoint's own log of when it
wrote that token. A result is stored per host and version, and every run attaches it.

Where the endpoint was the limit, the ceiling is marked as a lower bound. Left out: TLS, the httpx transport, several
workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import platform
import resource
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np

from harness.analysis.stats import percentiles
from harness.base import __version__, files, kernel
from harness.base.errors import HarnessError
from harness.data.machines import Ceiling, ClientCalibration, Timing
from harness.load import receive
from harness.observe import machine
from harness.report.format import MISSING, number
from harness.run.launch.limits import OTHER_FILES
from harness.run.trial import LONGEST, Load, Trial, errors, measure
from harness.sim.profile import StreamPace

FORMAT = 1
OLDEST = timedelta(days=30)
FULL = 0.90  # share of a processor: from here on a process counts as using all of it
_ITL_S, _TTFT_S = 0.025, 0.2  # times of the paced loads: 40 tokens a second and stream
_BULK = 64  # tokens a write


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float  # length of a flood; a paced load has half of it
    loads: tuple[int, ...]  # streams at 40 tokens a second, smooth and in one step
    streams: int = 4000  # at once, if so many files may be open


THOROUGH = Effort(seconds=3.0, loads=(64, 256, 512))  # some 35 s
QUICK = Effort(seconds=0.8, loads=(512,))  # some 10 s


# ---- stored per host and version ------------------------------------------------------------------------


def folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "knee"


def path() -> Path:
    """Return the file of this host's and version's calibration."""
    return folder() / f"calibration-{_host()}-{__version__}.json"


def save(calibration: ClientCalibration) -> Path:
    where, way_out = path(), "set XDG_STATE_HOME to a folder to write in"
    files.make_folder(where.parent, way_out=way_out)
    files.write_json(where, calibration, private=True, way_out=way_out)
    return where


def load() -> ClientCalibration | None:
    """Return this host's stored calibration: by this version, else the latest by another; None: none is readable."""
    others = sorted(folder().glob(f"calibration-{_host()}-*.json"), key=lambda each: -each.lstat().st_mtime)
    for each in [path(), *others]:
        with contextlib.suppress(OSError, HarnessError, msgspec.DecodeError):
            calibration = msgspec.json.decode(files.read(each), type=ClientCalibration)
            if calibration.format == FORMAT:
                return calibration
    return None


def stale(calibration: ClientCalibration, now: datetime | None = None) -> str | None:
    """Return why a calibration does not hold for this machine today; None if it does.

    One that was made on fewer of its processors (taskset), or under other load, holds as a lower bound.
    """
    today = here()
    for field, name in (
        ("harness_version", "knee"),
        ("host", "host"),
        ("cpu", "processor"),
        ("python", "Python"),
        ("receive", "receive path"),
    ):
        then = getattr(calibration, field)
        if then != today[field]:
            return f"another {name}: {then} then, {today[field]} now"
    there = os.cpu_count() or 1
    if calibration.cpus > there:
        return f"another number of processors: {calibration.cpus} then, {there} now"
    age = (now or datetime.now(UTC)) - calibration.created
    return f"{age.days} days old" if age > OLDEST else None


def _host() -> str:
    """Return a hash of the host's name: results are published."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:12]


def here() -> dict[str, str | int]:
    """Return what a calibration depends on: version, host, processor, Python, receive path, and its processors."""
    return {
        "harness_version": __version__,
        "host": _host(),
        "cpu": machine.cpu_name(),
        "cpus": len(kernel.cpus()),
        "python": platform.python_version(),
        "receive": receive.path(),
    }


def rows(calibration: ClientCalibration) -> list[tuple[str, str, str]]:
    """Return the rows (what, figure, remark) of the table that shows a calibration."""
    c = calibration

    def most(name: str, unit: str, found: Ceiling) -> tuple[str, str, str]:
        more = "" if found.limited_by == "client" else f"at least; the {found.limited_by} was the limit"
        return name, f"{number(found.per_s)} {unit}", more

    def us(seconds: float | None) -> str:
        return number(None if seconds is None else seconds * 1e6)

    enough = "" if c.streams < c.streams_asked else "as many as requested"
    out = [
        most("tokens, one a write", "tok/s", c.single),
        most(f"tokens, {_BULK} a write", "tok/s", c.bulk),
        most("requests of one token", "req/s", c.requests),
        ("streams at once", number(c.streams), enough),
    ]
    for row in c.timing:
        kind = "in one step" if row.groups == 1 else "smooth"
        figure = f"{us(row.error_p50_s)} / {us(row.error_p99_s)} / {us(row.error_max_s)} µs"
        cost = f"{number(row.cpu_s_per_million)} CPU s per million tokens, {row.merged_fraction:.1%} merged"
        out.append((f"arrival error p50 / p99 / max, {row.streams} streams {kind}", figure, cost))
    ttft = MISSING if c.ttft_error_p99_s is None else f"{us(c.ttft_error_p99_s)} µs"
    return [*out, ("TTFT error p99", ttft, f"stamps by the {c.timestamp_source}; {c.receive} receive path")]


def limit(client_cpu: float, server_cpu: float) -> str:
    """Return who used all of a processor: the client, the server, or neither ("host").

    >>> limit(0.99, 0.7), limit(0.7, 0.99), limit(0.7, 0.7)
    ('client', 'server', 'host')
    """
    return "client" if client_cpu >= FULL else "server" if server_cpu >= FULL else "host"


def ceiling(seen: Trial, count: float) -> Ceiling:
    """Return the rate of `count` events in a trial, and whether client, server or neither used a whole processor."""
    client = seen.client_cpu_s / seen.seconds
    return Ceiling(
        per_s=count / seen.seconds,
        limited_by=limit(client, seen.server_cpu),
        client_cpu=client,
        server_cpu=seen.server_cpu,
        server_processes=len(seen.before.server_cpu_s),
    )


# ---- the measurement ------------------------------------------------------------------------------------


def calibrate(effort: Effort = THOROUGH, *, report: Callable[[str], object] = lambda what: None) -> ClientCalibration:
    """Measure this machine; `report` is called with what is measured next."""
    return asyncio.run(_calibrate(effort, report))


async def _calibrate(effort: Effort, report: Callable[[str], object]) -> ClientCalibration:
    """Measure this client's ceilings (events/s, requests/s, streams) and timing errors by servers on loopback."""
    load_average, seconds = os.getloadavg()[0], effort.seconds
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = effort.streams if files == resource.RLIM_INFINITY else min(effort.streams, files - OTHER_FILES)

    report("tokens, one a write")
    single = await _flood(StreamPace(flood=1), LONGEST, 256, seconds)
    report("tokens in bulk")
    bulk = await _flood(StreamPace(flood=_BULK), LONGEST, 64, seconds)
    report("requests")
    requests = await _flood(StreamPace(flood=1), 1, 64, seconds)
    report(f"{wanted:,} streams")
    many = await measure(Load(pace=StreamPace(ttft_s=_TTFT_S, itl_s=1.0), streams=wanted, seconds=seconds / 2))

    timing, first = [], []
    for streams in effort.loads:
        for groups in (64, 1):
            report(f"timing of {streams} streams {'in one step' if groups == 1 else 'smooth'}")
            pace = StreamPace(ttft_s=_TTFT_S, itl_s=_ITL_S, groups=groups)
            seen = await measure(Load(pace=pace, streams=streams, seconds=seconds / 2))
            every, starts = errors(seen.records, seen.entries, seen.origin_ns)
            timing.append(_timing(streams, groups, seen, every))
            first.append(np.abs(starts))
    return ClientCalibration(
        format=FORMAT,
        created=datetime.now(UTC),
        **here(),  # type: ignore[arg-type]
        transport="socket",
        timestamp_source=many.done[0].timestamp_source,
        workers=1,
        load_average=load_average,
        single=ceiling(single, single.tokens),
        bulk=ceiling(bulk, bulk.tokens),
        requests=ceiling(requests, requests.after.progress.ended - requests.before.progress.ended),
        streams=min(many.after.progress.in_flight, many.running),
        streams_asked=wanted,
        timing=tuple(timing),
        ttft_error_p99_s=percentiles(np.concatenate(first), (99,))[0],
    )


def _timing(streams: int, groups: int, seen: Trial, every: np.ndarray) -> Timing:
    """Return the errors of the chunks' stamps in one trial: p50, p99 and the greatest, in seconds."""
    off = np.abs(every)
    p50, p99 = np.percentile(off, [50, 99])
    return Timing(
        streams=streams,
        groups=groups,
        tokens_per_s=seen.tokens_per_s,
        tokens=len(every),
        error_p50_s=float(p50),
        error_p99_s=float(p99),
        error_max_s=float(off.max()),
        merged_fraction=sum(record.merged for record in seen.records) / len(every),
        cpu_s_per_million=seen.cpu_s_per_million,
    )


async def _flood(pace: StreamPace, output_tokens: int, streams: int, seconds: float) -> Trial:
    """Run a trial of a load that brings the client to its limit, with two server processes if one is too slow."""
    load = Load(pace=pace, output_tokens=output_tokens, streams=streams, seconds=seconds, spread_s=0.0)
    seen = await measure(load)
    if ceiling(seen, 0).limited_by == "server" and len(kernel.cpus()) > 2:
        return await measure(msgspec.structs.replace(load, processes=2))
    return seen
