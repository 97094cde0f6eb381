"""A running count over the time of a level: all of its last seconds, and of a long one evenly thinned points before."""

from __future__ import annotations

import collections
from array import array

MOST_POINTS = 1 << 14  # 14 minutes of a report every 50 ms; of a longer level every second one is kept, and so on
_LATEST = 64  # points, three seconds


class History:
    """When a count was what, `times` and `counts`; of the thinned points the last is the latest."""

    def __init__(self) -> None:
        self.times = array("d")  # shape [points]
        self.counts = array("q")
        self._latest: collections.deque[tuple[float, int]] = collections.deque(maxlen=_LATEST)
        self._every, self._since = 1, 0  # of how many points one is kept, and how many came since the last of them

    def add(self, time_s: float, count: int) -> None:
        """Take the count at a later time."""
        self._latest.append((time_s, count))
        if self._since:  # the last one is not to be kept
            self.times[-1], self.counts[-1] = time_s, count
        else:
            self.times.append(time_s)
            self.counts.append(count)
        self._since = (self._since + 1) % self._every
        if len(self.times) > MOST_POINTS:
            self.times, self.counts = self.times[::2], self.counts[::2]
            self._every, self._since = 2 * self._every, 0

    def per_s(self, span_s: float) -> float:
        """By how much it rose a second over the last seconds; 0 where these have no two points."""
        within = [each for each in self._latest if each[0] >= self._latest[-1][0] - span_s]
        if len(within) < 2:
            return 0.0
        (began, before), (ended, after) = within[0], within[-1]
        return (after - before) / (ended - began)
