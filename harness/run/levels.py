"""The levels of one run: gets a level from the ramp, measures it over the workers, summarises it, repeats.

The workers keep the requests in flight. `search.timing` decides when a window begins and ends, from what comes in
through `live_state`. `analysis.level` summarises a finished level in a thread, while load goes on. A level is a
concurrency that is kept, or a rate at which requests are sent.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from harness.analysis.level import summarise_level
from harness.data.levels import LevelSummary
from harness.data.progress import View
from harness.data.record import Level, LevelNote, Role
from harness.data.summary import RampStep
from harness.load.messages import BATCH_EVERY_S, PROGRESS_EVERY_S, BeginLevel, Plan
from harness.load.schedule import shares, tick_ns
from harness.load.workers import Workers
from harness.observe.gpu import Gpus
from harness.results.frames import Position
from harness.results.spool import Spool
from harness.run import estimate, hooks, telemetry
from harness.run.launch import reach
from harness.run.launch.endpoint import Endpoint, source
from harness.run.live_state import LiveState, Shown
from harness.run.resume import Earlier, RampInputs, end_step, void
from harness.search import decision, pace, ramp
from harness.search.budget import Bound, Budget, Spent, Usage, dollars, sharing
from harness.search.decision import Decision, End, Reason, Stop
from harness.search.level import Phase, Task
from harness.search.state import MeasuredLevel, Search, measured
from harness.search.timing import LevelTiming
from harness.spec.choices import ROUND_ROBIN
from harness.spec.scenario import Scenario
from harness.spec.shard import Shard
from harness.workload import arrivals, image, shape, tasks
from harness.workload.source import first_row

_FEW_REQUESTS = 8  # a slot, below which a level with a given number of them has no warm-up
_UNKNOWN_SPREAD = 10.0  # times the mean that a request of a dataset may take
_LONGEST_LEVEL = 1 << 24  # requests of a level whose first has a number of its own
_DEAD = {LevelNote.REFUSED, LevelNote.STALLED, LevelNote.COOLDOWN_STALLED}  # nobody answered such a level to its end
_BEFORE_START_S = 5.0  # time to make a shard's first level ready: its connections are opened
_NO_MORE = {Bound.REQUESTS, Bound.DOLLARS}  # nothing more is sent once one of these is reached
_QUEUE_S, _QUEUE_REQUESTS = 10.0, 3.0  # seconds and request times that the queue of a higher rate has to end


class Levels:
    """Measures the levels of one session; `run` does all of it."""

    def __init__(
        self,
        scenario: Scenario,
        endpoint: Endpoint,
        spool: Spool,
        view: View,
        origin_ns: int,
        earlier: Earlier = Earlier(),
        inputs: RampInputs = RampInputs(),
        shard: Shard | None = None,
    ) -> None:
        self._scenario = scenario
        self._endpoint = endpoint
        self._spool = spool
        self._view = view
        self._origin_ns = origin_ns
        self._earlier = earlier
        self._mean = shape.of(scenario).mean()
        self._inputs = inputs
        self._rest_s = tasks.rest_s(scenario, endpoint.prompts.rows)
        self._shard = shard
        # Begins the id of every request of this session.
        self.run_id = shard.run_id if shard else uuid.uuid4().hex[:12]
        machine = str(shard.number) if shard else ""
        self.live = LiveState(
            spool, origin_ns, self.run_id, e2e_s=endpoint.alone.e2e_s, itl_s=endpoint.alone.itl_s, machine=machine
        )  # fmt: skip
        self.over = False  # nothing is in flight any more
        self.steps: list[RampStep] = []  # every decision of the ramp
        self._began_s = 0.0  # when this session began
        self._before, self._sharing = Spent(), 1.0  # `before` and `repeats` of the budget
        self._next_index = earlier.next_index
        self._begun = sum(m is not None for _, m in earlier.levels)
        self._wanted_s: float | None = None  # length of the next level's window, to decide an SLO
        self._last_rate = 0.0  # requests per second of the last level
        self._stop_replica = scenario.hooks.stop_replica if scenario.hooks else None
        self._halfway = asyncio.Event()  # whether half of a level's window is over
        self._took = earlier.took  # seconds of each level so far
        self._search_s = (
            scenario.ramp.repeat * estimate.search_s(scenario, endpoint.alone.e2e_s, endpoint.prompts.rows)[1]
        )
        self._silences: dict[float, float] = {}  # the longest without a token, by load, of levels that did not stall
        self._spread = _UNKNOWN_SPREAD if endpoint.prompts.rows else shape.of(scenario).spread()
        self._last_answer_s = 0.0  # when anything last came from the server
        self.missing = ""  # what is missing of what was asked for, and why; "": nothing is
        self._tick_ns = tick_ns(endpoint.alone.itl_s, endpoint.alone.e2e_s)
        self._shown = Shown(scenario, endpoint, inputs.facts, self.live, view)

    async def run(self, workers: Workers, placement: Sequence[tuple[int, ...]], gpus: Gpus | None = None) -> None:
        """Measure level after level until the ramp or a budget ends it; leaves every record in the spool."""
        if self._earlier.resumed:
            self._began_s = self.live.now()
        for level, found in self._earlier.levels:
            if found is None and LevelNote.VOID not in level.notes:  # it is measured again, under a new index
                self._spool.level(void(level))
        shard, count = self._shard, len(workers)
        first, among = ((shard.number - 1) * count, shard.of * count) if shard else (0, count)
        plans = [self._plan(first + i, among, cpus) for i, cpus in enumerate(placement)]
        if shard:
            await asyncio.sleep(-_BEFORE_START_S - self.live.now())
        await workers.begin(plans, self.live.batch, self._shown.report)
        watching = [
            asyncio.create_task(scraping)
            for scraping in telemetry.scrapes(
                self._endpoint, self._scenario, self.live.now, self.live.add_samples, self._view.note
            )
        ]
        if gpus is not None:
            watching.append(asyncio.create_task(telemetry.watch_gpus(gpus, self.live.now, self.live.add_samples)))
        try:
            for repeat in range(self._scenario.ramp.repeat):
                if shard is not None:
                    await self._on_timetable(workers, repeat)
                elif self._ends_all(await self._ramp(workers, repeat), repeat):
                    break
            if self._stop_replica and self._took:
                self._before, self._sharing = self._budget().spent, 1.0
                self._halfway.clear()
                step = decision.measure(hooks.load_at_loss(self.steps), Reason.REPLICA_STOPPED, Role.LOSS)
                level = self._level(step, self._earlier.last_repeat)
                await hooks.stopping_replica(self._measure(workers, level), self._stop_replica, self._halfway)
        finally:
            self.over = True
            for task in watching:  # before the workers end: a server may keep a scrape busy
                task.cancel()
            await workers.end()
            await asyncio.gather(*watching, return_exceptions=True)

    def _ends_all(self, end: Decision, repeat: int) -> bool:
        """Return whether no repeat follows one that ended so: nobody answers another, or nothing is left for one."""
        spent = end.why is Stop.BUDGET and self._budget().whole().over() is not None
        return end.why in (Stop.STALLED, Stop.DEAD) or (spent and repeat >= self._earlier.last_repeat)

    async def _ramp(self, workers: Workers, repeat: int) -> Decision:
        """Run one repeat of the ramp, a probe's levels before it, until a decision ends it; return that."""
        self._before = self._budget().spent
        self._sharing = sharing(self._scenario.ramp, repeat, self._earlier.last_repeat)
        self._sharing += hooks.LOSS_PART if self._stop_replica else 0.0
        self.steps += self._earlier.steps(repeat)
        probed = self._earlier.probed(repeat)
        for tokens in self._inputs.probes:
            if tokens not in probed and self._budget().over() is None:
                why = decision.measure(1, Reason.PROMPT_LENGTH, Role.PROBE, tokens=tokens)
                await self._before_level(workers)
                await self._measure(workers, self._level(why, repeat, tokens))
        known = self._earlier.measured(repeat)
        step = await self._decide(known)
        while not step.over:
            self._wanted_s = step.window_s
            if (step.rate or 0.0) < self._last_rate:  # else it has the waits of the higher rate
                await self._quiet(workers)
            self._last_rate = step.rate or 0.0
            await self._before_level(workers)
            found = await self._measure(workers, self._level(step, repeat))
            if found is not None:
                known.append(found)
            dead = found is not None and found.stalled and not await self._answers_again()
            step = decision.end(Stop.DEAD, since_s=self._last_answer_s) if dead else await self._decide(known)
        self.missing = self.missing or ramp.missing(self._scenario.ramp, step, known)
        self.steps.append(end_step(step, repeat))
        if step.stopped:
            self._view.note(step.reason)
        return step

    async def _quiet(self, workers: Workers) -> None:
        """Send nothing and wait until no request is in flight, a time limit has passed or a budget is used up."""
        workers.rest()
        until_s = self.live.now() + max(_QUEUE_S, _QUEUE_REQUESTS * self.live.e2e_s)
        while self._budget().over() is None:
            now = await workers.next_progress()
            if (now.level < 0 and now.oldest_sent_s is None) or now.time_s > until_s:
                return

    async def _before_level(self, workers: Workers) -> None:
        """Run the scenario's hooks before a level (cache reset, command), if any, once nothing is in flight."""
        spec = self._scenario.hooks
        if spec and (spec.reset_cache or spec.before_level):
            if self._took:
                await self._quiet(workers)
            await hooks.before_level(spec, self._endpoint)

    async def _answers_again(self) -> bool:
        """Return whether any server answers again within --wait."""
        wait = self._scenario.target.wait
        wait_s = reach.AGAIN_S if wait is UNSET else wait
        since = f"nothing has come from the server since {self._last_answer_s:.1f} s into the run"
        self._view.note(f"{since}; asking whether it is there, for up to {wait_s:g} s")
        return await reach.answers_again(self._endpoint.servers, wait_s)

    async def _on_timetable(self, workers: Workers, repeat: int) -> None:
        """Run one repeat of a shard's levels, each at its time; a share of a level decides nothing.

        Where nobody answers any more the next level still begins at its time: the others' do too.
        """
        load, dead = self._scenario.load, False
        for at in load.loads:
            step = decision.measure_rate(at, Reason.FIXED, Role.FIXED)
            if not load.is_open:
                step = decision.measure(int(at), Reason.FIXED, Role.FIXED)
            level = self._level(step, repeat)
            level = msgspec.structs.replace(level, begin_s=pace.moments(self._scenario, level.index).begin_s)
            finished = await self._run_level(workers, level)
            dead = finished is not None and not _DEAD.isdisjoint(finished.notes)
            if dead and not self.missing:
                what = "requests per second" if load.is_open else "in flight"
                self.missing = f"{at:g} {what}: nobody answered to its end"
        end = decision.end(End.ALL_MEASURED, loads="rates" if load.is_open else "levels")
        if dead:
            end = decision.end(Stop.DEAD, since_s=self._last_answer_s)
            self.missing = end.cause
        if self.missing:
            self._view.note(f"not measured: {self.missing}")
        self.steps.append(end_step(end, repeat))

    async def _decide(self, known: Sequence[MeasuredLevel]) -> Decision:
        """Return the search's next level or its end, or the run's end where a budget is used up."""
        budget = self._budget()
        search = Search.of(
            self._scenario, budget,
            predicted_hinge=self._inputs.predicted_hinge, e2e_s=self._endpoint.alone.e2e_s, rest_s=self._rest_s,
        )  # fmt: skip
        step = await asyncio.to_thread(ramp.next_level, tuple(known), search)
        bound = None if step.over else budget.over()
        return step if bound is None else decision.end(Stop.BUDGET, bound=bound)

    def _level(self, step: Decision, repeat: int, input_tokens: int | None = None) -> Level:
        return Level(
            self._next_index, step.concurrency, repeat, self.live.now(), rate=step.rate, reason=step.reason,
            input_tokens=input_tokens, role=step.role,
        )  # fmt: skip

    async def _run_level(self, workers: Workers, level: Level) -> Level | None:
        """Run one level, after showing that it starts; None: a budget ended it before its window."""
        spec = self._scenario.ramp
        name = f"C = {level.concurrency:,}" if level.rate is None else f"{level.rate:g} req/s"
        reason = "" if spec.load.is_given else level.reason
        self._view.level_started(name, self._begun, self._total(), reason)
        self.steps.append(RampStep.of(level))
        self._begun, self._next_index = self._begun + 1, self._next_index + 1
        return await self._drive(workers, level)

    async def _measure(self, workers: Workers, level: Level) -> MeasuredLevel | None:
        """Run and show one level; return its figures for the search, None if a budget ended it before its window."""
        finished = await self._run_level(workers, level)
        if finished is None:
            return None
        self._took.append((finished.end_s or 0.0) - finished.begin_s)
        summary = await asyncio.to_thread(self._summary, self.live.part, finished)
        self._view.level_finished(summary)
        return measured(summary, finished)

    def _summary(self, part: tuple[Position, Position], level: Level) -> LevelSummary:
        """Return a level's summary by what lies in a part of the spool."""
        found, facts = self._spool.between(*part), self._inputs.facts
        return summarise_level(found.records, facts.table(found.records), found.samples, level, facts)

    def _plan(self, worker: int, workers: int, cpus: tuple[int, ...]) -> Plan:
        """Return all that a worker has to know of the run before its first level."""
        scenario, endpoint = self._scenario, self._endpoint
        quota = scenario.target.max_rps
        return Plan(
            worker=worker,
            workers=workers,
            run_id=self.run_id,
            replicas=endpoint.servers,
            balance=scenario.target.balance or ROUND_ROBIN,
            codec=endpoint.wire.codec,
            source=source(scenario, endpoint.prompts),
            first_request=endpoint.prompts.used,
            images=image.plan(scenario.workload),
            request_timeout_s=scenario.target.request_timeout,
            max_rps=quota / workers if quota else None,
            start=scenario.ramp.start,
            think_ms=arrivals.pauses(scenario.ramp.think or 0.0),
            max_in_flight=shares(scenario.ramp.max_concurrency, workers)[worker],
            tick_ns=self._tick_ns,
            origin_ns=self._origin_ns,
            tokenizer_json=endpoint.prompts.tokenizer_json,
            secrets=endpoint.wire.secrets,
            cpus=cpus,
        )

    async def _drive(self, workers: Workers, level: Level) -> Level | None:
        """Run one level until its last request is over; the level with its times.

        None: a budget ended it before the window began; the next decision ends the ramp.
        """
        live, e2e, ramp, prompts = self.live, self.live.e2e_s, self._scenario.ramp, self._endpoint.prompts
        self._tick_ns = tick_ns(live.icl_s or None, e2e)
        live.begin(level, level.concurrency or (level.rate or 0) * e2e)
        timing = LevelTiming(self._task(level), e2e, self._budget().seconds_left)
        connections = (level.concurrency or 0) * tasks.width(self._scenario) or min(
            ramp.max_concurrency, 16 + int(1.25 * (level.rate or 0) * e2e)
        )
        begin = BeginLevel(
            index=level.index,
            repeat=level.repeat,
            concurrency=level.concurrency,
            slots=0,  # each worker's are filled in for all of them together
            at_ns=self._origin_ns + round(level.begin_s * 1e9),
            spread_s=0.0 if timing.requests is not None else self._spread_s(timing.pace.spread_s, e2e),
            tick_ns=self._tick_ns,
            rate=level.rate,
            arrivals=ramp.arrivals,
            prompt_words=None if level.input_tokens is None else prompts.words_for(level.input_tokens),
            first_request=first_row(self._scenario, prompts.used + level.index * _LONGEST_LEVEL, prompts.rows),
            requests=timing.requests,
        )
        await workers.begin_level(begin, connections)
        try:
            return await self._until_over(workers, timing)
        except asyncio.CancelledError:
            if (partial := timing.interrupted(live.now())) is not None:
                live.moment(partial)
            raise

    async def _until_over(self, workers: Workers, timing: LevelTiming) -> Level | None:
        """Advance the level by the workers' reports until it is over; None: a budget ended it before its window."""
        live, level = self.live, timing.level
        resting = False  # whether no more requests are sent, for a bound allows no more
        while True:
            progress = await workers.next_progress()
            if progress.level != level.index and not resting:
                continue  # a worker has not begun this level yet
            self._shown.level(progress, timing, self._left_s(progress.time_s - level.begin_s))
            if timing.step(live.at(progress, self._budget())):
                live.moment(timing.level)
                self._note_read_delay(timing)
            if timing.phase is Phase.WINDOW and 2 * (progress.time_s - timing.since_s) >= (timing.expected_s or 0.0):
                self._halfway.set()
            if timing.phase is Phase.COOLDOWN and not resting and _NO_MORE & {*self._budget().reached()}:
                workers.rest(drop=True)
                resting = True
            if timing.phase is Phase.FINISHED:
                if timing.answered_s > level.begin_s:
                    self._last_answer_s = timing.answered_s
                if not {LevelNote.STALLED, LevelNote.REFUSED} & {*timing.level.notes}:
                    load = level.concurrency or level.rate or 1.0
                    longest = max(timing.longest_silence_s, live.wait_s)
                    self._silences[load] = max(self._silences.get(load, 0.0), longest)
                return timing.level
            if timing.phase is Phase.ABANDONED:
                break
        return None

    def _spread_s(self, spread_s: float, e2e_s: float) -> float:
        """Return the seconds over which new slots begin: those given, or a whole task's time if that is longer."""
        # Turns are mixed then. A bounded run spends at most a tenth of the time left on it.
        if not self._scenario.has_tasks or self._scenario.ramp.start == "burst":
            return spread_s
        whole, left = tasks.seconds(self._scenario, e2e_s, self._endpoint.prompts.rows), self._budget().seconds_left
        return max(spread_s, whole if left is None else min(whole, left / 10))

    def _requests(self, level: Level) -> int | None:
        """Return how many requests a level sends so that all levels fit in the budget of requests; None: no such bound.

        Only closed levels of single requests without a length of their own have one: an equal part of what is left.
        """
        ramp, left, total = self._scenario.ramp, self._budget().requests_left, self._total()
        alone = not (ramp.level_seconds or ramp.duration or ramp.think or self._scenario.has_tasks or self._shard)
        if left is None or total is None or level.concurrency is None or not alone or ramp.start == "batch":
            return None
        part = max(1, left // max(1, total - len(self._took)))
        return part if total > 1 or part < _FEW_REQUESTS * level.concurrency else None

    def _task(self, level: Level) -> Task:
        """Return the task of measuring a level, with all that its length in time depends on."""
        total, probe = self._total(), level.input_tokens
        levels_left = 1 if level.role is Role.LOSS else total and total - len(self._took)
        load = level.concurrency or level.rate or 1.0
        lower = {at: seconds for at, seconds in self._silences.items() if at <= load}
        return Task(
            scenario=self._scenario,
            level=level,
            alone_s=self._endpoint.alone.e2e_s,
            settle_s=BATCH_EVERY_S + PROGRESS_EVERY_S,
            rest_s=self._rest_s,
            levels_left=levels_left,
            moments=pace.moments(self._scenario, level.index) if self._shard else None,
            requests=self._requests(level),
            wanted_s=self._wanted_s,
            silence_s=max(lower.values(), default=0.0),
            silence_load=max(lower, default=1.0),
            spread=self._spread if probe is None else max(self._spread, (probe / min(self._inputs.probes)) ** 2),
            probes_left=0 if probe is None else sum(tokens >= probe for tokens in self._inputs.probes),
        )

    def _note_read_delay(self, timing: LevelTiming) -> None:
        """Record how late reads were in a window that has just ended."""
        start, end = timing.level.window_start_s, timing.level.window_end_s
        if timing.phase is Phase.COOLDOWN and start is not None and end is not None:
            self.live.add_samples(self.live.read_delays.between(start, end, self._tick_ns * 1e-9))

    def _budget(self) -> Budget:
        """Return the run's budget with what it has used so far; requests in flight count whole: they will be billed."""
        mean, earlier, live = self._mean, self._earlier, self.live
        seconds = earlier.seconds + live.now() - self._began_s
        inputs = self._scenario.workload.inputs or 1
        one = Usage(round(mean.input_tokens * inputs), 0, round(mean.output_tokens))
        usage = earlier.usage + live.usage + one.times(max(0, live.begun - live.answered))
        cost = dollars(self._scenario.hardware, seconds, usage) or 0.0
        spent = Spent(seconds, earlier.requests + live.begun, cost, self._spool.size)
        return Budget(self._scenario.ramp, spent, self._before, self._sharing)

    def _total(self) -> int | None:
        """Return how many levels the run has; None if the ramp chooses them."""
        spec = self._scenario.ramp
        fixed = spec.load.loads
        return (len(self._inputs.probes) + len(fixed)) * spec.repeat + bool(self._stop_replica) if fixed else None

    def _left_s(self, level_s: float) -> float | None:
        """Return the seconds left of the run, `level_s` into a level; None: not known, or it already takes longer.

        By its bound, and by what its last level took or what a search takes.
        """
        left, total, expected = self._budget().whole().seconds_left, self._total(), None
        if total is None:
            expected = self._search_s - self._earlier.seconds - self.live.now() + self._began_s
            expected = expected if expected > 0 else None  # it takes longer than most
        elif self._took:
            expected = _seconds_left(total, self._took, level_s)
        found = min((seconds for seconds in (left, expected) if seconds is not None), default=0.0)
        return found if found > 0 else None


def _seconds_left(levels: int, took: Sequence[float], level_s: float) -> float:
    """Return the seconds left of a run of `levels` levels: some are over and `took` so long, one runs for `level_s`.

    Later levels have more in flight and last longer, so each is as long as the latest, or as the current one by now.

    >>> _seconds_left(5, [10.0, 14.0], 20.0)
    40.0
    """
    return max(0.0, (levels - len(took)) * max(took[-1], level_s) - level_s)
