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
import http.client
import os
import platform
import resource
import tempfile
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic_ns
from urllib.parse import urlsplit

import msgspec
import numpy as np
import psutil

from harness import __version__, store
from harness.analysis.stats import percentiles
from harness.errors import HarnessError
from harness.load import dialects
from harness.load.driver import Done, Hold, Plan, Progress
from harness.load.schedule import tick_ns
from harness.load.transport import Target
from harness.load.workers import Workers
from harness.load.workload import COMMON
from harness.observe import server
from harness.record import Record, arrivals_of
from harness.report.format import MISSING, number
from harness.sim.process import Served, serving
from harness.sim.profile import Pace, reference
from harness.sim.writelog import Entry, entries

FORMAT = 1
OLDEST = timedelta(days=30)
FULL = 0.90  # of a processor, from which a process counts as having all of it
_PROMPT_WORDS = 16
_LONGEST = 1_000_000  # tokens: an answer that outlasts the measurement
_ITL_S, _TTFT_S = 0.025, 0.2  # of the paced loads: 40 tokens a second and stream
_BULK = 64  # tokens a write
_OTHER_FILES = 64  # that a process needs beside its connections
_SPREAD_S = 0.5  # over which paced streams begin
_PATIENCE_S = 30.0  # until all of them have
_WAY_OUT = "see what else this machine is doing, and calibrate again"
_decode = msgspec.msgpack.Decoder(list[Record]).decode


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much to measure."""

    seconds: float  # of a flood; a paced load has half of it
    loads: tuple[int, ...]  # streams at 40 tokens a second, smooth and in one step
    streams: int = 4000  # to hold at once, if so many files may be open


THOROUGH = Effort(seconds=3.0, loads=(64, 256, 512))  # some 35 s
QUICK = Effort(seconds=0.8, loads=(512,))  # some 10 s


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """The most that got through, a second; processors are shares of one, 0 to 1 a process."""

    per_s: float
    limited_by: str  # client | server | host (neither had a processor to itself): only client is a true ceiling
    client_cpu: float
    server_cpu: float
    server_processes: int


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Arrival stamp − the endpoint's own stamp right before it wrote that token; seconds."""

    streams: int
    groups: int  # phases of the ITL that the streams are spread over; 1: all in one engine step
    tokens_per_s: float
    tokens: int  # compared
    error_p50_s: float
    error_p99_s: float
    error_max_s: float
    merged_fraction: float  # of the tokens, that shared a read and so a stamp
    cpu_s_per_million: float  # of the worker, per million tokens


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one machine's load generator can do with one worker."""

    format: int = FORMAT
    created: datetime
    host: str  # hash of its name
    cpu: str
    cpus: int
    python: str
    harness_version: str
    transport: str
    timestamp_source: str  # kernel | user
    workers: int
    load_average: float  # of the minute before: a busy machine calibrates itself too low
    single: Ceiling  # tokens a second, one write each
    bulk: Ceiling  # tokens a second, many a write
    requests: Ceiling  # requests a second, of one token
    streams: int  # held at once, as client and endpoint both saw
    streams_asked: int
    timing: tuple[Timing, ...]
    ttft_error_p99_s: float | None  # of |TTFT − (first write − send)|; None: too few requests

    @property
    def error_p99_s(self) -> float:
        """The worst of the loads' 99th percentiles of arrival errors, seconds."""
        return max(row.error_p99_s for row in self.timing)


# ---- kept per host and version --------------------------------------------------------------------------


def folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "knee"


def path() -> Path:
    """Where this host's and version's calibration is kept."""
    return folder() / f"calibration-{_host()}-{__version__}.json"


def save(calibration: Calibration) -> Path:
    where = path()
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        store.write_json(where, calibration)
    except OSError as error:
        fact = f"cannot keep the calibration: {error.strerror}"
        raise HarnessError(fact, place=str(where), way_out="set XDG_STATE_HOME to a folder to write in") from None
    return where


