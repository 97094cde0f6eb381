"""The levels of one run: asks the ramp for a level, holds it through warm-up, window and cooldown, looks, goes on.

The workers keep the requests in flight; here it is decided when a window may begin and end. What they tell, and the
rest that is heard meanwhile, goes through `heard`; what a level says when it is over is worked out by `look`, in a
thread, as load goes on. A level is a concurrency that is kept, or a rate at which requests are sent.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from harness import store
from harness.analysis import precision, ramp, window
from harness.analysis.table import Table
from harness.analysis.verdicts import CPU
from harness.experiment import budget, look, probe, safety
from harness.experiment.endpoint import Launch, words_for
from harness.experiment.heard import Heard
from harness.load import control, dialects
from harness.load.client import client
from harness.load.messages import BATCH_EVERY_S, PROGRESS_EVERY_S, Hold, Plan, Progress
from harness.load.schedule import shares, tick_ns
from harness.load.workers import Workers
from harness.observe import client as client_view
from harness.observe import server
from harness.observe.gpu import EVERY_S, Gpus
from harness.record import Level, Record
from harness.scenario import Scenario
from harness.secrecy import redact
from harness.summary import LevelSummary

SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 3.0, 600.0
_SHORTEST_PROBE_S = 1.0  # of a window at one prompt length, where time is short
LONGEST_OPEN_WARM_UP_S = 30.0
STALL_S, STALL_REQUESTS = 30.0, 8.0  # without a token, and so many request times: the level ends
_FAILING_WINDOW_S = 1.0  # of a level that fails or stalls: enough to be shown with its errors
_SILENT_S, _SILENT_REQUESTS = 5.0, 3.0  # without a token, and so many request times: it is said
_SCRAPE_S = 5.0  # for one page of the server's figures
_LONGEST_WAIT_S = 30.0  # between two scrapes, after some that failed
_LONGEST_REASON = 120  # characters of why there was none
_LOOKS_TO_SETTLE = 2  # at the transient; what has not settled by then is a trend, and more time is no cure


class View(Protocol):
    """What a person sees while levels run; report.live has one."""

    def level_started(self, level: str, index: int, total: int | None = None, reason: str = "") -> None: ...

    def update(
        self,
        phase: str,
        elapsed_s: float,
        expected_s: float | None,
        in_flight: float | None,
        output_tokens_per_s: float | None,
        errors: int,
        ttft_s: float | None = None,
        left_s: float | None = None,
    ) -> None: ...

    def level_finished(self, level: LevelSummary) -> None: ...

    def note(self, text: str) -> None: ...


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the levels of a run are for, beside its scenario; by default nothing is known."""

    facts: look.Facts = look.Facts()
    predicted_hinge: float | None = None  # chooses where refinement starts, never more
    probes: tuple[int, ...] = ()  # prompt tokens of the levels that a prefill probe holds before its ramp

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> Asked:
        return cls(
            facts=look.Facts.of(manifest),
            predicted_hinge=(manifest.get("prediction") or {}).get("hinge_concurrency") or _slots(manifest),
            probes=tuple(manifest.get("workload", {}).get("probe_lengths", ())),
        )


def _slots(manifest: dict[str, Any]) -> int | None:
    """How many requests the server says that it runs at once: a hint, like a prediction."""
    slots = (manifest.get("server") or {}).get("slots")
    return slots if isinstance(slots, int) else None


