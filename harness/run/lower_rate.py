"""Before a lower rate of an open loop: nothing is sent until the requests of the higher one are over.

Where that was more than the server can serve, many of them wait, and the lower rate would have their waits.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.load.workers import Workers
from harness.run.live_state import LiveState
from harness.run.view import View
from harness.search.budget import Budget

_LONGEST_S, _LONGEST_REQUESTS = 10.0, 3.0  # seconds and request times that the queue has to end
_NOTED_S = 5.0  # from which on the wait is noted


class LowerRate:
    """Knows the last level's rate."""

    def __init__(self, live: LiveState, view: View) -> None:
        self._live = live
        self._view = view
        self._last = 0.0  # requests per second

    async def wait(self, rate: float | None, workers: Workers, budget: Callable[[], Budget]) -> None:
        """Wait where the next rate is lower than the last one, at most until a bound of the run is reached."""
        lower, self._last = rate is not None and rate < self._last, rate or 0.0
        if not lower:
            return
        workers.rest()
        began_s, noted = self._live.now(), False
        longest_s = max(_LONGEST_S, _LONGEST_REQUESTS * self._live.e2e_s)
        while budget().over() is None:
            now = await workers.next_progress()
            waited_s, over = now.time_s - began_s, now.level < 0 and now.oldest_sent_s is None
            if over or waited_s > longest_s:
                return
            if waited_s > _NOTED_S and not noted:
                noted = True
                self._view.note(f"waiting until {now.in_flight:,} requests of the higher rate are over")
