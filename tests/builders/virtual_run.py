"""Whole runs on the clock that jumps: a run's own levels, search and driver against the simulated endpoint.

What the endpoint reads, serves and writes is its own: its API, its step machine, its bytes and its write log. Replaced
are time and sockets, so that minutes of load take a second. Left out: the checks before a run, whose answers are known.
"""

from __future__ import annotations

import asyncio
import functools
import random
import tomllib
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from harness.analysis.summarise import summarise
from harness.data.manifest import Clock
from harness.data.progress import LevelProgress
from harness.data.record import arrivals_of
from harness.data.summary import Summary
from harness.load import driver
from harness.load.driver import Driver
from harness.load.messages import Command, Done, Plan, encode
from harness.load.transport import Exchange
from harness.load.workers import Workers
from harness.observe import host
from harness.predict.batching import Step, StepMachine
from harness.predict.sequence import SimulatedRequest
from harness.predict.simulate import closed_loop
from harness.results import spool
from harness.results.result import Result
from harness.run import live_state
from harness.run import manifest as describing
from harness.run.ending import Ended
from harness.run.launch import unloaded
from harness.run.launch.endpoint import Alone, Endpoint, Prompts
from harness.run.launch.unloaded import Reply
from harness.run.levels import Levels
from harness.run.resume import Earlier, RampInputs
from harness.sim.api import CHAT_OVERHEAD, EventWriter, Generation, RefusalError, read
from harness.sim.connection import STREAM_HEAD, Entry, response_head
from harness.sim.machines import Replicas
from harness.sim.profile import Profile
from harness.spec import reading, ready
from harness.spec.scenario import Scenario
from harness.spec.work import MeanLengths
from harness.workload import probe, shape
from harness.workload.canaries import read as read_canaries
from harness.workload.request import Request
from tests.builders import virtual
from tests.builders.endpoints import PATH, checked

_ROUNDED_NS = 1_000  # a file holds seconds
_OTHER_WORDS = 0x55  # turns the salt of an answer: its words begin elsewhere and come in another order


def asked(name: str, **sections: dict[str, Any]) -> Scenario:
    """A ready scenario with a seed, and with these fields of its sections; None takes one away."""
    tree = tomllib.loads(ready.path(name).read_text())
    tree.setdefault("workload", {}).setdefault("seed", 1)
    for section, fields in sections.items():
        tree[section] = {k: v for k, v in (tree.get(section, {}) | fields).items() if v is not None}
    return reading.read(tree, place=name)


class Server:
    """The simulated endpoint, without sockets; `slowdown` is how many times as long its steps take, by the time.

    A share `corrupt` of its answers, drawn by the seed, are other words where more than `above` requests are in flight.
    No clock shows such a fault.
    """

    def __init__(
        self,
        profile: Profile,
        slowdown: Callable[[float], float] = lambda time_s: 1.0,
        *,
        corrupt: float = 0.0,
        above: int = 0,
        seed: int = 0,
    ) -> None:
        self.profile, self._slowdown = profile, slowdown
        self._corrupt, self._above, self._chance = corrupt, above, random.Random(seed)
        machines = [StepMachine(profile.model, profile.deployment) for _ in range(profile.deployment.dp)]
        self.machine = machines[0] if len(machines) == 1 else Replicas(machines)
        self.log: dict[str, Entry] = {}  # by request
        self._jobs: dict[int, _Job] = {}
        self._issued = 0
        self._busy = False  # a step runs

    async def answer(self, exchange: Exchange, request: bytes, timeout_s: float, wire: _Wire) -> None:
        """Serve one request until its answer is over, its client gives up, or its time is."""
        exchange.sent_ns = max(1, virtual.clock_ns())
        exchange.over = asyncio.get_running_loop().create_future()
        number = self._issued = self._issued + 1
        try:
            generation = read(PATH, request, self.profile)
        except RefusalError as refusal:
            head = response_head(refusal.status, b"application/json", len(refusal.body), closes=False)
            job = None
            wire.receive(exchange, head + refusal.body)
        else:
            if len(self._jobs) + 1 > self._above and self._chance.random() < self._corrupt:
                generation = msgspec.structs.replace(generation, salt=generation.salt ^ _OTHER_WORDS)
            job = self._jobs[number] = _Job(number, exchange, generation, self.profile.model_name, wire)
            wire.receive(exchange, STREAM_HEAD)
            self.machine.submit(job.request)
            if not self._busy:
                self._begin()
        try:
            async with asyncio.timeout(timeout_s):
                await exchange.over
        except TimeoutError:
            exchange.fail("client_deadline", f"no end within {timeout_s:g} s")
        except asyncio.CancelledError:
            exchange.fail("cancelled", "cut by us")
            raise
        finally:
            exchange.done_ns = max(1, virtual.clock_ns())
            exchange.take(exchange.done_ns, None)
            if job is not None:
                finished = self._jobs.pop(number, None) is None
                if not finished:
                    self.machine.cancel(number)
                times = exchange.sent_ns, job.writes, len(job.writes), finished, exchange.done_ns
                self.log[exchange.request_id] = Entry(exchange.request_id, *times)

    def _begin(self) -> None:
        step = self.machine.step()
        self._busy = step is not None
        if step is not None:
            loop = asyncio.get_running_loop()
            loop.call_at(loop.time() + step.duration * self._slowdown(loop.time()), self._deliver, step)

    def _deliver(self, step: Step) -> None:
        now = virtual.clock_ns()
        for number, position, finished in step.tokens:
            job = self._jobs.get(number)
            if job is None:
                continue  # given up while the step ran
            if position == 0:
                job.writer.cached_tokens = self.machine.cached_tokens(number)
            if finished:
                del self._jobs[number]
            job.writes.append(now)
            job.wire.receive(job.exchange, job.writer.chunk(position, finished))
        self._begin()


