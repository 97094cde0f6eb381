"""The deadlines of the requests in flight, by one timer for all that may take as long.

A timer of its own for each request would cost time where many are sent at once, and asyncio keeps those that were taken
back in memory until they are half of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from harness.load.loop import now
from harness.load.transport import Exchange


class Deadlines:
    """Calls `expired` with each exchange whose deadline has come; all of them may take the same time."""

    def __init__(self, seconds: float, expired: Callable[[Exchange], None]) -> None:
        self._seconds = seconds
        self._expired = expired
        self._at: dict[Exchange, int] = {}  # CLOCK_MONOTONIC ns; the first one added has the first deadline
        self._timer: asyncio.TimerHandle | None = None

    def add(self, exchange: Exchange) -> int:
        """Its time begins now; its deadline, CLOCK_MONOTONIC ns."""
        self._at[exchange] = deadline = now() + round(self._seconds * 1e9)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._check)
        return deadline

    def remove(self, exchange: Exchange) -> None:
        """It is over. The timer stays: it is set to the next deadline when it goes off."""
        self._at.pop(exchange, None)

    def close(self) -> None:
        """No deadline comes any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        while self._at:
            exchange, deadline = next(iter(self._at.items()))
            if (left_ns := deadline - now()) > 0:
                self._timer = asyncio.get_running_loop().call_later(left_ns * 1e-9, self._check)
                return
            del self._at[exchange]
            self._expired(exchange)
