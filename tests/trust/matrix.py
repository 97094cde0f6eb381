"""The fault matrix, run: the rows of `tests.faults` measured at 1 and at 256 in flight, each held to what it says.

At 1 in flight every row has its own driver and connections, all of them in one loop of this process; at 256 a row
has a worker process. What the drivers send goes through store and summary, so that a row ends as a run does: in
records, verdicts and an exit status. The requests that meet no fault are held against the server's own log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from harness.analysis.summarise import exit_status, summarise
from harness.base.errors import HarnessError
from harness.data.manifest import Manifest
from harness.data.record import Level, Record, arrivals_of
from harness.data.summary import Summary
from harness.dialects import DIALECTS
from harness.load.driver import Driver
from harness.load.link import LocalWorker
from harness.load.loop import HotSelector, Stamping, new_loop, now
from harness.load.messages import BeginLevel, Codec, Command, Message, Plan, Prepare, Progress, Replica, Stop
from harness.load.transport import Target, Transport
from harness.load.worker import transport_for
from harness.load.workers import Workers
from harness.results import frames
from harness.results.folder import SUMMARY, create
from harness.results.result import Result
from harness.results.spool import Spool, header
from harness.workload.source import Uniform
from harness.workload.text import COMMON
from tests.trust.faults import ROWS, RUNS, Row, Run, slug
from tests.trust.misbehaving import PACES, PROMPT, ROOT, TOKENS, Exchange, Pace, Served, marked, serving

CROWD = 256
AT_ONCE = {"socket": 16, "httpx": 4}  # rows at 1 in flight on one loop
PATIENCE_S = 60.0  # of a whole row
SLACK_S = 0.25  # beyond a request's deadline
MOST_MEMORY = 1 << 30  # bytes, of a worker
# Of the others' TTFT, ours against the server's, p99. Ours is stamped by the kernel, so that it does not depend on what
# else the client does; the server's is not, and another process on its core costs it a time slice. httpx has no stamps.
TTFT_ERROR_S = {"socket": 0.004, "httpx": 0.05}
TRIES = 3  # of a row that the machine may have spoilt
_decode_message = msgspec.msgpack.Decoder(Message).decode
_decode_batch = msgspec.msgpack.Decoder(list[Record]).decode


class Seen(NamedTuple):
    """A row as it was measured."""

    records: list[Record]
    level: Level
    origin_ns: int
    resent: int = 0
    memory: int | None = None  # most that the worker ever had, bytes


class Line(NamedTuple):
    """A row of the table."""

    fault: str
    in_flight: int | str
    record: str
    verdict: str
    status: int
    others_error_s: float | None  # p99 of the others' TTFT against the server's log
    problems: list[str]

    @property
    def holds(self) -> bool:
        return not self.problems

    @property
    def noisy(self) -> bool:
        """Whether the machine, not the fault, may have spoilt it: times are off or the client was late, all else holds.

        What came while the client stood still was read together, and what the server stamped before it stood still was
        written later: a TTFT that is wrong is wrong each time (TRIES), one that such a moment spoilt is not. A slow
        machine sends 256 short requests late, which voids the level as it must. A server held up between the last byte
        of an answer and its reset meets the next request with it, which is that request's own failure, as it must be.
        """
        late = "client_limited" in self.verdict.split(", ")
        excused = ["TTFT"] + [f"exit status {self.status}"] * late
        if self.fault == "reset after the stream":
            excused += ["another request was spoilt: reset", "verdicts: ", f"exit status {self.status}"]
        return bool(self.problems) and all(any(word in what for word in excused) for what in self.problems)


def target(row: Row, served: Served, pace: str, transport: str = "socket") -> Target:
    return Target(
        scheme="https" if row.tls else "http",
        host=row.host or "127.0.0.1",
        port=row.port or (served.tls[row.tls] if row.tls else served.port),
        path=f"/{slug(row.fault)}/{row.which}/{pace}{DIALECTS[row.api].root}{DIALECTS[row.api].path}",
        media=DIALECTS[row.api].decoder().media,
        headers={},
        ca_file=served.ca_file if row.tls else "",
        transport=transport,
    )


def plan(where: Target, row: Row, in_flight: int, cpus: tuple[int, ...] = ()) -> Plan:
    return Plan(
        worker=0, workers=1, run_id=uuid.uuid4().hex[:12],
        replicas=(Replica("http://127.0.0.1", where),), codec=Codec(api=row.api, model="toy"),
        source=Uniform(words=COMMON, prompt_words=PROMPT, output_tokens=TOKENS, seed=0), first_request=0,
        request_timeout_s=row.deadline_s,
        max_rps=None, start="staggered", max_in_flight=in_flight, tick_ns=250_000, origin_ns=now(), cpus=cpus,
    )  # fmt: skip


def begin_level(in_flight: int, pace: Pace) -> BeginLevel:
    spread_s = 0.0 if in_flight == 1 else pace.first_s + TOKENS * pace.gap_s
    return BeginLevel(0, 0, in_flight, in_flight, spread_s, 250_000, now())


async def level(news: AsyncIterator[Progress], in_flight: int, wanted: int, begin_s: float) -> Level:
    """Warm up, measure until so many requests have ended, hold until the last one of the window has: as a run does."""
    held = Level(0, in_flight, 0, begin_s)
    async for p in news:
        if held.window_start_s is None:
            if p.waiting == 0 and p.ended >= in_flight:
                held, already = msgspec.structs.replace(held, window_start_s=p.time_s), p.ended
        elif held.window_end_s is None:
            if p.ended >= already + wanted:
                held = msgspec.structs.replace(held, window_end_s=p.time_s)
        elif p.oldest_sent_s is None or p.oldest_sent_s >= held.window_end_s:
            return msgspec.structs.replace(held, end_s=p.time_s)
    raise AssertionError("the news ended")


# At 1 in flight: in this process


async def driven(
    plan: Plan, transport: Transport, selector: HotSelector, pace: Pace, wanted: int, in_flight: int = 1
) -> Seen:
    """One row's driver, on the loop that runs."""
    records: list[Record] = []
    told: asyncio.Queue[Progress] = asyncio.Queue()
    commands: asyncio.Queue[Command] = asyncio.Queue()

    async def send(payload: bytes) -> None:
        if frames.is_batch(payload):
            records.extend(_decode_batch(payload))
        elif isinstance(message := _decode_message(payload), Progress):
            told.put_nowait(message)

    async def news() -> AsyncIterator[Progress]:
        while True:
            yield await told.get()

    try:
        running = asyncio.create_task(Driver(plan, transport, send, selector=selector).run(commands))
        commands.put_nowait(Prepare(1, in_flight))
        while (await told.get()).prepared < 1:
            pass
        commands.put_nowait(begin_level(in_flight, pace))
        held = await level(news(), in_flight, wanted, (now() - plan.origin_ns) * 1e-9)
        commands.put_nowait(Stop())
        await running
    finally:
        await transport.aclose()
    return Seen(records, held, plan.origin_ns, transport.resent)


