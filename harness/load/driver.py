"""A worker's tasks: the slots that keep requests in flight, or the schedule that sends them, and the messages.

Closed loop: a slot sends, waits for the end of the response, sends again. A new level changes the number of slots:
those that stay never pause, new ones begin staggered, surplus ones end with their current request. Open loop: a
request is sent when it is due, whether or not earlier ones have ended. How long a level lasts is decided by the parent;
the driver only reports progress. Every request ends as a record, tagged with the level in which it was sent.
"""

from __future__ import annotations

import asyncio
import collections
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from harness import traffic
from harness.classes import Cancel
from harness.dialects import DIALECTS
from harness.dialects.placer import TokenPlacer
from harness.load.loop import HotSelector, now
from harness.load.messages import (
    BATCH_EVERY_S,
    PROGRESS_EVERY_S,
    BeginLevel,
    Command,
    Plan,
    Prepare,
    Progress,
    Stop,
    encode,
)
from harness.load.schedule import pause_after
from harness.load.transport import CutExchange, Exchange, Transport
from harness.record import ABANDONED, NOT_FAILED, Record
from harness.results import frames
from harness.secrecy import plain, redact
from harness.workload.arrivals import due_times, quota, stagger
from harness.workload.source import Source, times

_BATCH = 16  # records a frame: making more of them at once would delay a send
_BATCH_BYTES = 1 << 20  # of arrivals in a frame: long responses that end together are not in memory twice
_LONGEST_MESSAGE = 200  # characters of an error's message
_MOST_AHEAD = 4096  # requests built ahead at most
_SPARE = 16  # connections that an open loop keeps open beyond those in use


class _Built(msgspec.Struct, frozen=True, gc=False):
    """A request that is ready to be sent."""

    id: str
    data: Any
    class_: str
    cancel: Cancel | None


