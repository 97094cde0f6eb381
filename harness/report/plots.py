"""One function, one figure: curve.png for documents, and the same and the latencies as plotly figures.

A plotly figure is a plain dict of the plotly JSON schema, without theme: the page colours it for light, dark
and paper. Both forms of the curve share what they draw (`points`, `ticks`); neither computes
statistics. Requests in flight are on a log2 axis, for levels double.
"""

from __future__ import annotations

import html
import io
import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness import files
from harness.analysis.curve import throughput
from harness.analysis.stats import Z95
from harness.report.format import flat, half_width, interval, load_of, ms, number, percent
from harness.report.headline import hinge_of, limited, plateau_of, sentence, state
from harness.report.words import simulated_words, subject, worst
from harness.summary import BEYOND, PROVISIONAL, LevelSummary, PredictedLevel, Spread, Summary, Value
from harness.terminal import cut

# Okabe and Ito's palette, which stays apart under every common colour blindness.
BLUE, ORANGE, VERMILION, GREEN, GREY = "#0072B2", "#E69F00", "#D55E00", "#009E73", "#7a828c"
_INK, _SOFT = "#1b2430", "#5b6673"  # text on white
_AMBER, _RED = "#8a5d00", "#b04400"  # ORANGE and VERMILION, dark enough to read
_FAINT = "#9cc4de"  # BLUE on white, half as strong
_LIT = "#2b8cd2"  # BLUE for both a white and a dark page

LATENCIES = {"ttft": "Time to first token", "itl": "Inter-token latency", "e2e": "End-to-end latency"}


def points(summary: Summary) -> list[tuple[float, float, LevelSummary]]:
    """The measured levels as (requests in flight, output tokens/s, level), by load.

    C stands where N is unknown, and where it is 0, which a log axis does not have.
    """
    found = [
        (level.in_flight or float(level.concurrency or 1), mean, level)
        for level in summary.levels
        if (mean := level.output_tokens_per_s.mean) is not None
    ]
    return sorted(found, key=lambda point: point[0])


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


def _extent(summary: Summary) -> tuple[float, float]:
    """The ends of the load axis: what was measured or predicted, and a cap if it is near."""
    loads = [x for x, _, _ in points(summary)]
    if summary.prediction:
        loads += [float(level.concurrency) for level in summary.prediction.levels]
    low, high = min(loads, default=1.0), max(loads, default=1.0)
    near = [cap for cap in _caps(summary).values() if high < cap <= 2 * high]
    high = max([high, *near])
    return low / 1.18, high * 1.18


def _caps(summary: Summary) -> dict[str, float]:
    caps = summary.prediction.caps if summary.prediction else {}
    found = {name: cap for name, cap in caps.items() if cap is not None and 0 < cap < math.inf}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _caps_in(summary: Summary, low: float, high: float) -> list[tuple[float, str]]:
    """Caps within the axis, those that would be drawn over each other under one label."""
    out: list[tuple[float, str]] = []
    for name, cap in _caps(summary).items():
        label = f"{flat(name)} {number(cap)}"
        if not low < cap < high:
            continue
        if out and math.log2(cap / out[-1][0]) < 0.03 * math.log2(high / low):
            out[-1] = (out[-1][0], f"{out[-1][1]}, {label}")
        else:
            out.append((cap, label))
    return out


def _caps_beyond(summary: Summary, high: float) -> str:
    beyond = [f"{flat(name)} {number(cap)}" for name, cap in _caps(summary).items() if cap >= high]
    return f"caps beyond the axis: {', '.join(beyond)}" if beyond else ""


def _line(summary: Summary) -> list[tuple[float, float]]:
    """The fitted curve over the measured range, as points to draw, its corner among them."""
    curve, measured = summary.curve, points(summary)
    if not measured or curve is None or curve.family is None:
        return []
    low, high = measured[0][0], measured[-1][0]
    loads = [low * (high / low) ** (i / 160) for i in range(161)]
    corner = curve.hinge_concurrency.value
    if corner is not None and low < corner < high:
        loads = sorted([*loads, corner])
    return list(zip(loads, throughput(curve, np.array(loads)).tolist(), strict=True))


