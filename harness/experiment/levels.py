"""The levels of one run: asks the ramp for a level, holds it through warm-up, window and cooldown, looks, goes on.

The workers keep the requests in flight; here it is decided when a window may begin and end. What the workers send
goes to the spool as it came, and so do the moments of each level and the telemetry. A level is a concurrency that
is kept, or a rate at which requests are sent.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from harness import store
from harness.analysis import ramp, window
from harness.analysis.table import Table
from harness.experiment import safety
from harness.experiment.launch import Launch
from harness.load import dialects, httpclient
from harness.load.driver import BATCH_EVERY_S, PROGRESS_EVERY_S, Hold, Plan, Progress
from harness.load.schedule import shares, tick_ns
from harness.load.workers import Workers
from harness.observe import client as client_view
from harness.observe import host, server
from harness.observe.gpu import EVERY_S, Gpus
from harness.record import Level, Record, arrivals_of
from harness.scenario import Ramp, Scenario

WINDOW_REQUEST_TIMES = 25  # of the default window: an interval needs 20 mean ones, and means wander
SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 3.0, 600.0
LONGEST_OPEN_WARM_UP_S = 30.0
_FAILING_WINDOW_S = 1.0  # of a level that fails: enough to be shown with its errors
PAUSED_S = 0.5  # of a worker, or of this process: ten times the time between two of its news
SLEPT_S = 0.1  # by which CLOCK_BOOTTIME got ahead of CLOCK_MONOTONIC, which a machine's sleep holds still
CPU = 0.80  # of a worker's processor, above which the client limits (analysis.verdicts says so of the whole window)


class View(Protocol):
    """What a person sees while levels run; report.live has one."""

    def level_started(self, level: str, index: int, total: int | None = None) -> None: ...

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


class Before(msgspec.Struct, frozen=True):
    """What the earlier sittings of a resumed run did; of a run that was not, nothing."""

    levels: tuple[tuple[Level, ramp.Held | None], ...] = ()  # None: void, to be held again
    seconds: float = 0.0
    requests: int = 0
    usage: safety.Usage = safety.Usage()

    @classmethod
    def of(cls, run: store.Run, seconds: float) -> Before:
        """A level counts if it is finished; what the ramp goes by is read anew from the records."""
        table = Table.of(run.records)
        levels = tuple((level, _held(table, level)) for level in run.levels)
        return cls(levels, seconds, len(run.records), sum(map(safety.Usage.of, run.records), safety.Usage()))

    def reasons(self, spec: Ramp) -> list[list[ramp.Next]]:
        """The ramp's steps for each repeat: those of the levels that count, and then the next one."""
        out = []
        for repeat in range(spec.repeat):
            held = [h for level, h in self.levels if h is not None and level.repeat == repeat]
            out.append([next_step(held[:i], spec) for i in range(len(held) + 1)])
        return out

    def leaves_something(self, spec: Ramp) -> bool:
        """Whether the ramp is not at its end in every repeat."""
        return any(not steps[-1].over for steps in self.reasons(spec))


def _held(table: Table, level: Level) -> ramp.Held | None:
    """A level that is finished as the ramp saw it; None if it is not."""
    if level.end_s is None or level.window_start_s is None or level.window_end_s is None:
        return None
    chunks = ((table.arrival >= level.window_start_s) & (table.arrival < level.window_end_s)).sum()
    mine = (table.level == level.index) & ~table.cancelled
    failed, ended = int((mine & table.failed).sum()), int(mine.sum())
    seconds = level.window_end_s - level.window_start_s
    return ramp.Held(level.concurrency, level.rate, float(chunks) / seconds, failed / ended if ended else 0.0)


def next_step(held: Sequence[ramp.Held], spec: Ramp) -> ramp.Next:
    """The ramp's next step by the scenario."""
    return ramp.next_level(held, levels=spec.levels, rates=spec.rates, max_concurrency=spec.max_concurrency)


