"""How many requests the server serves at once: counted in the records, not fitted to throughput.

A request that has its first token and not yet its last one holds a seat. Where more requests are in flight than there
are seats, the same number streams at every load, and the rest waits. The machine's speed is nowhere in it. A server
without such a number (none is set, or memory is what ends) streams more as more come, and is refused. Left out: the
throughput curve, and whether the seats are the headline (`summarise`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis.rules import Purpose, usable
from harness.analysis.stats import running_means, t_quantile
from harness.analysis.table import Bools, Floats, Table
from harness.data.levels import LevelSummary, Service
from harness.data.views import ServerView, Value
from harness.results.readers.level import ForeignLevel

LASTING = 0.001  # share of a window: what streams at once for less is an overlap of stamps
EDGE = 0.025  # share of a window at the greatest number, if that is a bound; of a normal count, σ >= 1, it is 0.003
CROWDED = 1.15  # in flight over in service, from where on requests wait
TREND = 0.25  # d ln(in service)/d ln(in flight), above which there is no fixed number
FILLED = 0.95  # in service over the greatest number that streamed, from where on that is the number of seats
APART = 0.1  # the server's own count may differ by this share: it is read between two steps
_STREAMS = 0.5  # share of the time in service; below it the prompts decide, which are not seen
_TYPICAL, _PRIOR = 0.05, 2  # scatter between loads, and how many loads that assumption counts for


class Occupancy(msgspec.Struct, frozen=True):
    """What one level shows of the seats; if there are no records `streaming` is throughput times TPOT."""

    load: float  # requested: requests in flight, or sessions
    in_flight: float  # mean requests
    streaming: float  # mean requests between their first token and their last
    tpot_s: float
    seconds: float  # length of the window, its weight
    most: int = 0  # the most requests that streamed at once; 0: not known
    most_fraction: float = 0.0  # share of the window with `most` streams
    running: float | None = None  # the server's own, as is `waiting`
    waiting: float | None = None


class Seats(msgspec.Struct, frozen=True):
    """How many requests the server serves at once, and what shows it."""

    value: float
    ci95: tuple[float, float]
    loads: tuple[float, ...]  # at which requests wait
    counted: bool  # the same greatest number streamed at two loads; else it is a mean
    source: str  # records | both: the server's own running and waiting agree

    @property
    def onset(self) -> float:
        """Return the lowest measured load at which requests wait."""
        return self.loads[0]


def service(table: Table, start: float, end: float, request_s: float | None) -> Service | None:
    """Return how many requests stream at once in [start, end): the mean, and the most for some time; None: none does.

    The mean is Σ|[first, last] ∩ [start, end)| / (end - start), exact for each request, failed ones included; its
    interval is by batch means over time.
    """
    streams = table.last > table.first
    times = np.concatenate([table.last[streams], table.first[streams]])
    steps = np.repeat([-1, 1], np.count_nonzero(streams))
    order = np.argsort(times, kind="stable")  # who leaves at the moment at which another comes leaves first
    edges = np.concatenate([[start], np.clip(times[order], start, end), [end]])
    count, spans = np.concatenate([[0], np.cumsum(steps[order])]), np.diff(edges)
    upto = np.concatenate([[0.0], np.cumsum(count * spans)])
    if not upto[-1] > 0:
        return None
    shares = np.bincount(count, spans) / (end - start)
    at_least = np.cumsum(shares[::-1])[::-1]
    most = int(np.flatnonzero(at_least >= LASTING)[-1])
    return Service(running_means(edges, upto, start, end, request_s), most, float(shares[most]))


def occupancies(levels: Sequence[LevelSummary]) -> list[Occupancy]:
    """Return the levels of a closed loop whose answers stream, those that may be points of a curve; a list."""
    return [each for each in map(occupancy, levels) if each is not None]


def occupancy(level: LevelSummary) -> Occupancy | None:
    """Return how many requests of a level stream and wait, for the search of seats; None if that is not known."""
    load, N, tpot_s = level.concurrency, level.in_flight, level.tpot_s.mean
    if load is None or level.input_tokens_asked is not None or not usable(level, Purpose.POINT):
        return None
    streaming = level.service.streaming.mean if level.service else _by_law(level.output_tokens_per_s.mean, tpot_s)
    if not N or not tpot_s or not streaming:
        return None
    counted = (level.service.most, level.service.most_fraction) if level.service else (0, 0.0)
    server = level.server or ServerView()
    return Occupancy(load, N, streaming, tpot_s, level.window_s, *counted, server.running, server.waiting)


def occupancy_of_file(load: float, level: ForeignLevel) -> Occupancy | None:
    """Return how many requests stream and wait in a level of another tool's file.

    None for an invalid level, and without a mean TPOT or ITL.
    """
    tpot_s = level.tpot_s.mean or level.itl_mean_s
    own = level.service
    streaming = own.streaming.mean if own else _by_law(level.output_tokens_per_s, tpot_s)
    if not level.valid or not streaming or not tpot_s:
        return None
    seconds = level.requests / level.requests_per_s if level.requests and level.requests_per_s else 1.0
    counted = (own.most, own.most_fraction) if own else (0, 0.0)
    N = level.in_flight or load
    return Occupancy(load, N, streaming, tpot_s, level.window_s or seconds, *counted, level.running, level.waiting)


def _by_law(tokens_per_s: float | None, tpot_s: float | None) -> float | None:
    """Return requests that stream by Little's law: tokens a second times seconds a token."""
    return tokens_per_s * tpot_s if tokens_per_s and tpot_s else None