def _marked(summary: Summary) -> tuple[Value | None, Value | None, bool]:
    """Hinge and plateau to draw, and whether they are provisional: then they are dashed."""
    curve = summary.curve
    return hinge_of(curve, summary.knees), plateau_of(curve), state(curve) == PROVISIONAL


def _knee_label(summary: Summary, hinge: Value, provisional: bool) -> str:
    """The curve's knee where it is drawn: the hinge where limits have a knee of their own."""
    words, name = interval(hinge.ci95), "hinge" if limited(summary) else "knee"
    if provisional:
        return f"{name} about {number(hinge.value)} (provisional{f', {words}' if words else ''})"
    return f"{name} {number(hinge.value)}{f' ({words})' if words else ''}"


def _by_limits(summary: Summary) -> tuple[float, str] | None:
    """The knee of the limits, where there is one: its place and its label."""
    knee = summary.knees.slo
    return (knee.value, f"knee {number(knee.value)}, by the limits") if knee and knee.value is not None else None


def _above(summary: Summary) -> str:
    """What stands at the right edge where the knee lies past it; "" where it does not."""
    curve = summary.curve
    if curve is None or state(curve) != BEYOND or not summary.levels:
        return ""
    last = curve.at_least_concurrency or max(level.concurrency or 0 for level in summary.levels)
    return f"{'hinge' if limited(summary) else 'knee'} above {number(last)} →"


def _predicted(summary: Summary) -> list[PredictedLevel]:
    return sorted(summary.prediction.levels, key=lambda x: x.concurrency) if summary.prediction else []


def _calibrated(summary: Summary) -> list[tuple[float, float]]:
    """The calibrated prediction as points to draw; it is no part of the data sheet's band."""
    own = summary.prediction.calibrated if summary.prediction else None
    levels = sorted(own.levels, key=lambda x: x.concurrency) if own else []
    return [(load, mid) for load, _, mid, _ in _between(levels)] if levels else []


def _between(levels: list[PredictedLevel]) -> list[tuple[float, float, float, float]]:
    """The predicted band as (in flight, low, mid, high), with points between the levels.

    N/X is straight in N on both sides of a cap (docs/method.md, The steady state), so that is what is
    interpolated: straight lines in X would bend upwards on a log axis.
    """
    bands = [(x.output_tokens_per_s.low, x.output_tokens_per_s.mid, x.output_tokens_per_s.high) for x in levels]
    ends = [(float(x.concurrency), *band) for x, band in zip(levels, bands, strict=True)]
    if len(ends) == 1:  # a dash, for a point has no line
        n, low, mid, high = ends[0]
        return [(n / 1.03, low, mid, high), (n * 1.03, low, mid, high)]
    out = ends[:1]
    for left, right in itertools.pairwise(ends):
        for step in range(1, 13):
            n = left[0] + (right[0] - left[0]) * step / 12
            share = step / 12
            low, mid, high = (n / ((1 - share) * left[0] / left[i] + share * right[0] / right[i]) for i in (1, 2, 3))
            out.append((n, low, mid, high))
    return out


# curve.png


