"""Charts as pictures by matplotlib, PNG of 1,440 × 864 pixels or SVG: white paper, the same bytes whenever drawn.

No text is read as a formula, wherever it came from.
"""

from __future__ import annotations

import io
import itertools
import math
import warnings
from typing import Any

import msgspec

from harness.base.terminal import cut
from harness.report.chart import Chart, Guide, Scale, Series, Tone, spread_apart
from harness.report.format import number

# Okabe and Ito's palette, which stays apart under every common colour blindness.
BLUE, ORANGE, VERMILION, GREEN, PURPLE, GREY = "#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#7a828c"
INK, SOFT = "#1b2430", "#5b6673"  # text on white
AMBER, RED = "#8a5d00", "#b04400"  # ORANGE and VERMILION, dark enough to read
_FAINT = "#9cc4de"  # BLUE on white, half as strong
LINE, GRID = "#b6bec8", "#e6e9ed"

_COLOURS: dict[Tone, str] = {
    "measured": BLUE, "fitted": INK, "predicted": ORANGE, "calibrated": GREEN, "knee": VERMILION, "limit": GREEN,
    "cap": GREY, "baseline": PURPLE, "mean": GREY, "p50": BLUE, "p90": GREEN, "p99": VERMILION,
    "stack1": BLUE, "stack2": VERMILION, "stack3": GREEN, "stack4": ORANGE, "stack5": GREY, "stack6": INK,
}  # fmt: skip
_READABLE: dict[Tone, str] = {"predicted": AMBER, "cap": SOFT}  # colours of text if the line's colour is too light
DASHES: dict[str, Any] = {"solid": "-", "dashed": (0, (4, 2)), "dotted": (0, (1, 1.8))}
_MARKERS = {"dot": "o", "ring": "o", "square": "s", "diamond": "D"}
_PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}  # behind a label on lines

PAPER = (9.0, 5.4)  # inches
_FOOT = 1.161  # inches: the x axis' labels, and the legend below them
_DECADES = 1e3  # end over start of an axis that has ticks enough at its powers of ten

Entry = tuple[Any, str]  # entry of a legend: what is drawn, and its name


def draw(chart: Chart) -> bytes:
    """Draw the chart as a PNG."""
    return encoded(figure(chart))


def vector(chart: Chart, inches: tuple[float, float] = PAPER) -> bytes:
    """Return the chart as an SVG file whose text stays text."""
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "knee"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the reader's fonts have it
        figure(chart, inches).savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def figure(chart: Chart, inches: tuple[float, float] = PAPER) -> Any:
    """Return the chart with its title, its answer and its legend, as a figure of matplotlib."""
    drawn = paper(inches)
    margin = any(series.end for series in chart.series) or any(guide.axis == "y" for guide in chart.guides)
    foot = _FOOT / inches[1]
    top = 0.77 if chart.answer else 0.795 if chart.title else 0.9
    axes = drawn.add_axes((0.085, foot, 0.745 if margin else 0.885, top - foot))
    entries = fill(axes, chart)
    _margin(axes, chart)
    if chart.missing:
        axes.text(0.5, 0.5, chart.missing, transform=axes.transAxes, ha="center", color=SOFT)
    if entries:
        handles, names = zip(*reversed(entries), strict=True)
        legend = drawn.legend(
            handles, names, loc="lower left", bbox_to_anchor=(0.02, 0.03), ncols=min(int(inches[0] / 3), len(names)),
            fontsize=8.5, labelcolor=INK, frameon=False, handlelength=2.2, borderaxespad=0.0, columnspacing=1.4,
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)
    if chart.simulated:
        axes.text(
            0.55, 0.36, "SIMULATED", transform=axes.transAxes, fontsize=62, fontweight="bold", color=INK, alpha=0.07,
            rotation=18, ha="center", va="center", zorder=0,
        )  # fmt: skip
    drawn.text(0.97, 0.012, chart.foot, fontsize=7.5, color=SOFT, ha="right", parse_math=False)
    head(drawn, chart.title, chart.subtitle, chart.answer, simulated=bool(chart.simulated))
    return drawn


def legible(text: str) -> str:
    """Return a text for a picture, with characters that its font lacks, such as Chinese, as code points.

    >>> legible("Qwen \u5343\u95ee 8B, 4 ± 1 µs")
    'Qwen [U+5343 U+95EE] 8B, 4 ± 1 µs'
    """
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font, shown = get_font(findfont(FontProperties())), ""
    for drawn, group in itertools.groupby(text, lambda each: each == "\n" or bool(font.get_char_index(ord(each)))):
        letters = list(group)
        shown += "".join(letters) if drawn else f"[{' '.join(f'U+{ord(letter):04X}' for letter in letters)}]"
    return shown


