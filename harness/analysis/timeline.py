"""A run over time: what flowed, was in flight, waited and failed, from its requests and its telemetry. Pure.

Rates and means are over equal bins from the run's origin; gauges are as they were read. Levels are in `summary.json`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis.server_account import Scrapes
from harness.analysis.table import Floats, Table
from harness.data.record import SERVER, Sample
from harness.data.server_metrics import Figure

_BINS = 240  # at most: a page does not show more than that apart
_WIDTHS = (0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)  # seconds of a bin

Line = list[tuple[float, float]]  # (seconds since the origin, value), by time


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Lines over time; an empty one was not recorded. Those by a name are of each server, or of each GPU."""

    seconds: float  # of a bin
    throughput: Line = []  # work per second, failed requests' left out
    in_flight: Line = []  # mean over the bin, failures included
    errors: Line = []  # failed requests per second
    running: dict[str, Line] = {}
    waiting: dict[str, Line] = {}
    kv_usage: dict[str, Line] = {}  # share, 0 to 1
    power: dict[str, Line] = {}  # watts


def timeline(table: Table | None, samples: Sequence[Sample], end_s: float) -> Timeline:
    """Return the lines from 0 to `end_s`; without a table only telemetry's."""
    width = next((width for width in _WIDTHS if end_s <= _BINS * width), end_s / _BINS)
    edges: Floats = width * np.arange(int(end_s / width) + 2, dtype=np.float64)
    middles = (edges[:-1] + edges[1:]) / 2

    def line(values: Floats) -> Line:
        return list(zip(middles.tolist(), values.tolist(), strict=True))

    def gauges(figure: Figure) -> dict[str, Line]:
        sources = dict.fromkeys(each.source for each in samples if each.source.split(" ")[0] == SERVER)
        found = {each.partition(" ")[2]: Scrapes(samples, (0.0, end_s), each).over_time(figure) for each in sources}
        return {name: points for name, points in found.items() if points}

    telemetry = Timeline(
        seconds=width,
        running=gauges(Figure.RUNNING),
        waiting=gauges(Figure.WAITING),
        kv_usage=gauges(Figure.KV_USAGE),
        power=_power(samples),
    )
    if table is None or not len(table.sent):
        return telemetry
    flowed = _flowed(table, edges)
    failed, _ = np.histogram(table.done[table.failed & ~np.isnan(table.done)], edges)
    return msgspec.structs.replace(
        telemetry,
        throughput=line(flowed / width),
        in_flight=line(np.diff(_time_in_flight(table, edges)) / width),
        errors=line(failed / width) if failed.any() else [],
    )


def _flowed(table: Table, edges: Floats) -> Floats:
    """Return tokens that arrived between each two edges, without those of failed requests."""
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


def _power(samples: Sequence[Sample]) -> dict[str, Line]:
    """Return watts of each GPU that drew any, by its name."""
    found: dict[str, Line] = defaultdict(list)
    for sample in samples:
        name, _, metric = sample.metric.rpartition("/")
        if sample.source == "gpu" and metric == "power_w":
            found[name].append((sample.time_s, sample.value))
    return dict(found)
