"""One load on the reference endpoint, recorded on both sides: by the load generator and by the endpoint.

The workers are those of `knee run`, in their own processes and with the same requests; the endpoint logs when it wrote
each token. Calibration and the benchmarks of the engine consist of such trials. Left out: TLS, which the reference
endpoint does not speak.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path
from time import monotonic_ns
from urllib.parse import urlsplit

import msgspec
import numpy as np
import numpy.typing as npt
import psutil

from harness.base import kernel
from harness.base.errors import HarnessError
from harness.data.record import Record, arrivals_of
from harness.dialects import DIALECTS
from harness.load.link import LocalWorker
from harness.load.messages import BeginLevel, Codec, Done, Plan, Progress, Replica
from harness.load.schedule import tick_ns
from harness.load.transport import Target
from harness.load.workers import Workers
from harness.observe import server
from harness.sim.connection import Entry, entries
from harness.sim.process import Served, serving
from harness.sim.profile import Reference, StreamPace
from harness.workload.source import Uniform
from harness.workload.text import COMMON

LONGEST = 1_000_000  # tokens: an answer that outlasts any trial
_PATIENCE_S = 30.0  # all streams have to begin within so long
_METRICS_S = 10.0  # for an answer of the endpoint's page of metrics
_WAY_OUT = "see what else this machine is doing, and try again"
_decode = msgspec.msgpack.Decoder(list[Record]).decode


class Load(msgspec.Struct, frozen=True, kw_only=True):
    pace: StreamPace
    seconds: float  # measured, once all streams have begun
    streams: int = 0
    rate: float | None = None  # open loop: requests per second, in place of streams
    output_tokens: int = LONGEST
    prompt_words: int = 16
    spread_s: float = 0.5  # the streams begin spread over so long
    start: str = "staggered"
    settle_s: float = 0.0  # from when all have begun to when measuring begins
    running_usage: bool = True  # request the token count in every chunk, as `knee run` does
    transport: str = "socket"
    workers: int = 1
    processes: int = 1  # processes of the endpoint


class Mark(msgspec.Struct, frozen=True):
    """The counters of workers and endpoint at one time."""

    progress: Progress
    server_cpu_s: tuple[float, ...]  # CPU seconds of each process


class Trial(msgspec.Struct, frozen=True):
    """The records of one load, and the counters before and after its measured seconds."""

    before: Mark
    after: Mark
    records: list[Record]
    entries: list[Entry]
    origin_ns: int
    done: list[Done]
    running: int  # requests, as the endpoint counted them at the end
    took_s: float  # seconds from its announcement until the last worker had begun the level
    memory_bytes: int  # peak memory of the largest worker

    @property
    def seconds(self) -> float:
        return self.after.progress.time_s - self.before.progress.time_s

    @property
    def tokens(self) -> int:
        return self.after.progress.tokens - self.before.progress.tokens

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def client_cpu_s(self) -> float:
        """Return the CPU seconds of all workers."""
        return self.after.progress.cpu_s - self.before.progress.cpu_s

    @property
    def server_cpu(self) -> float:
        """Return the share of a processor that the busiest process of the endpoint had."""
        spent = [b - a for a, b in zip(self.before.server_cpu_s, self.after.server_cpu_s, strict=True)]
        return max(spent) / self.seconds

    @property
    def cpu_s_per_million(self) -> float:
        """Return the CPU seconds of the workers per million tokens."""
        return self.client_cpu_s / self.tokens * 1e6

    @property
    def inside(self) -> list[Record]:
        """Return the records of the requests that were sent in the measured seconds."""
        low, high = self.before.progress.time_s, self.after.progress.time_s
        return [record for record in self.records if record.sent_s is not None and low <= record.sent_s < high]


def errors(records: Iterable[Record], log: Iterable[Entry], origin_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the client's arrival − the server's write of every token, and of first tokens; s, [tokens], [requests].

    The k-th arrival of a request is compared with its k-th write. A request that was cut has writes that never
    arrived; one that is not in the log is left out.
    """
    late = [arrived - written for arrived, written in pairs(records, log, origin_ns)]
    if not late:
        return np.empty(0), np.empty(0)
    return np.concatenate(late), np.array([delays[0] for delays in late])