def curve_png(summary: Summary, manifest: Mapping[str, Any], path: Path | str) -> None:
    """Write the curve as a PNG of 1,440 × 864 pixels: measured levels, fit, knee and plateau, prediction, caps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    figure = Figure(figsize=(9, 5.4), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.085, 0.13, 0.745, 0.64))
    left, bottom, width, height = axes.get_position().bounds
    low, high = _extent(summary)
    measured, predicted, curve = points(summary), _predicted(summary), summary.curve
    tops = [(x.output_tokens_per_s.ci95 or (0.0, mean))[1] for _, mean, x in measured]
    tops += [x.output_tokens_per_s.high for x in predicted] + [mid for _, mid in _calibrated(summary)]
    top = (max(tops, default=0.0) or 1.0) * 1.06
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    axes.set_ylim(0, top)
    handles: list[Any] = []
    labels: list[tuple[float, str, str]] = []  # beside the axes: where, words, colour

    if predicted:
        loads, lows, mids, highs = zip(*_between(predicted), strict=True)
        axes.fill_between(loads, lows, highs, color=ORANGE, alpha=0.16, lw=0, zorder=1)
        axes.plot(loads, mids, color=ORANGE, lw=1.4, ls=(0, (4, 2)), zorder=2)
        handles.append((Patch(color=ORANGE, alpha=0.2, lw=0), Line2D([], [], color=ORANGE, lw=1.4, ls=(0, (4, 2)))))
        band = f"{number(round(lows[-1], 1))}–{number(round(highs[-1], 1))}"
        labels.append((mids[-1], f"predicted {number(round(mids[-1], 1))}\n{band}", _AMBER))
    own = _calibrated(summary)
    if own:
        axes.plot(*zip(*own, strict=True), color=GREEN, lw=1.4, ls=(0, (1, 1.5)), zorder=2)
        handles.append(Line2D([], [], color=GREEN, lw=1.4, ls=(0, (1, 1.5))))

    for cap, label in _caps_in(summary, low, high):
        axes.axvline(cap, color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)
        axes.annotate(
            cut(label, 44), (cap, 0), xycoords=("data", "axes fraction"), xytext=(-3, 6),
            textcoords="offset points", rotation=90, ha="right", va="bottom", fontsize=7.5, color=_SOFT,
            parse_math=False, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
        )  # fmt: skip

    hinge, plateau, provisional = _marked(summary)
    if hinge and hinge.value is not None:
        _band(axes.axvspan, hinge, low, high)
        axes.axvline(hinge.value, color=VERMILION, lw=1.2, ls=(0, (5, 3)) if provisional else "-", zorder=2)
        share = math.log(hinge.value / low) / math.log(high / low)
        side = "left" if share < 0.2 else "right" if share > 0.8 else "center"
        axes.annotate(
            _knee_label(summary, hinge, provisional), (hinge.value, 1),
            xycoords=("data", "axes fraction"), xytext=(0, 5), textcoords="offset points", ha=side,
            fontsize=9, color=VERMILION, fontweight="bold", annotation_clip=False,
        )  # fmt: skip
    if plateau and plateau.value is not None:
        _band(axes.axhspan, plateau, 0, top)
        axes.axhline(plateau.value, color=VERMILION, lw=0.9, ls=(0, (6, 3)), zorder=2)
        about = "about " if provisional else ""
        labels.append((plateau.value, f"plateau {about}{number(plateau.value)}\n{interval(plateau.ci95)}", VERMILION))

    if kept := _by_limits(summary):
        axes.axvline(kept[0], color=GREEN, lw=1.2, zorder=2)
        axes.annotate(
            kept[1], (kept[0], 0), xycoords=("data", "axes fraction"), xytext=(3, 6), textcoords="offset points",
            rotation=90, ha="left", va="bottom", fontsize=8.5, fontweight="bold", color=GREEN, annotation_clip=False,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
        )  # fmt: skip
    if above := _above(summary):
        axes.annotate(
            above, (1, 1), xycoords="axes fraction", xytext=(0, 5), textcoords="offset points", ha="right",
            fontsize=9, color=VERMILION, fontweight="bold", annotation_clip=False,
        )  # fmt: skip

    line = _line(summary)
    if line and curve and curve.family:
        axes.plot(*zip(*line, strict=True), color=_INK, lw=1.5, zorder=3, solid_capstyle="round")
    for x, y, level in measured:
        hollow = worst(level) == "invalid"
        below_it, above_it = _whiskers(level, y)
        axes.errorbar(
            [x], [y], yerr=[[below_it], [above_it]], fmt="o", ms=6, mew=1.4, capsize=3,
            elinewidth=1.1, color=BLUE, ecolor=BLUE if level.output_tokens_per_s.ci95 else _FAINT,
            mfc="white" if hollow else BLUE, zorder=4, clip_on=False,
        )  # fmt: skip
    if not measured:
        axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", color=_SOFT)

    names = ["predicted, low–mid–high"] if predicted else []
    names += ["calibrated prediction"] if own else []
    dot = {"marker": "o", "ms": 6, "ls": "", "color": BLUE}
    if line and curve and curve.family:
        handles.append(Line2D([], [], color=_INK, lw=1.5))
        names.append(f"fitted {curve.family.replace('_', ' ')}")
    if any(worst(level) != "invalid" for _, _, level in measured):
        handles.append(Line2D([], [], **dot))  # type: ignore[arg-type]
        short = any(level.output_tokens_per_s.ci95 is None for _, _, level in measured)
        names.append("measured, 95 % interval" + (" (pale: the fit's own error)" if short else ""))
    if any(worst(level) == "invalid" for _, _, level in measured):
        handles.append(Line2D([], [], mfc="white", mew=1.4, **dot))  # type: ignore[arg-type]
        names.append("invalid level")
    if handles:
        taken = bool(measured) and measured[0][1] > 0.6 * top  # a curve that does not rise
        axes.legend(
            handles[::-1], names[::-1], loc="lower right" if taken else "upper left", fontsize=8.5, labelcolor=_INK,
            framealpha=0.85, edgecolor="none", handlelength=2.2, borderaxespad=0.3,
        )  # fmt: skip

    places = spread_apart([y for y, _, _ in labels], 0.105 * top, 0.03 * top, 0.97 * top)
    for (_, words, colour), place in zip(labels, places, strict=True):
        axes.annotate(
            words, (1, place), xycoords=("axes fraction", "data"), xytext=(7, 0), textcoords="offset points",
            va="center", fontsize=8.5, color=colour, linespacing=1.25, annotation_clip=False,
        )  # fmt: skip

    axes.xaxis.set_major_locator(FixedLocator(_ticks_of(summary)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(round(value, 6))))
    axes.tick_params(colors=_SOFT, labelsize=9, length=3, width=0.8)
    axes.grid(axis="y", color="#e6e9ed", lw=0.8)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color("#b6bec8")
    axes.set_xlabel("requests in flight (log2, ticks at the levels)", fontsize=9.5, color=_SOFT, labelpad=6)
    figure.text(0.025, bottom + height + 0.042, "output tok/s", fontsize=9.5, color=_SOFT, ha="left", va="center")
    figure.text(
        left + width, 0.018, _caps_beyond(summary, high), fontsize=7.5, color=_SOFT, ha="right", parse_math=False
    )
    title, below = subject(summary, manifest)
    head: dict[str, Any] = {"va": "center", "parse_math": False}
    figure.text(0.025, 0.957, cut(title, 62), fontsize=14, fontweight="bold", color=_INK, **head)
    figure.text(0.025, 0.912, cut(below, 118), fontsize=9.5, color=_SOFT, **head)
    answer = cut(sentence(summary), 140)
    size = 9.5 * min(1.0, 112 / len(answer))
    figure.text(0.025, 0.868, answer, fontsize=size, fontweight="bold", color=_RED, **head)
    if summary.simulated:
        axes.text(
            0.55, 0.36, "SIMULATED", transform=axes.transAxes, fontsize=62, fontweight="bold", color=_INK, alpha=0.07,
            rotation=18, ha="center", va="center", zorder=0,
        )  # fmt: skip
        figure.text(
            0.975, 0.955, "SIMULATED", fontsize=9.5, fontweight="bold", color=_INK, ha="right", va="center",
            bbox={"facecolor": "#ffd84d", "edgecolor": "none", "boxstyle": "round,pad=0.4"},
        )  # fmt: skip
    files.write(Path(path), png(figure))


def png(figure: Any) -> bytes:
    """A figure as a PNG that is the same whenever it is drawn."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _whiskers(level: LevelSummary, y: float) -> tuple[float, float]:
    """How far the 95 % interval reaches below and above the mean, output tokens/s; (0, 0) where there is none.

    A level too short for an interval of its own has the error that the fit gave it.
    """
    half = Z95 * (level.output_tokens_per_s_se or 0.0)
    low, high = level.output_tokens_per_s.ci95 or (y - half, y + half)
    return max(0.0, y - low), max(0.0, high - y)


