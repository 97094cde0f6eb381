"""A chart as data: axes, series of points, guides. `png` draws it by matplotlib, `assets/page.js` by Observable Plot.

A chart names what its parts are (measured, predicted, a knee); each drawer chooses their colours. Points are in the
units of their axes. Text from outside is not escaped. The page gets charts as JSON, field by field.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from harness.report.format import joined, listed, number

Tone: TypeAlias = Literal[
    "measured",
    "fitted",
    "predicted",
    "calibrated",
    "knee",
    "limit",
    "cap",
    "baseline",
    "mean",
    "p50",
    "p90",
    "p99",
    "stack1",
    "stack2",
    "stack3",
    "stack4",
    "stack5",
    "stack6",
]
PARTS: tuple[Tone, ...] = ("stack1", "stack2", "stack3", "stack4", "stack5", "stack6")  # of things that are alike
Stroke: TypeAlias = Literal["", "solid", "dashed", "dotted"]
STROKES: tuple[Stroke, ...] = ("solid", "dashed", "dotted")
Marker: TypeAlias = Literal["", "dot", "ring", "square", "diamond"]


class Datum(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place, with the interval around it: a whisker where the series has a marker, else the edges of a band."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""
    hover: Sequence[str] = ()  # lines to show if there is a pointer, the first most important


class Series(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str = ""  # in the legend; "": none
    tone: Tone
    points: Sequence[Datum]
    line: Stroke = ""  # through the points
    marker: Marker = ""  # at each of them; a ring does not count
    pale: bool = False  # intervals that are less sure than others
    end: str = ""  # label of the last point, if there is room


class Guide(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value on an axis that is worth a line across, with its interval and its name."""

    at: float  # inf: past the end of the axis
    axis: Literal["x", "y"] = "x"
    tone: Tone
    line: Stroke = ""
    ci95: tuple[float | None, float | None] | None = None  # an end that is unbounded is None
    label: str = ""
    detail: str = ""  # behind the label, in brackets
    low: bool = False  # its name is written upwards from the axis: there are many, or it is long

    @property
    def text(self) -> str:
        return f"{self.label} ({self.detail})" if self.detail else self.label


class Scale(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is counted, in which unit and on which scale."""

    label: str
    log: Literal[0, 2, 10] = 0  # base of the scale; 0 is linear
    ends: tuple[float, float] | None = None  # None: from 0 to whatever there is
    ticks: Sequence[tuple[float, str]] = ()  # places and their names; (): where they fall


class Chart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pair of axes and what is drawn on them."""

    name: str  # unique on a page
    title: str = ""
    subtitle: str = ""
    answer: str = ""  # what it shows, in a sentence
    simulated: str = ""  # see `document.Document`
    x: Scale
    y: Scale
    series: list[Series]
    guides: list[Guide] = []
    switch: bool = False  # the page offers a log load axis, both axes log, and both linear
    missing: str = ""  # shown in the middle of empty axes
    foot: str = ""


def frontier(series: Sequence[Series], missing: str = "") -> Chart:
    """Return the Pareto chart of throughput per GPU against throughput per user."""
    everywhere = [point for each in series for point in each.points]
    return Chart(
        name="frontier",
        title="Pareto: throughput per user against throughput per GPU",
        x=Scale(label="output tok/s per user (1/ITL)", ends=(0, 1.1 * max((p.x for p in everywhere), default=1.0))),
        y=Scale(label="output tok/s per GPU", ends=(0, 1.15 * max((p.y for p in everywhere), default=1.0))),
        series=[each for each in series if each.points],
        missing=missing,
    )


def labelled_apart(points: Sequence[Datum]) -> list[Datum]:
    """Return the points, without the label of each that lies too near to an earlier labelled point."""
    width, height = max((p.x for p in points), default=1.0), max((p.y for p in points), default=1.0)
    kept: list[Datum] = []
    for point in points:
        near = any(abs(p.x - point.x) < 0.06 * width and abs(p.y - point.y) < 0.06 * height for p in kept if p.label)
        kept.append(msgspec.structs.replace(point, label="") if near else point)
    return kept


def ticks(levels: Sequence[float], octaves: float = 0.34) -> list[float]:
    """Return the levels that get a tick label: none closer than `octaves`, powers of two first.

    >>> ticks([1, 2, 4, 8, 12, 14, 15, 16, 24, 32])
    [1, 2, 4, 8, 12, 16, 24, 32]
    """
    kept: list[float] = []
    for level in sorted(set(levels), key=lambda c: (not math.log2(c).is_integer(), c)):
        if all(abs(math.log2(level / other)) >= octaves for other in kept):
            kept.append(level)
    return sorted(kept)


def described(chart: Chart) -> str:
    """Return a chart in words: its axes, the ends and the highest point of each series, its guides.

    >>> line = Series(name="measured", tone="measured", points=[Datum(1, 10), Datum(8, 70), Datum(16, 60)])
    >>> described(Chart(name="c", title="Load", x=Scale(label="in flight"), y=Scale(label="tok/s"), series=[line]))
    'Load: tok/s against in flight. measured: 3 points, 10 at 1, 60 at 16, highest 70 at 8.'
    """
    head = f"{chart.title}: {chart.y.label} against {chart.x.label}".removeprefix(": ")
    sentences = [joined(head, f"simulated: {chart.simulated}" if chart.simulated else ""), chart.answer]
    for series in chart.series:
        if series.name and series.points:
            first, last, top = series.points[0], series.points[-1], max(series.points, key=lambda point: point.y)
            ends = [f"{number(each.y)} at {number(each.x)}" for each in (first, last)]
            points = f"{len(series.points)} points, {ends[0]}, {ends[1]}, highest {number(top.y)} at {number(top.x)}"
            sentences.append(f"{series.name}: {points if len(series.points) > 1 else ends[0]}")
    named = [guide.text for guide in chart.guides if guide.label]
    sentences += [f"Marked: {listed(named)}"] if named else []
    return " ".join(f"{sentence.rstrip('.')}." for sentence in sentences if sentence)


def spread_apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places for labels, each near where it is wanted and none closer than `gap`, between low and high.

    >>> spread_apart([5.0, 5.5, 1.0], 1.0, 0.0, 6.0)
    [5.0, 6.0, 1.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    out = [0.0] * len(wanted)
    floor = low
    for i in order:
        out[i] = max(wanted[i], floor)
        floor = out[i] + gap
    ceiling = high
    for i in reversed(order):
        out[i] = min(out[i], ceiling)
        ceiling = out[i] - gap
    return out
