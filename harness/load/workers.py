"""The workers of a run as one: a level is split evenly over them, prepared by all, and begun by all at one moment.

Each is reached through its link, wherever it is. A worker that ends or sends nothing for too long ends the run, since
the load is no longer what was requested.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from harness.base.errors import HarnessError
from harness.data.machines import WorkerClock
from harness.load.link import Link
from harness.load.messages import (
    SILENT_S,
    UNREAD_S,
    BeginLevel,
    Done,
    Origin,
    Plan,
    Prepare,
    Progress,
    Rest,
    Stop,
    decode_message,
    on_clock,
)  # fmt: skip
from harness.load.schedule import Offset, shares
from harness.results.frames import is_batch

_AHEAD_NS = 5_000_000  # a level is announced so long before it begins: this reaches every worker of this machine
_AHEAD_TRIPS = 20  # clock errors added for other machines, each about half a round trip
_CLOCKS_EVERY_S = 60.0  # between estimates of another machine's clock, which drifts by up to 0.1 ms a second
_MOST_WORKERS = 8
_END_S = 10.0  # longest wait for a worker's last records


def wanted(free_cpus: int, streams: int) -> int:
    """Return how many workers a load needs: one for each 256 streams, at most one for each free processor.

    One process reads some 70,000 events a second before reads begin to merge (`knee calibrate client` measures it);
    256 streams reach that only beyond 270 tokens a second each.

    >>> wanted(15, 1024), wanted(1, 1024), wanted(15, 64)
    (4, 1, 1)
    """
    return max(1, min(free_cpus, _MOST_WORKERS, -(-streams // 256)))


class _Worker:
    """One worker and what it has sent."""

    def __init__(self, number: int, link: Link, changed: Callable[[], None]) -> None:
        self.number = number
        self.link = link
        self._changed = changed
        self.reading: asyncio.Task[None] | None = None
        self.progress: Progress | None = None  # its latest
        self.done: Done | None = None
        self.failure: HarnessError | None = None
        self.lost = False  # it ended without its last message
        self.exit_reason = "is gone"  # how it ended, where it did
        self.silent_s = 0  # since its last message
        self.offsets: list[Offset] = []  # estimates of its clock's offset; none: it shares ours
        self._origin_ns = 0  # origin of the run by our clock; 0: it has no plan yet
        self._moved_ns = 0  # the offset by which its times are moved

    async def start(self) -> None:
        """Start the worker, and estimate how far its clock is from ours."""
        await self.link.start()
        await self.estimate_clock()

    def plan(self, plan: Plan) -> None:
        """Send the worker its plan; the plan's times are on our clock."""
        self._origin_ns, self._moved_ns = plan.origin_ns, self.link.clock_offset_ns
        self.link.send(on_clock(plan, self._moved_ns))

    async def estimate_clock(self) -> None:
        """Estimate how far its clock is from ours; send the new offset if it rules out the one in use."""
        offset = await self.link.estimate_clock()
        if offset is None:
            return
        self.offsets.append(offset)
        if self._origin_ns and abs(offset.ns - self._moved_ns) > offset.error_ns:
            self._moved_ns = offset.ns
            self.link.send(on_clock(Origin(self._origin_ns), offset.ns))

    @property
    def clock(self) -> WorkerClock:
        """Return the worker's clock for the manifest: offset from ours, error, and drift over the run, in seconds."""
        first = self.offsets[0].ns
        return WorkerClock(
            worker=self.number,
            node=self.link.node,
            offset_s=first * 1e-9,
            error_s=max(offset.error_ns for offset in self.offsets) * 1e-9,
            drift_s=max((offset.ns - first for offset in self.offsets), key=abs) * 1e-9,
            estimates=len(self.offsets),
        )

    async def read(self, on_batch: Callable[[bytes], None], on_progress: Callable[[Progress], None]) -> None:
        """Read a worker's messages until its last one, passing on records and progress; note why it ended early."""
        try:
            async for payload in self.link.frames():
                self.silent_s = 0
                if is_batch(payload):
                    on_batch(payload)
                    continue
                message = decode_message(payload)
                if isinstance(message, Done):
                    self.done = message
                    return
                self.progress = message
                on_progress(message)
                self._changed()
        except HarnessError as error:  # a damaged message, or a batch that could not be written
            self.failure = error
        finally:
            if self.done is None and self.failure is None:
                self.exit_reason = await self.link.exit_reason()
                if self.silent_s >= SILENT_S:
                    self.exit_reason = f"sent nothing for {SILENT_S} s"
            self.lost = self.done is None
            self._changed()

    async def end(self) -> None:
        """Stop the worker, wait for its last records and its end; kill it if it has no plan yet."""
        try:
            if self.reading is None:
                self.link.kill()
            else:
                self.link.send(Stop())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.reading, timeout=_END_S)
        finally:
            await self.link.close()


