"""A worker's tasks: the slots that keep requests in flight, and the messages about them.

Closed loop: a slot sends, waits for the end, sends again. A level changes by changing how many slots there are:
those that stay never pause, new ones begin staggered, surplus ones end with the request they hold. Who holds a
level for how long is decided outside; the driver only tells what is going on. Every request ends as a record,
tagged with the level in which it was sent.

The open-loop driver comes later, beside `_slot`.
"""

from __future__ import annotations

import asyncio
import collections
import time
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from harness import store
from harness.load.http1 import request, request_head
from harness.load.loop import HotSelector, now
from harness.load.schedule import pause_after, stagger
from harness.load.transport import Answer, Transport
from harness.load.workload import Prompts
from harness.record import Record

BATCH_EVERY_S = 0.25
PROGRESS_EVERY_S = 0.05


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told once, at its start."""

    worker: int
    run_id: str
    host: str
    port: int
    path: str
    url: str
    headers: dict[str, str]
    body_before: bytes
    body_after: bytes
    words: tuple[str, ...]
    prompt_words: int
    seed: int
    first_prompt: int  # numbers below were used by the launch checks
    request_timeout_s: float
    max_rps: float | None
    start: str
    tick_ns: int
    origin_ns: int
    cpus: tuple[int, ...] = ()


class Hold(msgspec.Struct, frozen=True, tag="hold", tag_field="kind"):
    """Go to this level; new slots begin spread over `spread_s`."""

    index: int
    concurrency: int
    repeat: int
    spread_s: float
    tick_ns: int


class Stop(msgspec.Struct, frozen=True, tag="stop", tag_field="kind"):
    """Cut what is in flight, send the last batch, end."""


Command = Hold | Stop


class Progress(msgspec.Struct, frozen=True, tag="progress", tag_field="kind"):
    """What is going on, twenty times a second; counts since the level's Hold unless said otherwise."""

    time_s: float
    level: int
    in_flight: int
    ended: int  # of the requests sent in this level
    failed: int  # likewise, as far as their answers are decoded
    waiting: int  # new slots whose staggered start is still to come
    tokens: int  # token-carrying chunks decoded since the run began
    oldest_sent_s: float | None  # of the requests now in flight
    begun_in_run: int
    cpu_s: float  # of this process, since it began
    reads: int
    unstamped: int
    late: tuple[int, ...] = ()  # read-delay histogram since the last one sent, five times a second


class Done(msgspec.Struct, frozen=True, tag="done", tag_field="kind"):
    """The worker's last message: every record is sent."""

    timestamp_source: str
    resent: int = 0  # requests sent again because the server had closed a kept connection


Message = Progress | Done


