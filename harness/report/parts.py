"""The charts of what a run is made of: its classes of requests, and its replicas, against load."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from harness.data.summary import ClassSummary, LevelSummary, ReplicaSummary, Summary
from harness.report.chart import PARTS, STROKES, Chart, Datum, Marker, Scale, Series
from harness.report.charts import load_axis, measured
from harness.report.format import load_of, number, plain
from harness.report.headline import unit_of

_MARKERS: tuple[Marker, ...] = ("dot", "square", "diamond", "square", "diamond", "dot")
_Part = ClassSummary | ReplicaSummary


def charts(summary: Summary) -> list[Chart]:
    """Throughput and TTFT of each class and of each replica; none where a run has only one."""

    def rate(part: _Part) -> float | None:
        return part.output_tokens_per_s.mean

    def first(part: _Part) -> float | None:
        seconds = part.ttft_s.p50
        return None if seconds is None else seconds * 1e3

    def classes(level: LevelSummary) -> Mapping[str, _Part]:
        return level.classes or {}

    def replicas(level: LevelSummary) -> Mapping[str, _Part]:
        return level.replicas or {}

    every = [
        _chart(summary, "class-throughput", "Throughput by class", "output tok/s", classes, rate),
        _chart(summary, "class-ttft", "TTFT by class, median", "ms", classes, first),
        _chart(summary, "replica-throughput", "Throughput by replica", "output tok/s", replicas, rate),
        _chart(summary, "replica-ttft", "TTFT by replica, median", "ms", replicas, first),
    ]
    return [each for each in every if each.series] if unit_of(summary).decodes else []


def _chart(
    summary: Summary,
    name: str,
    title: str,
    unit: str,
    of: Callable[[LevelSummary], Mapping[str, _Part]],
    figure: Callable[[_Part], float | None],
) -> Chart:
    levels = [(x, level, of(level)) for x, _, level in measured(summary)]
    series, names = [], dict.fromkeys(part for _, _, found in levels for part in found)
    styles = zip(itertools.cycle(PARTS), itertools.cycle(STROKES), itertools.cycle(_MARKERS), strict=False)
    for part, (tone, line, marker) in zip(names, styles, strict=False):
        points = [
            Datum(x, value, hover=(f"{plain(part)}, {load_of(level)}: {number(value)} {unit}",))
            for x, level, found in levels
            if part in found and (value := figure(found[part])) is not None
        ]
        if points:
            series.append(Series(name=plain(part), tone=tone, points=points, line=line, marker=marker))
    return Chart(name=name, title=title, x=load_axis(summary, octaves=0.8), y=Scale(label=unit), series=series)