class Workers:
    """All workers of a run: one level for all, one progress of all.

    As a context it starts the workers, which takes a moment that other preparations can use; `begin` sends them
    their plans.
    """

    def __init__(self, links: Sequence[Link], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._changed = asyncio.Event()
        self._workers = [_Worker(i, link, self._changed.set) for i, link in enumerate(links)]
        self._clock = clock
        self._summed: list[Progress | None] = [None] * len(links)  # what the last sum was made of
        self._running: list[_Worker] = []
        self._plans: Sequence[Plan] = ()
        self._prepared = 0
        self._watching: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Workers:
        for worker in self._workers:
            await worker.start()
            self._running.append(worker)
        return self

    def __len__(self) -> int:
        return len(self._workers)

    async def begin(
        self,
        plans: Sequence[Plan],
        on_batch: Callable[[bytes], None],
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        """Send each worker its plan; the plans' times are on our clock.

        `on_batch` gets every batch payload from now on, verbatim, `on_progress` each worker's own progress.
        """
        self._plans = plans
        for worker, plan in zip(self._workers, plans, strict=True):
            worker.plan(plan)
            worker.reading = asyncio.create_task(worker.read(on_batch, on_progress))
        self._watching = [asyncio.create_task(each) for each in (self._watch_for_silence(), self._follow_clocks())]

    @property
    def done(self) -> list[Done]:
        """Return the last messages of the workers that ended in order."""
        return [worker.done for worker in self._workers if worker.done is not None]

    @property
    def clocks(self) -> list[WorkerClock]:
        """Return the estimated clocks of the workers on other machines."""
        return [worker.clock for worker in self._workers if worker.offsets]

    async def begin_level(self, level: BeginLevel, connections: int) -> None:
        """Begin a level: prepared by every worker first, then begun by all of them at one moment.

        The moment is `level.at_ns`, or as soon as all can if that is past. Connections and slots are shared out over
        the workers of all plans, since a run on several machines has only some of its workers here.
        """
        self._prepared += 1
        count = self._plans[0].workers
        opened, slots = shares(connections, count), shares(level.concurrency or 0, count)
        busy = sum(slot > 0 for slot in slots)  # the first ones: a worker without a slot sends nothing
        sends = [*shares(level.requests or 0, max(1, busy)), *[0] * count]
        for worker, plan in zip(self._workers, self._plans, strict=True):
            worker.link.send(Prepare(self._prepared, opened[plan.worker]))
        await asyncio.gather(*(worker.estimate_clock() for worker in self._workers))
        while any(w.progress is None or w.progress.prepared < self._prepared for w in self._workers):
            await self._wait()
        errors = (worker.offsets[-1].error_ns for worker in self._workers if worker.offsets)
        at_ns = max(level.at_ns, self._clock() + _AHEAD_NS + _AHEAD_TRIPS * max(errors, default=0))
        for worker, plan in zip(self._workers, self._plans, strict=True):
            part = None if level.requests is None else sends[plan.worker]
            begun = msgspec.structs.replace(level, slots=slots[plan.worker], at_ns=at_ns, requests=part)
            worker.link.send(on_clock(begun, worker.link.clock_offset_ns))

    def rest(self, *, drop: bool = False) -> None:
        """Begin no more requests until the next level; the progress of a worker that rests is of level -1.

        With `drop` the open loop's requests that are due and not yet sent are dropped.
        """
        for worker in self._workers:
            worker.link.send(Rest(drop))

    async def next_progress(self) -> Progress:
        """Return the sum of all workers' progress, once each has sent new; raise HarnessError if one is gone."""
        while any(w.progress is None or w.progress is old for w, old in zip(self._workers, self._summed, strict=True)):
            await self._wait()
        latest = [worker.progress for worker in self._workers if worker.progress is not None]
        self._summed = list(latest)
        return together(latest)

    async def _wait(self) -> None:
        self._check()
        self._changed.clear()
        await self._changed.wait()
        self._check()

    async def _watch_for_silence(self) -> None:
        """Kill a worker that is silent too long: it hangs, or was stopped. A pause of our own counts as one second."""
        while True:
            await asyncio.sleep(1.0)
            for worker in self._workers:
                worker.silent_s += 1
                if worker.silent_s == SILENT_S and worker.done is None:
                    worker.link.kill()

    async def _follow_clocks(self) -> None:
        """Estimate the clocks of other machines again and again: a level may last for hours."""
        while any(worker.offsets for worker in self._workers):
            await asyncio.sleep(_CLOCKS_EVERY_S)
            await asyncio.gather(*(worker.estimate_clock() for worker in self._workers))

    def _check(self) -> None:
        """Raise HarnessError if a worker failed, is gone, or has stopped in the middle of the run."""
        for worker in self._workers:
            if worker.failure is not None:
                raise worker.failure
            if worker.lost or worker.done is not None:
                why = worker.exit_reason if worker.lost else f"stopped: its messages were not read for {UNREAD_S:g} s"
                raise HarnessError(
                    f"a load-generating process ended in the middle of the run: it {why}",
                    place=f"worker {worker.number}",
                    way_out="the level that it was in is void; go on with `knee run --resume`",
                )

    async def end(self) -> None:
        """Stop the workers, take their last records, and wait until they have ended."""
        running, self._running = self._running, []
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*(worker.end() for worker in running))

    async def __aexit__(self, *_: Any) -> None:
        await self.end()


_SUMMED = (  # counts of progress, which add up
    "in_flight", "ended", "failed", "waiting", "surplus", "tokens", "begun_in_run", "cpu_s", "reads", "unstamped",
)  # fmt: skip


def together(reports: Sequence[Progress]) -> Progress:
    """Return the workers' latest progress as one: counts added up, as of the earliest of them.

    The level is that of the worker that is furthest behind. Read delays are left out: they are each worker's own.
    """
    if len(reports) == 1:
        return reports[0]
    sent = [report.oldest_sent_s for report in reports if report.oldest_sent_s is not None]
    return Progress(
        **{name: sum(getattr(report, name) for report in reports) for name in _SUMMED},
        time_s=min(report.time_s for report in reports),
        level=min(report.level for report in reports),
        oldest_sent_s=min(sent, default=None),
        oldest=tuple(sorted(each for report in reports for each in report.oldest)),
        prepared=min(report.prepared for report in reports),
        # A worker that has nothing in flight, and was never refused, has not tried: it says nothing of the server.
        refused=min((report.refused for report in reports if report.refused or report.in_flight), default=0),
        took_s=max(report.took_s for report in reports),
    )