def waiting(levels: Sequence[Occupancy]) -> list[float]:
    """Return the list of loads at which requests wait to be served, in order."""
    crowd = _Crowd.of(levels)
    return [level.load for level in crowd.only(crowd.waits).levels]


def find(levels: Sequence[Occupancy]) -> Seats | None:
    """Return the seats with their 95 % interval, in requests; None if the levels do not show them.

    Where the same greatest number streams at two loads at which requests wait, for a good part of the time, and the
    mean in service is as great, that is the number: it is counted, and no server has less. Else it is the mean that
    streams, with the prompts that are computed then (`_Crowd`), if that does not move with the load. None if requests
    wait at fewer than two loads, if prompts take more than half of the time in service, or if the server counts another
    number itself.

    >>> rows = (4, 3.8, 4), (8, 7.6, 8), (12, 7.6, 8), (16, 7.6, 8)  # load, streaming on average and at most
    >>> find([Occupancy(load, load, mean, 0.02, 20.0, most, 0.5) for load, mean, most in rows])
    Seats(value=8.0, ci95=(8.0, 8.0), loads=(12, 16), counted=True, source='records')
    """
    if not levels:
        return None
    crowd = _Crowd.of(levels)
    if np.count_nonzero(crowd.waits) < 2:
        return None
    full = crowd.only(crowd.waits)
    if full.mean(full.column("streaming") / full.low) < _STREAMS:
        return None
    found = _counted(full) or _mean(full)
    if found is None:
        return None
    value, ends, counted = found
    agrees = _server_agrees(full, value)
    if agrees is False:
        return None
    return Seats(value, ends, tuple([level.load for level in full.levels]), counted, "both" if agrees else "records")


class _Crowd(msgspec.Struct, frozen=True):
    """The levels in order of their load, repeats pooled, with the requests in service; columns of shape [loads].

    Those are the requests that stream and those whose prompt is computed. Where no more are in flight than stream on
    average at both of the highest loads, nobody waits, as a request alone never does: there N/S - 1 is the time of a
    prompt over that of an answer. The most that ever streamed would be too many for that: memory, or a full replica
    beside one with room, may let so many in for a moment while others wait. At another load the prompt takes as long
    as there, or has slowed as much as the answer. `high` has the greater of both, by the highest load at which nobody
    waits; `low` the lesser, and the least by any such load, since prompts that all come at once take longer.
    """

    levels: list[Occupancy]
    low: Floats
    high: Floats
    prompts_known: bool  # else `low` and `high` are without them

    @classmethod
    def of(cls, levels: Sequence[Occupancy]) -> _Crowd:
        """Return the levels pooled by load, each with bounds of the requests in service: streams and their prompts."""
        ordered = sorted(levels, key=lambda level: level.load)
        pooled = [_pooled(list(same)) for _, same in itertools.groupby(ordered, lambda level: level.load)]
        N, S, tpot = (_column(pooled, name) for name in ("in_flight", "streaming", "tpot_s"))
        idle = np.flatnonzero(max(1.0, S[-2:].min()) >= N) if len(pooled) > 1 else np.zeros(0, np.int64)
        if not len(idle):
            return cls(pooled, S, S, False)
        prompts, paces = N[idle, None] / S[idle, None] - 1, tpot[idle, None] / tpot  # [idle, 1], [idle, loads]
        lows, highs = (S * (1 + prompts * end) for end in (np.minimum(paces, 1), np.maximum(paces, 1)))
        return cls(pooled, lows.min(0), highs[-1], True)

    def column(self, name: str) -> Floats:
        """Return a field of the levels, nan if it is None; shape [loads]."""
        return _column(self.levels, name)

    def mean(self, values: Floats) -> float:
        """Return the mean of a column, weighted by the levels' seconds; without its nans."""
        known = ~np.isnan(values)
        return float(np.average(values[known], weights=self.column("seconds")[known]))

    @property
    def waits(self) -> Bools:
        """Return whether requests wait at each load, shape [loads]."""
        return np.asarray(self.column("in_flight") >= CROWDED * np.maximum(self.low, self.column("most")))

    def only(self, rows: Bools) -> _Crowd:
        """Return the marked loads."""
        kept = [level for level, row in zip(self.levels, rows, strict=True) if row]
        return _Crowd(kept, self.low[rows], self.high[rows], self.prompts_known)