class _Job:
    """A request that the server answers."""

    def __init__(self, number: int, exchange: Exchange, generation: Generation, model: str, wire: _Wire) -> None:
        self.exchange, self.wire = exchange, wire
        self.writer = EventWriter(generation, exchange.request_id, model, 0)
        self.writes = array("q")
        self.request = SimulatedRequest(
            number,
            generation.prompt_tokens,
            generation.output_tokens,
            hashes=generation.hashes,
            priority=generation.priority,
        )


class _Wire:
    """The transport of one worker, and of its selector what the driver looks at."""

    stamped, resent = True, 0

    def __init__(self, server: Server) -> None:
        self._server = server
        self.tick_ns = self.events = self.reads = self.unstamped = 0

    def take_late(self) -> tuple[int, ...]:
        """No read is late."""
        return ()

    def decode_all(self) -> None:
        """Every read is decoded at once."""

    async def prepare(self, connections: int) -> None: ...

    async def aclose(self) -> None: ...

    def request(self, request_id: str, body: bytes, session: str = "") -> bytes:
        return body

    def begin(self, exchange: Exchange, request: bytes) -> None:
        """Nothing: `send` does it."""

    async def send(self, exchange: Exchange, request: bytes, timeout_s: float) -> None:
        await self._server.answer(exchange, request, timeout_s, self)

    def receive(self, exchange: Exchange, data: bytes) -> None:
        """Let an exchange have the bytes of one read, as a connection does."""
        exchange.bytes_received += len(data)
        piece = exchange.response.lone(data)
        pieces = exchange.response.feed(data) if piece is None else [piece]
        if pieces:
            self.events += exchange.take(virtual.clock_ns(), b"".join(pieces))
        assert exchange.over is not None
        if exchange.response.over and not exchange.over.done():
            exchange.over.set_result(None)


class _Link:
    """A worker on the parent's own loop."""

    node = ""
    clock_offset_ns = 0

    def __init__(self, server: Server) -> None:
        self._server = server
        self._commands: asyncio.Queue[Command] = asyncio.Queue()
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._working: asyncio.Task[None] | None = None

    async def start(self) -> None: ...

    async def estimate_clock(self) -> None: ...

    def send(self, order: Plan | Command) -> None:
        if isinstance(order, Plan):
            plan = msgspec.msgpack.decode(encode(order), type=Plan)
            self._working = asyncio.create_task(self._work(plan))
        else:
            self._commands.put_nowait(order)

    async def _work(self, plan: Plan) -> None:
        try:
            wire: Any = _Wire(self._server)
            working = Driver(plan, wire, self._messages.put, selector=wire, clock=virtual.clock_ns)
            await working.run(self._commands)
            await self._messages.put(encode(Done("kernel")))
        finally:
            await self._messages.put(None)

    async def frames(self) -> AsyncIterator[bytes]:
        while (message := await self._messages.get()) is not None:
            yield message

    async def exit_reason(self) -> str:
        return "failed"

    def kill(self) -> None:
        if self._working is not None:
            self._working.cancel()

    async def close(self) -> None:
        if self._working is not None:
            await self._working


class _Quiet:
    unit = "tok/s"

    def measuring(self, folder: Path) -> None: ...

    def level_started(self, *_: Any) -> None: ...

    def update(self, now: LevelProgress) -> None: ...

    def level_finished(self, *_: Any) -> None: ...

    def note(self, text: str) -> None: ...


class Run(NamedTuple):
    """What came of a run, and what the server did."""

    result: Result
    summary: Summary
    server: Server


