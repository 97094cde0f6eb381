"""A run over time, and how a server's figures move over one long window. Pure.

What flowed, was in flight, waited and failed: rates and means are over equal bins from the run's origin, gauges are as
they were read.

A figure of a long window is read in equal bins of it. Its slope is by least squares; the interval allows for the
correlation of neighbouring bins, by which n of them count as n (1 - ρ)/(1 + ρ) (Santer et al. 2000, J. Geophys. Res.
105, 7337). Left out: windows below five minutes, and when a figure changed at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis import telemetry
from harness.analysis.server_account import Scrapes
from harness.analysis.stats import batches, correlation, slope, t_quantile
from harness.analysis.table import Floats, Table
from harness.analysis.window import began_in
from harness.data.levels import Drift, Trend
from harness.data.record import SERVER, Level, Sample
from harness.data.server_metrics import Figure
from harness.data.views import Value

_BINS = 240  # at most: a page does not show more than that apart
_WIDTHS = (0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)  # seconds of a bin

Line = list[tuple[float, float]]  # (seconds since the origin, value), by time


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Lines over time; an empty one was not recorded. Those by a name are of each server, or of each GPU."""

    seconds: float  # length of a bin
    throughput: Line = []  # work per second, failed requests' left out
    in_flight: Line = []  # mean over the bin, failures included
    errors: Line = []  # failed requests per second
    running: dict[str, Line] = {}
    waiting: dict[str, Line] = {}
    kv_usage: dict[str, Line] = {}  # share, 0 to 1
    power: dict[str, Line] = {}  # watts


def timeline(table: Table | None, samples: Sequence[Sample], end_s: float) -> Timeline:
    """Return throughput, requests in flight, errors, KV use and GPU power over time, from 0 to `end_s` seconds.

    Without a table there is only telemetry.
    """
    width = next((width for width in _WIDTHS if end_s <= _BINS * width), end_s / _BINS)
    edges: Floats = width * np.arange(int(end_s / width) + 2, dtype=np.float64)
    middles = (edges[:-1] + edges[1:]) / 2

    def line(values: Floats) -> Line:
        return list(zip(middles.tolist(), values.tolist(), strict=True))

    def gauges(figure: Figure) -> dict[str, Line]:
        sources = dict.fromkeys(sample.source for sample in samples if sample.source.split(" ")[0] == SERVER)
        found = {each.partition(" ")[2]: Scrapes(samples, (0.0, end_s), each).over_time(figure) for each in sources}
        return {name: points for name, points in found.items() if points}

    sampled = Timeline(
        seconds=width,
        running=gauges(Figure.RUNNING),
        waiting=gauges(Figure.WAITING),
        kv_usage=gauges(Figure.KV_USAGE),
        power={
            name: card["power_w"]
            for name, card in telemetry.series(samples, "gpu", 0.0, end_s).items()
            if "power_w" in card
        },
    )
    if table is None or not len(table.sent):
        return sampled
    flowed = _flowed(table, edges)
    failed, _ = np.histogram(table.done[table.failed & ~np.isnan(table.done)], edges)
    return msgspec.structs.replace(
        sampled,
        throughput=line(flowed / width),
        in_flight=line(np.diff(_time_in_flight(table, edges)) / width),
        errors=line(failed / width) if failed.any() else [],
    )


def _flowed(table: Table, edges: Floats) -> Floats:
    """Return the tokens that arrived between neighbouring edges, shape [edges - 1], but those of failed requests."""
    sums = np.zeros(len(edges) + 1)
    for rows, part in table.pieces():
        tokens = table.tokens[part] * np.repeat(~table.failed[rows], table.chunks[rows])
        bins = np.searchsorted(edges, table.arrival[part], side="right")
        sums += np.bincount(bins, weights=tokens, minlength=len(sums))
    return sums[1:-1]


def _time_in_flight(table: Table, at: Floats) -> Floats:
    """Return ∫N(t)dt from 0 to each moment, seconds: what each request has been in flight until then, added up."""
    sent = np.sort(table.sent[~np.isnan(table.sent)])
    done = np.sort(table.done[~np.isnan(table.done) & ~np.isnan(table.sent)])
    return _since(sent, at) - _since(done, at)


def _since(moments: Floats, at: Floats) -> Floats:
    """Return Σ max(0, t − moment) for each t; `moments` in order.

    >>> _since(np.array([1.0, 2.0]), np.array([0.0, 1.5, 4.0]))
    array([0. , 0.5, 5. ])
    """
    upto = np.searchsorted(moments, at)
    return np.asarray(upto * at - np.concatenate([[0.0], np.cumsum(moments)])[upto])


# ---- how figures move over a window -------------------------------------------------------------------------

SHORTEST_S = 300.0  # shortest window with a trend
FEWEST, _MOST = 20, 120  # bins of a figure
_REQUEST_TIMES = 2.0  # shortest bin, in request times
_FOR_P99 = 100  # requests of a bin, whose p99 is read

_SURE = 0.0001  # chance that a figure which does not move is found to move, of one test
_FEWEST_FREE = 5.0  # degrees of freedom of an interval
_HOUR = 3600.0