class Before(msgspec.Struct, frozen=True):
    """What the earlier sittings of a resumed run did; of a run that was not, nothing."""

    levels: tuple[tuple[Level, ramp.Held | None], ...] = ()  # None: void, to be held again
    seconds: float = 0.0
    requests: int = 0
    usage: safety.Usage = safety.Usage()

    @classmethod
    def of(cls, run: store.Run, seconds: float) -> Before:
        """A level counts if it is finished; what the ramp goes by is read anew from the records."""
        table, facts = Table.of(run.records), look.Facts.of(run.manifest)

        def held(level: Level) -> ramp.Held | None:
            if not level.finished or level.window_end_s is None:
                return None
            return look.held(look.summary(run.records, table, run.samples, level, facts), level)

        usage = sum(map(safety.Usage.of, run.records), safety.Usage())
        return cls(tuple((level, held(level)) for level in run.levels), seconds, len(run.records), usage)

    def held(self, repeat: int) -> list[ramp.Held]:
        """The ramp's levels of a repeat that count, in their order."""
        return [
            h for level, h in self.levels if h is not None and level.repeat == repeat and level.input_tokens is None
        ]

    def probed(self, repeat: int) -> set[int]:
        """Prompt lengths of a repeat that a probe need not hold again."""
        return {level.input_tokens or 0 for level, h in self.levels if h is not None and level.repeat == repeat} - {0}

    def steps(self, repeat: int) -> list[dict[str, Any]]:
        """What was decided in a repeat, as the frames of the levels that count tell."""
        return [said(level) for level, h in self.levels if h is not None and level.repeat == repeat]

    def all_steps(self, scenario: Scenario, asked: Asked) -> list[dict[str, Any]] | None:
        """Every decision of the ramp with its ends, if each repeat is at its end whatever the budget; else None."""
        out = []
        for repeat in range(scenario.ramp.repeat):
            end = ramp.next_level(self.held(repeat), search(scenario, asked, budget.Spent(0.0, 0)))
            if not end.over or set(asked.probes) - self.probed(repeat):
                return None
            out += [*self.steps(repeat), ended(end, repeat)]
        return out


def said(level: Level) -> dict[str, Any]:
    """The decision to hold a level, as the manifest has it."""
    return {"concurrency": level.concurrency, "reason": level.reason, "rate": level.rate, "repeat": level.repeat}


def ended(step: ramp.Next, repeat: int) -> dict[str, Any]:
    """The decision to end a ramp, likewise."""
    return {"concurrency": None, "reason": step.reason, "rate": None, "repeat": repeat}


def paced(scenario: Scenario) -> bool:
    """Whether the ramp decides how long its levels last: it chooses them, and no limits are judged at each."""
    spec = scenario.ramp
    chooses = spec.levels is None and spec.rates is None and not spec.search_rate
    return chooses and spec.level_seconds is None and spec.precision is None and not scenario.slo


def pace_of(scenario: Scenario, role: ramp.Role, request_s: float, seconds_left: float | None) -> precision.Pace:
    """How long a level lasts, by what is asked of the ramp, the level's role and the time of a request."""
    if scenario.ramp.level_seconds is not None:
        return precision.given(scenario.ramp.level_seconds, request_s)
    if paced(scenario) and role is ramp.Role.FIRST_PASS:
        return precision.first_pass(request_s, seconds_left)
    if paced(scenario) and role is ramp.Role.REFINEMENT:
        return precision.refinement(request_s, seconds_left)
    return precision.until_precise(request_s)


