"""`knee calibrate client`: what this machine's load generator can follow, and how exact its clock readings are.

The project's own worker, in its own process and with the requests that `knee run` sends, against the reference
endpoint in another process. Floods give the ceilings; paced streams give the errors: each arrival is held against
the endpoint's own log of when it wrote that token. A result is kept per host and version, and a run attaches it.

A ceiling that the endpoint reached before the worker did is a lower bound, and says so. Left out: TLS, the httpx
transport, several workers.
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

from harness import __version__, files
from harness.analysis.stats import percentiles
from harness.errors import HarnessError
from harness.experiment.trial import LONGEST, Load, Trial, errors, held
from harness.manifest import Ceiling, ClientCalibration, Timing
from harness.report.format import MISSING, number
from harness.sim.profile import StreamPace

FORMAT = 1
OLDEST = timedelta(days=30)
FULL = 0.90  # of a processor, from which a process counts as having all of it
_ITL_S, _TTFT_S = 0.025, 0.2  # of the paced loads: 40 tokens a second and stream
_BULK = 64  # tokens a write
_OTHER_FILES = 64  # that a process needs beside its connections


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much to measure."""

    seconds: float  # of a flood; a paced load has half of it
    loads: tuple[int, ...]  # streams at 40 tokens a second, smooth and in one step
    streams: int = 4000  # to hold at once, if so many files may be open


THOROUGH = Effort(seconds=3.0, loads=(64, 256, 512))  # some 35 s
QUICK = Effort(seconds=0.8, loads=(512,))  # some 10 s


# ---- kept per host and version --------------------------------------------------------------------------


def folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "knee"


def path() -> Path:
    """Where this host's and version's calibration is kept."""
    return folder() / f"calibration-{_host()}-{__version__}.json"


def save(calibration: ClientCalibration) -> Path:
    where, way_out = path(), "set XDG_STATE_HOME to a folder to write in"
    files.make_folder(where.parent, way_out=way_out)
    files.write_json(where, calibration, private=True, way_out=way_out)
    return where


def load() -> ClientCalibration | None:
    """This host's calibration by this version, else its latest by another; None without a readable one."""
    others = sorted(folder().glob(f"calibration-{_host()}-*.json"), key=lambda each: -each.lstat().st_mtime)
    for each in [path(), *others]:
        with contextlib.suppress(OSError, HarnessError, msgspec.DecodeError):
            found = msgspec.json.decode(files.read(each), type=ClientCalibration)
            if found.format == FORMAT:
                return found
    return None


def stale(calibration: ClientCalibration, now: datetime | None = None) -> str | None:
    """Why a calibration says nothing about this machine today; None if it does.

    It may have been made on fewer of its processors (taskset), or beside other load: then it is a lower bound.
    """
    today = here()
    for field, name in (
        ("harness_version", "knee"),
        ("host", "host"),
        ("cpu", "processor"),
        ("python", "Python"),
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
    """The host's name, made unreadable: results are published."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:12]


def here() -> dict[str, str | int]:
    """What a calibration holds for: the fields that have to be today's too, and the processors that it may use."""
    return {
        "harness_version": __version__,
        "host": _host(),
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()


def rows(calibration: ClientCalibration) -> list[tuple[str, str, str]]:
    """(what, figure, remark) for a table."""
    c = calibration

    def most(name: str, unit: str, found: Ceiling) -> tuple[str, str, str]:
        more = "" if found.limited_by == "client" else f"at least; the {found.limited_by} was the limit"
        return name, f"{number(found.per_s)} {unit}", more

    def us(seconds: float | None) -> str:
        return number(None if seconds is None else seconds * 1e6)

    held = "" if c.streams < c.streams_asked else "as many as were asked for"
    out = [
        most("tokens, one a write", "tok/s", c.single),
        most(f"tokens, {_BULK} a write", "tok/s", c.bulk),
        most("requests of one token", "req/s", c.requests),
        ("streams at once", number(c.streams), held),
    ]
    for row in c.timing:
        kind = "in one step" if row.groups == 1 else "smooth"
        figure = f"{us(row.error_p50_s)} / {us(row.error_p99_s)} / {us(row.error_max_s)} µs"
        cost = f"{number(row.cpu_s_per_million)} CPU s per million tokens, {row.merged_fraction:.1%} merged"
        out.append((f"arrival error p50 / p99 / max, {row.streams} streams {kind}", figure, cost))
    ttft = MISSING if c.ttft_error_p99_s is None else f"{us(c.ttft_error_p99_s)} µs"
    return [*out, ("TTFT error p99", ttft, f"stamps by the {c.timestamp_source}")]


def limit(client_cpu: float, server_cpu: float) -> str:
    """Who had no time left: the client, the server, or neither, because the host gave none.

    >>> limit(0.99, 0.7), limit(0.7, 0.99), limit(0.7, 0.7)
    ('client', 'server', 'host')
    """
    return "client" if client_cpu >= FULL else "server" if server_cpu >= FULL else "host"


def ceiling(seen: Trial, count: float) -> Ceiling:
    """What so many a trial come to, and who was the limit."""
    client = seen.client_cpu_s / seen.seconds
    return Ceiling(
        per_s=count / seen.seconds,
        limited_by=limit(client, seen.server_cpu),
        client_cpu=client,
        server_cpu=seen.server_cpu,
        server_processes=len(seen.before.server_cpu_s),
    )


# ---- the measurement ------------------------------------------------------------------------------------


def calibrate(effort: Effort = THOROUGH, *, tell: Callable[[str], object] = lambda what: None) -> ClientCalibration:
    """Measure this machine; `tell` hears what is measured next."""
    return asyncio.run(_calibrate(effort, tell))


async def _calibrate(effort: Effort, tell: Callable[[str], object]) -> ClientCalibration:
    load_average, seconds = os.getloadavg()[0], effort.seconds
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    asked = effort.streams if files == resource.RLIM_INFINITY else min(effort.streams, files - _OTHER_FILES)

    tell("tokens, one a write")
    single = await _flood(StreamPace(flood=1), LONGEST, 256, seconds)
    tell("tokens in bulk")
    bulk = await _flood(StreamPace(flood=_BULK), LONGEST, 64, seconds)
    tell("requests")
    asking = await _flood(StreamPace(flood=1), 1, 64, seconds)
    tell(f"{asked:,} streams")
    many = await held(Load(pace=StreamPace(ttft_s=_TTFT_S, itl_s=1.0), streams=asked, seconds=seconds / 2))

    timing, first = [], []
    for streams in effort.loads:
        for groups in (64, 1):
            tell(f"timing of {streams} streams {'in one step' if groups == 1 else 'smooth'}")
            pace = StreamPace(ttft_s=_TTFT_S, itl_s=_ITL_S, groups=groups)
            seen = await held(Load(pace=pace, streams=streams, seconds=seconds / 2))
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
        requests=ceiling(asking, asking.after.told.ended - asking.before.told.ended),
        streams=min(many.after.told.in_flight, many.running),
        streams_asked=asked,
        timing=tuple(timing),
        ttft_error_p99_s=percentiles(np.concatenate(first), (99,))[0],
    )


def _timing(streams: int, groups: int, seen: Trial, every: np.ndarray) -> Timing:
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
    """A load that is to bring the client to its limit; by two processes where one is not enough for that."""
    load = Load(pace=pace, output_tokens=output_tokens, streams=streams, seconds=seconds, spread_s=0.0)
    seen = await held(load)
    if ceiling(seen, 0).limited_by == "server" and len(os.sched_getaffinity(0)) > 2:
        return await held(msgspec.structs.replace(load, processes=2))
    return seen