def run(
    spec: Scenario,
    profile: Profile,
    folder: Path,
    *,
    workers: int = 1,
    server: Server | None = None,
    earlier: Earlier = Earlier(),
    began_s: float = 0.0,
) -> Run:
    """Measure a scenario against a simulated endpoint, and read the folder as every reader does.

    `began_s`: when the session begins, seconds after the run did.
    """
    server = server or Server(profile)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_state.time, "monotonic_ns", virtual.clock_ns)
        # Of this process, whose time has nothing to do with the clock that jumps.
        patch.setattr(driver.time, "process_time", lambda: 0.0)
        patch.setattr(driver.kernel, "waited_s", lambda: None)
        patch.setattr(host, "samples", lambda time_s: [])
        virtual.run(_run(spec, server, folder, workers, earlier, began_s))
    result = spool.finish(folder)
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=type(result.manifest))
    result = msgspec.structs.replace(result, manifest=manifest)
    return Run(result, summarise(result), server)


async def _run(spec: Scenario, server: Server, folder: Path, workers: int, earlier: Earlier, began_s: float) -> None:
    await asyncio.sleep(began_s)
    endpoint = launch(spec, server.profile)
    if spec.quality:
        ask = functools.partial(_ask, server, endpoint)
        endpoint = await unloaded.with_answers(spec.quality, read_canaries(spec.quality), endpoint, ask)
    spec = probe.scenario_for(spec, endpoint.model.max_context, endpoint.prompts.tokens)
    view, records = _Quiet(), spool.Spool(folder, spool.header(0, 0.0))
    manifest = await describing.first(spec, endpoint, None, None, "knee run", view.note)
    manifest = msgspec.structs.replace(manifest, clock=Clock(monotonic_ns_origin=0, unix_origin=0.0))
    levels = Levels(spec, endpoint, records, view, 0, earlier, RampInputs.of(manifest))
    manifest = describing.with_session(manifest, run_id=levels.run_id, began_s=0.0)
    placed: list[tuple[int, ...]] = [()] * workers
    async with Workers([_Link(server) for _ in placed], clock=virtual.clock_ns) as all_workers:
        await levels.run(all_workers, placed)
    records.close()
    over = Ended.by_itself(levels.missing)
    manifest = describing.ended(manifest, levels, all_workers, placed, over, transport="socket")
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))


async def _ask(server: Server, endpoint: Endpoint, request: Request) -> Reply:
    """A canary's answer before the load."""
    codec = endpoint.wire.codec
    exchange = Exchange("knee-canary", codec.decoders(keep_text=True))
    body = codec.encoder.encode(request)
    await _Wire(server).send(exchange, body, 600.0)
    return Reply(exchange.decoded.text, exchange.decoded.finish_reason, exchange.error)


def launch(spec: Scenario, profile: Profile) -> Endpoint:
    """What the checks before a run find out about that endpoint."""
    spec = probe.scenario_for(spec, profile.max_model_len)
    mean = shape.of(spec).mean()
    words = max(1, round(mean.input_tokens) - CHAT_OVERHEAD)
    lengths = MeanLengths(words + CHAT_OVERHEAD, max(1, round(mean.output_tokens)))
    alone = closed_loop(StepMachine(profile.model, profile.deployment), lengths, 1, requests=3)
    assert alone.e2e_s is not None
    return checked(
        profile.model_name,
        max_context=profile.max_model_len,
        prompts=Prompts(count=words, tokens=words + CHAT_OVERHEAD),
        alone=Alone(e2e_s=alone.e2e_s.mean or 0.0, itl_s=alone.itl_s.mean if alone.itl_s else None),
    )


def log_agrees(run: Run) -> None:
    """Every request's tokens came when the server wrote them."""
    for record in run.result.records:
        entry = run.server.log.get(record.request_id)
        if entry is None:
            assert record.error
            continue
        came = arrivals_of(record)
        assert len(came) == len(entry.writes_ns)
        assert max(map(abs, came - np.frombuffer(entry.writes_ns, np.int64)), default=0) < _ROUNDED_NS
        if not record.error:
            assert entry.finished
            assert record.output_tokens == entry.tokens


def lengths_kept(run: Run) -> None:
    """Lengths come from the laws that were asked: by their mean."""
    for each in run.summary.workload.classes if run.summary.workload else ():
        for found in (each.input_tokens, each.output_tokens):
            if found.asked is None or found.realised.mean is None:
                continue
            apart = abs(found.realised.mean - (found.asked.mean or 0.0))
            assert apart <= max(0.02 * found.realised.mean, 3.3 * (found.mean_se or 0.0)), found.law