def search(scenario: Scenario, asked: Asked, spent: budget.Spent, e2e_s: float | None = None) -> ramp.Search:
    """What the scenario asks of the ramp; `e2e_s` is the time of a request alone."""
    spec = scenario.ramp
    return ramp.Search(
        levels=spec.levels,
        rates=spec.rates,
        max_concurrency=spec.max_concurrency,
        search_rate=spec.search_rate,
        slo=bool(scenario.slo),
        max_ttft_s=spec.max_ttft,
        predicted_hinge=asked.predicted_hinge,
        seed=scenario.workload.seed or 0,
        keep_going=spec.keep_going,
        seconds_left=budget.seconds_left(spec, spent),
        requests_left=budget.requests_left(spec, spent),
        first_rate=1 / e2e_s if e2e_s else None,
        seconds=spec.max_seconds,
        paced=paced(scenario),
        quick=spec.quick,
    )


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
        asked: Asked = Asked(),
    ) -> None:
        self._scenario = scenario
        self._launch = launch
        self._spool = spool
        self._view = view
        self._origin_ns = origin_ns
        self._before = before
        self._asked = asked
        self.run_id = uuid.uuid4().hex[:12]  # begins the id of every request of this sitting
        self.heard = Heard(spool, origin_ns, self.run_id, e2e_s=launch.e2e_s, itl_s=launch.itl_s)
        self.over = False  # nothing is in flight any more, nothing is left to cut
        self._began_s = 0.0
        self._begun = max((level.index + 1 for level, _ in before.levels), default=0)  # the index of the next level
        self._shown = sum(held is not None for _, held in before.levels)
        self._reports: list[Progress] = []  # of the level that is held, all workers together
        self._warned: set[int] = set()  # levels in which the load generator was said to be short of time
        self._alone_at: int | None = None  # how many of the level's requests had ended when none of a higher was left
        self._took: list[float] = []  # seconds of each level so far
        self._token_s = 0.0  # when the last token came, or the level began
        self._silent_s = 0.0  # how long without one was last said
        self._tick_ns = tick_ns(launch.itl_s, launch.e2e_s)
        self.steps: list[dict[str, Any]] = []  # every decision of the ramp

    async def go(self, workers: Workers, placement: Sequence[tuple[int, ...]], gpus: Gpus | None = None) -> None:
        """Hold level after level until the ramp or a budget ends it; leaves every record in the spool."""
        if self._before.levels:
            self._began_s = self.heard.now()
        for level, held in self._before.levels:
            if held is None and "void" not in level.notes:  # it is held again, under a number of its own
                self._spool.level(void(level))
        plans = [self._plan(i, len(workers), cpus) for i, cpus in enumerate(placement)]
        await workers.begin(plans, self.heard.batch, self._on_progress)
        looking = [asyncio.create_task(self._scrape())] if self._launch.metrics else []
        if gpus is not None:
            looking.append(asyncio.create_task(self._watch_gpus(gpus)))
        try:
            for repeat in range(self._scenario.ramp.repeat):
                await self._ramp(workers, repeat)
        finally:
            self.over = True
            for task in looking:  # before the workers end: a server may keep a scrape busy
                task.cancel()
            await workers.end()
            await asyncio.gather(*looking, return_exceptions=True)

    async def _ramp(self, workers: Workers, repeat: int) -> None:
        """The ramp once, a probe's levels before it, from its first level to the reason that ends it."""
        self.steps += self._before.steps(repeat)
        done = self._before.probed(repeat)
        for tokens in self._asked.probes:
            if tokens not in done and self._over_budget() is None:
                level = Level(
                    self._begun, 1, repeat, self.heard.now(), reason=probe.reason(tokens), input_tokens=tokens
                )
                await self._hold_and_look(workers, level)
        held = self._before.held(repeat)
        while True:
            spent = self._spent()
            asked_for = search(self._scenario, self._asked, spent, self._launch.e2e_s)
            step = await asyncio.to_thread(ramp.next_level, tuple(held), asked_for)
            over = budget.over(self._scenario.ramp, spent)
            if not step.over and over is not None:
                step = ramp.Next(None, f"stopped: {over}")
            if step.over:
                self.steps.append(ended(step, repeat))
                if step.reason.startswith("stopped"):
                    self._view.note(step.reason)
                return
            now = self.heard.now()
            level = Level(self._begun, step.concurrency, repeat, now, rate=step.rate, reason=step.reason)
            found = await self._hold_and_look(workers, level, step.role)
            if found is not None:
                held.append(found)

    async def _hold_and_look(
        self, workers: Workers, level: Level, role: ramp.Role = ramp.Role.MEASUREMENT
    ) -> ramp.Held | None:
        """One level and what it says; None: a budget ended it before its window."""
        spec = self._scenario.ramp
        given = spec.rates or spec.levels
        total = self._total()
        name = f"C = {level.concurrency:,}" if level.rate is None else f"{level.rate:g} req/s"
        self._view.level_started(name, self._shown, total, "" if given else level.reason)
        self.steps.append(said(level))
        self._shown, self._begun = self._shown + 1, self._begun + 1
        ended = await self._hold(workers, level, role)
        if ended is None:
            return None
        self._took.append((ended.end_s or 0.0) - ended.begin_s)
        made = await asyncio.to_thread(self._look, tuple(self.heard.records), tuple(self.heard.samples), ended)
        self._view.level_finished(made)
        return look.held(made, ended)

    def _total(self) -> int | None:
        """How many levels the run has; None where the ramp chooses them."""
        spec = self._scenario.ramp
        given = spec.rates or spec.levels
        return (len(self._asked.probes) + len(given)) * spec.repeat if given else None

    def _left_s(self) -> float | None:
        """Seconds that are left of the run: of its budget, or by what its levels took so far; None where unknown."""
        left = budget.seconds_left(self._scenario.ramp, self._spent())
        total = self._total()
        if total is not None and self._took:
            last = self._reports[-1].time_s - self._reports[0].time_s if self._reports else 0.0
            expected = max(0.0, (total - len(self._took)) * sum(self._took) / len(self._took) - last)
            left = expected if left is None else min(left, expected)
        return left

    def _look(self, records: Sequence[Record], samples: Sequence[store.Sample], level: Level) -> LevelSummary:
        return look.summary(records, Table.of(records), samples, level, self._asked.facts)

    def _plan(self, worker: int, workers: int, cpus: tuple[int, ...]) -> Plan:
        scenario, launch = self._scenario, self._launch
        before, after = dialects.body(
            launch.api,
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
            alike=not launch.exact_words,
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

    def _on_progress(self, progress: Progress) -> None:
        """One worker's news; said while it happens, once a level: the load generator is short of processor time."""
        self.heard.progress(progress)
        busy = self.heard.cpu.get(progress.worker, 0.0)
        if busy > CPU and progress.level not in self._warned:
            self._warned.add(progress.level)
            self._view.note(f"worker {progress.worker} is {busy:.0%} busy (limit {CPU:.0%}): the client limits")

    async def _scrape(self) -> None:
        """Take the server's figures off the measured path; one that fails is a gap, said once, and the next is due."""
        spec = self._scenario.ramp.level_seconds
        every = min(2.0, max(0.25, spec / 8)) if spec else 1.0
        where = self._launch.figures or msgspec.structs.replace(self._launch.target, path="/metrics")
        wait, noted = every, False
        async with client(where, connect_s=_SCRAPE_S) as http:
            while True:
                try:
                    page = await control.page(http, where.path, _SCRAPE_S)
                    why = "" if page.status == 200 else f"it answers {page.status}"
                    if not why:
                        self.heard.tell(server.samples(self.heard.now(), server.parse(page.text)))
                except control.TransportError as error:
                    why = dialects.plain(str(error)[:_LONGEST_REASON]) or type(error).__name__
                # What fails is asked for less and less often: a server may make it cost as much as it likes.
                wait = min(_LONGEST_WAIT_S, 2 * wait) if why else every
                if why and not noted:
                    noted = True
                    why = redact(why, self._launch.secrets)
                    self._view.note(f"a gap in the server's own figures: {why}; load goes on without them")
                await asyncio.sleep(wait)

    async def _watch_gpus(self, gpus: Gpus) -> None:
        """Take the GPUs' figures in a thread: a driver may take its time, and load goes on."""
        while samples := await asyncio.to_thread(gpus.samples, self.heard.now()):
            self.heard.tell(samples)
            await asyncio.sleep(EVERY_S)

    def _spent(self) -> budget.Spent:
        """By the whole run so far; what is still in flight counts whole, since it will be billed."""
        workload, before, heard = self._scenario.workload, self._before, self.heard
        seconds = before.seconds + heard.now() - self._began_s
        one = safety.Usage(workload.input_tokens, 0, workload.output_tokens)
        usage = before.usage + heard.usage + one.times(max(0, heard.begun - heard.answered))
        dollars = safety.dollars(self._scenario.hardware, seconds, usage) or 0.0
        return budget.Spent(seconds, before.requests + heard.begun, dollars)

    def _over_budget(self, ahead_s: float = 0.0) -> str | None:
        """What bound of the run is reached, or will be in so many seconds; None while there is room."""
        spent = self._spent()
        return budget.over(self._scenario.ramp, msgspec.structs.replace(spent, seconds=spent.seconds + ahead_s))

    def _failing(self) -> bool:
        """Whether the level need not go on: most of its requests fail, and the ramp will end with it."""
        return safety.failing(self.heard.outcomes, self.heard.outcomes.maxlen or 0)

    def _stalled(self, p: Progress) -> bool:
        """Whether the server stalls: no token for so long that the level ends by its own deadline."""
        return p.in_flight > 0 and p.time_s - self._token_s > max(STALL_S, STALL_REQUESTS * self.heard.e2e_s)

    def _hopeless(self, p: Progress) -> bool:
        """Whether more of the level tells nothing: most of its requests fail, or the server stalls."""
        return self._failing() or self._stalled(p)

    def _pace(self, level: Level, role: ramp.Role, request_s: float) -> precision.Pace:
        """How long the level lasts, by the time of a request as it is now."""
        role = role if level.input_tokens is None else ramp.Role.MEASUREMENT
        return pace_of(self._scenario, role, request_s, budget.seconds_left(self._scenario.ramp, self._spent()))

    async def _hold(self, workers: Workers, level: Level, role: ramp.Role = ramp.Role.MEASUREMENT) -> Level | None:
        """One level: warm up, measure, hold until the last request of the window has ended; the level with its times.

        None: a budget ended before the window began; the next look at it ends the ramp.
        """
        heard, e2e = self.heard, self.heard.e2e_s
        self._tick_ns = tick_ns(heard.icl_s or None, e2e)
        heard.begin(level, level.concurrency or (level.rate or 0) * e2e)
        self._reports, self._alone_at = [], None
        self._token_s, self._silent_s = heard.now(), 0.0
        pace = self._pace(level, role, e2e)
        rate, arrivals = level.rate, self._scenario.ramp.arrivals
        connections = level.concurrency or min(self._scenario.ramp.max_concurrency, 16 + int(1.25 * (rate or 0) * e2e))
        words = None if level.input_tokens is None else words_for(self._launch, level.input_tokens)
        hold = Hold(
            level.index, level.repeat, level.concurrency, 0, pace.spread_s, self._tick_ns, 0, rate, arrivals, words
        )
        await workers.hold(hold, connections)

        async for p in self._news(workers, level, "warm-up", None):
            if self._warm(level, p, pace.warm_up) or self._hopeless(p):
                break
            if self._over_budget() is not None:
                return None
        level = msgspec.structs.replace(level, window_start_s=p.time_s)
        heard.moment(level)

        warm, pace = pace.warm_up, self._pace(level, role, heard.request_s(level.concurrency or 256))
        if pace.window_s is not None:
            # A single stream that did not warm up is measured over a whole request, its prompt included.
            whole = e2e if level.concurrency == 1 and not warm else 0.0
            level = await self._window(workers, level, p.time_s, max(pace.window_s, whole))
        else:
            level = await self._window_until_precise(workers, level, p.time_s)
        heard.moment(level)
        start, end = level.window_start_s, level.window_end_s
        assert start is not None
        assert end is not None
        inside = [p for p in heard.own if p.level == level.index and p.time_s >= start]
        heard.tell(client_view.read_delay(inside, end, self._tick_ns * 1e-9))

        # Hold the level until the last request that began in the window has ended: no survivor bias.
        ended: float | None = None
        async for p in self._news(workers, level, "cooldown", None):
            over = p.oldest_sent_s is None or p.oldest_sent_s >= end or (level.concurrency == 1 and not warm)
            if ended is None and p.time_s > end and over:
                ended = p.time_s  # of a single stream that did not warm up the one request of its window
            settled = BATCH_EVERY_S + PROGRESS_EVERY_S
            if ended is not None and p.time_s > ended + settled:
                break  # by now the last one's record is in the spool too
            spent, patience = self._over_budget() is not None, 2 * heard.e2e_s
            if spent and paced(self._scenario):  # its window ended early enough for the last ones
                patience = min(settled, patience)
            if (spent or self._hopeless(p)) and p.time_s > end + patience:
                level = msgspec.structs.replace(level, notes=(*level.notes, "cooldown_cut"))
                break
        level = msgspec.structs.replace(level, end_s=p.time_s)
        heard.moment(level)
        return level

    def _warm(self, level: Level, p: Progress, requests: int = 2) -> bool:
        """Whether a window may begin.

        So many times the level's requests have ended, every slot has begun, and of a higher level before none is left
        since as many have ended: those that ran beside them are gone too. On schedule: two request times, which an
        overloaded server stretches, but not for ever.
        """
        C = level.concurrency
        if C is None:
            patience = max(LONGEST_OPEN_WARM_UP_S, 2 * self._launch.e2e_s)
            return p.ended > 0 and p.time_s >= level.begin_s + min(patience, 2 * self.heard.e2e_s)
        if self._alone_at is None and p.in_flight <= C:
            self._alone_at = p.ended
        if p.waiting or self._alone_at is None:
            return False
        return p.ended >= max(requests * C, self._alone_at + C if self._alone_at else 0)

    async def _window(self, workers: Workers, level: Level, start: float, length: float) -> Level:
        """The steady window of a given length, after the transient, which may push its start; extended once."""
        notes, extended, settled = list(level.notes), 1.0, False
        while True:
            p, cut = await self._until(workers, level, start, length * extended)
            notes += cut
            if cut or settled:
                break
            found, width = self._transient(level, p.time_s)
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

    async def _window_until_precise(self, workers: Workers, level: Level, start: float) -> Level:
        """The steady window that ends, after the transient, when its throughput is precise, or may not go on."""
        notes, settled, looks = list(level.notes), False, 0
        while True:
            lengths = self._lengths(level)
            p, cut = await self._until(workers, level, start, lengths[min(looks, len(lengths) - 1)])
            looks += 1
            last = bool(cut) or looks >= len(lengths)
            if not cut and not settled:
                found, width = self._transient(level, p.time_s)
                settled = found.settled
                if not found.checked:
                    notes.append("transient_unchecked")
                elif settled and level.begin_s + found.cut * width > start:
                    start, looks = level.begin_s + found.cut * width, 0
                    continue
                elif not settled and (last or looks >= _LOOKS_TO_SETTLE):
                    notes.append("not_settled")
                    last = True
            precise = self._precise(level, start, p.time_s)
            if last or (settled and precise):
                break
        notes += cut if precise else [*cut, "not_precise"]
        return msgspec.structs.replace(level, window_start_s=start, window_end_s=p.time_s, notes=tuple(notes))

    async def _until(self, workers: Workers, level: Level, start: float, length: float) -> tuple[Progress, list[str]]:
        """Wait until the window is so long; the last news, and a note of what ended it before, if anything did."""
        async for p in self._news(workers, level, "window", length):
            if self._hopeless(p) and p.time_s >= start + _FAILING_WINDOW_S:
                return p, ["stalled" if self._stalled(p) else "failing"]
            if self._over_budget(self._reserve_s(level, p.time_s - start)) is not None:
                return p, ["cut_short"]
            if p.time_s >= start + length:
                break
        return p, []

    def _reserve_s(self, level: Level, measured_s: float) -> float:
        """Seconds of the budget that the level's last requests still need, once its window is worth having."""
        request_s = self.heard.request_s(level.concurrency or 256)
        return request_s if paced(self._scenario) and measured_s >= request_s / 2 else 0.0

    def _transient(self, level: Level, now: float) -> tuple[window.Truncation, float]:
        """The transient in warm-up and window so far, and the width of the bins that it was looked for in."""
        width = window.bin_width(self.heard.icl_s)
        return window.truncation(self._counts(level.begin_s, now, width)), width

    def _lengths(self, level: Level) -> list[float]:
        """Window lengths at which precision is looked at, by the level's own request time as it is now."""
        request_s = self.heard.request_s(level.concurrency or 256)
        total, left = self._total(), budget.seconds_left(self._scenario.ramp, self._spent())
        most = LONGEST_WINDOW_S
        if total is not None and left is not None:  # given levels share the time
            most = min(most, max(SHORTEST_WINDOW_S, left / max(1, total - len(self._took)) - 3 * request_s))
        if level.input_tokens is not None and left is not None:  # a probe's levels leave half of the time to its ramp
            to_come = sum(tokens >= level.input_tokens for tokens in self._asked.probes)
            half = (left + self._spent().seconds) / 2
            most = min(most, max(_SHORTEST_PROBE_S, (left - half) / to_come - 3 * request_s))
        return looked_at(request_s, most)

    @property
    def _precision(self) -> float:
        asked = self._scenario.ramp.precision
        return precision.DEFAULT if asked is None else asked

    def _precise(self, level: Level, start: float, end: float) -> bool:
        """Whether the window may end: chunks stand for tokens, whose number in one hardly varies within a level."""
        times = np.array([p.time_s for p in self._reports])
        counts = np.array([p.tokens for p in self._reports], dtype=np.float64)
        request_s = self.heard.request_s(level.concurrency or 256)
        return precision.look(times, counts, start, end, request_s, self._precision).precise

    async def _news(
        self, workers: Workers, level: Level, phase: str, expected_s: float | None
    ) -> AsyncIterator[Progress]:
        """The workers' news of this level, shown as they come."""
        began = self.heard.now()
        while True:
            p = await workers.news()
            if p.level != level.index:
                continue  # a worker has not heard of this level yet
            if not self._reports or p.tokens > self._reports[-1].tokens:
                self._token_s, self._silent_s = max(p.time_s, self._token_s) if self._reports else self._token_s, 0.0
            self._reports.append(p)
            self._say_silence(p)
            rate = self._rate(p.time_s - 1.0, p.time_s)
            self._view.update(
                phase, p.time_s - began, expected_s, float(p.in_flight), rate, p.failed,
                ttft_s=self.heard.ttft_s, left_s=self._left_s(),
            )  # fmt: skip
            yield p

    def _say_silence(self, p: Progress) -> None:
        """Say it where no token comes: after seconds, and again whenever it has lasted twice as long."""
        silent = p.time_s - self._token_s
        least = max(_SILENT_S, _SILENT_REQUESTS * self.heard.e2e_s, 2 * self._silent_s)
        if p.in_flight == 0 or silent < least:
            return
        self._silent_s = silent
        waits = f", the longest for {p.time_s - p.oldest_sent_s:.0f} s" if p.oldest_sent_s is not None else ""
        self._view.note(f"no token for {silent:.0f} s: {p.in_flight} requests wait{waits}")

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


def looked_at(request_s: float, most: float = LONGEST_WINDOW_S) -> list[float]:
    """Seconds of a window for which none were asked at which it is looked at, by the time of a request.

    >>> looked_at(0.01)[:2], looked_at(1.0)[0], looked_at(60.0)
    ([3.0, 4.5], 22.0, [600.0])
    """
    return precision.lengths(request_s, least=min(SHORTEST_WINDOW_S, most), most=most)


def void(level: Level) -> Level:
    """A level that was not finished: none of its requests belongs to a window any more."""
    return msgspec.structs.replace(level, window_start_s=None, window_end_s=None, notes=(*level.notes, "void"))
