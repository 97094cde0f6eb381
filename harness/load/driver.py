"""A worker's tasks: the slots that keep requests in flight, or the schedule that sends them, and the messages.

Closed loop: a slot sends, waits for the end of the response, sends again. A new level changes the number of slots:
those that stay never pause, new ones begin staggered, surplus ones end with their current request. Where requests
belong together (`load.requests`) a slot holds a task, and takes the next one when all of that is over. Static batches:
all slots send at once, and again when the last answer is over. Open loop: a request is sent when it is due, whether or
not earlier ones have ended; a task begins so. How long a level lasts is decided by the parent; the driver only reports
progress. Every request ends as a record, tagged with the level in which it was sent.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from harness.base import kernel
from harness.data.record import ABANDONED, NOT_FAILED, Record
from harness.dialects.tokens import TokenPlacer
from harness.load import requests
from harness.load.loop import HotSelector, now
from harness.load.messages import (
    BATCH_EVERY_S,
    PROGRESS_EVERY_S,
    BeginLevel,
    Command,
    Origin,
    Plan,
    Prepare,
    Progress,
    Rest,
    Stop,
    encode,
)
from harness.load.requests import Built, Prepared, Room, Running, each, record
from harness.load.schedule import pause_after
from harness.load.transport import IDLE_S, CutExchange, Exchange, Transport
from harness.results import frames
from harness.spec import traffic
from harness.workload import arrivals
from harness.workload import source as sources
from harness.workload.arrivals import think_s
from harness.workload.request import Request
from harness.workload.tasks import Tasks

_BATCH = 16  # records a frame: making more of them at once would delay a send
_BATCH_BYTES = 1 << 20  # bytes of arrivals in a frame: long responses that end together are not in memory twice
_UNREACHED = ("refused", "connect")  # errors of a request that found no server
_OLDEST = 64  # requests in flight whose age a report has: more than these seldom hang
_DECODED_S = 0.001  # between two checks whether a response is decoded
_PAUSED_S = 5.0  # between two checks, in a pause, whether the level still has the slot
_AHEAD_NS = 1_000_000_000  # a task of an open loop is made so long before it is due: its first prompt may be long
_SPARE = 16  # connections that an open loop keeps open beyond those in use
_OPEN_EVERY_NS = int(IDLE_S / 2 * 1e9)  # between two looks at whether it has them: those that idle are not used again


class Driver:
    """The tasks of one worker, on whatever loop runs them."""

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        send: Callable[[bytes], Awaitable[Any]],
        *,
        selector: HotSelector | None = None,
        clock: Callable[[], int] = now,
    ) -> None:
        self._plan = plan
        self._transport = transport
        self._send = send
        self._selector = selector
        self._clock = clock
        self._decoder = plan.codec.decoders
        self._requests = Prepared(plan, transport)
        self._tasks = plan.source if isinstance(plan.source, Tasks) else None
        self._origin_ns = plan.origin_ns
        self._level: BeginLevel | None = None
        self._by_rate = self._dropping = False  # the last level had a rate; what is due and not sent is dropped
        self._slots: dict[int, asyncio.Task[None]] = {}
        self._surplus: list[asyncio.Task[None]] = []  # slots of a higher level, which end by themselves
        self._open_loop: set[asyncio.Task[Any]] = set()  # the open loop's: one a request or task, the schedule's own
        self._left: int | None = None  # requests that the level may still send; None: any number
        self._room = Room(plan.max_in_flight)
        self._queued: dict[object, int] = {}  # due times of the open loop's requests that are not sent yet
        # Connections that the open loop has opened, when, and whether it opens some now.
        self._open, self._opened_ns, self._opening = 0, 0, False
        self._turn = asyncio.Lock()  # those that wait for --max-rps go on in their order
        self._in_flight: dict[str, Running] = {}  # in the order they were sent
        self._ended: collections.deque[Running] = collections.deque()
        self._done = self._failed = self._waiting = self._begun_in_run = self._prepared = 0
        self._took_s = 0.0
        several = plan.replicas if len(plan.replicas) > 1 else ()
        self._refused = {replica.url: 0 for replica in several} or {"": 0}  # connections in a row, by server
        self._throttler: Any = None
        self._placer = TokenPlacer(plan.tokenizer_json) if plan.tokenizer_json else None

    async def run(self, commands: asyncio.Queue[Command]) -> None:
        """Carry out the parent's commands until Stop; then cancel requests in flight and send every record."""
        if self._plan.max_rps:
            from asyncio_throttle.throttler import Throttler

            # A sliding window, not a pacer: it enforces a quota, and the wait for it is lag.
            requests, period_s = arrivals.quota(self._plan.max_rps)
            self._throttler = Throttler(rate_limit=requests, period=period_s)
        async with asyncio.TaskGroup() as group:
            chores = [group.create_task(chore()) for chore in (self._report, self._flush)]
            if self._tasks is None:
                chores.append(group.create_task(self._requests.fill()))
            while not isinstance(command := await commands.get(), Stop):
                if isinstance(command, Prepare):
                    await self._prepare(command)
                elif isinstance(command, Origin):
                    self._origin_ns = command.ns
                elif isinstance(command, Rest):
                    self._level, self._dropping = None, command.drop
                else:
                    await self._begin_level(command, group)
            self._level = None
            await asyncio.sleep(0)  # what was sent in this turn has a task that waits for its end, and is cut with it
            cut = [task for task in (*self._slots.values(), *self._open_loop) if not task.done()]
            for task in cut:
                task.cancel()
            await asyncio.gather(*cut, return_exceptions=True)
            for task in chores:
                task.cancel()
        if self._selector is not None:
            self._selector.decode_all()
        await self._send_batches()

    async def _prepare(self, prepare: Prepare) -> None:
        await self._transport.prepare(prepare.connections)
        await self._requests.prepare(prepare.connections)
        self._prepared = prepare.number

    async def _begin_level(self, level: BeginLevel, group: asyncio.TaskGroup) -> None:
        """Wait for the level's time, then start its open loop, its static batches, or the slots it needs more."""
        if (early := level.at_ns - self._clock()) > 0:  # all workers at one moment
            await asyncio.sleep(early * 1e-9)
        self._took_s = (self._clock() - level.at_ns) * 1e-9
        if self._selector is not None:
            self._selector.tick_ns = level.tick_ns
        self._requests.begin(level)
        self._level, self._dropping, self._by_rate = level, False, level.rate is not None
        self._done = self._failed = 0
        self._left = level.requests
        self._refused = dict.fromkeys(self._refused, 0)
        if level.rate is not None:
            self._start(group, self._on_schedule(level, level.rate, group))
            return
        plan = self._plan
        if plan.start == "batch":
            if not self._open_loop:
                self._start(group, self._batches())
            return
        self._surplus = [task for i, task in self._slots.items() if i >= level.slots and not task.done()]
        fresh = [i for i in range(level.slots) if i not in self._slots or self._slots[i].done()]
        delays = arrivals.stagger(len(fresh), level.spread_s, plan.start, worker=plan.worker, workers=plan.workers)
        self._waiting += len(fresh)
        for i, delay in zip(fresh, delays, strict=True):
            self._slots[i] = group.create_task(self._slot(i, delay))

    async def _slot(self, i: int, delay: float) -> None:
        """Run slot i of a closed loop after `delay`: send requests, or tasks, one after the other while it lasts."""
        due = self._clock() + round(delay * 1e9)
        try:
            if delay:
                await asyncio.sleep(delay)
        finally:
            self._waiting -= 1
        if (source := self._tasks) is not None:
            level_of = functools.partial(self._level_of, i)
            send = functools.partial(self._one_of_task, level_of=level_of, keep_text=source.live)
            await requests.one_after_the_other(source, self._requests.next_number, due, send, level_of)
            return
        failures = 0
        before: Exchange | None = None
        think_ms = self._plan.think_ms
        while (level := self._level) is not None and i < level.slots:
            if self._throttler is not None:
                await self._within_quota()
                if (level := self._level) is None:
                    return
            if self._left is not None:
                if not self._left:
                    return
                self._left -= 1
            built = self._requests.next(level)
            exchange = await self._sent(built, level, due)
            due = exchange.done_ns
            # An error inside the stream is known only once it is decoded, which is one request later.
            # Each is counted once: a second rest, after a request that went well, would look like a slow client.
            if exchange.error:
                await self._decoded(exchange)  # its connection may have broken behind the end of the answer
            failed = _failed(exchange)
            known = [each for each in (before, exchange if failed else None) if each is not None]
            for ended in known:
                failures = failures + 1 if _failed(ended) else 0
            before = None if failed else exchange
            if known and failures:
                await asyncio.sleep(pause_after(failures, exchange.retry_after_s))
            elif think_ms is not None:
                due += round(think_s(think_ms, self._plan.source.seed, built.request.number) * 1e9)
                await asyncio.sleep(max(0, due - self._clock()) * 1e-9)

    def _level_of(self, slot: int) -> BeginLevel | None:
        """Return the level, if it has the slot."""
        return self._level if self._level is not None and slot < self._level.slots else None

    async def _one_of_task(
        self, request: Request, due: int, *, level_of: Callable[[], BeginLevel | None], keep_text: bool
    ) -> requests.Answer:
        """Wait until a task's request is due, send it if the level still has the task, and return the answer."""
        built = self._requests.build(request)
        while (left_s := (due - self._clock()) * 1e-9) > 0 and level_of():
            await asyncio.sleep(min(left_s, _PAUSED_S))
        if not self._by_rate:  # else it waits for that together with its place
            await self._within_quota()
        send, level = self._one if self._by_rate else self._sent, level_of()
        exchange = None if level is None else await send(built, level, due, keep_text=keep_text)
        if exchange is None:
            return requests.Answer(due, None)
        await self._decoded(exchange)  # the next request may hold it
        ended = not exchange.error or exchange.error == ABANDONED  # who gives an answer up goes on with what there is
        text = exchange.decoded.text if ended else None
        return requests.Answer(exchange.done_ns, text, exchange.retry_after_s)

    async def _decoded(self, exchange: Exchange) -> None:
        """Wait until a response that has ended is completely decoded."""
        if not exchange.complete and self._selector is not None:
            self._selector.decode_all()
        while not exchange.complete:
            await asyncio.sleep(_DECODED_S)

    async def _batches(self) -> None:
        """Send static batches: one request for each slot at once, the next batch when the last of them has ended."""
        failures = 0
        while (level := self._level) is not None and level.slots:
            due = self._clock()
            batch = await asyncio.gather(*(self._one_of_batch(level, due) for _ in range(level.slots)))
            for exchange in batch:
                await self._decoded(exchange)
            failures = failures + 1 if all(map(_failed, batch)) else 0
            if failures:
                await asyncio.sleep(pause_after(failures, max(exchange.retry_after_s for exchange in batch)))

    async def _one_of_batch(self, level: BeginLevel, due: int) -> Exchange:
        await self._within_quota()
        return await self._sent(self._requests.next(level), level, due)

    async def _on_schedule(self, level: BeginLevel, rate: float, group: asyncio.TaskGroup) -> None:
        """Open loop: send each request when it is due, as long as the level lasts."""
        plan, source = self._plan, self._plan.source
        due_s = arrivals.due_times(
            traffic.parse(level.arrivals), rate, seed=source.seed, level=level.index,
            worker=plan.worker, workers=plan.workers, trace=sources.times(source), starts=sources.starts(source),
        )  # fmt: skip
        come, ahead = (self._send_due, 0) if self._tasks is None else (self._begin_task, _AHEAD_NS)
        early_ns = (level.at_ns + round(offset * 1e9) - ahead for offset in due_s)
        await each(early_ns, self._clock, lambda early: come(level, early + ahead, group))

    def _begin_task(self, level: BeginLevel, due: int, group: asyncio.TaskGroup) -> bool:
        """Start a task of the open loop that is due soon; return False if its level is over (no more tasks to come)."""
        if (source := self._tasks) is None or self._level is not level:
            return False
        send = functools.partial(
            self._one_of_task, level_of=lambda: level if self._level is level else None, keep_text=source.live
        )
        self._start(group, requests.run_task(source, source.task(self._requests.next_number()), due, send))
        self._open_more(group)
        return True

    def _send_due(self, level: BeginLevel, due: int, group: asyncio.TaskGroup) -> bool:
        """Send a request of the open loop now, or queue it for quota or a place; return False if the level is over."""
        if self._level is not level:
            return False
        if self._throttler is None and self._room.enter():
            built = self._requests.next(level)
            running = self._running(built, level, due)
            self._transport.begin(running.exchange, built.data)
            self._start(group, self._in_its_place(self._over(running)))
        else:
            self._start(group, self._one(None, level, due))
        self._open_more(group)
        return True

    def _open_more(self, group: asyncio.TaskGroup) -> None:
        """Start a task that opens more connections, if an open loop may soon need more than are open."""
        many = len(self._in_flight) + _SPARE > self._open
        if (many or self._clock() > self._opened_ns + _OPEN_EVERY_NS) and not self._opening:
            self._opening = True
            self._start(group, self._open_ahead())

    async def _open_ahead(self) -> None:
        """Open connections for some more requests than are in flight, so that one is open when a request is due."""
        self._opened_ns = self._clock()
        self._open = min(self._plan.max_in_flight, (len(self._in_flight) + 2 * _SPARE) * 5 // 4)
        await self._transport.prepare(self._open)
        self._opening = False

    async def _one(
        self, built: Built | None, level: BeginLevel, due: int, *, keep_text: bool = False
    ) -> Exchange | None:
        """Wait for quota and a free place, then send `built`, or the next request; None if requests are dropped now."""
        me = object()
        self._queued[me] = due
        try:
            await self._within_quota()
            await self._room.wait()
        finally:
            del self._queued[me]
        if self._dropping:
            self._room.leave()
            return None
        built = self._requests.next(level) if built is None else built
        return await self._in_its_place(self._sent(built, level, due, keep_text=keep_text))

    async def _in_its_place(self, request: Coroutine[Any, Any, Exchange]) -> Exchange:
        try:
            return await request
        finally:
            self._room.leave()

    async def _within_quota(self) -> None:
        """Wait until one more request is within --max-rps."""
        if self._throttler is not None:
            async with self._turn, self._throttler:
                pass

    def _start(self, group: asyncio.TaskGroup, work: Coroutine[Any, Any, Any]) -> None:
        task = group.create_task(work)
        self._open_loop.add(task)
        task.add_done_callback(self._open_loop.discard)

    def _sent(
        self, built: Built, level: BeginLevel, due: int, *, keep_text: bool = False
    ) -> Coroutine[Any, Any, Exchange]:
        """Send a built request; it is over when its response is."""
        return self._over(self._running(built, level, due, keep_text=keep_text))

    def _running(self, built: Built, level: BeginLevel, due: int, *, keep_text: bool = False) -> Running:
        """Return a built request as running, counted as in flight from now on, with an exchange for its response."""
        cancel, kept = built.request.cancel, keep_text or built.request.canary is not None
        decoding = self._decoder(self._placer, keep_text=kept, asked=built.asked)
        if cancel is not None and cancel.after_tokens is not None:
            exchange: Exchange = CutExchange(built.id, decoding, cancel.after_tokens)
        else:
            exchange = Exchange(built.id, decoding)
        self._in_flight[built.id] = running = Running(built, exchange, level, due, self._origin_ns)
        self._begun_in_run += 1
        return running

    async def _over(self, running: Running) -> Exchange:
        """Send a running request, wait until its response has ended or is given up, and move it to the ended ones."""
        exchange, built, timeout_s = running.exchange, running.built, self._plan.request_timeout_s
        cancel = built.request.cancel
        if cancel is not None and cancel.after_s is not None:
            timeout_s = min(timeout_s, cancel.after_s)
        try:
            await self._transport.send(exchange, built.data, timeout_s)
            if timeout_s < self._plan.request_timeout_s and exchange.error == "client_deadline":
                exchange.error, exchange.message = ABANDONED, f"given up after {timeout_s:g} s"
        finally:
            if exchange.error in _UNREACHED:
                self._refused[exchange.url] += not self._is_receiving(exchange.url)
            elif exchange.bytes_received:
                self._refused[exchange.url] = 0
            del self._in_flight[built.id]
            self._ended.append(running)
            self._done += running.level is self._level
        return exchange

    def _is_receiving(self, url: str) -> bool:
        """Return whether an answer of that server is under way: then the server is up, whatever it refuses."""
        return any(each.exchange.bytes_received and each.exchange.url == url for each in self._in_flight.values())

    async def _report(self) -> None:
        """Send progress to the parent at even times; read delays only with every fourth report."""
        reports = 0
        while True:
            due = self._clock() + round(PROGRESS_EVERY_S * 1e9)
            await asyncio.sleep(PROGRESS_EVERY_S)
            reports += 1
            paused_s = max(0, self._clock() - due) * 1e-9
            await self._send(encode(self._progress(paused_s, with_late=reports % 4 == 0)))

    def _progress(self, paused_s: float, *, with_late: bool) -> Progress:
        """Return the worker's counts and times now; `with_late` takes the times of late reads out of the selector."""
        selector, origin = self._selector, self._origin_ns
        first = itertools.islice(self._in_flight.values(), _OLDEST)
        flying = [running.exchange.sent_ns or running.scheduled_ns for running in first]
        oldest = self._oldest_due() if self._by_rate else next(iter(flying), 0)
        return Progress(
            time_s=(self._clock() - origin) * 1e-9,
            level=self._level.index if self._level is not None else -1,
            in_flight=len(self._in_flight),
            ended=self._done,
            failed=self._failed,
            waiting=self._waiting,
            surplus=sum(not task.done() for task in self._surplus),
            tokens=selector.events if selector is not None else 0,
            oldest_sent_s=(oldest - origin) * 1e-9 if oldest else None,
            begun_in_run=self._begun_in_run,
            cpu_s=time.process_time(),
            reads=selector.reads if selector is not None else 0,
            unstamped=selector.unstamped if selector is not None else 0,
            late=selector.take_late() if with_late and selector is not None else (),
            worker=self._plan.worker,
            prepared=self._prepared,
            took_s=self._took_s,
            paused_s=paused_s,
            waited_s=kernel.waited_s() if with_late else None,
            oldest=tuple((sent - origin) * 1e-9 for sent in flying),
            refused=min(self._refused.values()),
        )

    def _oldest_due(self) -> int:
        """Due time of the open loop's oldest request that is not over; 0: there is none."""
        flying = next((running.scheduled_ns for running in self._in_flight.values()), 0)
        return flying or next(iter(self._queued.values()), 0)

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(BATCH_EVERY_S)
            await self._send_batches()

    async def _send_batches(self) -> None:
        """Send the records of the requests that are over and fully decoded, in order of their end."""
        while self._ended and self._ended[0].exchange.complete:
            records: list[Record] = []
            size = 0
            while self._ended and self._ended[0].exchange.complete and len(records) < _BATCH and size < _BATCH_BYTES:
                running = self._ended.popleft()
                self._failed += running.level is self._level and running.exchange.error not in NOT_FAILED
                records.append(record(running, self._plan))
                size += len(records[-1].arrivals)
            await self._send(frames.batch(records))
            await asyncio.sleep(0)  # requests that are due go first


def _failed(exchange: Exchange) -> bool:
    """Return whether a request failed, as far as its response is decoded."""
    return exchange.error not in NOT_FAILED or (exchange.response.status != 200 and exchange.error != ABANDONED)
