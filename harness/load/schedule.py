"""A worker's time: its share of a level, the rest after a failure, the tick of its loop, and what is due when."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Iterable


def shares(total: int, workers: int) -> list[int]:
    """How many of a level's slots each worker has: evenly, the first ones one more.

    >>> shares(10, 4)
    [3, 3, 2, 2]
    """
    return [total // workers + (i < total % workers) for i in range(workers)]


def pause_after(failures: int, retry_after_s: float = 0.0) -> float:
    """How long a slot rests after so many failures in a row, seconds.

    A server that refuses at once must not be flooded; the rest is lag in the record. A Retry-After is kept up to the
    longest rest, since by then the errors have voided the level.

    >>> [pause_after(n) for n in (0, 1, 2, 3, 9)]
    [0.0, 0.05, 0.1, 0.2, 1.0]
    >>> pause_after(1, retry_after_s=0.5), pause_after(1, retry_after_s=60)
    (0.5, 1.0)
    """
    return 0.0 if failures == 0 else min(1.0, max(retry_after_s, 0.05 * 2.0 ** min(failures - 1, 5)))


def tick_ns(itl_s: float | None, e2e_s: float | None) -> int:
    """How long the loop may sleep, nanoseconds: clamp(min(ITL/8, E2E/256), 0.25 ms, 3 ms).

    Stamps are the kernel's, so the tick costs no accuracy of arrival; it bounds how late the next send is.

    >>> tick_ns(0.016, 2.0), tick_ns(None, None)
    (2000000, 1000000)
    """
    known = [t for t in (itl_s and itl_s / 8, e2e_s and e2e_s / 256) if t]
    return round(min(0.003, max(0.00025, min(known))) * 1e9) if known else 1_000_000


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
