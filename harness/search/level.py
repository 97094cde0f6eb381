"""A level while it runs: what is to be measured, what is known of it at one moment, and its counts over time.

Left out: when its window begins and ends (`timing`).
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Collection, Sequence

import msgspec
import numpy as np

from harness.analysis.table import Floats, Ints
from harness.data.record import Level
from harness.search import pace
from harness.search.budget import Budget
from harness.search.pace import Moments
from harness.spec.scenario import Scenario

SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 3.0, 600.0  # bounds of a window that ends when it is precise
_RATE_REQUESTS, _RATE_SHARE = 60.0, 0.2  # a searched rate's window: times of a request alone, share of the time left
_SHORTEST_PROBE_S = 1.0  # shortest window at one prompt length, if time is short
FAILING = 0.5  # share of the last requests: if more fail, the level is ended
_FEWEST_OUTCOMES = 50  # number of last requests that decide whether a level fails
MOST_POINTS = 1 << 14  # 14 minutes of a report every 50 ms; of a longer level every second one is kept, and so on
_LATEST = 64  # points, three seconds


def outcomes_watched(in_flight: float) -> int:
    """Return how many of the last requests decide whether a level fails: two a slot, and enough to rule out chance.

    >>> outcomes_watched(4), outcomes_watched(256)
    (50, 512)
    """
    return max(_FEWEST_OUTCOMES, int(2 * in_flight))


def failing(failed: Collection[bool], last: int) -> bool:
    """Return whether most of the `last` requests failed; False while there are fewer.

    >>> failing([True] * 30 + [False] * 20, 50), failing([True] * 49, 50)
    (True, False)
    """
    return len(failed) >= last and sum(failed) >= FAILING * last


def check_lengths(request_s: float, most: float = LONGEST_WINDOW_S) -> list[float]:
    """Return the lengths of a window, in seconds, at which its precision is checked, by the time of a request.

    >>> check_lengths(0.01)[:2], check_lengths(1.0)[0], check_lengths(60.0)
    ([3.0, 4.5], 22.0, [600.0])
    """
    return pace.lengths(request_s, least=min(SHORTEST_WINDOW_S, most), most=most)


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a level at one moment."""

    time_s: float
    in_flight: int
    ended: int  # requests of this level that ended
    waiting: int  # new slots that have not begun
    surplus: int = 0  # slots of a higher level that are not over
    tokens: int  # token-carrying chunks since the run began
    oldest_sent_s: float | None  # send time of the oldest request in flight
    e2e_s: float  # mean time of the last successes, whichever level they were sent in
    recent_s: float  # mean time of as many of the last successes as the level has slots
    request_s: float  # mean time of the successes that ended in the window; the recent ones' while these are few
    icl_s: float  # median gap between chunks
    failing: bool = False  # most of the level's last requests failed
    oldest: tuple[float, ...] = ()  # when the oldest in flight were sent, in order
    refused: int = 0  # connections in a row that found no server
    wait_s: float = 0.0  # the longest to a first token of this level
    longest_s: float = 0.0  # the longest time of a success so far
    budget: Budget = Budget()


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A level to be measured, and what its timing depends on besides what is seen while it runs."""

    scenario: Scenario
    level: Level
    alone_s: float  # time of a request before any load
    settle_s: float  # seconds from the report of a request's end until its record is there
    rest_s: float = 0.0  # mean rest of a slot for each request: a window has as many of both
    levels_left: int | None = None  # fixed levels left, this one included: they share the time
    moments: Moments | None = None  # moments that are fixed beforehand; None: they follow from what is seen
    silence_s: float = 0.0  # the longest so far at this load or a lower one; 0: none is known
    silence_load: float = 1.0  # at which that was
    spread: float = 1.0  # times the mean that a request of the load may take
    requests: int | None = None  # all that the level sends, which its window then has; None: as long as it lasts
    wanted_s: float | None = None  # seconds of window that decide whether its load meets the SLO; None: by its role
    probes_left: int = 0  # a phase probe's lengths left, this one included: they leave half of the time to its ramp

    def pace(self, request_s: float, seconds_left: float | None) -> pace.Pace:
        """Return how long the level lasts, by the time of a request as it is known now."""
        turn_s = request_s + self.rest_s
        sent = self.level.rate if self.level.concurrency is None else self.level.concurrency / turn_s
        return pace.of_level(self.scenario, self.level.role, turn_s, seconds_left, sent or 0.0, self.wanted_s or 0.0)

    def longest(self, request_s: float, budget: Budget) -> float:
        """Return the most seconds that a level's window may last, by the time left and the levels still to come."""
        most, left = LONGEST_WINDOW_S, budget.seconds_left
        if self.scenario.ramp.search_rate:  # a rate above what the server sustains never becomes precise
            most = min(max(pace.RATE_S, _RATE_REQUESTS * self.alone_s), LONGEST_WINDOW_S)
            most = most if left is None else min(most, max(SHORTEST_WINDOW_S, _RATE_SHARE * left))
        if left is None:
            return most
        if self.levels_left is not None:
            most = min(most, max(SHORTEST_WINDOW_S, left / max(1, self.levels_left) - 3 * request_s))
        if self.probes_left:
            half = (left + budget.spent.seconds - budget.before.seconds) / 2
            most = min(most, max(_SHORTEST_PROBE_S, (left - half) / self.probes_left - 3 * request_s))
        return most


class Phase(enum.StrEnum):
    """How far a level has come."""

    WARM_UP = "warm-up"
    WINDOW = "window"
    COOLDOWN = "cooldown"
    FINISHED = "finished"
    ABANDONED = "abandoned"  # a bound of the run was reached before the window began


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
        self._every, self._since = 1, 0  # one of `_every` points is kept; `_since` came after the last that was

    @property
    def times(self) -> Floats:
        """Return the time of each point, seconds, shape [points]."""
        return self._times[: self._points]

    @property
    def counts(self) -> Ints:
        """Return the counts at each of them, shape [points, columns]."""
        return self._counts[: self._points]

    def add(self, time_s: float, counts: Sequence[int] | Ints) -> None:
        """Append counts at a later time; when there are more than `most` points, drop every second one."""
        self._points += not self._since  # else this point takes the place of the last, which is not to be kept
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
        """Return the time of each point, seconds, shape [points]."""
        return self._kept.times

    @property
    def counts(self) -> Ints:
        """Return the count at each of them, shape [points]."""
        return self._kept.counts[:, 0]

    @property
    def latest(self) -> tuple[float, int] | None:
        """Return the last point."""
        return self._latest[-1] if self._latest else None

    def add(self, time_s: float, count: int) -> None:
        """Take the count at a later time."""
        self._latest.append((time_s, count))
        self._kept.add(time_s, (count,))

    def per_s(self, span_s: float) -> float:
        """Return the count's rise per second over the last `span_s` seconds; 0 if these have no two points."""
        within = [each for each in self._latest if each[0] >= self._latest[-1][0] - span_s]
        if len(within) < 2:
            return 0.0
        (began, before), (ended, after) = within[0], within[-1]
        return (after - before) / (ended - began)