def paper(inches: tuple[float, float]) -> Any:
    """Return an empty white figure that matplotlib draws without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def head(figure: Any, title: str, subtitle: str, answer: str = "", *, simulated: bool) -> None:
    """Draw title, subtitle and answer above the axes, cut to the paper's width, and SIMULATED if it is so."""
    width, height = figure.get_size_inches()
    answer = cut(answer, 140)
    small = min(1.0, 112 / len(answer)) if answer else 1.0
    room = width - (1.5 if simulated else 0.4)
    for text, inches, size, colour, weight in (
        (cut(title, int(7.4 * room)), 0.25, 14.0, INK, "bold"),
        (cut(subtitle, int(13 * width)), 0.5, 9.5, SOFT, "normal"),
        (answer, 0.72, 9.5 * small, RED, "bold"),
    ):
        place = 0.225 / width, 1 - inches / height
        figure.text(*place, text, fontsize=size, fontweight=weight, color=colour, va="center", parse_math=False)
    if simulated:
        figure.text(
            1 - 0.225 / width, 1 - 0.25 / height, "SIMULATED", fontsize=9.5, fontweight="bold", color=INK, ha="right",
            va="center", bbox={"facecolor": "#ffd84d", "edgecolor": "none", "boxstyle": "round,pad=0.4"},
        )  # fmt: skip


def encoded(figure: Any) -> bytes:
    """Return a figure as a PNG of 256 colours, a third of the size of all, without a date or a version in it."""
    from matplotlib.text import Text
    from PIL import Image

    for each in figure.findobj(Text):
        each.set_text(legible(each.get_text()))
    drawn = io.BytesIO()
    small = io.BytesIO()
    figure.savefig(drawn, format="png", metadata={"Software": None})
    Image.open(drawn).convert("RGB").quantize(256).save(small, "png", optimize=True)
    return small.getvalue()