def pairs(
    records: Iterable[Record], log: Iterable[Entry], origin_ns: int
) -> Iterable[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """Return (arrivals, writes) of each request that both sides recorded, seconds since the origin, token by token."""
    writes = {entry.id: entry.writes_ns for entry in log}
    for record in records:
        written = np.frombuffer(writes.get(record.request_id, b""), dtype=np.int64)
        arrived = np.frombuffer(arrivals_of(record), dtype=np.int64)
        n = min(len(written), len(arrived))
        if n:
            yield np.asarray(arrived[:n] * 1e-9), np.asarray((written[:n] - origin_ns) * 1e-9)


def run_trial(load: Load) -> Trial:
    """`measure`, from code without an event loop."""
    return asyncio.run(measure(load))


async def measure(load: Load) -> Trial:
    """Start endpoint and workers, measure for the load's seconds once all streams have begun, and end both."""
    cpus = kernel.cpus()
    apart = len(cpus) >= 2
    batches: list[bytes] = []  # decoded afterwards: this process shares a processor with a worker or the endpoint
    with tempfile.TemporaryDirectory(prefix="knee-") as scratch:
        log = Path(scratch) / "writes"
        where = Reference(pace=load.pace)
        with serving(where, log=log, cpu=cpus[0] if apart else None, processes=load.processes) as served:
            origin_ns = monotonic_ns()
            run_id = uuid.uuid4().hex[:12]
            # Workers share the last processor if there is none for each: server and client stay apart.
            of_their_own = len(cpus) - load.processes >= load.workers
            placed = [cpus[-1 - i] if of_their_own else cpus[-1] for i in range(load.workers)]
            plans = [_plan(load, served, run_id, i, (cpu,) if apart else (), origin_ns) for i, cpu in enumerate(placed)]
            links = [LocalWorker() for _ in plans]
            async with Workers(links) as workers:
                await workers.begin(plans, batches.append)
                level = BeginLevel(
                    index=0, repeat=0, concurrency=load.streams or None, slots=0, spread_s=load.spread_s,
                    tick_ns=plans[0].tick_ns, at_ns=0, rate=load.rate,
                )  # fmt: skip
                await workers.begin_level(level, load.streams or 64)
                progress = await _begun(workers, load.streams)
                until = progress.time_s + load.settle_s
                while progress.time_s < until:
                    progress = await workers.next_progress()
                before = after = _mark(progress, served)
                while after.progress.time_s < before.progress.time_s + load.seconds:
                    after = _mark(await workers.next_progress(), served)
                running = await asyncio.to_thread(_running, served.url)
                highest = [_peak(link.pid) for link in links]
                await workers.end()
                if len(workers.done) < load.workers:
                    raise HarnessError("a worker did not end in time", place="trial", way_out=_WAY_OUT)
        written = [entry for each in served.logs for entry in entries(each)]
    records = [record for batch in batches for record in _decode(batch)]
    return Trial(before, after, records, written, origin_ns, workers.done, running, after.progress.took_s, max(highest))


async def _begun(workers: Workers, streams: int) -> Progress:
    """Wait until every stream has begun, in open loop until one request has."""
    begun = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            while begun < max(1, streams):
                progress = await workers.next_progress()
                begun = progress.begun_in_run
            return progress
    fact = f"{begun} of {streams} streams began within {_PATIENCE_S:g} s"
    raise HarnessError(fact, place="trial", way_out=_WAY_OUT)


def _plan(load: Load, served: Served, run_id: str, worker: int, cpus: tuple[int, ...], origin_ns: int) -> Plan:
    """Return the plan of one worker for a trial's load on the reference server."""
    where, pace = urlsplit(served.url), load.pace
    assert where.hostname is not None
    assert where.port is not None
    drop = frozenset() if load.running_usage else frozenset({"stream_options.continuous_usage_stats"})
    path = "/v1" + DIALECTS["chat"].path
    target = Target(
        scheme="http", host=where.hostname, port=where.port, path=path, headers={}, transport=load.transport
    )
    whole = pace.ttft_s + pace.itl_s * load.output_tokens
    return Plan(
        worker=worker,
        workers=load.workers,
        run_id=run_id,
        replicas=(Replica(served.url, target),),
        codec=Codec(model="reference", drop=drop),
        source=Uniform(words=COMMON, prompt_words=load.prompt_words, output_tokens=load.output_tokens, seed=0),
        first_request=0,
        request_timeout_s=600.0,
        max_rps=None,
        start=load.start,
        max_in_flight=4096,
        tick_ns=tick_ns(None, None) if pace.flood else tick_ns(pace.itl_s, whole),
        origin_ns=origin_ns,
        cpus=cpus,
    )


def _mark(progress: Progress, served: Served) -> Mark:
    if progress.failed:
        fact = f"{progress.failed} requests to the reference endpoint failed"
        raise HarnessError(fact, place="trial", way_out=_WAY_OUT)
    times = [psutil.Process(pid).cpu_times() for pid in served.pids]
    return Mark(progress, tuple(time.user + time.system for time in times))


def _peak(pid: int) -> int:
    """Return the highest resident memory of a process so far, bytes."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _running(url: str) -> int:
    """Return the requests that the endpoint counts as running."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_METRICS_S)
    try:
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            return int(server.figures(connection.getresponse().read().decode())["running"])
    except TimeoutError:
        fact = f"the reference endpoint did not give its metrics within {_METRICS_S:g} s"
        raise HarnessError(fact, place="trial", way_out=_WAY_OUT) from None
