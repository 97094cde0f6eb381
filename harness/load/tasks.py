"""One task on the event loop: its requests are sent when those that they wait for have ended and their pause is over.

`workload.task.Progress` decides what may be sent. A request is built as soon as it is known, most often in the pause
before it. Left out: the exchange itself, which is the driver's.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import msgspec

from harness.load.schedule import pause_after
from harness.workload.request import Request
from harness.workload.task import Progress, Task
from harness.workload.tasks import Tasks


class Answer(msgspec.Struct, frozen=True):
    """How a request of a task ended."""

    done_ns: int
    text: str | None  # None: it failed, or was not sent
    retry_after_s: float = 0.0  # for which the server wants no more; 0: it does not say


Send = Callable[[Request, int], Awaitable[Answer]]  # a request and when it is due; returns when its answer is decoded


class TaskEnd(msgspec.Struct, frozen=True):
    """How a task ended."""

    at_ns: int  # its last request
    failed: bool  # one of its requests
    retry_after_s: float  # the longest that one of them was answered with


async def run(tasks: Tasks, task: Task, start_ns: int, send: Send) -> TaskEnd:
    """Send all that can be sent of a task."""
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
    tasks: Tasks, next_number: Callable[[], int], due_ns: int, send: Send, wanted: Callable[[], bool]
) -> None:
    """The tasks of a slot, each from the end of the one before, as long as the slot is wanted."""
    failures = 0
    while wanted():
        ended = await run(tasks, tasks.task(next_number()), due_ns, send)
        due_ns, failures = ended.at_ns, failures + 1 if ended.failed else 0
        if failures:
            await asyncio.sleep(pause_after(failures, ended.retry_after_s))