def _band(draw: Any, value: Value, low: float, high: float) -> None:
    """Shade a 95 % interval with axvspan or axhspan, an unbounded end to the edge of the axis."""
    if value.ci95 is not None and value.ci95 != (None, None):
        start, end = value.ci95
        ends = (low if start is None else start, high if end is None else end)
        draw(*ends, color=VERMILION, alpha=0.12, lw=0, zorder=1)


def _in_brackets(value: Value) -> str:
    words = interval(value.ci95)
    return f" ({words})" if words else ""


# Plotly


def curve_figure(summary: Summary, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The curve as a plotly figure; hovering over a level shows all its figures."""
    low, high = _extent(summary)
    measured, predicted, line = points(summary), _predicted(summary), _line(summary)
    data: list[dict[str, Any]] = []
    if predicted:
        loads, lows, mids, highs = zip(*_between(predicted), strict=True)
        edge = {"x": loads, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "legendgroup": "predicted"}
        data.append(edge | {"y": lows, "showlegend": False})
        fill = {"fill": "tonexty", "fillcolor": "rgba(230,159,0,0.18)"}
        data.append(edge | fill | {"y": highs, "name": "predicted, low–high"})
        texts = [f"predicted at {number(n)}: {number(round(mid, 1))} tok/s" for n, mid in zip(loads, mids, strict=True)]
        data.append(
            {
                "x": loads, "y": mids, "mode": "lines", "name": "predicted, mid",
                "line": {"color": ORANGE, "width": 2, "dash": "dash"}, "text": texts,
                "hovertemplate": "%{text}<extra></extra>", "legendgroup": "predicted",
            }
        )  # fmt: skip
    if own := _calibrated(summary):
        data.append(
            {
                "x": [n for n, _ in own], "y": [mid for _, mid in own], "mode": "lines",
                "name": "predicted, calibrated", "line": {"color": GREEN, "width": 2, "dash": "dot"},
                "hoverinfo": "skip",
            }
        )  # fmt: skip
    if line and summary.curve and summary.curve.family:
        name = f"fitted {summary.curve.family.replace('_', ' ')}"
        data.append(
            {
                "x": [n for n, _ in line], "y": [x for _, x in line], "mode": "lines", "name": name,
                "line": {"color": GREY, "width": 2.5}, "hoverinfo": "skip",
            }
        )  # fmt: skip
    for name, symbol, wanted in (("measured, 95 %", "circle", False), ("invalid level", "circle-open", True)):
        chosen = [point for point in measured if (worst(point[2]) == "invalid") is wanted]
        if chosen:
            data.append(_measured(chosen, name, symbol))
    shapes, notes = _marks(summary, low, high)
    layout = _layout("output tok/s", _ticks_of(summary), (low, high)) | {"shapes": shapes, "annotations": notes}
    layout["yaxis"] |= {"rangemode": "tozero"}
    layout["legend"] |= {"y": 0, "yref": "container", "traceorder": "reversed"}  # not above: there stands the knee
    layout["title"] = _title(sentence(summary))
    layout["margin"] |= {"b": 84, "t": 40 + 18 * (1 + layout["title"]["text"].count("<br>"))}
    if summary.simulated:
        layout["annotations"].append(
            {
                "text": "SIMULATED", "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.4, "showarrow": False,
                "textangle": -18, "font": {"size": 64}, "opacity": 0.1,
                "hovertext": html.escape(simulated_words(summary, manifest)),
            }
        )  # fmt: skip
    return {"data": data, "layout": layout}


def latency_figure(summary: Summary, name: str) -> dict[str, Any]:
    """p50, p90 and p99 of one of LATENCIES against requests in flight, milliseconds, as a plotly figure.

    ITL percentiles do not exist where chunks hold several tokens: there its mean stands, and TPOT's by name.
    """
    loads = [(x, level) for x, _, level in points(summary)]
    wanted = [(name, "p50"), (name, "p90"), (name, "p99")]
    if name == "itl" and all(level.itl_s.p50 is None for _, level in loads):
        wanted = [("itl", "mean"), ("tpot", "p50"), ("tpot", "p90"), ("tpot", "p99")]
    styles = {"mean": (GREY, "dot"), "p50": (_LIT, "solid"), "p90": (GREEN, "solid"), "p99": (VERMILION, "solid")}
    data: list[dict[str, Any]] = []
    for source, quantile in wanted:
        found = [(x, level, getattr(_spread(level, source), quantile)) for x, level in loads]
        values = [row for row in found if row[2] is not None]
        if not values:
            continue
        colour, dash = styles[quantile]
        label = quantile if source == name else f"{source.upper()} {quantile}"
        data.append(
            {
                "x": [x for x, _, _ in values], "y": [value * 1e3 for _, _, value in values], "name": label,
                "mode": "lines+markers", "line": {"color": colour, "width": 2, "dash": dash},
                "marker": {"size": 6, "color": colour},
                "text": [f"{load_of(level)}: {label} {ms(value)} ms" for _, level, value in values],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )  # fmt: skip
    layout = _layout("ms", _ticks_of(summary, 0.8), _extent(summary))
    layout["yaxis"] |= {"rangemode": "tozero"}
    hinge, _, provisional = _marked(summary)
    if hinge and hinge.value is not None:
        layout["shapes"] = [_upright(hinge.value, VERMILION, "dash" if provisional else "solid")]
    return {"data": data, "layout": layout}


def _spread(level: LevelSummary, name: str) -> Spread:
    return {"ttft": level.ttft_s, "itl": level.itl_s, "e2e": level.e2e_s, "tpot": level.tpot_s}[name]


def _measured(chosen: list[tuple[float, float, LevelSummary]], name: str, symbol: str) -> dict[str, Any]:
    whiskers = [_whiskers(level, y) for _, y, level in chosen]
    return {
        "x": [x for x, _, _ in chosen],
        "y": [y for _, y, _ in chosen],
        "error_y": {
            "type": "data", "symmetric": False, "color": _LIT, "thickness": 1.5, "width": 5,
            "array": [above for _, above in whiskers], "arrayminus": [below for below, _ in whiskers],
        },
        "mode": "markers",
        "name": name,
        "marker": {"color": _LIT, "size": 10, "symbol": symbol, "line": {"width": 2, "color": _LIT}},
        "text": [_hover(level) for _, _, level in chosen],
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _hover(level: LevelSummary) -> str:
    """All figures of one level, as plotly's little HTML."""
    out = level.output_tokens_per_s
    half = half_width(out.ci95)
    spreads = {"TTFT": level.ttft_s, "ITL": level.itl_s, "TPOT": level.tpot_s, "E2E": level.e2e_s}
    rows = [
        f"<b>{load_of(level)}</b>, in flight {number(level.in_flight)}",
        f"output {number(out.mean)}{'' if half is None else f' ± {number(half, 2)}'} tok/s",
        f"per user {number(level.tokens_per_s_per_user)} tok/s",
        f"input {number(level.input_tokens_per_s.mean)} tok/s, cached {percent(level.cached_input_fraction)}",
        f"{number(level.requests_per_s.mean)} req/s, {number(level.requests)} requests in {number(level.window_s)} s",
        *(
            f"{name} p50 {ms(x.p50)}, p90 {ms(x.p90)}, p99 {ms(x.p99)}, mean {ms(x.mean)} ms"
            for name, x in spreads.items()
        ),
        f"errors {number(level.errors)}" + (f" ({flat(level.errors_by_type)})" if level.errors_by_type else ""),
        *(f"{verdict.level}: {verdict.code}" for verdict in level.verdicts),
    ]
    return "<br>".join([rows[0], *(html.escape(row) for row in rows[1:])])


def _marks(summary: Summary, low: float, high: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Knee, plateau and caps as plotly shapes and their labels; a log axis wants log10 in labels only."""
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    hinge, plateau, provisional = _marked(summary)
    if hinge and hinge.value is not None:
        if hinge.ci95:
            start, end = hinge.ci95
            ends = {"x0": low if start is None else start, "x1": high if end is None else end, "y0": 0, "y1": 1}
            shapes.append(_shade("rect", "x", "paper") | ends)
        shapes.append(_upright(hinge.value, VERMILION, "dash" if provisional else "solid"))
        place = {"x": math.log10(hinge.value), "y": 1, "yref": "paper", "yanchor": "bottom"}
        notes.append(_note(f"<b>{_knee_label(summary, hinge, provisional)}</b>", VERMILION) | place)
    if kept := _by_limits(summary):
        shapes.append(_upright(kept[0], GREEN, "solid"))
        place = {"x": math.log10(kept[0]), "y": 0.02, "yref": "paper", "yanchor": "bottom"}
        place |= {"xanchor": "left", "textangle": -90}
        notes.append(_note(f"<b>{kept[1]}</b>", GREEN) | place)
    if above := _above(summary):
        place = {"x": 1, "xref": "paper", "xanchor": "right", "y": 1, "yref": "paper", "yanchor": "bottom"}
        notes.append(_note(f"<b>{above}</b>", VERMILION) | place)
    if plateau and plateau.value is not None:
        if plateau.ci95:
            start, end = plateau.ci95
            ends = {"x0": 0, "x1": 1, "y0": 0 if start is None else start, "y1": plateau.value if end is None else end}
            shapes.append(_shade("rect", "paper", "y") | ends)
        ends = {"x0": 0, "x1": 1, "y0": plateau.value, "y1": plateau.value}
        line = {"color": VERMILION, "width": 1.5, "dash": "dash"}
        shapes.append({"type": "line", "xref": "paper", "yref": "y", "line": line, "layer": "below"} | ends)
        at = {"x": 0.01, "xref": "paper", "xanchor": "left", "y": plateau.value, "yanchor": "bottom"}
        about = "about " if provisional else ""
        notes.append(_note(f"plateau {about}{number(plateau.value)}{_in_brackets(plateau)}", VERMILION) | at)
    for cap, label in _caps_in(summary, low, high):
        shapes.append(_upright(cap, GREY, "dot"))
        place = {"x": math.log10(cap), "y": 0.02, "yref": "paper", "xanchor": "right", "yanchor": "bottom"}
        notes.append(_note(html.escape(label), GREY) | place | {"textangle": -90})
    return shapes, notes


def _title(text: str) -> dict[str, Any]:
    """The answer above the plot, in lines that a phone shows whole."""
    lines = "<br>".join(textwrap.wrap(html.escape(text, quote=False), 56))
    place = {"x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top"}
    return {"text": lines, "font": {"size": 13}, "pad": {"l": 8, "t": 8}} | place


def _note(text: str, colour: str) -> dict[str, Any]:
    return {"text": text, "showarrow": False, "font": {"color": colour, "size": 12}}


def _upright(x: float, colour: str, dash: str) -> dict[str, Any]:
    line = {"color": colour, "width": 1.5, "dash": dash}
    return {"type": "line", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line, "layer": "below"}


def _shade(kind: str, xref: str, yref: str) -> dict[str, Any]:
    colours = {"fillcolor": VERMILION, "opacity": 0.13, "line": {"width": 0}, "layer": "below"}
    return {"type": kind, "xref": xref, "yref": yref} | colours


def _ticks_of(summary: Summary, octaves: float = 0.34) -> list[int]:
    return ticks([level.concurrency or max(1, round(level.in_flight or 1)) for level in summary.levels] or [1], octaves)


def _layout(unit: str, at: list[int], ends: tuple[float, float]) -> dict[str, Any]:
    return {
        "margin": {"l": 62, "r": 18, "t": 28, "b": 48},
        "hovermode": "closest",
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"},
        "xaxis": {
            "type": "log",
            "range": [math.log10(end) for end in ends],
            "tickvals": at,
            "ticktext": [f"{c:,}" for c in at],
            "tickangle": 0,
            "title": {"text": "requests in flight"},
            "zeroline": False,
            "showgrid": False,
            "ticks": "outside",
        },
        "yaxis": {"title": {"text": unit}, "zeroline": False, "tickformat": ",~r"},
    }