def on_a_loop(work: Any, selector: HotSelector) -> Any:
    """Run a coroutine as a worker runs its own."""
    stamping = Stamping()
    try:
        with asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
            return runner.run(asyncio.wait_for(work, PATIENCE_S))
    finally:
        stamping.close()


async def set_the_clock(selector: HotSelector) -> None:
    """Now and then the wall clock jumps: its offset, as the loop knows it, is not the offset any more."""
    for step_s in (0.03, -0.03, 3600.0, -3600.0) * 1000:
        await asyncio.sleep(0.05)
        selector._offset += round(step_s * 1e9)


def one_by_one(rows: Sequence[Row], served: Served, transport: str = "socket") -> Iterator[tuple[Row, Seen]]:
    """Every row at 1 in flight, some at once on one loop; what floods it or sets its clock has one to itself."""

    async def all_of(selector: HotSelector, chosen: Sequence[Row]) -> list[Seen]:
        clock = asyncio.create_task(set_the_clock(selector)) if chosen[0].clock_is_set else None
        plans = [plan(target(row, served, "quick", transport), row, 1) for row in chosen]
        wanted = [4 if row.which == "load" else 16 for row in chosen]
        pace = PACES["quick"]
        ways = [
            transport_for(each.replicas[0].target, selector) for each in plans
        ]  # all of them first: TLS takes a moment
        rows = zip(plans, ways, wanted, strict=True)
        seen = await asyncio.gather(*(driven(p, way, selector, pace, n) for p, way, n in rows))
        if clock is not None:
            clock.cancel()
        return seen

    alone = [[row] for row in rows if row.floods or row.clock_is_set]
    others = [row for row in rows if not (row.floods or row.clock_is_set)]
    at_once = AT_ONCE[transport]
    for chosen in [*(others[i : i + at_once] for i in range(0, len(others), at_once)), *alone]:
        selector = HotSelector(250_000)
        yield from zip(chosen, on_a_loop(all_of(selector, chosen), selector), strict=True)