def fill(axes: Any, chart: Chart) -> list[Entry]:
    """Draw everything within one pair of axes, and return its legend's entries."""
    for name, axis in (("x", chart.x), ("y", chart.y)):
        scale(axes, name, axis if axis.ends else msgspec.structs.replace(axis, ends=_reach(chart, name, axis)))
    axes.tick_params(colors=SOFT, labelsize=9, length=3, width=0.8, which="both")
    axes.grid(axis="both" if chart.x.log == chart.y.log == 10 else "y", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(LINE)
    note = " (log2, ticks at the levels)" if chart.x.log == 2 else ""
    axes.set_xlabel(f"{chart.x.label}{note}", fontsize=9.5, color=SOFT, labelpad=6)
    above = any(guide.axis == "x" and guide.label and not guide.low for guide in chart.guides)
    label = {"xytext": (-39, 13) if above else (0, 9), "textcoords": "offset points", "annotation_clip": False}
    axes.annotate(chart.y.label, (0, 1), xycoords="axes fraction", fontsize=9.5, color=SOFT, **label)
    entries = [entry for series in chart.series for entry in _series(axes, series)]
    for guide in chart.guides:
        _guide(axes, guide)
    return entries


def _reach(chart: Chart, name: str, axis: Scale) -> tuple[float, float]:
    """Return ends for an axis (`name` is x or y) that has none of its own, around the chart's points and guides."""
    values = [float(getattr(point, name)) for each in chart.series for point in each.points]
    values += [guide.at for guide in chart.guides if guide.axis == name and math.isfinite(guide.at)]
    values = [value for value in values if value > 0] if axis.log else values
    high = max(values, default=1.0)
    return (min(values, default=1.0) / 1.2, 1.2 * high) if axis.log else (0.0, 1.06 * high or 1.0)


def scale(axes: Any, name: str, axis: Scale) -> None:
    """Set one side of the axes: its scale, its ends and its ticks."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    side = {"x": axes.xaxis, "y": axes.yaxis}[name]
    if axis.log:
        axes.set(**{f"{name}scale": "log"})
    if axis.ends:
        axes.set(**{f"{name}lim": axis.ends})
    if axis.ticks:
        side.set_ticks([at for at, _ in axis.ticks], [words for _, words in axis.ticks], parse_math=False)
        side.set_minor_locator(NullLocator())
    elif not axis.log:
        bins = {"x": 9, "y": 6}[name]
        side.set_major_locator(MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10]))
        side.set_major_formatter(lambda value, _: number(round(value, 6)))
    elif not axis.ends or axis.ends[1] < _DECADES * axis.ends[0]:  # else its powers of ten are enough
        narrow = axis.ends is not None and axis.ends[1] < 10 * axis.ends[0]
        side.set_major_locator(MaxNLocator(4) if narrow else LogLocator(subs=(1, 2, 5)))
        side.set_major_formatter(lambda value, _: number(float(f"{value:.6g}")))
        side.set_minor_formatter(NullFormatter())


def _series(axes: Any, series: Series) -> list[Entry]:
    """Draw a series (line with band, or markers with error bars, point labels); return its entry for the legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    colour, points = _COLOURS[series.tone], series.points
    xs, ys = [point.x for point in points], [point.y for point in points]
    sure = all(point.low is not None and point.high is not None for point in points)
    lows, highs = [point.low or 0.0 for point in points], [point.high or 0.0 for point in points]
    style: dict[str, Any] = {"color": colour}
    if series.line:
        thick = series.tone == "fitted"
        style |= {"lw": 1.5 if thick or series.marker else 1.4, "ls": DASHES[series.line]}
        axes.plot(xs, ys, **style, zorder=3 if thick else 2)
        if sure:
            axes.fill_between(xs, lows, highs, color=colour, alpha=0.16, lw=0, zorder=1)
    if series.marker:
        mark = {"marker": _MARKERS[series.marker], "ms": 6, "mew": 1.4}
        mark |= {"mfc": "white"} if series.marker == "ring" else {}
        reach = [[y - low for y, low in zip(ys, lows, strict=True)], [up - y for y, up in zip(ys, highs, strict=True)]]
        axes.errorbar(
            xs, ys, yerr=reach if sure and not series.line else None, ls="", capsize=3, elinewidth=1.1, color=colour,
            ecolor=_FAINT if series.pale else colour, zorder=4, clip_on=False, **mark,
        )  # fmt: skip
        style |= mark | ({} if series.line else {"ls": ""})
    for point in points:
        if point.label:
            axes.annotate(
                point.label, (point.x, point.y), textcoords="offset points", fontsize=8.5, zorder=5, parse_math=False,
                color=_READABLE.get(series.tone, colour), annotation_clip=False, xytext=(7, 5), ha="left",
            )  # fmt: skip
    if not series.name or not points:
        return []
    if series.pale:
        style["alpha"] = 0.5
    line = Line2D([], [], **style)
    return [((Patch(color=colour, alpha=0.2, lw=0), line) if series.line and sure else line, series.name)]


def _guide(axes: Any, guide: Guide) -> None:
    """Draw a value from edge to edge with its interval; unbounded ends reach the edge of the axes."""
    colour = _COLOURS[guide.tone]
    span, line, edges = {
        "x": (axes.axvspan, axes.axvline, axes.get_xlim()),
        "y": (axes.axhspan, axes.axhline, axes.get_ylim()),
    }[guide.axis]
    if guide.ci95 and guide.ci95 != (None, None):
        low, high = (edge if end is None else end for end, edge in zip(guide.ci95, edges, strict=True))
        span(low, high, color=colour, alpha=0.12, lw=0, zorder=1)
    if guide.line:
        line(guide.at, color=colour, lw=0.8 if guide.tone == "cap" else 1.2, ls=DASHES[guide.line], zorder=2)
    if guide.axis == "x" and guide.label:
        _name(axes, guide)


def _name(axes: Any, guide: Guide) -> None:
    """Draw the label of a guide above the axes, or upright at their foot."""
    colour = _READABLE.get(guide.tone, _COLOURS[guide.tone])
    style: dict[str, Any] = {"color": colour, "textcoords": "offset points", "annotation_clip": False}
    style |= {"fontsize": 7.5} if guide.tone == "cap" else {"fontsize": 9, "fontweight": "bold"}
    style |= {"parse_math": False, "ha": "center", "xytext": (0, 5)}
    if guide.low:
        side, offset = ("right", -3) if guide.tone == "cap" else ("left", 3)
        style |= {"rotation": 90, "va": "bottom", "bbox": _PAPER, "xytext": (0, 6)}
        style |= {"ha": side, "xytext": (offset, 6)} if guide.line else {}
        axes.annotate(cut(guide.text, 44), (guide.at, 0), xycoords=("data", "axes fraction"), **style)
    elif math.isfinite(guide.at):
        share, _ = axes.transAxes.inverted().transform(axes.transData.transform((guide.at, axes.get_ylim()[1])))
        style["ha"] = "left" if share < 0.2 else "right" if share > 0.8 else "center"
        axes.annotate(guide.text, (guide.at, 1), xycoords=("data", "axes fraction"), **style)
    else:
        axes.annotate(guide.text, (1, 1), xycoords="axes fraction", **style | {"ha": "right"})


def _margin(axes: Any, chart: Chart) -> None:
    """Write the labels of horizontal guides and of series' ends to the right of the axes, none over another."""
    labels = [(series.points[-1].y, series.end, series.tone) for series in chart.series if series.end]
    labels += [(m.at, f"{m.label}\n{m.detail}".rstrip(), m.tone) for m in chart.guides if m.axis == "y" and m.label]
    low, high = axes.get_ylim()
    height = high - low
    places = spread_apart([y for y, _, _ in labels], 0.105 * height, low + 0.03 * height, high - 0.03 * height)
    for (_, words, tone), place in zip(labels, places, strict=True):
        axes.annotate(
            words, (1, place), xycoords=("axes fraction", "data"), xytext=(7, 0), textcoords="offset points",
            va="center", fontsize=8.5, color=_READABLE.get(tone, _COLOURS[tone]), linespacing=1.25,
            annotation_clip=False, parse_math=False,
        )  # fmt: skip