def _column(levels: Sequence[Occupancy], name: str) -> Floats:
    return np.array([getattr(level, name) for level in levels], dtype=np.float64)  # None becomes nan


def _pooled(same: Sequence[Occupancy]) -> Occupancy:
    """Return repeats of one load as one: means weighted by seconds, the most of any, and how long so many streamed."""
    if len(same) == 1:
        return same[0]
    seconds, most = _column(same, "seconds"), max(level.most for level in same)
    means: dict[str, float | None] = {}
    for name in ("in_flight", "streaming", "tpot_s", "running", "waiting"):
        values = _column(same, name)
        known = ~np.isnan(values)
        means[name] = float(np.average(values[known], weights=seconds[known])) if known.any() else None
    at_most = np.where(_column(same, "most") == most, _column(same, "most_fraction"), 0.0)
    share = float(np.average(at_most, weights=seconds))
    return msgspec.structs.replace(same[0], **means, seconds=float(seconds.sum()), most=most, most_fraction=share)


_Found = tuple[float, tuple[float, float], bool]  # value, interval, counted


def _counted(full: _Crowd) -> _Found | None:
    """Return the greatest number of requests that streamed, if two loads show it, with its interval; else None.

    Seats are never empty while requests wait. Where fewer are in service than streamed at most, memory ends, or the
    requests wait for one replica while another has room.
    """
    most = float(full.column("most").max())
    edges = (full.column("most") == most) & (full.column("most_fraction") >= EDGE)
    if not most or np.count_nonzero(edges) < 2 or full.mean(full.low) > CROWDED * most:
        return None
    above = full.mean(full.high) if full.prompts_known else most + 1  # one prompt is always computed, at most
    if above < FILLED * most:
        return None
    return most, (most, max(most, above)), True


def _mean(full: _Crowd) -> _Found | None:
    """Return the mean number of requests served at the full loads, with an interval by Student's t for their scatter.

    None if requests wait at every load, so that the time of a prompt is not known, or if it rises with load.
    """
    if not full.prompts_known:
        return None
    x, y = np.log(full.column("in_flight")), np.log(full.low * full.high) / 2
    x, off, n = x - full.mean(x), y - full.mean(y), len(y)
    trend = full.mean(x * off) / full.mean(x**2)
    if abs(trend) > TREND:
        return None
    variance = (full.mean(off**2) * n + _PRIOR * _TYPICAL**2) / (n - 1 + _PRIOR)
    half = t_quantile(0.975, n - 1 + _PRIOR) * math.sqrt(variance / n)
    low, high = full.mean(np.log(full.low)), full.mean(np.log(full.high))
    return math.exp((low + high) / 2), (math.exp(low - half), math.exp(high + half)), False


def _server_agrees(full: _Crowd, value: float) -> bool | None:
    """Return whether `value` seats agree with the server's counts of running and waiting requests; None: no counts."""
    running, not_waiting = full.column("running"), full.column("in_flight") - full.column("waiting")
    if np.isnan(running).all() or np.isnan(not_waiting).all():
        return None
    return (1 - APART) * full.mean(running) <= value <= (1 + APART) * full.mean(not_waiting)


def as_value(found: Seats | None) -> Value | None:
    """Return the seats as a value with its 95 % interval, in requests; None without any."""
    return Value(found.value, found.ci95) if found else None
