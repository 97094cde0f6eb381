"""A chart as a plotly figure: a plain dict of the plotly JSON schema, for the page's script.

Without theme: the page colours it for light, dark and paper. Plotly reads some HTML in labels and hover texts, so text
is escaped here.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any, TypeAlias

from harness.report.chart import Chart, Guide, Scale, Series, Tone

Figure: TypeAlias = dict[str, Any]

# Okabe and Ito's palette (as in `png`), the blue lit up, and a grey, for both a white and a dark page.
_VERMILION, _GREEN, _GREY, _BLUE = "#D55E00", "#009E73", "#7a828c", "#2b8cd2"
_COLOURS: dict[Tone, str] = {
    "measured": _BLUE, "fitted": _GREY, "predicted": "#E69F00", "calibrated": _GREEN, "knee": _VERMILION,
    "limit": _GREEN, "cap": _GREY, "mean": _GREY, "p50": _BLUE, "p90": _GREEN, "p99": _VERMILION,
    "stack1": _BLUE, "stack2": _VERMILION, "stack3": _GREEN, "stack4": "#E69F00", "stack5": _GREY, "stack6": "#CC79A7",
}  # fmt: skip
_BAND = "rgba(230,159,0,0.18)"  # predicted, between low and high
_DASHES = {"solid": "solid", "dashed": "dash", "dotted": "dot"}
_SYMBOLS = {"dot": "circle", "ring": "circle-open", "square": "square", "diamond": "diamond"}
_TITLE = 56  # characters of a line that a phone shows whole


def figure(chart: Chart) -> Figure:
    """The chart with its answer as the title, its series and its guides; hovering shows its points' hover texts."""
    shapes, notes = [], []
    for guide in chart.guides:
        shapes += _shapes(guide, chart)
        notes += _notes(guide, chart)
    layout: dict[str, Any] = {
        "margin": {"l": 62, "r": 18, "t": 28, "b": 48},
        "hovermode": "closest",
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"},
        "xaxis": _axis(chart.x) | {"showgrid": False, "ticks": "outside", "tickangle": 0},
        "yaxis": _axis(chart.y) | {"tickformat": ",~r"},
        "shapes": shapes,
        "annotations": notes,
    }
    if chart.answer:
        lines = textwrap.wrap(escape(chart.answer, quote=False), _TITLE)
        place = {"x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top"}
        layout["title"] = {"text": "<br>".join(lines), "font": {"size": 13}, "pad": {"l": 8, "t": 8}} | place
        layout["margin"] |= {"b": 84, "t": 40 + 18 * len(lines)}
        # At the foot, because the knee is named at the top.
        layout["legend"] |= {"y": 0, "yref": "container", "traceorder": "reversed"}
    if chart.simulated:
        watermark = {"x": 0.5, "y": 0.4, "xref": "paper", "yref": "paper", "showarrow": False, "textangle": -18}
        watermark |= {"text": "SIMULATED", "font": {"size": 64}, "opacity": 0.1, "hovertext": escape(chart.simulated)}
        notes.append(watermark)
    return {"data": [trace for series in chart.series for trace in _traces(series)], "layout": layout}


def _axis(axis: Scale) -> dict[str, Any]:
    out: dict[str, Any] = {"title": {"text": escape(axis.label)}, "zeroline": False}
    if axis.log:
        out["type"] = "log"
    if axis.ends:
        out["range"] = [math.log10(end) for end in axis.ends] if axis.log else list(axis.ends)
    else:
        out["rangemode"] = "tozero"
    if axis.ticks:
        out |= {"tickvals": [at for at, _ in axis.ticks], "ticktext": [escape(name) for _, name in axis.ticks]}
    return out


