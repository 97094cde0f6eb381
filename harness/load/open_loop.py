"""The open loop's two means: something done at each time that comes, and places for so many at once."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Iterable


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
