"""The charts of a run over time: throughput, requests in flight, running and waiting, KV use, errors, power.

A line marks where each level's window begins, and has its load as its name where there is room.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from harness.analysis.timeline import Line, Timeline
from harness.data.summary import Summary
from harness.report.chart import PARTS, STROKES, Chart, Datum, Guide, Scale, Series
from harness.report.format import number, plain
from harness.report.headline import is_open, unit_of

_POINTS = 300  # of a line, at most
_APART = 1 / 24  # of the time axis, between two levels with a name


def charts(summary: Summary, found: Timeline) -> list[Chart]:
    """Those that were recorded."""
    unit = unit_of(summary)
    flight = [("in flight, by the client", found.in_flight)]
    flight += [(_name("running", server, found.running), line) for server, line in found.running.items()]
    flight += [(_name("waiting", server, found.waiting), line) for server, line in found.waiting.items()]
    shares = {name: [(time_s, 100 * share) for time_s, share in line] for name, line in found.kv_usage.items()}
    kv = [(_name("KV cache", server, shares), line) for server, line in shares.items()]
    power = [(f"GPU {plain(card)}", line) for card, line in found.power.items()]
    every = [
        _chart(summary, "over-time", "Throughput", unit.per_s, [("", found.throughput)]),
        _chart(summary, "flight-over-time", "Requests in flight, running and waiting", "requests", flight),
        _chart(summary, "kv-over-time", "KV cache in use", "%", kv),
        _chart(summary, "errors-over-time", "Failed requests", "per second", [("", found.errors)]),
        _chart(summary, "power-over-time", "GPU power", "W", power),
    ]
    return [each for each in every if each.series]


def _name(what: str, server: str, all_of_them: Mapping[str, Line]) -> str:
    return f"{what}, {plain(server)}" if len(all_of_them) > 1 else what


def _chart(summary: Summary, name: str, title: str, unit: str, lines: list[tuple[str, Line]]) -> Chart:
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
            label=f"seconds; above: {'req/s' if is_open(summary) else 'C'} of the level",
            ends=(0, max(ends, default=1.0)),
        ),
        y=Scale(label=unit),
        series=series,
        guides=_levels(summary, max(ends, default=1.0)),
    )


def _thinned(label: str, unit: str, line: Line) -> list[Datum]:
    """Every so many points, the highest among them: a peak is not to be lost."""
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