def drift(table: Table, samples: Sequence[Sample], level: Level) -> Drift | None:
    """Return how throughput, TTFT p99, KV use and memory moved over a level's window; None if it is too short."""
    start, end = level.window
    if end - start < SHORTEST_S:
        return None
    good = began_in(table, level) & table.ok
    took = (table.done - table.sent)[good]
    request_s = float(took.mean()) if len(took) else 0.0
    n = int(min(_MOST, (end - start) / max(_REQUEST_TIMES * request_s, 1e-9)))
    if n < FEWEST:
        return None
    began = table.waited_from(level)
    scrapes = Scrapes(samples, level.window)

    def read(values: Floats) -> Trend | None:
        return trend(values, start, (end - start) / len(values)) if len(values) else None

    def mean_of(points: Sequence[tuple[float, float]]) -> Floats:
        return means(points, start, end, n)

    drift = Drift(
        throughput=read(batches(table.arrival, table.tokens, start, end, n)),
        ttft_p99_s=read(_p99(began[good], (table.first - began)[good], start, end, n)),
        kv_usage=read(mean_of(scrapes.over_time(Figure.KV_USAGE))),
        memory_bytes=read(mean_of(scrapes.over_time(Figure.MEMORY))),
        gpu_memory_bytes=read(_of_gpus(samples, "memory_used_bytes", start, end, n)),
    )
    return None if drift == Drift() else drift


def trend(values: Floats, start_s: float, width_s: float) -> Trend | None:
    """Return mean and slope of a figure over time, and whether it surely moved; `values` has one for each bin, or nan.

    Bins of `width_s` begin at `start_s`. None if fewer than 20 have a value; no interval where they are so
    correlated that too few count as independent.

    >>> found = trend(100.0 - np.arange(40.0), 0.0, 60.0)
    >>> found.per_hour.value, found.sure
    (-60.0, True)
    """
    known = ~np.isnan(values)
    x = values[known]
    n = len(x)
    if n < FEWEST:
        return None
    t: Floats = start_s + width_s * (np.flatnonzero(known).astype(np.float64) + 0.5)
    rise, error = slope(t, x)
    start = float(x.mean() + rise * (start_s - t.mean()))
    rho = correlation(x - x.mean() - rise * (t - t.mean()), fitted=2)
    free = n * (1 - rho) / (1 + rho) - 2
    per_hour, sure = Value(rise * _HOUR), False
    if free >= _FEWEST_FREE:
        error *= math.sqrt((1 + rho) / (1 - rho) * (n - 2) / free) if error else 0.0
        half = t_quantile(0.975, free) * error
        per_hour = Value(rise * _HOUR, ((rise - half) * _HOUR, (rise + half) * _HOUR))
        sure = abs(rise) > t_quantile(1 - _SURE / 2, free) * error
    return Trend(
        mean=float(x.mean()),
        start=start,
        per_hour=per_hour,
        share_per_hour=per_hour.times(1 / start) if start > 0 else None,
        sure=sure or _steps(x),
        bins=n,
    )


def _steps(x: Floats) -> bool:
    """Return whether the mean of the last third of a series surely differs from the first third's, by Student's t."""
    ends = [part - part.mean() for part in np.array_split(x, 3)][::2]
    residual = np.concatenate(ends)
    # The upper end of the correlation counts: few bins do not show that they are independent.
    rho = min(0.9, correlation(residual, fitted=2) + 1.3 / math.sqrt(len(residual)))
    free = len(residual) * (1 - rho) / (1 + rho) - 2
    if free < _FEWEST_FREE:
        return False
    error = math.sqrt(float(residual @ residual) / free * sum(1 / len(part) for part in ends))
    third = len(ends[0])
    return abs(float(x[-third:].mean() - x[:third].mean())) > t_quantile(1 - _SURE / 2, free) * error


def means(points: Sequence[tuple[float, float]], start: float, end: float, n: int) -> Floats:
    """Return the mean of a gauge in each of n equal parts of [start, end); nan in a part that has no point.

    >>> means([(0.0, 2.0), (1.0, 4.0), (2.5, 1.0)], 0.0, 6.0, 3)
    array([ 3.,  1., nan])
    """
    if not len(points):
        return np.zeros(0)
    times, values = np.array(points, dtype=np.float64).T
    edges = np.linspace(start, end, n + 1)
    counts, total = np.histogram(times, edges)[0], np.histogram(times, edges, weights=values)[0]
    return np.asarray(total / np.where(counts > 0, counts, np.nan))


def _p99(began: Floats, waited: Floats, start: float, end: float, n: int) -> Floats:
    """Return p99 of the waits of requests that began in each part of the window; parts have about 100 or more.

    An empty array where there are too few requests for several such parts.
    """
    known = ~np.isnan(waited)
    began, waited = began[known], waited[known]
    n = min(n, len(began) // _FOR_P99)
    if n < FEWEST:
        return np.zeros(0)
    part = np.minimum(((began - start) * n / (end - start)).astype(np.int64), n - 1)
    return np.array([np.percentile(waited[part == i], 99) if (part == i).any() else np.nan for i in range(n)])


def _of_gpus(samples: Sequence[Sample], metric: str, start: float, end: float, n: int) -> Floats:
    """Return a figure of all GPUs together, added; nan where one of them was not read."""
    cards = [card[metric] for card in telemetry.series(samples, "gpu", start, end).values() if metric in card]
    return np.asarray(sum(means(points, start, end, n) for points in cards)) if cards else np.zeros(0)
