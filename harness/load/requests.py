"""A worker's requests: built before they are due, sent when they are, and the record that each of them ends as.

None of the work of making a request delays its send. The worker's share of the numbers is every n-th; each number is
one request, or task, in a run. In an open loop one is sent at each time that comes, of a task after those that it waits
for: `workload.task.TaskProgress` decides what may be sent of it, and a request is built as soon as it is known, most
often in the pause before it. Left out: the exchange itself, which is the driver's.
"""

from __future__ import annotations

import asyncio
import collections
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from harness.base.secrecy import plain, redact
from harness.data.record import Record
from harness.load import receive
from harness.load.messages import BeginLevel, Plan
from harness.load.schedule import pause_after
from harness.load.transport import Exchange, Transport
from harness.workload.canaries import judge
from harness.workload.image import Images
from harness.workload.request import Request
from harness.workload.source import Canaries, Single
from harness.workload.task import Task, TaskProgress
from harness.workload.tasks import Tasks

# Fields that may say how long an answer is, in the words of all APIs.
_LENGTHS = {"max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "options", "parameters"}
_MOST_AHEAD = 4096  # requests built ahead at most


class Built(msgspec.Struct, frozen=True, gc=False):
    """A request that is ready to be sent."""

    id: str
    data: Any
    request: Request  # has no prompt and no images: these are in `data`
    asked: int | None  # tokens of its answer; None: fields of the operator's may say otherwise


class Prepared:
    """The requests of a worker's source; `source` is None if it makes tasks, which are built one by one."""

    def __init__(self, plan: Plan, transport: Transport) -> None:
        self._plan = plan
        self._transport = transport
        self._encode = plan.codec.encoder.encode
        self._images = Images(*plan.images, plan.source.seed) if plan.images else None
        self._number = plan.first_request + plan.worker
        self._ready: collections.deque[Built] = collections.deque()
        self._of_words: dict[int | None, Single] = {}  # by words of a level's own prompts
        self.source: Single | None = None  # source of the requests that are built ahead
        if not isinstance(plan.source, Tasks):
            self.source = self._of_words[None] = plan.source
        self._wanted = 8  # how many requests to have built ahead
        self._low = asyncio.Event()  # fewer than half of them are left

    async def prepare(self, connections: int) -> None:
        """Build ahead the first requests of a level with `connections` in flight."""
        self._wanted = min(_MOST_AHEAD, 8 + connections)
        while self.source is not None and len(self._ready) < self._wanted:
            self._build_some()
            await asyncio.sleep(0)

    def begin(self, level: BeginLevel) -> None:
        """Take requests from this level's source and numbers from now on; discard those built ahead for another."""
        source = None if self.source is None else self._source_of(level)
        if source is self.source and level.first_request is None:
            return
        self.source = source
        self._ready.clear()
        self._low.set()
        if level.first_request is not None:
            self._number = level.first_request + self._plan.worker

    def next(self, level: BeginLevel) -> Built:
        """Return the next request of the level's source."""
        source = self._source_of(level)
        built = self._ready.popleft() if self._ready and source is self.source else self._build(source)
        if 2 * len(self._ready) < self._wanted:
            self._low.set()
        return built

    def next_number(self) -> int:
        """Return the next number of a request or of a task: each comes once in a run."""
        number, self._number = self._number, self._number + self._plan.workers
        return number

    def build(self, request: Request) -> Built:
        """Return a request encoded for the transport, with its id of run, worker and number."""
        plan = self._plan
        if self._images is not None and request.canary is None:
            request = msgspec.structs.replace(request, images=self._images.of(request.number))
        request_id = f"{plan.run_id}-{plan.worker}-{request.number}"
        data = self._transport.request(request_id, self._encode(request), request.session)
        own = plan.codec.extra_body.keys() | plan.codec.classes.get(request.class_, {}).keys()
        bare = msgspec.structs.replace(request, prompt="", images=())
        return Built(request_id, data, bare, None if own & _LENGTHS else request.output_tokens)

    async def fill(self) -> None:
        """Build requests ahead whenever few are left, without end."""
        while True:
            self._build_some()
            if len(self._ready) < self._wanted:
                await asyncio.sleep(0.001)
            else:
                self._low.clear()
                await self._low.wait()

    def _source_of(self, level: BeginLevel) -> Single:
        """Return the source of a level's requests: the plan's, with prompts of the level's own length if it has one."""
        words = level.prompt_words
        source = self._of_words.get(words)
        if source is None:
            source = self._of_words[words] = msgspec.structs.replace(self._of_words[None], prompt_words=words)
        return source

    def _build(self, source: Single) -> Built:
        return self.build(source.request(self.next_number()))

    def _build_some(self) -> None:
        if (source := self.source) is None:
            return
        for _ in range(max(1, min(16, 4096 // source.prompt_words))):  # long prompts one a turn
            if len(self._ready) >= self._wanted:
                return
            self._ready.append(self._build(source))


_LONGEST_MESSAGE = 200  # characters of an error's message


class Running(msgspec.Struct, frozen=True, gc=False):
    """A request that was sent."""

    built: Built
    exchange: Exchange
    level: BeginLevel  # in which it was sent
    scheduled_ns: int
    origin_ns: int  # the run's t = 0 by this worker's clock, as it was known when it was sent


def record(running: Running, plan: Plan) -> Record:
    """Return the record of a request that is over and decoded."""
    exchange, decoded, origin = running.exchange, running.exchange.decoded, running.origin_ns
    request = running.built.request

    def since(stamp: int) -> float | None:
        return (stamp - origin) * 1e-9 if stamp else None

    arrivals = decoded.arrivals
    made = Record(
        request_id=exchange.request_id,
        level=running.level.index,
        repeat=running.level.repeat,
        concurrency=running.level.concurrency,
        worker=plan.worker,
        url=exchange.url or plan.replicas[0].url,
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
        finish_reason=redact(decoded.finish_reason, plan.secrets),
        bytes_received=exchange.bytes_received,
        arrivals=receive.shifted(arrivals, -origin),
        tokens=decoded.packed_tokens(),
        class_=request.class_,
        session_id=request.session,
        turn=request.turn,
        error_message=_first_words(exchange.message, plan) if exchange.error else "",
        merged=decoded.merged,
        lumped=decoded.merged - exchange.merged_late,
        noted=redact(",".join((*exchange.noted, *decoded.noted)), plan.secrets),
    )
    return made if request.canary is None else _of_canary(made, request.canary, decoded.text, plan)


def _of_canary(made: Record, canary: int, text: str, plan: Plan) -> Record:
    """Return a canary's record with where its answer differs from the first one, its flaw and its score."""
    assert isinstance(plan.source, Canaries)
    if made.error:
        return msgspec.structs.replace(made, canary=canary)
    found = judge(plan.source.canaries[canary], text)
    return msgspec.structs.replace(made, canary=canary, differs_at=found.differs_at, flaw=found.flaw, score=found.score)


def _first_words(message: str, plan: Plan) -> str:
    """Return the first words of an error's message, on one line and without the secrets that it repeats."""
    return redact(plain(message[: 2 * _LONGEST_MESSAGE]), plan.secrets)[:_LONGEST_MESSAGE]


# ---- when they are sent


async def each(due_ns: Iterable[int], clock: Callable[[], int], come: Callable[[int], bool]) -> None:
    """Call `come` with each time once the clock has reached it, until there are no more or it returns False.

    It is called by the loop's timer itself: a task that sleeps resumes two turns of a busy loop later.
    """
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    left = iter(due_ns)
    timer: asyncio.TimerHandle | None = None

    def go_on(due: int | None) -> None:
        nonlocal timer
        if over.done():  # cut in this very turn of the loop
            return
        try:
            while due is not None:
                if (early := due - clock()) > 0:
                    timer = loop.call_later(early * 1e-9, go_on, due)
                    return
                due = next(left, None) if come(due) else None
        except Exception as error:  # noqa: BLE001 - it is raised where the schedule is awaited
            over.set_exception(error)
        else:
            over.set_result(None)

    go_on(next(left, None))
    try:
        await over
    finally:
        if timer is not None:
            timer.cancel()


class Room:
    """Places for so many at once; those that wait for one get it in their order."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()

    def enter(self) -> bool:
        """Take a place, if one is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        """Take a place as soon as one is free."""
        if self.enter():
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """Give a place back, to the one that waits longest."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1


class Answer(msgspec.Struct, frozen=True):
    """How a request of a task ended."""

    done_ns: int
    text: str | None  # None: it failed, or was not sent
    retry_after_s: float = 0.0  # for which the server wants no more; 0: it does not say


Send = Callable[[Request, int], Awaitable[Answer]]  # a request and when it is due; returns when its answer is decoded


class TaskEnd(msgspec.Struct, frozen=True):
    at_ns: int  # its last request
    failed: bool  # one of its requests
    retry_after_s: float  # the longest that one of them was answered with


async def run_task(tasks: Tasks, task: Task, start_ns: int, send: Send) -> TaskEnd:
    """Send every request of a task once those it waits for are answered; return when it ended, and if it failed."""
    progress, last_ns, retry_after_s = TaskProgress(task), start_ns, 0.0

    async def exchange(node: int, due_s: float) -> None:
        nonlocal last_ns, retry_after_s
        answer = await send(tasks.request(task, node, progress.answers), start_ns + round(due_s * 1e9))
        last_ns, retry_after_s = max(last_ns, answer.done_ns), max(retry_after_s, answer.retry_after_s)
        progress.ended(node, (answer.done_ns - start_ns) * 1e-9, answer.text)
        release()

    def release() -> None:
        for node, due_s in progress.ready(math.inf):  # `send` waits until they are due
            group.create_task(exchange(node, due_s))

    async with asyncio.TaskGroup() as group:
        release()
    return TaskEnd(last_ns, progress.failed, retry_after_s)


async def one_after_the_other(
    tasks: Tasks, next_number: Callable[[], int], due_ns: int, send: Send, wanted: Callable[[], object]
) -> None:
    """Run tasks in a slot, one after the other, while wanted() is true; rest after a task that failed."""
    failures = 0
    while wanted():
        ended = await run_task(tasks, tasks.task(next_number()), due_ns, send)
        due_ns, failures = ended.at_ns, failures + 1 if ended.failed else 0
        if failures:
            await asyncio.sleep(pause_after(failures, ended.retry_after_s))
