"""When requests are sent: at each time that comes in an open loop, and those of a task after those that they wait for.

`workload.task.Progress` decides what may be sent of a task. A request of it is built as soon as it is known, most often
in the pause before it. Left out: the exchange itself, which is the driver's.
"""

from __future__ import annotations

import asyncio
import collections
import math
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from harness.load.schedule import pause_after
from harness.workload.request import Request
from harness.workload.task import Progress, Task
from harness.workload.tasks import Tasks


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
    progress, last_ns, retry_after_s = Progress(task), start_ns, 0.0

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
