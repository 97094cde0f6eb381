"""The charts of distributions: of TTFT, time per output token, output length and waiting requests, and of batch sizes.

Each is cumulative, the share of a level's requests up to a value, for the lowest level, the one at the knee and the
highest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.analysis import metrics
from harness.analysis.table import Floats, Table
from harness.analysis.timeline import Timeline
from harness.analysis.window import began_in
from harness.data.record import Level
from harness.data.summary import LevelSummary, Summary
from harness.report.chart import PARTS, STROKES, Chart, Datum, Scale, Series
from harness.report.figures import at_the_knee
from harness.report.format import load_of, number, percent
from harness.report.headline import fastest, unit_of

_SHARES = np.linspace(0, 1, 101)
_FEW = 10  # requests that a distribution has at least
_WIDE = 20.0  # largest over smallest value from where on the axis is logarithmic


def charts(summary: Summary, table: Table | None, levels: Sequence[Level], found: Timeline) -> list[Chart]:
    """Those for which there are requests, or telemetry."""
    shown = _shown(summary)
    decodes = unit_of(summary).decodes
    ttft, pace, length = [], [], []
    for level in shown if table is not None else ():
        of_level = next((each for each in levels if each.finished and each.window == level.window), None)
        of_level = of_level or next((each for each in levels if _same(each, level)), None)
        if table is None or of_level is None:
            continue
        rows = began_in(table, of_level) & table.ok
        of_requests = metrics.figures(table, of_level, stalled=False)
        ttft.append((level, of_requests["ttft" if decodes else "e2e"][rows] * 1e3))
        pace.append((level, of_requests["tpot"][rows] * 1e3))
        length.append((level, table.output_tokens[rows]))
    waiting = [(level, _within(found, level)) for level in shown]
    every = [
        _chart("ttft-distribution", "Time to first token" if decodes else "Latency", "ms", ttft),
        _chart("tpot-distribution", "Time per output token of a request", "ms", pace),
        _chart("length-distribution", "Output length", "tokens", length),
        _chart("waiting-distribution", "Requests waiting, by the server", "requests", waiting, log=False),
        _batches(summary),
    ]
    return [each for each in every if each.series]


def _shown(summary: Summary) -> list[LevelSummary]:
    """The lowest level, that at the knee, and the highest."""
    known = sorted((each for each in summary.levels if each.load is not None), key=lambda each: each.load or 0)
    wanted = [*known[:1], at_the_knee(summary), *known[-1:]]
    return [each for i, each in enumerate(wanted) if each is not None and each not in wanted[:i]]


def _same(level: Level, summary: LevelSummary) -> bool:
    """Whether the summary is of this level, whose window may have been cut to whole requests."""
    if not level.finished or level.window_start_s is None or level.window_end_s is None:
        return False
    return level.window_start_s <= summary.window[0] + 1e-6 and summary.window[1] <= level.window_end_s + 1e-6


def _within(found: Timeline, level: LevelSummary) -> Floats:
    start, end = level.window
    return np.array([value for line in found.waiting.values() for time_s, value in line if start <= time_s <= end])


def _chart(
    name: str, title: str, unit: str, values: Sequence[tuple[LevelSummary, Floats]], *, log: bool = True
) -> Chart:
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
    wide = log and bool(ends) and min(ends) > 0 and max(ends) / min(ends) > _WIDE
    return Chart(
        name=name,
        title=title,
        x=Scale(label=unit, log=10 if wide else 0),
        y=Scale(label="% of requests" if name != "waiting-distribution" else "% of readings", ends=(0, 100)),
        series=series,
    )


def _batches(summary: Summary) -> Chart:
    """How large the batches of the fastest level were, by the server."""
    top = fastest(summary)
    shares = top.server.batch_histogram if top is not None and top.server else []
    names = ["more" if end is None or math.isinf(end) else f"≤ {end:g}" for end, _ in shares]
    points = [
        Datum(float(i), 100 * share, hover=(f"{name} requests: {percent(share)}",))
        for i, (name, (_, share)) in enumerate(zip(names, shares, strict=True))
    ]
    name = f"at {load_of(top)}" if top is not None else ""
    return Chart(
        name="batches",
        title="Batch size, by the server",
        x=Scale(
            label="requests in a batch",
            ends=(-0.6, len(points) - 0.4),
            ticks=list(zip(map(float, range(len(names))), names, strict=True)),
        ),
        y=Scale(label="% of batches"),
        series=[Series(name=name, tone="measured", points=points, marker="bar")] if points else [],
    )