class _Running(msgspec.Struct, frozen=True, gc=False):
    exchange: Exchange
    level: BeginLevel
    scheduled_ns: int
    class_: str


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
        self._dialect = DIALECTS[plan.api]
        self._encode = self._dialect.encoder(
            plan.model, drop=plan.drop, extra=plan.extra_body, classes=plan.classes
        ).encode
        self._number = plan.first_request + plan.worker
        self._ready: collections.deque[_Built] = collections.deque()
        self._sources: dict[int | None, Source] = {None: plan.source}  # by words of a level's own prompts
        self._source = plan.source  # of the requests that are built ahead
        self._wanted = 8  # how many requests to have built ahead
        self._low = asyncio.Event()  # fewer than half of them are left
        self._level: BeginLevel | None = None
        self._slots: dict[int, asyncio.Task[None]] = {}
        self._open_loop: set[asyncio.Task[None]] = set()  # the open loop's: one a request, and the schedule's own
        self._room = asyncio.Semaphore(plan.max_in_flight)
        self._queued: dict[object, int] = {}  # due times of the open loop's requests that are not sent yet
        self._open, self._opening = 0, False  # connections that the open loop has opened
        self._in_flight: dict[str, _Running] = {}  # in the order they were sent
        self._ended: collections.deque[_Running] = collections.deque()
        self._done = self._failed = self._waiting = self._begun_in_run = self._prepared = 0
        self._took_s = 0.0
        self._throttler: Any = None
        self._placer: TokenPlacer | None = None
        if plan.tokenizer_json:
            self._placer = TokenPlacer(plan.tokenizer_json)

    async def run(self, commands: asyncio.Queue[Command]) -> None:
        """Carry out commands until Stop; then cut what is in flight and send every record."""
        if self._plan.max_rps:
            from asyncio_throttle.throttler import Throttler

            # A sliding window, not a pacer: it enforces a quota, and the wait for it is lag.
            requests, period_s = quota(self._plan.max_rps)
            self._throttler = Throttler(rate_limit=requests, period=period_s)
        async with asyncio.TaskGroup() as group:
            chores = [group.create_task(chore()) for chore in (self._fill, self._report, self._flush)]
            while not isinstance(command := await commands.get(), Stop):
                if isinstance(command, Prepare):
                    await self._prepare(command)
                else:
                    await self._begin_level(command, group)
            self._level = None
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
        self._wanted = min(_MOST_AHEAD, 8 + prepare.connections)
        while len(self._ready) < self._wanted:
            self._build_some()
            await asyncio.sleep(0)
        self._prepared = prepare.number

    async def _begin_level(self, level: BeginLevel, group: asyncio.TaskGroup) -> None:
        if (early := level.at_ns - self._clock()) > 0:  # all workers at one moment
            await asyncio.sleep(early * 1e-9)
        self._took_s = (self._clock() - level.at_ns) * 1e-9
        if self._selector is not None:
            self._selector.tick_ns = level.tick_ns
        source = self._source_of(level)
        if source is not self._source:  # prompts built so far have the wrong length: their numbers stay unused
            self._source = source
            self._ready.clear()
            self._low.set()
        if level.first_request is not None:
            self._number = level.first_request + self._plan.worker
            self._ready.clear()
            self._low.set()
        self._level = level
        self._done = self._failed = 0
        if level.rate is not None:
            self._start(group, self._on_schedule(level, level.rate, group))
            return
        plan = self._plan
        fresh = [i for i in range(level.slots) if i not in self._slots or self._slots[i].done()]
        delays = stagger(len(fresh), level.spread_s, plan.start, worker=plan.worker, workers=plan.workers)
        self._waiting += len(fresh)
        for i, delay in zip(fresh, delays, strict=True):
            self._slots[i] = group.create_task(self._slot(i, delay))

    async def _slot(self, i: int, delay: float) -> None:
        """Closed loop: one request after the other, as long as the level has this slot."""
        due = self._clock() + round(delay * 1e9)
        failures = 0
        before: Exchange | None = None
        try:
            if delay:
                await asyncio.sleep(delay)
        finally:
            self._waiting -= 1
        while self._level is not None and i < self._level.slots:
            if self._throttler is not None:
                async with self._throttler:
                    pass
            exchange = await self._exchange(self._level, due)
            due = exchange.done_ns
            # An error inside the stream is known only once it is decoded, which is one request later.
            judged = exchange if _failed(exchange) else before
            if judged is not None:
                failures = failures + 1 if _failed(judged) else 0
            before = exchange
            if failures:
                await asyncio.sleep(pause_after(failures, exchange.retry_after_s))

    async def _on_schedule(self, level: BeginLevel, rate: float, group: asyncio.TaskGroup) -> None:
        """Open loop: send each request when it is due, as long as the level lasts."""
        plan, began = self._plan, level.at_ns
        due_s = due_times(
            traffic.parse(level.arrivals), rate, seed=plan.source.seed, level=level.index,
            worker=plan.worker, workers=plan.workers, trace=times(plan.source),
        )  # fmt: skip
        for offset in due_s:
            due = began + round(offset * 1e9)
            if (early := due - self._clock()) > 0:
                await asyncio.sleep(early * 1e-9)
            if self._level is not level:
                return
            self._start(group, self._one(level, due))
            if len(self._in_flight) + _SPARE > self._open and not self._opening:
                self._opening = True
                self._start(group, self._open_ahead())

    async def _open_ahead(self) -> None:
        """A connection of an open loop is open before its request is due."""
        self._open = min(self._plan.max_in_flight, (len(self._in_flight) + 2 * _SPARE) * 5 // 4)
        await self._transport.prepare(self._open)
        self._opening = False

    async def _one(self, level: BeginLevel, due: int) -> None:
        me = object()
        self._queued[me] = due
        try:
            if self._throttler is not None:
                async with self._throttler:
                    pass
            await self._room.acquire()
        finally:
            del self._queued[me]
        try:
            await self._exchange(level, due)
        finally:
            self._room.release()

    def _start(self, group: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> None:
        task = group.create_task(work)
        self._open_loop.add(task)
        task.add_done_callback(self._open_loop.discard)

    async def _exchange(self, level: BeginLevel, due: int) -> Exchange:
        """The next request of the level's source, sent; returns when its response is over."""
        source = self._source_of(level)
        built = self._ready.popleft() if self._ready and source is self._source else self._build(source)
        if 2 * len(self._ready) < self._wanted:
            self._low.set()
        decoding, cancel, timeout_s = self._dialect.decoder(self._placer), built.cancel, self._plan.request_timeout_s
        if cancel is not None and cancel.after_tokens is not None:
            exchange: Exchange = CutExchange(built.id, decoding, cancel.after_tokens)
        else:
            exchange = Exchange(built.id, decoding)
        if cancel is not None and cancel.after_s is not None:
            timeout_s = min(timeout_s, cancel.after_s)
        running = _Running(exchange, level, due, built.class_)
        self._in_flight[built.id] = running
        self._begun_in_run += 1
        try:
            await self._transport.send(exchange, built.data, timeout_s)
            if timeout_s < self._plan.request_timeout_s and exchange.error == "client_deadline":
                exchange.error, exchange.message = ABANDONED, f"given up after {timeout_s:g} s"
        finally:
            del self._in_flight[built.id]
            self._ended.append(running)
            self._done += level is self._level
        return exchange

    def _source_of(self, level: BeginLevel) -> Source:
        """The source of a level's requests: the plan's, or the same with prompts of the level's own length."""
        words = level.prompt_words
        source = self._sources.get(words)
        if source is None:
            source = self._sources[words] = msgspec.structs.replace(self._plan.source, prompt_words=words)
        return source

    def _build(self, source: Source) -> _Built:
        plan, number = self._plan, self._number
        self._number += plan.workers
        request_id, request = f"{plan.run_id}-{plan.worker}-{number}", source.request(number)
        data = self._transport.request(request_id, self._encode(request))
        return _Built(request_id, data, request.class_, request.cancel)

    async def _fill(self) -> None:
        """Keep the next requests built before they are due."""
        while True:
            self._build_some()
            if len(self._ready) < self._wanted:
                await asyncio.sleep(0.001)
            else:
                self._low.clear()
                await self._low.wait()

    def _build_some(self) -> None:
        for _ in range(max(1, min(16, 4096 // self._source.prompt_words))):  # long prompts one a turn
            if len(self._ready) >= self._wanted:
                return
            self._ready.append(self._build(self._source))

    async def _report(self) -> None:
        """Send progress to the parent."""
        reports = 0
        while True:
            due = self._clock() + round(PROGRESS_EVERY_S * 1e9)
            await asyncio.sleep(PROGRESS_EVERY_S)
            reports += 1
            paused_s = max(0, self._clock() - due) * 1e-9
            await self._send(encode(self._progress(paused_s, with_late=reports % 4 == 0)))

    def _progress(self, paused_s: float, *, with_late: bool) -> Progress:
        selector, origin = self._selector, self._plan.origin_ns
        flying = next((running.exchange.sent_ns or running.scheduled_ns for running in self._in_flight.values()), 0)
        oldest = flying if self._level is None or self._level.rate is None else self._oldest_due()
        late: tuple[int, ...] = ()
        if with_late and selector is not None:
            late = tuple(selector.late)
            selector.late = [0] * len(late)
        return Progress(
            time_s=(self._clock() - origin) * 1e-9,
            level=self._level.index if self._level is not None else -1,
            in_flight=len(self._in_flight),
            ended=self._done,
            failed=self._failed,
            waiting=self._waiting,
            tokens=selector.events if selector is not None else 0,
            oldest_sent_s=(oldest - origin) * 1e-9 if oldest else None,
            begun_in_run=self._begun_in_run,
            cpu_s=time.process_time(),
            reads=selector.reads if selector is not None else 0,
            unstamped=selector.unstamped if selector is not None else 0,
            late=late,
            worker=self._plan.worker,
            prepared=self._prepared,
            took_s=self._took_s,
            paused_s=paused_s,
            waited_s=_waited_s() if with_late else None,
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
                records.append(self._record(self._ended.popleft()))
                size += len(records[-1].arrivals)
            await self._send(frames.batch(records))
            await asyncio.sleep(0)  # requests that are due go first

    def _record(self, running: _Running) -> Record:
        exchange, decoded, origin = running.exchange, running.exchange.decoded, self._plan.origin_ns
        self._failed += running.level is self._level and exchange.error not in NOT_FAILED

        def since(stamp: int) -> float | None:
            return (stamp - origin) * 1e-9 if stamp else None

        arrivals = decoded.arrivals
        return Record(
            request_id=exchange.request_id,
            level=running.level.index,
            repeat=running.level.repeat,
            concurrency=running.level.concurrency,
            worker=self._plan.worker,
            url=self._plan.url,
            scheduled_s=(running.scheduled_ns - origin) * 1e-9,
            sent_s=since(exchange.sent_ns),
            connect_s=exchange.connect_ns * 1e-9 if exchange.connect_ns else None,
            tls_s=exchange.tls_ns * 1e-9 if exchange.tls_ns else None,
            first_token_s=since(arrivals[0]) if arrivals else None,
            first_content_s=since(decoded.first_content),
            last_token_s=since(arrivals[-1]) if arrivals else None,
            done_s=since(exchange.done_ns),
            input_tokens=decoded.input_tokens,
            cached_tokens=decoded.cached_tokens,
            output_tokens=decoded.output_tokens,
            reasoning_tokens=decoded.reasoning_tokens,
            token_source=decoded.token_source,
            status=exchange.response.status or None,
            error=exchange.error,
            finish_reason=redact(decoded.finish_reason, self._plan.secrets),
            bytes_received=exchange.bytes_received,
            arrivals=_minus(arrivals, origin),
            tokens=decoded.packed_tokens(),
            error_message=self._first_words(exchange.message) if exchange.error else "",
            merged=decoded.merged,
            lumped=decoded.merged - exchange.merged_late,
            class_=running.class_,
        )

    def _first_words(self, message: str) -> str:
        """The first words of an error's message, on one line and without the secrets that it repeats."""
        return redact(plain(message[: 2 * _LONGEST_MESSAGE]), self._plan.secrets)[:_LONGEST_MESSAGE]


def _failed(exchange: Exchange) -> bool:
    """Whether a request failed, as far as its response is decoded."""
    return exchange.error not in NOT_FAILED or (exchange.response.status != 200 and exchange.error != ABANDONED)


def _waited_s() -> float | None:
    """Seconds that this process waited for a processor since it began; None where the kernel has no such figure."""
    try:
        with open("/proc/self/schedstat", "rb", buffering=0) as file:
            return int(file.read(64).split()[1]) * 1e-9  # the kernel's Documentation/scheduler/sched-stats.rst
    except (OSError, IndexError, ValueError):
        return None


def _minus(stamps: array[int], origin: int) -> bytes:
    """Stamps since the origin, as int64 bytes."""
    return array("q", map((-origin).__add__, stamps)).tobytes()
