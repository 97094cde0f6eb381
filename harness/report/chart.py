"""A chart as data: axes, series of points, guides. `png` draws it by matplotlib, `plotly_json` for the page.

A chart names what its parts are (measured, predicted, a knee); each drawer chooses their colours. Points are in the
units of their axes. Text from outside is not escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

Tone: TypeAlias = Literal[
    "measured",
    "fitted",
    "predicted",
    "calibrated",
    "knee",
    "limit",
    "cap",
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
Stroke: TypeAlias = Literal["", "solid", "dashed", "dotted"]
Corner: TypeAlias = Literal["upper left", "upper right", "lower right"]
Side: TypeAlias = Literal["above left", "above right", "below right", "right"]


class Datum(msgspec.Struct, frozen=True):
    """A place, with the interval around it: a whisker where the series has a marker, else the edges of a band."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""
    hover: Sequence[str] = ()  # lines to show where there is a pointer, the first most important


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Points of one kind."""

    name: str = ""  # in the legend; "": none
    tone: Tone
    points: Sequence[Datum]
    line: Stroke = ""  # through the points
    marker: Literal["", "dot", "ring", "square", "diamond"] = ""  # at each of them; a ring does not count
    pale: bool = False  # intervals that are less sure than others
    labels: Side = "above right"  # of the points, from where the labels are
    end: str = ""  # label of the last point, where there is room


class Guide(msgspec.Struct, frozen=True, kw_only=True):
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


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """What is counted, in which unit and on which scale."""

    label: str
    log: Literal[0, 2, 10] = 0  # base of the scale; 0 is linear
    ends: tuple[float, float] | None = None  # None: from 0 to whatever there is
    ticks: Sequence[tuple[float, str]] = ()  # places and their names; (): where they fall


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of axes and what is drawn on them."""

    name: str  # unique on a page
    title: str = ""
    subtitle: str = ""
    answer: str = ""  # what it shows, in a sentence
    simulated: str = ""  # as in `document.Document`
    x: Scale
    y: Scale
    series: list[Series]
    guides: list[Guide] = []
    legend: Corner = "upper left"
    missing: str = ""  # shown in the middle of empty axes
    foot: str = ""


def ticks(levels: Sequence[int], octaves: float = 0.34) -> list[int]:
    """The levels that get a tick label: none closer than `octaves`, powers of two first.

    >>> ticks([1, 2, 4, 8, 12, 14, 15, 16, 24, 32])
    [1, 2, 4, 8, 12, 16, 24, 32]
    """
    kept: list[int] = []
    for level in sorted(set(levels), key=lambda c: (c & (c - 1) != 0, c)):
        if all(abs(math.log2(level / other)) >= octaves for other in kept):
            kept.append(level)
    return sorted(kept)


def spread_apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places for labels, each near where it is wanted and none closer than `gap`, between low and high.

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
