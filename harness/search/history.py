"""Running counts over the time of a level: of a short one all points, of a long one points at even distances."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np

from harness.analysis.table import Floats, Ints

MOST_POINTS = 1 << 14  # 14 minutes of a report every 50 ms; of a longer level every second one is kept, and so on
_LATEST = 64  # points, three seconds


class Thinned:
    """When some counts were what; once there are too many points every second one is kept, and so on.

    The last point is always the latest. The memory for all points is taken at once, so that a level takes as much after
    hours as at first.
    """

    def __init__(self, most: int, columns: int) -> None:
        self._most = most
        self._times = np.full(most + 1, np.nan)
        self._counts = np.full((most + 1, columns), -1)
        self._points = 0
        self._every, self._since = 1, 0  # of how many points one is kept, and how many came since the last of them

    @property
    def times(self) -> Floats:
        """Seconds, shape [points]."""
        return self._times[: self._points]

    @property
    def counts(self) -> Ints:
        """The counts at each of them, shape [points, columns]."""
        return self._counts[: self._points]

    def add(self, time_s: float, counts: Sequence[int] | Ints) -> None:
        """Take the counts at a later time."""
        self._points += not self._since  # else the last point is not to be kept
        self._times[self._points - 1], self._counts[self._points - 1] = time_s, counts
        self._since = (self._since + 1) % self._every
        if self._points > self._most:
            kept = -(-self._points // 2)
            self._times[:kept], self._counts[:kept] = self.times[::2].copy(), self.counts[::2].copy()
            self._points, self._every, self._since = kept, 2 * self._every, 0


class History:
    """When a count was what, `times` and `counts`; of the last seconds its rate."""

    def __init__(self) -> None:
        self._kept = Thinned(MOST_POINTS, 1)
        self._latest: collections.deque[tuple[float, int]] = collections.deque(maxlen=_LATEST)

    @property
    def times(self) -> Floats:
        """Seconds, shape [points]."""
        return self._kept.times

    @property
    def counts(self) -> Ints:
        """The count at each of them, shape [points]."""
        return self._kept.counts[:, 0]

    @property
    def latest(self) -> tuple[float, int] | None:
        """The last point."""
        return self._latest[-1] if self._latest else None

    def add(self, time_s: float, count: int) -> None:
        """Take the count at a later time."""
        self._latest.append((time_s, count))
        self._kept.add(time_s, (count,))

    def per_s(self, span_s: float) -> float:
        """By how much it rose a second over the last seconds; 0 where these have no two points."""
        within = [each for each in self._latest if each[0] >= self._latest[-1][0] - span_s]
        if len(within) < 2:
            return 0.0
        (began, before), (ended, after) = within[0], within[-1]
        return (after - before) / (ended - began)
