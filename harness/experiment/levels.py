"""The levels of one run: asks the ramp for a level, holds it through warm-up, window and cooldown, looks, goes on.

The worker keeps the requests in flight; here it is decided when a window may begin and end. What the worker sends
goes to the spool as it came, and so do the moments of each level and the telemetry.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any, Protocol

import msgspec

from harness import store
from harness.analysis import ramp, window
from harness.experiment import launch as launching
from harness.experiment.launch import Launch
from harness.load import dialects
from harness.load.driver import BATCH_EVERY_S, PROGRESS_EVERY_S, Hold, Plan, Progress
from harness.load.schedule import tick_ns
from harness.load.workers import Worker
from harness.observe import client as client_view
from harness.observe import host, server
from harness.record import Level, Record, arrivals_of
from harness.scenario import Scenario

WINDOW_REQUEST_TIMES = 25  # of the default window: an interval needs 20 mean ones, and means wander
SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 3.0, 600.0


class View(Protocol):
    """What a person sees while levels run; report.live has one."""

    def level_started(self, concurrency: int, index: int, total: int | None = None) -> None: ...

    def update(
        self,
        phase: str,
        elapsed_s: float,
        expected_s: float | None,
        in_flight: float | None,
        output_tokens_per_s: float | None,
        errors: int,
    ) -> None: ...

    def level_finished(self, *, output_tokens_per_s: float) -> None: ...

    def note(self, text: str) -> None: ...


def cpus(*, simulated: bool) -> tuple[int | None, tuple[int, ...]]:
    """(the simulated endpoint's processor, the worker's): apart where there are two to have."""
    allowed = sorted(os.sched_getaffinity(0))
    if simulated and len(allowed) >= 2:
        return allowed[0], tuple(allowed[1:])
    return None, ()


class Levels:
    """The levels of one run: what was asked, what came back, what comes next."""

    def __init__(self, scenario: Scenario, launch: Launch, spool: store.Spool, view: View, origin_ns: int) -> None:
        self._scenario = scenario
        self._launch = launch
        self._spool = spool
        self._view = view
        self._origin_ns = origin_ns
        self._decode = msgspec.msgpack.Decoder(list[Record]).decode
        # What the last requests told; before any, what the launch check did.
        self._e2e: collections.deque[float] = collections.deque([launch.e2e_s], maxlen=256)
        self._icl: collections.deque[float] = collections.deque([launch.itl_s or 0.0], maxlen=256)
        self._begun = 0  # levels, which is the index of the next one
        self._reports: list[Progress] = []  # of the level that is held
        self._last_sampled: Progress | None = None  # client and host figures are taken once a second
        self._tick_ns = tick_ns(launch.itl_s, launch.e2e_s)
        self.timestamp_source: str | None = None
        self.resent = 0
        self.reasons: list[dict[str, Any]] = []

    async def go(self) -> None:
        """Hold level after level until the ramp or a budget ends it; leaves every record in the spool."""
        worker = Worker(self._plan(), self._on_batch)
        worker.on_progress = self._on_progress
        scraping = asyncio.create_task(self._scrape()) if self._launch.metrics else None
        try:
            async with worker:
                for repeat in range(self._scenario.ramp.repeat):
                    await self._ramp(worker, repeat)
        finally:
            if worker.done is not None:
                self.timestamp_source, self.resent = worker.done.timestamp_source, worker.done.resent
            if scraping is not None:
                scraping.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await scraping

    async def _ramp(self, worker: Worker, repeat: int) -> None:
        """The ramp once, from its first level to the reason that ends it."""
        spec = self._scenario.ramp
        total = len(spec.levels) * spec.repeat if spec.levels else None
        held: list[ramp.Held] = []
        while True:
            step = ramp.next_level(held, levels=spec.levels, max_concurrency=spec.max_concurrency)
            over = self._over_budget()
            if step.concurrency is not None and over is not None:
                step = ramp.Next(None, f"stopped: {over}")
            self.reasons.append({"concurrency": step.concurrency, "reason": step.reason})
            if step.concurrency is None:
                if step.reason.startswith("stopped"):
                    self._view.note(step.reason)
                return
            self._view.level_started(step.concurrency, self._begun, total)
            level = await self._hold(worker, self._begun, step.concurrency, repeat)
            self._begun += 1
            if level is not None:
                self._view.level_finished(output_tokens_per_s=level.output_tokens_per_s)
                held.append(level)

    def _plan(self) -> Plan:
        scenario, launch = self._scenario, self._launch
        before, after = dialects.body(
            scenario.target.api,
            launch.model,
            scenario.workload.output_tokens,
            drop=launch.drop,
            extra=scenario.target.extra_body,
        )
        return Plan(
            worker=0,
            run_id=uuid.uuid4().hex[:12],
            host=launch.address.host,
            port=launch.address.port,
            path=launch.path,
            url=launch.address.base,
            headers=launching.headers(scenario),
            body_before=before,
            body_after=after,
            words=launch.words,
            prompt_words=launch.prompt_words,
            seed=scenario.workload.seed or 0,
            first_prompt=launch.prompts_used,
            request_timeout_s=scenario.target.request_timeout,
            max_rps=scenario.target.max_rps,
            start=scenario.ramp.start,
            tick_ns=self._tick_ns,
            origin_ns=self._origin_ns,
            cpus=cpus(simulated=scenario.target.url == "sim:")[1],
        )

    def _now(self) -> float:
        return (time.monotonic_ns() - self._origin_ns) * 1e-9

    def _on_batch(self, payload: bytes) -> None:
        self._spool.write(payload)
        for record in self._decode(payload):
            if record.error or record.done_s is None or record.sent_s is None:
                continue
            self._e2e.append(record.done_s - record.sent_s)
            stamps = arrivals_of(record)
            if len(stamps) > 1:
                self._icl.append((stamps[-1] - stamps[0]) * 1e-9 / (len(stamps) - 1))

    def _on_progress(self, progress: Progress) -> None:
        self._reports.append(progress)
        last = self._last_sampled
        if last is None or progress.time_s >= last.time_s + 1.0:
            samples = host.samples(progress.time_s)
            if last is not None:
                samples += client_view.samples(last, progress)
            self._last_sampled = progress
            self._spool.telemetry(samples)

    async def _scrape(self) -> None:
        """Take the server's figures off the measured path; a scrape that fails is a gap, not the end of a run."""
        import httpx

        spec = self._scenario.ramp.level_seconds
        every = min(2.0, max(0.25, spec / 8)) if spec else 1.0
        async with httpx.AsyncClient(
            base_url=self._launch.address.base, headers=launching.headers(self._scenario), timeout=5.0, trust_env=False
        ) as http:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    page = await http.get(self._launch.address.prefix + "/metrics")
                    if page.status_code == 200:
                        self._spool.telemetry(server.samples(self._now(), server.parse(page.text)))
                await asyncio.sleep(every)

    def _over_budget(self) -> str | None:
        spec = self._scenario.ramp
        if spec.max_seconds is not None and self._now() >= spec.max_seconds:
            return f"--max-seconds {spec.max_seconds:g} is used up"
        begun = self._reports[-1].begun_in_run if self._reports else 0
        if spec.max_requests is not None and begun >= spec.max_requests:
            return f"--max-requests {spec.max_requests} are sent"
        return None

    async def _hold(self, worker: Worker, index: int, concurrency: int, repeat: int) -> ramp.Held | None:
        """One level: warm up, measure, hold until the last request of the window has ended.

        None: a budget ended before the window began; the next look at it ends the ramp.
        """
        e2e = _mean(self._e2e)
        self._tick_ns = tick_ns(_median(self._icl) or None, e2e)
        level = Level(index, concurrency, repeat, begin_s=self._now())
        self._spool.level(level)
        self._reports = []
        worker.command(Hold(index, concurrency, repeat, e2e, self._tick_ns))

        # Warm-up: twice the level's requests, every slot has begun, and none of a higher level before is left.
        async for p in self._news(worker, level, "warm-up", None):
            if p.waiting == 0 and p.ended >= 2 * concurrency and p.in_flight <= concurrency:
                break
            if self._over_budget() is not None:
                return None
        start = p.time_s
        level = msgspec.structs.replace(level, window_start_s=start)
        self._spool.level(level)

        level = await self._window(worker, level, start)
        self._spool.level(level)
        inside = [p for p in self._reports if p.time_s >= start]
        end = level.window_end_s
        assert end is not None
        self._spool.telemetry(client_view.read_delay(inside, end, self._tick_ns * 1e-9))

        # Hold the concurrency until the last request that began in the window has ended: no survivor bias.
        ended: float | None = None
        async for p in self._news(worker, level, "cooldown", None):
            if ended is None and p.time_s > end and (p.oldest_sent_s is None or p.oldest_sent_s >= end):
                ended = p.time_s
            if ended is not None and p.time_s > ended + BATCH_EVERY_S + PROGRESS_EVERY_S:
                break  # by now the last one's record is in the spool too
            if self._over_budget() is not None and p.time_s > end + 2 * _mean(self._e2e):
                level = msgspec.structs.replace(level, notes=(*level.notes, "cooldown_cut"))
                break
        level = msgspec.structs.replace(level, end_s=p.time_s)
        self._spool.level(level)
        assert level.window_start_s is not None
        rate = self._rate(level.window_start_s, end)
        return ramp.Held(concurrency, rate, p.failed / p.ended if p.ended else 0.0)

    async def _window(self, worker: Worker, level: Level, start: float) -> Level:
        """The steady window: as long as asked after the transient, which may push its start; extended once."""
        notes, extended, settled = list(level.notes), 1.0, False
        while True:
            length = self._length(level)
            async for p in self._news(worker, level, "window", length):
                length = self._length(level)
                over = self._over_budget()
                if over is not None or p.time_s >= start + length * extended:
                    break
            if over is not None:
                notes.append("cut_short")
            if over is not None or settled:
                break
            width = window.bin_width(_median(self._icl))
            found = window.truncation(self._counts(level.begin_s, p.time_s, width))
            if not found.checked:
                notes.append("transient_unchecked")
                break
            if found.settled:
                settled, extended = True, 1.0
                start = max(start, level.begin_s + found.cut * width)
            elif extended == 1.0:
                extended = 2.0
            else:
                notes.append("not_settled")
                break
        return msgspec.structs.replace(level, window_start_s=start, window_end_s=p.time_s, notes=tuple(notes))

    def _length(self, level: Level) -> float:
        """Seconds of the window: as asked, else 25 of the level's own request times as they are now."""
        asked = self._scenario.ramp.level_seconds
        recent = list(self._e2e)[-max(8, min(256, level.concurrency)) :]
        return asked or min(LONGEST_WINDOW_S, max(SHORTEST_WINDOW_S, WINDOW_REQUEST_TIMES * _mean(recent)))

    async def _news(
        self, worker: Worker, level: Level, phase: str, expected_s: float | None
    ) -> AsyncIterator[Progress]:
        """The worker's news of this level, shown as they come."""
        began = self._now()
        while True:
            p = await worker.news()
            if p.level != level.index:
                continue  # the worker has not heard of this level yet
            self._view.update(
                phase, p.time_s - began, expected_s, float(p.in_flight), self._rate(p.time_s - 1.0, p.time_s), p.failed
            )
            yield p

    def _counts(self, start: float, end: float, width: float) -> list[float]:
        """Token-carrying chunks in each whole bin since the start, from the worker's running count."""
        edges = [start + width * i for i in range(int((end - start) / width) + 1)]
        at, upto = 0, []
        for edge in edges:
            while at < len(self._reports) - 1 and self._reports[at].time_s < edge:
                at += 1
            a, b = self._reports[max(0, at - 1)], self._reports[at]
            share = (edge - a.time_s) / (b.time_s - a.time_s) if b.time_s > a.time_s else 0.0
            upto.append(a.tokens + (b.tokens - a.tokens) * min(1.0, max(0.0, share)))
        return [high - low for low, high in itertools.pairwise(upto)]

    def _rate(self, start: float, end: float) -> float:
        """Token-carrying chunks per second between two times of this level, for the eye and the ramp."""
        inside = [p for p in self._reports if start <= p.time_s <= end]
        if len(inside) < 2:
            return 0.0
        return (inside[-1].tokens - inside[0].tokens) / (inside[-1].time_s - inside[0].time_s)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def _median(values: Iterable[float]) -> float:
    found = sorted(values)
    return found[len(found) // 2] if found else 0.0
