"""The charts that break a run down: over time, and as distributions.

In those over time a line marks where each level's window begins, and has its load as its name where there is room.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from harness.analysis import metrics
from harness.analysis.table import Floats, Table
from harness.analysis.timeline import Line, Timeline
from harness.analysis.window import began_in
from harness.data.levels import LevelSummary
from harness.data.record import Level
from harness.data.summary import Summary
from harness.report.answer import level_at_the_knee, unit_of
from harness.report.chart import PARTS, STROKES, Chart, Datum, Guide, Scale, Series
from harness.report.format import load_of, number, percent, plain

_POINTS = 300  # of a line, at most
_APART = 1 / 24  # of the time axis, between two levels with a name
_SHARES = np.linspace(0, 1, 101)
_FEW = 10  # requests that a distribution has at least
_WIDE = 20.0  # largest over smallest value from where on the axis is logarithmic


# ---- over time -------------------------------------------------------------------------------------------------------


def over_time(summary: Summary, found: Timeline) -> list[Chart]:
    """Return the charts over time that have data: throughput, in flight, KV cache, errors, GPU power."""
    unit = unit_of(summary)
    flight = [("in flight, by the client", found.in_flight)]
    flight += [(_named("running", server, found.running), line) for server, line in found.running.items()]
    flight += [(_named("waiting", server, found.waiting), line) for server, line in found.waiting.items()]
    shares = {name: [(time_s, 100 * share) for time_s, share in line] for name, line in found.kv_usage.items()}
    kv = [(_named("KV cache", server, shares), line) for server, line in shares.items()]
    power = [(f"GPU {plain(card)}", line) for card, line in found.power.items()]
    every = [
        _over_time(summary, "over-time", "Throughput", unit.per_s, [("", found.throughput)]),
        _over_time(summary, "flight-over-time", "Requests in flight, running and waiting", "requests", flight),
        _over_time(summary, "kv-over-time", "KV cache in use", "%", kv),
        _over_time(summary, "errors-over-time", "Failed requests", "per second", [("", found.errors)]),
        _over_time(summary, "power-over-time", "GPU power", "W", power),
    ]
    return [each for each in every if each.series]


def _named(what: str, server: str, all_of_them: Mapping[str, Line]) -> str:
    return f"{what}, {plain(server)}" if len(all_of_them) > 1 else what


def _over_time(summary: Summary, name: str, title: str, unit: str, lines: list[tuple[str, Line]]) -> Chart:
    series = [
        Series(name=label, tone=tone, points=_thinned(label or title, unit, line), line=stroke)
        for tone, stroke, (label, line) in zip(itertools.cycle(PARTS), itertools.cycle(STROKES), lines, strict=False)
        if line
    ]
    ends = [point.x for each in series for point in each.points[-1:]]
    return Chart(
        name=name,
        title=title,
        x=Scale(
            label=f"seconds; above: {'req/s' if summary.open_loop else 'C'} of the level",
            ends=(0, max(ends, default=1.0)),
        ),
        y=Scale(label=unit),
        series=series,
        guides=_levels(summary, max(ends, default=1.0)),
    )


def _thinned(label: str, unit: str, line: Line) -> list[Datum]:
    """Return the highest of every few points, so that no peak is lost."""
    step = -(-len(line) // _POINTS)
    kept = [max(line[i : i + step], key=lambda point: point[1]) for i in range(0, len(line), step)]
    return [Datum(x, y, hover=(f"{number(x)} s: {label} {number(y)} {unit}",)) for x, y in kept]


def _levels(summary: Summary, end_s: float) -> list[Guide]:
    guides, named = [], -end_s
    for level in sorted(summary.levels, key=lambda each: each.window[0]):
        at = level.window[0]
        apart = at - named >= _APART * end_s
        label = f"{level.load:g}" if apart and level.load is not None else ""
        named = at if label else named
        if at <= end_s:
            guides.append(Guide(at=at, tone="cap", line="dotted", label=label))
    return guides


# ---- distributions ---------------------------------------------------------------------------------------------------


def distributions(summary: Summary, table: Table | None, levels: Sequence[Level]) -> list[Chart]:
    """Return the charts of TTFT (or latency) and TPOT distributions over requests, for the levels shown."""
    shown = _shown(summary)
    decodes = unit_of(summary).decodes
    ttft, pace = [], []
    for level in shown if table is not None else ():
        of_level = next((each for each in levels if each.finished and each.window == level.window), None)
        of_level = of_level or next((each for each in levels if _same(each, level)), None)
        if table is None or of_level is None:
            continue
        rows = began_in(table, of_level) & table.ok
        of_requests = metrics.figures(table, of_level, stalled=False)
        ttft.append((level, of_requests["ttft" if decodes else "e2e"][rows] * 1e3))
        pace.append((level, of_requests["tpot"][rows] * 1e3))
    every = [
        _chart("ttft-distribution", "Time to first token" if decodes else "Latency", "ms", ttft),
        _chart("tpot-distribution", "Time per output token of a request", "ms", pace),
    ]
    return [each for each in every if each.series]


def _shown(summary: Summary) -> list[LevelSummary]:
    """Return the lowest level, that at the knee, and the highest."""
    known = sorted((each for each in summary.levels if each.load is not None), key=lambda each: each.load or 0)
    wanted = [*known[:1], level_at_the_knee(summary), *known[-1:]]
    return [each for i, each in enumerate(wanted) if each is not None and each not in wanted[:i]]


def _same(level: Level, summary: LevelSummary) -> bool:
    """Return whether the summary is of this level, whose window may have been cut to whole requests."""
    if not level.finished or level.window_start_s is None or level.window_end_s is None:
        return False
    return level.window_start_s <= summary.window[0] + 1e-6 and summary.window[1] <= level.window_end_s + 1e-6


def _chart(name: str, title: str, unit: str, values: Sequence[tuple[LevelSummary, Floats]]) -> Chart:
    series = []
    for i, (level, of_level) in enumerate(values):
        known = of_level[~np.isnan(of_level)]
        if len(known) >= _FEW:
            at = np.quantile(known, _SHARES).tolist()
            points = [
                Datum(x, 100 * y, hover=(f"{load_of(level)}: {percent(y)} up to {number(x)} {unit}",))
                for x, y in zip(at, _SHARES.tolist(), strict=True)
            ]
            series.append(Series(name=load_of(level), tone=PARTS[i], points=points, line=STROKES[i]))
    ends = [point.x for each in series for point in each.points]
    wide = bool(ends) and min(ends) > 0 and max(ends) / min(ends) > _WIDE
    return Chart(
        name=name,
        title=title,
        x=Scale(label=unit, log=10 if wide else 0),
        y=Scale(label="% of requests", ends=(0, 100)),
        series=series,
    )