class _Ask(msgspec.Struct, frozen=True, gc=False):
    answer: Answer
    level: Hold
    scheduled_ns: int


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
        self._prompts = Prompts(plan.words, plan.prompt_words, plan.seed)
        self._head = request_head("POST", plan.path, plan.url.removeprefix("http://"), plan.headers)
        self._number = plan.first_prompt
        self._ready: collections.deque[tuple[str, bytes]] = collections.deque()
        self._hold: Hold | None = None
        self._slots: dict[int, asyncio.Task[None]] = {}
        self._in_flight: dict[str, _Ask] = {}  # in the order they were sent
        self._ended: collections.deque[_Ask] = collections.deque()
        self._done = self._failed = self._waiting = self._begun_in_run = 0
        self._throttler: Any = None

    async def run(self, commands: asyncio.Queue[Command]) -> None:
        """Obey commands until Stop; then cut what is in flight and send every record."""
        if self._plan.max_rps:
            from asyncio_throttle.throttler import Throttler

            # A sliding window, not a pacer: it keeps a quota, and what a request waits for it is lag.
            quota = self._plan.max_rps
            self._throttler = Throttler(rate_limit=max(1, int(quota)), period=max(1.0, 1.0 / quota))
        async with asyncio.TaskGroup() as group:
            chores = [group.create_task(chore()) for chore in (self._fill, self._report, self._flush)]
            while isinstance(command := await commands.get(), Hold):
                await self._go_to(command, group)
            cut = [slot for slot in self._slots.values() if not slot.done()]
            for task in cut:
                task.cancel()
            await asyncio.gather(*cut, return_exceptions=True)
            for task in chores:
                task.cancel()
        if self._selector is not None:
            self._selector.decode_all()
        await self._send_batch()

    async def _go_to(self, hold: Hold, group: asyncio.TaskGroup) -> None:
        await self._transport.prepare(hold.concurrency)
        if self._selector is not None:
            self._selector.tick_ns = hold.tick_ns
        self._hold = hold
        self._done = self._failed = 0
        fresh = [i for i in range(hold.concurrency) if i not in self._slots or self._slots[i].done()]
        for i, delay in zip(fresh, stagger(len(fresh), hold.spread_s, self._plan.start), strict=True):
            self._waiting += 1
            self._slots[i] = group.create_task(self._slot(i, delay))

    async def _slot(self, i: int, delay: float) -> None:
        due = self._clock() + round(delay * 1e9)
        failures = 0
        before: Answer | None = None
        try:
            await asyncio.sleep(delay)
        finally:
            self._waiting -= 1
        while self._hold is not None and i < self._hold.concurrency:
            if self._throttler is not None:
                async with self._throttler:
                    pass
            request_id, data = self._ready.popleft() if self._ready else self._build()
            ask = _Ask(Answer(request_id), self._hold, due)
            self._in_flight[request_id] = ask
            self._begun_in_run += 1
            try:
                await self._transport.exchange(ask.answer, data, self._plan.request_timeout_s)
            finally:
                del self._in_flight[request_id]
                self._ended.append(ask)
            due = ask.answer.done_ns
            self._done += ask.level is self._hold
            # What only its decoding tells of an answer (an error inside the stream) is known one request later.
            judged = ask.answer if ask.answer.error or ask.answer.response.status != 200 else before
            if judged is not None:
                failures = failures + 1 if judged.error or judged.response.status != 200 else 0
            before = ask.answer
            if failures:
                await asyncio.sleep(pause_after(failures))

    def _build(self) -> tuple[str, bytes]:
        plan, number = self._plan, self._number
        self._number += 1
        request_id = f"{plan.run_id}-{plan.worker}-{number}"
        body = plan.body_before + self._prompts.quoted(number) + plan.body_after
        return request_id, request(self._head, request_id, body)

    async def _fill(self) -> None:
        """Keep the next requests' bytes built before they are due."""
        while True:
            wanted = min(1024, 8 + self._hold.concurrency) if self._hold is not None else 8
            for _ in range(max(1, min(16, 4096 // self._plan.prompt_words))):  # long prompts one a turn
                if len(self._ready) >= wanted:
                    break
                self._ready.append(self._build())
            await asyncio.sleep(0.001 if len(self._ready) < wanted else 0.005)

    async def _report(self) -> None:
        """Tell the parent what is going on."""
        reports = 0
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            reports += 1
            await self._send(msgspec.msgpack.encode(self._progress(with_late=reports % 4 == 0)))

    def _progress(self, *, with_late: bool) -> Progress:
        selector, origin = self._selector, self._plan.origin_ns
        oldest = next((ask.answer.sent_ns for ask in self._in_flight.values() if ask.answer.sent_ns), 0)
        late: tuple[int, ...] = ()
        if with_late and selector is not None:
            late = tuple(selector.late)
            selector.late = [0] * len(late)
        return Progress(
            time_s=(self._clock() - origin) * 1e-9,
            level=self._hold.index if self._hold is not None else -1,
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
        )

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(BATCH_EVERY_S)
            await self._send_batch()

    async def _send_batch(self) -> None:
        """Send the records of the requests that are over and decoded to the end, in order of their end."""
        records = []
        while self._ended and self._ended[0].answer.complete:
            records.append(self._record(self._ended.popleft()))
        if records:
            await self._send(store.batch(records))

    def _record(self, ask: _Ask) -> Record:
        answer, story, origin = ask.answer, ask.answer.story, self._plan.origin_ns
        self._failed += ask.level is self._hold and answer.error not in ("", "cancelled")

        def since(stamp: int) -> float | None:
            return (stamp - origin) * 1e-9 if stamp else None

        arrivals = story.arrivals
        single = all(n == 1 for n in story.tokens)
        return Record(
            request_id=answer.request_id,
            level=ask.level.index,
            repeat=ask.level.repeat,
            concurrency=ask.level.concurrency,
            worker=self._plan.worker,
            url=self._plan.url,
            scheduled_s=(ask.scheduled_ns - origin) * 1e-9,
            sent_s=since(answer.sent_ns),
            connect_s=answer.connect_ns * 1e-9 if answer.connect_ns else None,
            first_token_s=since(arrivals[0]) if arrivals else None,
            first_content_s=since(story.first_content),
            last_token_s=since(arrivals[-1]) if arrivals else None,
            done_s=since(answer.done_ns),
            input_tokens=story.input_tokens,
            cached_tokens=story.cached_tokens,
            output_tokens=story.output_tokens,
            reasoning_tokens=story.reasoning_tokens,
            token_source=story.token_source,
            status=answer.response.status or None,
            error=answer.error,
            finish_reason=story.finish_reason,
            bytes_received=answer.bytes_received,
            arrivals=_minus(arrivals, origin),
            tokens=b"" if single else story.tokens.tobytes(),
            error_message=" ".join(answer.message.split())[:200] if answer.error else "",
            merged=story.merged,
        )


def _minus(stamps: array[int], origin: int) -> bytes:
    """Stamps since the origin, as int64 bytes."""
    return array("q", [stamp - origin for stamp in stamps]).tobytes()