# At 256 in flight: in a worker


async def crowded(row: Row, served: Served, cpus: tuple[int, ...]) -> Seen:
    """One row at 256 in flight, in a worker process."""
    pace, records = PACES["steady"], list[Record]()
    made = plan(target(row, served, "steady"), row, CROWD, cpus)
    process = LocalWorker()
    async with asyncio.timeout(PATIENCE_S), Workers([process]) as workers:

        async def news() -> AsyncIterator[Progress]:
            while True:
                p = await workers.next_progress()
                if p.level == 0:
                    yield p

        await workers.begin([made], lambda payload: records.extend(_decode_batch(payload)), lambda _: None)
        begin_s = (now() - made.origin_ns) * 1e-9
        await workers.begin_level(begin_level(CROWD, pace), CROWD)
        held = await level(news(), CROWD, 2 * CROWD, begin_s)
        memory = most_memory(process)
        await workers.end()
        resent = sum(done.resent for done in workers.done)
        return Seen(records, held, made.origin_ns, resent, memory)


def most_memory(process: LocalWorker) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


# What must have come of it


def judged(row: Row, in_flight: int, seen: Seen, served: Served, transport: str = "socket") -> Line:
    """What a row's records, verdicts and figures say, and where that is not what must be."""
    if transport == "httpx":
        row = row._replace(error=row.httpx_error or row.error, resent=False)
    problems: list[str] = []

    def must(holds: bool, what: str) -> None:
        if not holds and what not in problems:
            problems.append(what)

    whole = [r for r in seen.records if r.error != "cancelled"]
    met = [r for r in whole if row.which == "load" or marked(r.request_id)]
    others = [r for r in whole if row.which != "load" and not marked(r.request_id)]
    must(len(met) >= max(2, in_flight // 16), f"only {len(met)} requests met the fault")
    for r in met:
        kept = len(arrivals_of(r))
        must(r.error == row.error, f"error {r.error!r} ({r.error_message}), not {row.error!r}")
        must(r.status == row.status, f"status {r.status}, not {row.status}")
        must(kept == row.tokens, f"{kept} tokens kept, not {row.tokens}")
        must(row.said in r.error_message, f"{row.said!r} is not in {r.error_message!r}")
        if not row.error:
            must(r.output_tokens == row.output_tokens, f"{r.output_tokens} output tokens, not {row.output_tokens}")
    for r in others:
        right = (r.error, r.status, len(arrivals_of(r)), r.output_tokens) == ("", 200, TOKENS, TOKENS)
        must(right, f"another request was spoilt: {r.error} {r.status} {r.error_message}")
    must(row.which == "load" or len(others) >= 6 * in_flight // 4, f"only {len(others)} other requests")
    for r in whole:
        if r.sent_s is not None and r.done_s is not None:
            took = r.done_s - r.sent_s
            must(took <= row.deadline_s + SLACK_S, f"a request took {took:.2f} s, its deadline is {row.deadline_s:g} s")
        if r.sent_s is not None:
            stamps = [r.sent_s, *(stamp * 1e-9 for stamp in arrivals_of(r)), r.done_s or 0.0]
            must(stamps == sorted(stamps), "stamps that run backwards")
    if in_flight == 1 and row.rest_s:
        by_time = sorted(seen.records, key=lambda r: r.scheduled_s)
        rests = [
            b.sent_s - b.scheduled_s for a, b in pairwise(by_time) if a.error == row.error and b.sent_s is not None
        ]
        must(all(row.rest_s <= rest < row.rest_s + SLACK_S for rest in rests), f"rests of {rests} s")
    ids = [r.request_id for r in seen.records]
    must(len(ids) == len(set(ids)), "a request that stands twice")
    must(row.resent in (None, seen.resent > 0), f"{seen.resent} requests were sent again")
    if seen.memory is not None:
        must(seen.memory <= MOST_MEMORY, f"{seen.memory >> 20} MiB in the worker")
    good = others if row.error else whole
    if row.floods:  # A flood may keep the client busy until the next token has come, too; the records count such reads.
        in_time = [r for r in good if r.merged == r.lumped]
        must(len(in_time) >= 3 * len(good) / 4, f"the TTFT of {len(good) - len(in_time)} of {len(good)} came late")
        good = in_time
    errors = ttft_errors(good, served)
    worst = float(np.percentile(np.abs(errors), 99)) if len(errors) else None
    if worst is not None:
        must(worst <= TTFT_ERROR_S[transport], f"the others' TTFT is {worst * 1e3:.2f} ms off")
    codes, status = verdicts(seen)
    must(("errors_above_1_percent" in codes) == bool(row.error), f"verdicts: {', '.join(codes)}")
    # Requests of a tenth of a second: httpx's own turnaround may be more than 2 % of them, which voids a level too.
    late = transport == "httpx" and "client_limited" in codes
    must(status == (3 if row.error or late else 0), f"exit status {status}")
    record = row.error or "success"
    if row.status not in (200, None):
        record += f", status {row.status}"
    if row.error and row.tokens:
        record += f", {row.tokens} tokens kept"
    if seen.resent:
        record += ", sent again and counted"
    label = in_flight if transport == "socket" else f"{in_flight}, {transport}"
    return Line(row.fault, label, record, ", ".join(codes) or "valid", status, worst, problems)


def ttft_errors(records: Iterable[Record], served: Served) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Our TTFT minus the server's, seconds, of the requests that the server's log knows."""
    wrote = served.written()
    return np.array([
        (r.first_token_s - r.sent_s) - (w.first_ns - w.received_ns) * 1e-9
        for r in records
        if r.first_token_s is not None and r.sent_s is not None and (w := wrote.get(r.request_id)) is not None
    ])  # fmt: skip


def verdicts(seen: Seen) -> tuple[list[str], int]:
    """The invalid verdicts and the exit status that a run of this level ends with."""
    with tempfile.TemporaryDirectory() as folder:
        path = create(Path(folder) / "run")
        spool = Spool(path, header(seen.origin_ns, time.time()))
        spool.level(seen.level)
        spool.write(frames.batch(seen.records))
        spool.close()
        run = Result.open(path)
        complete = msgspec.structs.replace(run, manifest=Manifest(complete=True), finished=True)
        summary = summarise(complete)
    found = [*summary.verdicts, *(v for each in summary.levels for v in each.verdicts)]
    return sorted({v.code for v in found if v.level == "invalid"}), exit_status(summary)


# The server that is gone for a while and comes back


async def gone_and_back(
    in_flight: int, folder: Path, server_cpu: int | None, cpus: tuple[int, ...], gone_s: float
) -> Line:
    """The server is killed amid its answers, is not there for a while, and comes back on its port."""
    row = Row(f"gone for {gone_s:g} s and back", Exchange.good, "")
    pace, records = PACES["steady"], list[Record]()
    problems: list[str] = []
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        served = first.enter_context(serving(folder / f"gone-{in_flight}.log", cpu=server_cpu))
        made = plan(target(row._replace(fault="good"), served, "steady"), row, in_flight, cpus)
        async with asyncio.timeout(PATIENCE_S + gone_s), Workers([LocalWorker()]) as workers:

            async def until(seconds: float) -> Progress:
                end = (now() - made.origin_ns) * 1e-9 + seconds
                while (p := await workers.next_progress()).time_s < end:
                    pass
                return p

            await workers.begin([made], lambda payload: records.extend(_decode_batch(payload)))
            await workers.begin_level(begin_level(in_flight, pace), in_flight)
            await until(1.0)
            gone = (now() - made.origin_ns) * 1e-9
            first.close()
            await until(gone_s)
            served = stack.enter_context(serving(Path(served.log), port=served.port, cpu=server_cpu))
            back = (now() - made.origin_ns) * 1e-9
            end = (await until(2.5)).time_s
            await until(1.0)
            await workers.end()
    seen = Seen(records, Level(0, in_flight, 0, 0.0, 0.0, end, end), made.origin_ns)
    whole = [r for r in records if r.error != "cancelled"]
    longest_pause_s = 1.0
    for r in whole:
        sent = r.scheduled_s if r.sent_s is None else r.sent_s
        if r.error and not (r.error in ("reset", "truncated", "refused") and gone - 1.0 < sent < back):
            problems.append(f"{r.error} ({r.error_message}) of a request sent {sent - back:+.2f} s after the return")
    late = [r for r in whole if r.sent_s is not None and back + longest_pause_s + 0.1 < r.sent_s < end]
    if len({r.request_id for r in late}) < in_flight:
        problems.append(f"only {len(late)} requests after the return")
    errors = ttft_errors([r for r in whole if not r.error], served)
    worst = float(np.percentile(np.abs(errors), 99))
    if worst > TTFT_ERROR_S["socket"]:
        problems.append(f"the others' TTFT is {worst * 1e3:.2f} ms off")
    kinds = sorted({r.error for r in whole if r.error})
    if "refused" not in kinds:
        problems.append("nothing was refused")
    codes, status = verdicts(seen)
    if status != 3 or "errors_above_1_percent" not in codes:
        problems.append(f"exit status {status}, verdicts {codes}")
    return Line(row.fault, in_flight, ", ".join(kinds), ", ".join(codes), status, worst, problems[:4])


# Whole runs


async def whole(run: Run, served: Served, folder: Path, cpu: int | None) -> Line:
    """A `knee run` against the fault: its exit status, what it says, and what the others' figures are."""
    out = folder / slug(run.fault) / "out"
    out.parent.mkdir()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        if run.gone_s:
            served = first.enter_context(serving(folder / "whole-gone.log", cpu=cpu))
        here = f"https://127.0.0.1:{served.tls[run.tls]}" if run.tls else f"http://127.0.0.1:{served.port}"
        command = [
            sys.executable, "-m", "harness", "run", "--url", (run.url or here) + run.path,
            "--input-tokens", str(PROMPT), "--output-tokens", str(TOKENS), "--levels", "8",
            "--level-seconds", "4" if run.gone_s else "1", "--quiet", "--no-plots", "--out", str(out), *run.arguments,
            *(["--ca-file", served.ca_file] if run.ca_file else []),
        ]  # fmt: skip
        environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        proxy = f"http://127.0.0.1:{served.port if run.proxy else 1}"
        if run.proxy or run.broken_proxy:
            environment |= {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy}
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(PATIENCE_S + run.gone_s):
                if run.gone_s:
                    await _window_begun(out)
                    await asyncio.sleep(0.5)
                    first.close()
                    await asyncio.sleep(run.gone_s)
                    served = stack.enter_context(serving(Path(served.log), port=served.port, cpu=cpu))
                _, talk = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.communicate()
            return Line(run.fault, "run", "", "", -9, None, [f"no end within {PATIENCE_S + run.gone_s:g} s"])
    return _of_run(run, out, process.returncode or 0, talk.decode(), served)


async def _window_begun(out: Path) -> None:
    while True:
        await asyncio.sleep(0.05)
        with contextlib.suppress(HarnessError):
            if any(level.window_start_s is not None for level in Result.open(out).levels):
                return


def _of_run(run: Run, out: Path, status: int, talk: str, served: Served) -> Line:
    problems = []
    if status != run.status:
        problems.append(f"exit status {status}, not {run.status}: {talk[-300:]}")
    if "Traceback" in talk:
        problems.append(f"a traceback: {talk[-300:]}")
    if not (out / SUMMARY).exists():
        line = talk.strip().splitlines()[-1] if talk.strip() else ""
        if run.said not in line or not line.startswith("error: "):
            problems.append(f"{run.said!r} is not in {line!r}")
        if run.status != 1:
            problems.append("no summary")
        shown = line.removeprefix("error: ").replace(str(served.port), "PORT")
        return Line(run.fault, "run", "none", shown, status, None, problems)
    summary = msgspec.json.decode((out / SUMMARY).read_bytes(), type=Summary)
    found = [*summary.verdicts, *(v for each in summary.levels for v in each.verdicts)]
    if not any(run.said in v.message for v in found):
        problems.append(f"{run.said!r} is in no verdict")
    kinds = {kind for level in summary.levels for kind in level.errors_by_type}
    if not kinds <= set(run.errors) or bool(kinds) != bool(run.errors):
        problems.append(f"errors {sorted(kinds)}, not {run.errors}")
    good = [r for r in Result.open(out).records if not r.error]
    errors = ttft_errors(good, served) if not run.tls and "httpx" not in run.arguments else np.array([])
    worst = float(np.percentile(np.abs(errors), 99)) if len(errors) else None
    if worst is not None and worst > TTFT_ERROR_S["socket"]:
        problems.append(f"the others' TTFT is {worst * 1e3:.2f} ms off")
    invalid = sorted({v.code for v in found if v.level == "invalid"})
    record = ", ".join(sorted(kinds)) or f"{len(good)} successes"
    return Line(run.fault, "run", record, ", ".join(invalid) or "valid", status, worst, problems)


# All of it


class Chosen(NamedTuple):
    """What is to be measured: rows at 1 in flight, by httpx too, at 256; whole runs; the server gone for so long."""

    alone: Sequence[Row] = ()
    by_httpx: Sequence[Row] = ()
    crowds: Sequence[Row] = ()
    runs: Sequence[Run] = ()
    gone: Sequence[tuple[int, float]] = ()  # in flight, seconds


# httpx has no clock to set; what it floods is bounded by the same parser, its TLS is the same library's, and what
# decodes the other dialects is behind both, and alike for one request and for 256.
EVERYTHING = Chosen(
    ROWS,
    [row for row in ROWS if not row.clock_is_set and not row.floods and not row.tls and row.api == "chat"],
    [row for row in ROWS if not row.clock_is_set and row.api == "chat"],
    RUNS,
    [(1, 2.0), (CROWD, 2.0)],
)


def measured(chosen: Chosen, folder: Path) -> Iterator[Line]:
    """The lines of what is chosen, as they come."""
    cores = sorted(os.sched_getaffinity(0))
    server_cpu, cpus = (cores[0], (cores[1],)) if len(cores) > 1 else (None, ())
    with serving(folder / "server.log", tls=True, cpu=server_cpu) as served:
        for rows, transport in ((chosen.alone, "socket"), (chosen.by_httpx, "httpx")):
            for row, first in one_by_one(rows, served, transport):
                line, seen = judged(row, 1, first, served, transport), first
                for _ in range(TRIES - 1):
                    if line.noisy:
                        ((_, seen),) = one_by_one([row], served, transport)
                        line = judged(row, 1, seen, served, transport)
                yield line
        yield from asyncio.run(_together(chosen, served, folder, server_cpu, cpus))


async def _together(
    chosen: Chosen, served: Served, folder: Path, server_cpu: int | None, cpus: tuple[int, ...]
) -> list[Line]:
    """Rows in workers and whole runs, a few at a time: most of each is waiting."""
    at_once = asyncio.Semaphore(2)

    async def crowd(row: Row) -> tuple[Line, bool]:
        """The row's line, and whether the machine may have spoilt it."""
        async with at_once:
            seen = await crowded(row, served, cpus)
        line = await asyncio.to_thread(judged, row, CROWD, seen, served)
        return line, line.noisy

    async def alone(row: Row) -> Line:
        for _ in range(TRIES):
            line, noisy = await crowd(row)
            if not noisy:
                break
        return line

    async def run(each: Run) -> Line:
        async with at_once:
            return await whole(each, served, folder, server_cpu)

    async def gone(in_flight: int, seconds: float) -> Line:
        async with at_once:
            return await gone_and_back(in_flight, folder, server_cpu, cpus, seconds)

    beside = [row for row in chosen.crowds if not row.floods]
    crowds, others = await asyncio.gather(
        asyncio.gather(*map(crowd, beside)),
        asyncio.gather(*map(run, chosen.runs), *(gone(*each) for each in chosen.gone)),
    )
    lines = [await alone(row) if noisy else line for row, (line, noisy) in zip(beside, crowds, strict=True)]
    return lines + others + [await alone(row) for row in chosen.crowds if row.floods]  # these leave no room beside them