class Levels:
    """The levels of one run: what was asked, what came back, what comes next."""

    def __init__(
        self,
        scenario: Scenario,
        launch: Launch,
        spool: store.Spool,
        view: View,
        origin_ns: int,
        before: Before = Before(),
    ) -> None:
        self._scenario = scenario
        self._launch = launch
        self._spool = spool
        self._view = view
        self._origin_ns = origin_ns
        self._decode = msgspec.msgpack.Decoder(list[Record]).decode
        # What the last requests told; before any, what the launch check did.
        self._e2e: collections.deque[float] = collections.deque([launch.e2e_s], maxlen=256)
        self._icl: collections.deque[float] = collections.deque([launch.itl_s or 0.0], maxlen=256)
        self.run_id = uuid.uuid4().hex[:12]  # begins the id of every request of this sitting
        self.over = False  # nothing is in flight any more, nothing is left to cut
        self._before = before
        self._began_s = 0.0
        self._begun = max((level.index + 1 for level, _ in before.levels), default=0)  # the index of the next level
        self._shown = sum(held is not None for _, held in before.levels)
        self._answered, self._usage = 0, safety.Usage()  # in this sitting, as far as the records have come
        self._outcomes = collections.deque([False], maxlen=safety.looked_at(0))  # whether the level's last ones failed
        self._reports: list[Progress] = []  # of the level that is held, all workers together
        self._own: list[Progress] = []  # likewise, each worker's own
        self._last_sampled: dict[int, Progress] = {}  # client and host figures are taken once a second
        self._warned: set[int] = set()  # levels in which the load generator was said to be short of time
        self._latest: dict[int, Progress] = {}  # each worker's last news
        self._told_s: dict[int, float] = {}  # when it was last put down how much it has sent
        self._heard_s: float | None = None  # when any worker's news came
        self._asleep_s = _asleep()
        self._tick_ns = tick_ns(launch.itl_s, launch.e2e_s)
        self.reasons: list[dict[str, Any]] = []

    async def go(self, workers: Workers, placement: Sequence[tuple[int, ...]], gpus: Gpus | None = None) -> None:
        """Hold level after level until the ramp or a budget ends it; leaves every record in the spool."""
        if self._before.levels:
            self._began_s = self._now()
        for level, held in self._before.levels:
            if held is None and "void" not in level.notes:  # it is held again, under a number of its own
                self._spool.level(void(level))
        plans = [self._plan(i, len(workers), cpus) for i, cpus in enumerate(placement)]
        await workers.begin(plans, self._on_batch, self._on_progress)
        looking = [asyncio.create_task(self._scrape())] if self._launch.metrics else []
        if gpus is not None:
            looking.append(asyncio.create_task(self._watch_gpus(gpus)))
        try:
            for repeat in range(self._scenario.ramp.repeat):
                await self._ramp(workers, repeat)
        finally:
            self.over = True
            await workers.end()
            for task in looking:
                task.cancel()
            await asyncio.gather(*looking, return_exceptions=True)

    async def _ramp(self, workers: Workers, repeat: int) -> None:
        """The ramp once, from its first level to the reason that ends it."""
        spec = self._scenario.ramp
        given = spec.rates or spec.levels
        total = len(given) * spec.repeat if given else None
        held = [h for level, h in self._before.levels if h is not None and level.repeat == repeat]
        self.reasons += [msgspec.to_builtins(step) for step in self._before.reasons(spec)[repeat][:-1]]
        while True:
            step = next_step(held, spec)
            over = self._over_budget()
            if not step.over and over is not None:
                step = ramp.Next(None, f"stopped: {over}")
            self.reasons.append(msgspec.to_builtins(step))
            if step.over:
                if step.reason.startswith("stopped"):
                    self._view.note(step.reason)
                return
            name = f"C = {step.concurrency:,}" if step.rate is None else f"{step.rate:g} req/s"
            self._view.level_started(name, self._shown, total)
            self._shown += 1
            level = await self._hold(workers, Level(self._begun, step.concurrency, repeat, self._now(), rate=step.rate))
            self._begun += 1
            if level is not None:
                self._view.level_finished(output_tokens_per_s=level.output_tokens_per_s)
                held.append(level)

    def _plan(self, worker: int, workers: int, cpus: tuple[int, ...]) -> Plan:
        scenario, launch = self._scenario, self._launch
        before, after = dialects.body(
            scenario.target.api,
            launch.model,
            scenario.workload.output_tokens,
            drop=launch.drop,
            extra=launch.extra_body,
        )
        quota = scenario.target.max_rps
        return Plan(
            worker=worker,
            workers=workers,
            run_id=self.run_id,
            target=launch.target,
            url=launch.address.base,
            body_before=before,
            body_after=after,
            words=launch.words,
            prompt_words=launch.prompt_words,
            seed=scenario.workload.seed or 0,
            first_prompt=launch.prompts_used,
            request_timeout_s=scenario.target.request_timeout,
            max_rps=quota / workers if quota else None,
            start=scenario.ramp.start,
            max_in_flight=shares(scenario.ramp.max_concurrency, workers)[worker],
            tick_ns=self._tick_ns,
            origin_ns=self._origin_ns,
            tokenizer_json=launch.tokenizer_json,
            secrets=launch.secrets,
            cpus=cpus,
        )

    def _now(self) -> float:
        return (time.monotonic_ns() - self._origin_ns) * 1e-9

    def _on_batch(self, payload: bytes) -> None:
        self._spool.write(payload)
        for record in self._decode(payload):
            self._answered, self._usage = self._answered + 1, self._usage + safety.Usage.of(record)
            if record.level == self._begun and record.error != "cancelled":
                self._outcomes.append(record.error != "")
            if record.error or record.done_s is None or record.sent_s is None:
                continue
            self._e2e.append(record.done_s - record.sent_s)
            stamps = arrivals_of(record)
            if len(stamps) > 1:
                self._icl.append((stamps[-1] - stamps[0]) * 1e-9 / (len(stamps) - 1))

    def _on_progress(self, progress: Progress) -> None:
        self._own.append(progress)
        self._latest[progress.worker] = progress
        self._look_for_pauses(progress)
        if progress.time_s >= self._told_s.get(progress.worker, 0.0) + BATCH_EVERY_S:
            self._told_s[progress.worker] = progress.time_s
            name = f"{self.run_id}-{progress.worker}"
            self._spool.telemetry([store.Sample(progress.time_s, "client", f"{name}/sent", float(self.sent[name]))])
        last = self._last_sampled.get(progress.worker)
        if last is not None and progress.time_s < last.time_s + 1.0:
            return
        samples = host.samples(progress.time_s) if progress.worker == 0 else []
        if last is not None:
            samples += client_view.samples(last, progress)
            self._watch(progress, (progress.cpu_s - last.cpu_s) / (progress.time_s - last.time_s))
        self._last_sampled[progress.worker] = progress
        self._spool.telemetry(samples)

    @property
    def sent(self) -> dict[str, int]:
        """How many requests each worker has sent, under the beginning of their ids: one without a record is lost."""
        return {f"{self.run_id}-{p.worker}": p.begun_in_run for p in self._latest.values()}

    def _look_for_pauses(self, progress: Progress) -> None:
        """Note it where somebody stood still: this worker, this process, or by the other clock the whole machine."""
        now, asleep = self._now(), _asleep()
        found = []
        if progress.paused_s > PAUSED_S:
            found.append((progress.time_s, f"{progress.worker}/paused_s", progress.paused_s))
        elif self._heard_s is not None and now - self._heard_s > PAUSED_S:
            found.append((now, "parent_paused_s", now - self._heard_s))
        if asleep - self._asleep_s > SLEPT_S:
            found.append((progress.time_s, "slept_s", asleep - self._asleep_s))
        self._heard_s, self._asleep_s = now, asleep
        if found:
            self._spool.telemetry([store.Sample(at, "client", name, value) for at, name, value in found])

    def _watch(self, progress: Progress, cpu_fraction: float) -> None:
        """Say it while it happens, once a level: the load generator is short of processor time."""
        if cpu_fraction > CPU and progress.level not in self._warned:
            self._warned.add(progress.level)
            self._view.note(f"worker {progress.worker} is {cpu_fraction:.0%} busy (limit {CPU:.0%}): the client limits")

    async def _scrape(self) -> None:
        """Take the server's figures off the measured path; a scrape that fails is a gap, not the end of a run."""
        import httpx

        spec = self._scenario.ramp.level_seconds
        every = min(2.0, max(0.25, spec / 8)) if spec else 1.0
        async with httpclient.client(self._launch.target, timeout=5.0) as http:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    page = await http.get(self._launch.address.prefix + "/metrics")
                    if page.status_code == 200:
                        self._spool.telemetry(server.samples(self._now(), server.parse(page.text)))
                await asyncio.sleep(every)

    async def _watch_gpus(self, gpus: Gpus) -> None:
        """Take the GPUs' figures in a thread: a driver may take its time, and load goes on."""
        while samples := await asyncio.to_thread(gpus.samples, self._now()):
            self._spool.telemetry(samples)
            await asyncio.sleep(EVERY_S)

    def _over_budget(self) -> str | None:
        spec = self._scenario.ramp
        if spec.max_seconds is not None and self._before.seconds + self._now() - self._began_s >= spec.max_seconds:
            return f"--max-seconds {spec.max_seconds:g} is used up"
        begun = self._before.requests + (self._reports[-1].begun_in_run if self._reports else 0)
        if spec.max_requests is not None and begun >= spec.max_requests:
            return f"--max-requests {spec.max_requests} are sent"
        if spec.max_dollars is not None and self._dollars() >= spec.max_dollars:
            return f"--max-dollars {spec.max_dollars:g} are spent"
        return None

    def _dollars(self) -> float:
        """What the load has cost; what is still in flight counts whole, since it will be billed."""
        workload, before = self._scenario.workload, self._before
        begun = self._reports[-1].begun_in_run if self._reports else 0
        flying = safety.Usage(workload.input_tokens, 0, workload.output_tokens).times(max(0, begun - self._answered))
        seconds = before.seconds + self._now() - self._began_s
        return safety.dollars(self._scenario.hardware, seconds, before.usage + self._usage + flying) or 0.0

    def _failing(self) -> bool:
        """Whether the level need not go on: most of its requests fail, and the ramp will end with it."""
        return safety.failing(self._outcomes, self._outcomes.maxlen or 0)

    async def _hold(self, workers: Workers, level: Level) -> ramp.Held | None:
        """One level: warm up, measure, hold until the last request of the window has ended.

        None: a budget ended before the window began; the next look at it ends the ramp.
        """
        e2e = _mean(self._e2e)
        self._tick_ns = tick_ns(_median(self._icl) or None, e2e)
        self._spool.level(level)
        self._reports, self._own = [], []
        rate, arrivals = level.rate, self._scenario.ramp.arrivals
        connections = level.concurrency or min(self._scenario.ramp.max_concurrency, 16 + int(1.25 * (rate or 0) * e2e))
        hold = Hold(level.index, level.repeat, level.concurrency, 0, e2e, self._tick_ns, 0, rate, arrivals)
        self._outcomes = collections.deque(maxlen=safety.looked_at(level.concurrency or (rate or 0) * e2e))
        await workers.hold(hold, connections)

        async for p in self._news(workers, level, "warm-up", None):
            if self._warm(level, p) or self._failing():
                break
            if self._over_budget() is not None:
                return None
        start = p.time_s
        level = msgspec.structs.replace(level, window_start_s=start)
        self._spool.level(level)

        level = await self._window(workers, level, start)
        self._spool.level(level)
        end = level.window_end_s
        assert end is not None
        inside = [p for p in self._own if p.level == level.index and p.time_s >= start]
        self._spool.telemetry(client_view.read_delay(inside, end, self._tick_ns * 1e-9))

        # Hold the level until the last request that began in the window has ended: no survivor bias.
        ended: float | None = None
        async for p in self._news(workers, level, "cooldown", None):
            if ended is None and p.time_s > end and (p.oldest_sent_s is None or p.oldest_sent_s >= end):
                ended = p.time_s
            if ended is not None and p.time_s > ended + BATCH_EVERY_S + PROGRESS_EVERY_S:
                break  # by now the last one's record is in the spool too
            if (self._failing() or self._over_budget() is not None) and p.time_s > end + 2 * _mean(self._e2e):
                level = msgspec.structs.replace(level, notes=(*level.notes, "cooldown_cut"))
                break
        level = msgspec.structs.replace(level, end_s=p.time_s)
        self._spool.level(level)
        assert level.window_start_s is not None
        tokens = self._rate(level.window_start_s, end)
        return ramp.Held(level.concurrency, level.rate, tokens, p.failed / p.ended if p.ended else 0.0)

    def _warm(self, level: Level, p: Progress) -> bool:
        """Whether a window may begin.

        Twice the level's requests have ended, every slot has begun, and none of a higher level before is left. On
        schedule: two request times, which an overloaded server stretches, but not for ever.
        """
        if level.concurrency is not None:
            return p.waiting == 0 and p.ended >= 2 * level.concurrency and p.in_flight <= level.concurrency
        patience = max(LONGEST_OPEN_WARM_UP_S, 2 * self._launch.e2e_s)
        return p.ended > 0 and p.time_s >= level.begin_s + min(patience, 2 * _mean(self._e2e))

    async def _window(self, workers: Workers, level: Level, start: float) -> Level:
        """The steady window: as long as asked after the transient, which may push its start; extended once."""
        notes, extended, settled = list(level.notes), 1.0, False
        while True:
            length = self._length(level)
            async for p in self._news(workers, level, "window", length):
                length = self._length(level)
                over = self._over_budget()
                if over is None and self._failing() and p.time_s >= start + _FAILING_WINDOW_S:
                    over = "most requests fail"
                if over is not None or p.time_s >= start + length * extended:
                    break
            if over is not None:
                notes.append("failing" if self._failing() else "cut_short")
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
        recent = list(self._e2e)[-max(8, min(256, level.concurrency or 256)) :]
        return asked or usual_window(_mean(recent))

    async def _news(
        self, workers: Workers, level: Level, phase: str, expected_s: float | None
    ) -> AsyncIterator[Progress]:
        """The workers' news of this level, shown as they come."""
        began = self._now()
        while True:
            p = await workers.news()
            if p.level != level.index:
                continue  # a worker has not heard of this level yet
            self._reports.append(p)
            self._view.update(
                phase, p.time_s - began, expected_s, float(p.in_flight), self._rate(p.time_s - 1.0, p.time_s), p.failed
            )
            yield p

    def _counts(self, start: float, end: float, width: float) -> list[float]:
        """Token-carrying chunks in each whole bin since the start, from the workers' running count."""
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


def usual_window(e2e_s: float) -> float:
    """Seconds of a window for which none were asked, by the time of a request.

    >>> usual_window(0.01), usual_window(1.0), usual_window(60.0)
    (3.0, 25.0, 600.0)
    """
    return min(LONGEST_WINDOW_S, max(SHORTEST_WINDOW_S, WINDOW_REQUEST_TIMES * e2e_s))


def void(level: Level) -> Level:
    """A level that was not finished: none of its requests belongs to a window any more."""
    return msgspec.structs.replace(level, window_start_s=None, window_end_s=None, notes=(*level.notes, "void"))


def _asleep() -> float:
    """How long this machine has slept since it was booted, seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def _median(values: Iterable[float]) -> float:
    found = sorted(values)
    return found[len(found) // 2] if found else 0.0