def load() -> Calibration | None:
    """This host's calibration by this version, else its latest by another; None without a readable one."""
    others = sorted(folder().glob(f"calibration-{_host()}-*.json"), key=lambda each: -each.stat().st_mtime)
    for each in [path(), *others]:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            found = msgspec.json.decode(each.read_bytes(), type=Calibration)
            if found.format == FORMAT:
                return found
    return None


def stale(calibration: Calibration, now: datetime | None = None) -> str | None:
    """Why a calibration says nothing about this machine today; None if it does."""
    today = here()
    for field, name in (
        ("harness_version", "knee"),
        ("host", "host"),
        ("cpu", "processor"),
        ("cpus", "number of processors"),
        ("python", "Python"),
    ):
        then = getattr(calibration, field)
        if then != today[field]:
            return f"another {name}: {then} then, {today[field]} now"
    age = (now or datetime.now(UTC)) - calibration.created
    return f"{age.days} days old" if age > OLDEST else None


def _host() -> str:
    """The host's name, made unreadable: results are published."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:12]


def here() -> dict[str, str | int]:
    """What a calibration holds for: the fields that have to be today's too."""
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


def rows(calibration: Calibration) -> list[tuple[str, str, str]]:
    """(what, figure, remark) for a table."""
    c = calibration

    def ceiling(name: str, unit: str, found: Ceiling) -> tuple[str, str, str]:
        more = "" if found.limited_by == "client" else f"at least; the {found.limited_by} was the limit"
        return name, f"{number(found.per_s)} {unit}", more

    def us(seconds: float | None) -> str:
        return number(None if seconds is None else seconds * 1e6)

    held = "" if c.streams < c.streams_asked else "as many as were asked for"
    out = [
        ceiling("tokens, one a write", "tok/s", c.single),
        ceiling(f"tokens, {_BULK} a write", "tok/s", c.bulk),
        ceiling("requests of one token", "req/s", c.requests),
        ("streams at once", number(c.streams), held),
    ]
    for row in c.timing:
        kind = "in one step" if row.groups == 1 else "smooth"
        figure = f"{us(row.error_p50_s)} / {us(row.error_p99_s)} / {us(row.error_max_s)} µs"
        cost = f"{number(row.cpu_s_per_million)} CPU s per million tokens, {row.merged_fraction:.1%} merged"
        out.append((f"arrival error p50 / p99 / max, {row.streams} streams {kind}", figure, cost))
    ttft = MISSING if c.ttft_error_p99_s is None else f"{us(c.ttft_error_p99_s)} µs"
    return [*out, ("TTFT error p99", ttft, f"stamps by the {c.timestamp_source}")]


# ---- the sums -------------------------------------------------------------------------------------------


