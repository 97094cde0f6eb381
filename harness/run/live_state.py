"""The live state of a run: writes what comes in to the spool, keeps what a decision needs of it, and shows a level.

The workers' batches and reports, the server's and the host's figures all come through here. Records and samples are on
the disk only, so that memory does not grow with a level; `part` says where those lie that a level's summary needs. Left
out: decisions.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Collection, Sequence

import msgspec

from harness.analysis.level import Facts
from harness.analysis.rules.requests import CPU
from harness.data.progress import LevelProgress, View
from harness.data.record import ABANDONED, CANCELLED, Level, Record, Sample, arrivals_of
from harness.load.messages import BATCH_EVERY_S, Progress
from harness.observe import host
from harness.results.frames import Position
from harness.results.spool import Spool
from harness.run import telemetry
from harness.run.launch.endpoint import Endpoint
from harness.search.budget import Budget, Usage
from harness.search.level import Now, failing, outcomes_watched
from harness.search.timing import RECENT, LevelTiming
from harness.spec.scenario import Scenario
from harness.spec.work import Unit
from harness.workload import shape

PAUSED_S = 0.5  # pause of a worker, or of this process: ten times the interval of its reports
SLEPT_S = 0.1  # seconds of CLOCK_BOOTTIME beyond CLOCK_MONOTONIC, which stops while a machine sleeps
_FEW = 8  # requests that ended in a window, below which earlier ones count too
_REPORTED = [name for name in Now.__struct_fields__ if name in Progress.__struct_fields__]  # the workers report these


class LiveState:
    """All that is known of a running run; `levels` reads it."""

    def __init__(
        self, spool: Spool, origin_ns: int, run_id: str, *, e2e_s: float, itl_s: float | None, machine: str = ""
    ) -> None:
        self._spool = spool
        self._machine = f"{machine}/" if machine else ""  # begins the names of its own figures
        self._sampler: int | None = None  # the worker with whose reports the machine's figures are taken
        self._origin_ns = origin_ns
        self._run_id = run_id
        self._decode = msgspec.msgpack.Decoder(list[Record]).decode
        self.level: Level | None = None  # the running one
        # The spool's positions as this level began, and as the one before did.
        self._level_at = self._before_at = spool.position
        self.read_delays = telemetry.ReadDelays()  # delays of the level
        self.answered, self.usage = 0, Usage()  # counts of this session, by the records that have come
        # Whether each of the level's last requests failed.
        self.outcomes: collections.deque[bool] = collections.deque(maxlen=outcomes_watched(0))
        # Times of the last requests; at first, the launch check's.
        self._e2e: collections.deque[float] = collections.deque([e2e_s], maxlen=RECENT)
        self._icl: collections.deque[float] = collections.deque([itl_s or 0.0], maxlen=RECENT)
        self._ttft: collections.deque[float] = collections.deque(maxlen=32)
        self.wait_s = 0.0  # the longest to a first token since the level began
        self._longest_s = 0.0  # the longest time of a success
        self._ended, self._took_s = 0, 0.0  # successes that ended since the window began, and their times together
        self._latest: dict[int, Progress] = {}  # each worker's last report
        self._last_sampled: dict[int, Progress] = {}  # client and host figures are taken once a second
        self._noted_sent_s: dict[int, float] = {}  # when each worker's number of sent requests was last recorded
        self._reported_s: float | None = None  # when any worker's report came
        self._asleep_s = _asleep()
        self.cpu: dict[int, float] = {}  # each worker's share of a processor over the last second

    def now(self) -> float:
        """Return the seconds since the run's origin."""
        return (time.monotonic_ns() - self._origin_ns) * 1e-9

    def begin(self, level: Level, requests_at_once: float) -> None:
        self._before_at, self._level_at = self._level_at, self._spool.position
        self.read_delays = telemetry.ReadDelays()
        self.outcomes = collections.deque(maxlen=outcomes_watched(requests_at_once))
        self.wait_s = 0.0
        self.moment(level)

    def moment(self, level: Level) -> None:
        """Write the level to the spool when it or its window begins or ends; count its successes anew until then."""
        self.level = level
        self._spool.level(level)
        if level.window_end_s is None:
            self._ended, self._took_s = 0, 0.0

    def add_samples(self, samples: Sequence[Sample]) -> None:
        self._spool.telemetry(list(samples))

    @property
    def part(self) -> tuple[Position, Position]:
        """Return the positions in the spool between which all records lie since the level before this one began.

        Every request that touches this level's window has its record there.
        """
        return self._before_at, self._spool.position

    def batch(self, payload: bytes) -> None:
        """Write a worker's records to the spool and update answers, usage, latencies and outcomes from them."""
        self._spool.write(payload)
        running = self.level.index if self.level is not None else None
        for record in self._decode(payload):
            self.answered, self.usage = self.answered + 1, self.usage + Usage.of(record)
            if record.level == running and record.error not in (CANCELLED, ABANDONED):
                self.outcomes.append(record.error != "")
            if record.error or record.done_s is None or record.sent_s is None:
                continue
            self._e2e.append(record.done_s - record.sent_s)
            self._longest_s = max(self._longest_s, record.done_s - record.sent_s)
            if record.first_token_s is not None:
                self._ttft.append(record.first_token_s - record.sent_s)
                if record.level == running:
                    self.wait_s = max(self.wait_s, record.first_token_s - record.sent_s)
            self._ended, self._took_s = self._ended + 1, self._took_s + record.done_s - record.sent_s
            stamps = arrivals_of(record)
            if len(stamps) > 1:
                self._icl.append((stamps[-1] - stamps[0]) * 1e-9 / (len(stamps) - 1))

    def progress(self, progress: Progress) -> None:
        """Record a worker's report: read delays and pauses, and once a second samples of client and host."""
        if self.level is not None and progress.level == self.level.index:
            self.read_delays.add(progress)
        self._latest[progress.worker] = progress
        self._record_pauses(progress)
        if progress.time_s >= self._noted_sent_s.get(progress.worker, 0.0) + BATCH_EVERY_S:
            self._noted_sent_s[progress.worker] = progress.time_s
            name = f"{self._run_id}-{progress.worker}"
            self.add_samples([Sample(progress.time_s, "client", f"{name}/sent", float(self.sent[name]))])
        last = self._last_sampled.get(progress.worker)
        if last is not None and progress.time_s < last.time_s + 1.0:
            return
        self._sampler = progress.worker if self._sampler is None else self._sampler
        samples = host.samples(progress.time_s) if progress.worker == self._sampler else []
        if self._machine:
            samples = [msgspec.structs.replace(sample, metric=self._machine + sample.metric) for sample in samples]
        if last is not None:
            samples += telemetry.samples(last, progress)
            self.cpu[progress.worker] = (progress.cpu_s - last.cpu_s) / (progress.time_s - last.time_s)
        self._last_sampled[progress.worker] = progress
        self.add_samples(samples)

    @property
    def sent(self) -> dict[str, int]:
        """Return how many requests each worker has sent, by the prefix of their ids: one without a record is lost."""
        return {f"{self._run_id}-{p.worker}": p.begun_in_run for p in self._latest.values()}

    @property
    def begun(self) -> int:
        """Return how many requests all workers have sent in this session."""
        return sum(p.begun_in_run for p in self._latest.values())

    @property
    def e2e_s(self) -> float:
        """Return the mean time of the last successes; before any, that of the launch check."""
        return _mean(self._e2e)

    @property
    def icl_s(self) -> float:
        """Return the median of the last successes' mean gaps; 0 if none is known."""
        found = sorted(self._icl)
        return found[len(found) // 2]

    @property
    def ttft_s(self) -> float | None:
        """Return the median time to first token of the last successes; None before any."""
        return sorted(self._ttft)[len(self._ttft) // 2] if self._ttft else None

    def recent_s(self, slots: int | None) -> float:
        """Return the mean time of the last successes, of as many as a level has slots."""
        return _mean(list(self._e2e)[-max(_FEW, min(RECENT, slots or RECENT)) :])

    def request_s(self, slots: int | None) -> float:
        """Return the mean time of the successes that ended in the window; of the last ones while these are few."""
        return self._took_s / self._ended if self._ended >= _FEW else self.recent_s(slots)

    def at(self, report: Progress, budget: Budget) -> Now:
        """Return what `search.timing` decides by (in flight, tokens, latencies, budget), at a report's time."""
        slots = self.level.concurrency if self.level is not None else None
        return Now(
            **{name: getattr(report, name) for name in _REPORTED},
            e2e_s=self.e2e_s,
            recent_s=self.recent_s(slots),
            request_s=self.request_s(slots),
            icl_s=self.icl_s,
            failing=failing(self.outcomes, self.outcomes.maxlen or 0),
            wait_s=self.wait_s,
            longest_s=self._longest_s,
            budget=budget,
        )

    def _record_pauses(self, progress: Progress) -> None:
        """Record as telemetry that this worker or this process stood still for long, or that the machine slept."""
        now, asleep = self.now(), _asleep()
        pauses = []
        if progress.paused_s > PAUSED_S:
            pauses.append((progress.time_s, f"{progress.worker}/paused_s", progress.paused_s))
        elif self._reported_s is not None and now - self._reported_s > PAUSED_S:
            pauses.append((now, "parent_paused_s", now - self._reported_s))
        if asleep - self._asleep_s > SLEPT_S:
            pauses.append((progress.time_s, "slept_s", asleep - self._asleep_s))
        self._reported_s, self._asleep_s = now, asleep
        if pauses:
            self.add_samples([Sample(at, "client", name, value) for at, name, value in pauses])


def _asleep() -> float:
    """Return how long this machine has slept since it was booted, seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values) if values else 0.0


class Shown:
    """Shows the reports of the workers, and notes what is wrong once."""

    def __init__(self, scenario: Scenario, endpoint: Endpoint, facts: Facts, live: LiveState, view: View) -> None:
        self._live, self._view = live, view
        self._warned: set[int] = set()  # levels in which it was noted that the client limits
        prompts, unit, texts = endpoint.prompts, facts.unit, facts.inputs
        answer = 1 if scenario.target.streams else shape.of(scenario).mean().output_tokens or 1
        amounts = {
            Unit.OUTPUT_TOKENS: answer,
            Unit.INPUT_TOKENS: texts * (prompts.tokens or prompts.count or 1),
            Unit.DOCUMENTS: texts,
        }
        self._amount = amounts.get(unit, 1)  # work in one event
        if not unit.decodes:
            view.unit = unit.per_s

    def report(self, progress: Progress) -> None:
        """Record one worker's report; show a note, once a level, if the worker uses nearly all of its processor."""
        self._live.progress(progress)
        busy = self._live.cpu.get(progress.worker, 0.0)
        if busy > CPU and progress.level not in self._warned:
            self._warned.add(progress.level)
            self._view.note(f"worker {progress.worker} is {busy:.0%} busy (limit {CPU:.0%}): the client is the limit")

    def level(self, progress: Progress, timing: LevelTiming, left_s: float | None) -> None:
        """Show the running level's phase, time, throughput and errors at a report's time."""
        now = LevelProgress(
            phase=timing.phase,
            elapsed_s=progress.time_s - timing.since_s,
            expected_s=timing.expected_s,
            in_flight=float(progress.in_flight),
            output_tokens_per_s=timing.tokens_per_s(1.0) * self._amount,
            errors=progress.failed,
            ttft_s=self._live.ttft_s,
            left_s=left_s,
        )
        self._view.update(now)