def _traces(series: Series) -> list[dict[str, Any]]:
    """One trace, and before it the band that its points have, if they are a line."""
    colour, points = _COLOURS[series.tone], series.points
    xs = [point.x for point in points]
    trace: dict[str, Any] = {
        "x": xs,
        "y": [point.y for point in points],
        "name": escape(series.name),
        "mode": "+".join(["lines"] * bool(series.line) + ["markers"] * bool(series.marker)),
    }
    if series.line:
        trace["line"] = {"color": colour, "width": 2, "dash": _DASHES[series.line]}
    if series.marker:
        size = 6 if series.line else 10
        symbol = {"size": size, "color": colour, "symbol": _SYMBOLS[series.marker]}
        trace["marker"] = symbol | ({} if series.line else {"line": {"width": 2, "color": colour}})
    if any(point.hover for point in points):
        trace["text"] = [_hover(point.hover) for point in points]
        trace["hovertemplate"] = "%{text}<extra></extra>"
    else:
        trace["hoverinfo"] = "skip"
    if any(point.low is None or point.high is None for point in points):
        return [trace]
    if not series.line:
        return [trace | {"error_y": _whiskers(series, colour)}]
    edge = {"x": xs, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    edge["legendgroup"] = trace["legendgroup"] = trace["name"]
    low, high = [point.low for point in points], [point.high for point in points]
    return [edge | {"y": low}, edge | {"y": high, "fill": "tonexty", "fillcolor": _BAND}, trace]


def _whiskers(series: Series, colour: str) -> dict[str, Any]:
    ends = [(point.y - (point.low or 0.0), (point.high or 0.0) - point.y) for point in series.points]
    style = {"color": colour, "thickness": 1.5, "width": 0 if series.pale else 5}
    reach = {"array": [above for _, above in ends], "arrayminus": [below for below, _ in ends]}
    return {"type": "data", "symmetric": False} | style | reach


def _hover(lines: Sequence[str]) -> str:
    """Lines as plotly's little HTML, the first of several in bold."""
    first, *rest = map(escape, lines)
    return "<br>".join([f"<b>{first}</b>" if rest else first, *rest])


def _shapes(guide: Guide, chart: Chart) -> list[dict[str, Any]]:
    """A guide's interval as a band and its value as a line, both from edge to edge; unbounded ends are the axis'."""
    if not math.isfinite(guide.at):
        return []
    across, along = ("x", "y") if guide.axis == "x" else ("y", "x")
    edges = {f"{along}ref": "paper", f"{along}0": 0, f"{along}1": 1, f"{across}ref": across, "layer": "below"}
    shapes = []
    if guide.ci95 and guide.ci95 != (None, None):
        ends = (chart.x if guide.axis == "x" else chart.y).ends or (guide.at, guide.at)
        low, high = (outer if end is None else end for end, outer in zip(guide.ci95, ends, strict=True))
        style = {"fillcolor": _COLOURS[guide.tone], "opacity": 0.13, "line": {"width": 0}}
        shapes.append({"type": "rect", f"{across}0": low, f"{across}1": high} | style | edges)
    if guide.line:
        line = {"color": _COLOURS[guide.tone], "width": 1.5, "dash": _DASHES[guide.line]}
        shapes.append({"type": "line", f"{across}0": guide.at, f"{across}1": guide.at, "line": line} | edges)
    return shapes


def _notes(guide: Guide, chart: Chart) -> list[dict[str, Any]]:
    """A guide's name at its line; only labels need log10 on a log axis."""
    if not guide.label:
        return []
    text = escape(guide.text)
    bold = guide.axis == "x" and guide.tone != "cap"
    note = {"text": f"<b>{text}</b>" if bold else text, "showarrow": False, "yanchor": "bottom"}
    note["font"] = {"color": _COLOURS[guide.tone], "size": 12}
    if guide.axis == "y":
        return [note | {"x": 0.01, "xref": "paper", "xanchor": "left", "y": guide.at}]
    if not math.isfinite(guide.at):
        return [note | {"x": 1, "xref": "paper", "xanchor": "right", "y": 1, "yref": "paper"}]
    place = {"x": math.log10(guide.at) if chart.x.log else guide.at, "y": 0.02 if guide.low else 1, "yref": "paper"}
    if guide.low:
        place |= {"textangle": -90, "xanchor": "right" if guide.tone == "cap" else "left"}
    return [note | place]