def errors(records: Iterable[Record], told: Iterable[Entry], origin_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """Arrival − write of every token, and of every first one; seconds, shapes [tokens] and [requests].

    The k-th arrival of a request is held against its k-th write. A request that was cut has writes that never
    arrived; one that the log does not know is left out.
    """
    writes = {entry.id: entry.writes_ns for entry in told}
    found = []
    for record in records:
        written = np.frombuffer(writes.get(record.request_id, b""), dtype=np.int64)
        arrived = np.frombuffer(arrivals_of(record), dtype=np.int64) + origin_ns
        n = min(len(written), len(arrived))
        if n:
            found.append((arrived[:n] - written[:n]) * 1e-9)
    if not found:
        return np.empty(0), np.empty(0)
    return np.concatenate(found), np.array([each[0] for each in found])


def limit(client_cpu: float, server_cpu: float) -> str:
    """Who had no time left: the client, the server, or neither, because the host gave none.

    >>> limit(0.99, 0.7), limit(0.7, 0.99), limit(0.7, 0.7)
    ('client', 'server', 'host')
    """
    return "client" if client_cpu >= FULL else "server" if server_cpu >= FULL else "host"


# ---- the measurement ------------------------------------------------------------------------------------


class _Mark(msgspec.Struct, frozen=True):
    """One look at worker and endpoint."""

    told: Progress
    server_cpu_s: tuple[float, ...]  # by process


class _Seen(msgspec.Struct, frozen=True):
    """One load, from when all its streams had begun to its end."""

    before: _Mark
    after: _Mark
    records: list[Record]
    entries: list[Entry]
    origin_ns: int
    done: Done
    running: int  # requests, as the endpoint counted them at the end

    @property
    def seconds(self) -> float:
        return self.after.told.time_s - self.before.told.time_s

    @property
    def tokens(self) -> int:
        return self.after.told.tokens - self.before.told.tokens

    @property
    def client_cpu_s(self) -> float:
        return self.after.told.cpu_s - self.before.told.cpu_s

    def ceiling(self, count: float) -> Ceiling:
        spent = [b - a for a, b in zip(self.before.server_cpu_s, self.after.server_cpu_s, strict=True)]
        client, most = self.client_cpu_s / self.seconds, max(spent) / self.seconds
        return Ceiling(
            per_s=count / self.seconds,
            limited_by=limit(client, most),
            client_cpu=client,
            server_cpu=most,
            server_processes=len(spent),
        )


def calibrate(effort: Effort = THOROUGH, *, tell: Callable[[str], object] = lambda what: None) -> Calibration:
    """Measure this machine; `tell` hears what is measured next."""
    return asyncio.run(_calibrate(effort, tell))


async def _calibrate(effort: Effort, tell: Callable[[str], object]) -> Calibration:
    load_average, seconds = os.getloadavg()[0], effort.seconds
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    asked = effort.streams if files == resource.RLIM_INFINITY else min(effort.streams, files - _OTHER_FILES)

    tell("tokens, one a write")
    single = await _flood(Pace(flood=1), _LONGEST, 256, seconds)
    tell("tokens in bulk")
    bulk = await _flood(Pace(flood=_BULK), _LONGEST, 64, seconds)
    tell("requests")
    asking = await _flood(Pace(flood=1), 1, 64, seconds)
    tell(f"{asked:,} streams")
    many = await _load(Pace(ttft_s=_TTFT_S, itl_s=1.0), _LONGEST, asked, seconds / 2)

    timing, first = [], []
    for streams in effort.loads:
        for groups in (64, 1):
            tell(f"timing of {streams} streams {'in one step' if groups == 1 else 'smooth'}")
            seen = await _load(Pace(ttft_s=_TTFT_S, itl_s=_ITL_S, groups=groups), _LONGEST, streams, seconds / 2)
            every, starts = errors(seen.records, seen.entries, seen.origin_ns)
            timing.append(_timing(streams, groups, seen, every))
            first.append(np.abs(starts))
    return Calibration(
        created=datetime.now(UTC),
        **here(),  # type: ignore[arg-type]
        transport="socket",
        timestamp_source=many.done.timestamp_source,
        workers=1,
        load_average=load_average,
        single=single.ceiling(single.tokens),
        bulk=bulk.ceiling(bulk.tokens),
        requests=asking.ceiling(asking.after.told.ended - asking.before.told.ended),
        streams=min(many.after.told.in_flight, many.running),
        streams_asked=asked,
        timing=tuple(timing),
        ttft_error_p99_s=percentiles(np.concatenate(first), (99,))[0],
    )


def _timing(streams: int, groups: int, seen: _Seen, every: np.ndarray) -> Timing:
    off = np.abs(every)
    p50, p99 = np.percentile(off, [50, 99])
    return Timing(
        streams=streams,
        groups=groups,
        tokens_per_s=seen.tokens / seen.seconds,
        tokens=len(every),
        error_p50_s=float(p50),
        error_p99_s=float(p99),
        error_max_s=float(off.max()),
        merged_fraction=sum(record.merged for record in seen.records) / len(every),
        cpu_s_per_million=seen.client_cpu_s / seen.tokens * 1e6,
    )


async def _flood(pace: Pace, output_tokens: int, streams: int, seconds: float) -> _Seen:
    """A load that is to bring the client to its limit; by two processes where one is not enough for that."""
    seen = await _load(pace, output_tokens, streams, seconds)
    if seen.ceiling(0).limited_by == "server" and len(os.sched_getaffinity(0)) > 2:
        return await _load(pace, output_tokens, streams, seconds, processes=2)
    return seen


async def _load(pace: Pace, output_tokens: int, streams: int, seconds: float, *, processes: int = 1) -> _Seen:
    """Start endpoint and worker, keep so many streams going for so long once all have begun, and end both."""
    cpus = sorted(os.sched_getaffinity(0))
    apart = len(cpus) >= 2
    batches: list[bytes] = []  # decoded afterwards: this process shares a processor with one of the others
    with tempfile.TemporaryDirectory(prefix="knee-") as scratch:
        log = Path(scratch) / "writes"
        with serving(reference(pace), log=log, cpu=cpus[0] if apart else None, processes=processes) as served:
            origin_ns = monotonic_ns()
            plan = _plan(served, output_tokens, origin_ns, cpus[-1:] if apart else [], pace)
            async with Workers(1) as workers:
                await workers.begin([plan], batches.append)
                hold = Hold(
                    index=0,
                    repeat=0,
                    concurrency=streams,
                    slots=0,
                    spread_s=0.0 if pace.flood else _SPREAD_S,
                    tick_ns=plan.tick_ns,
                    at_ns=0,
                )
                await workers.hold(hold, streams)
                before = after = _mark(await _begun(workers, streams), served)
                while after.told.time_s < before.told.time_s + seconds:
                    after = _mark(await workers.news(), served)
                running = await asyncio.to_thread(_running, served.url)
                await workers.end()
                if not workers.done:
                    raise HarnessError("the worker did not end in time", place="calibrate", way_out=_WAY_OUT)
        written = [entry for each in served.logs for entry in entries(each)]
    records = [record for batch in batches for record in _decode(batch)]
    return _Seen(before, after, records, written, origin_ns, workers.done[0], running)


async def _begun(workers: Workers, streams: int) -> Progress:
    """Wait until every stream has begun."""
    begun = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            while begun < streams:
                told = await workers.news()
                begun = told.begun_in_run
            return told
    fact = f"{begun} of {streams} streams began within {_PATIENCE_S:g} s"
    raise HarnessError(fact, place="calibrate", way_out=_WAY_OUT)


def _plan(served: Served, output_tokens: int, origin_ns: int, cpus: Sequence[int], pace: Pace) -> Plan:
    where = urlsplit(served.url)
    assert where.hostname is not None
    assert where.port is not None
    before, after = dialects.body("chat", "reference", output_tokens)
    path = dialects.PATHS["chat"]
    return Plan(
        worker=0,
        workers=1,
        run_id=uuid.uuid4().hex[:12],
        target=Target(scheme="http", host=where.hostname, port=where.port, path=path, headers={}),
        url=served.url,
        body_before=before,
        body_after=after,
        words=COMMON,
        prompt_words=_PROMPT_WORDS,
        seed=0,
        first_prompt=0,
        request_timeout_s=600.0,
        max_rps=None,
        start="staggered",
        max_in_flight=1,
        tick_ns=tick_ns(None, None) if pace.flood else tick_ns(pace.itl_s, None),
        origin_ns=origin_ns,
        cpus=tuple(cpus),
    )


def _mark(told: Progress, served: Served) -> _Mark:
    if told.failed:
        fact = f"{told.failed} requests to the reference endpoint failed"
        raise HarnessError(fact, place="calibrate", way_out=_WAY_OUT)
    times = [psutil.Process(pid).cpu_times() for pid in served.pids]
    return _Mark(told, tuple(each.user + each.system for each in times))


def _running(url: str) -> int:
    """How many requests the endpoint says it is answering."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10.0)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        return int(server.parse(connection.getresponse().read().decode())["running"])
