"""The two figures of a prediction: what a user gets against what a GPU gives, and the roofline.

One function, one figure, in the manner of `plots`. What is drawn are the data sheet's figures; a calibrated frontier
stands beside as a line of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import files
from harness.report.format import number, plain
from harness.report.plots import BLUE, GREY, VERMILION, png
from harness.report.predicted import name
from harness.summary import Prediction
from harness.terminal import cut

if TYPE_CHECKING:
    from harness.predict.question import Answer

_INK, _SOFT = "#1b2430", "#5b6673"  # as in report.plots


def frontier_png(answer: Answer, path: Path | str) -> None:
    """Write the frontier as a PNG of 1,440 × 864 pixels: a point a level, its users beside it, missed SLOs hollow."""
    prediction = answer.prediction
    levels = {float(level.concurrency): level for level in prediction.levels}
    figure, axes = _paper(prediction, "What a user gets, and what a GPU gives")
    rows = [(users, x, y, levels[users]) for users, x, y in answer.frontier]
    if not rows:
        axes.text(0.5, 0.5, "nothing is decoded", transform=axes.transAxes, ha="center", color=_SOFT)
    axes.plot([x for _, x, _, _ in rows], [y for _, _, y, _ in rows], color=BLUE, lw=1.5, zorder=3)
    for _, x, y, level in rows:
        missed = level.meets_slo is False
        axes.plot([x], [y], "o", ms=6.5, mew=1.4, color=BLUE, mfc="white" if missed else BLUE, zorder=4)
    for users, x, y in _together(answer.frontier):
        axes.annotate(users, (x, y), xytext=(7, 5), textcoords="offset points", fontsize=8.5, color=_INK, zorder=5)
    found = prediction.calibrated
    own = [(1 / x.itl_s, x.output_tokens_per_s.mid / prediction.gpus) for x in found.levels if x.itl_s] if found else []
    if own:
        axes.plot(*zip(*own, strict=True), color=VERMILION, lw=1.4, ls=(0, (4, 2)), marker="s", ms=4.5, zorder=3)
    said = [("by the data sheet; the numbers are users in flight", BLUE)]
    said += [("hollow: misses the SLO", BLUE)] if any(x.meets_slo is False for *_, x in rows) else []
    said += [("calibrated", VERMILION)] if own else []
    for i, (words, colour) in enumerate(said):
        axes.text(
            0.985, 0.965 - 0.055 * i, words, transform=axes.transAxes, fontsize=9, color=colour, ha="right", va="top"
        )
    xs, ys = [x for _, x, _, _ in rows] + [x for x, _ in own], [y for _, _, y, _ in rows] + [y for _, y in own]
    axes.set_xlim(0, max(xs, default=1.0) * 1.1)
    axes.set_ylim(0, max(ys, default=1.0) * 1.2)
    axes.yaxis.set_major_formatter(lambda value, _: number(round(value, 6)))
    axes.set_xlabel("output tok/s a user (1/ITL)", fontsize=9.5, color=_SOFT, labelpad=6)
    _unit(figure, axes, "output tok/s a GPU")
    files.write(Path(path), png(figure))


def _together(frontier: Sequence[tuple[float, float, float]]) -> list[tuple[str, float, float]]:
    """The points with their users, those that a cap holds in one place under one label.

    >>> _together([(8, 90.0, 700.0), (16, 70.0, 1000.0), (32, 70.0, 1000.0)])
    [('8', 90.0, 700.0), ('16–32', 70.0, 1000.0)]
    """
    out: list[tuple[str, float, float]] = []
    for users, x, y in frontier:
        if out and math.isclose(x, out[-1][1], rel_tol=1e-3) and math.isclose(y, out[-1][2], rel_tol=1e-3):
            out[-1] = (f"{out[-1][0].partition('–')[0]}–{users:g}", x, y)
        else:
            out.append((f"{users:g}", x, y))
    return out


def roofline_png(answer: Answer, path: Path | str) -> None:
    """Write the roofline as a PNG of 1,440 × 864 pixels: both roofs, their ridge, decode by batch, prefill."""
    roof, prediction = answer.roof, answer.prediction
    figure, axes = _paper(prediction, "Roofline of one replica, by the data sheet")
    decode = roof.decode if prediction.output_tokens else []
    intensities = [x for _, x, _ in decode] + [roof.prefill[0], roof.ridge]
    reached = [y for _, _, y in decode] + [roof.prefill[1]]
    low, high = min(1.0, *intensities) / 2, max(intensities) * 10  # words stand right of the last point
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    bottom, top = min([*reached, roof.bandwidth * low]) / 2, roof.flops * 3
    axes.set_ylim(bottom, top)
    axes.plot([low, roof.ridge, high], [roof.bandwidth * low, roof.flops, roof.flops], color=_INK, lw=1.8, zorder=2)
    axes.axvline(roof.ridge, color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)
    axes.annotate(
        f"ridge {number(roof.ridge)} FLOP/byte", (roof.ridge, 0), xycoords=("data", "axes fraction"), xytext=(-3, 6),
        textcoords="offset points", rotation=90, ha="right", va="bottom", fontsize=8.5, color=_SOFT,
    )  # fmt: skip
    middle = math.sqrt(low * roof.ridge)
    axes.annotate(
        f"{_si(roof.bandwidth)}B/s", (middle, roof.bandwidth * middle), xytext=(-8, 6), textcoords="offset points",
        fontsize=9, color=_INK, ha="right",
    )  # fmt: skip
    axes.annotate(
        f"{_si(roof.flops)}FLOP/s, 16 bits dense", (high, roof.flops), xytext=(-4, 6), textcoords="offset points",
        fontsize=9, color=_INK, ha="right",
    )  # fmt: skip
    if decode:
        axes.plot([x for _, x, _ in decode], [y for *_, y in decode], "o-", color=BLUE, ms=5.5, lw=1.2, zorder=4)
        for batch, x, y in _labelled(decode):
            axes.annotate(
                f"{batch:g}", (x, y), xytext=(6, -11), textcoords="offset points", fontsize=8.5, color=BLUE, zorder=5
            )
        batch, x, y = decode[0]
        axes.annotate(
            "decode, by batch", (x, y), xytext=(6, -24), textcoords="offset points", fontsize=9.5, color=BLUE,
            fontweight="bold",
        )  # fmt: skip
    x, y = roof.prefill
    axes.plot([x], [y], "D", color=VERMILION, ms=7, zorder=4)
    axes.annotate(
        f"prefill of {number(prediction.input_tokens)} tokens", (x, y), xytext=(10, 0), textcoords="offset points",
        fontsize=9.5, color=VERMILION, va="center", fontweight="bold", zorder=5,
    )  # fmt: skip
    axes.grid(axis="both", color="#eef0f3", lw=0.8)
    axes.set_xlabel("arithmetic intensity, FLOP/byte", fontsize=9.5, color=_SOFT, labelpad=6)
    _unit(figure, axes, "FLOP/s")
    files.write(Path(path), png(figure))


def _labelled(decode: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """The batches that get a label: none closer than a fifth of a decade of intensity."""
    kept: list[tuple[float, float, float]] = []
    for row in decode:
        if not kept or math.log10(row[1] / kept[-1][1]) >= 0.2:
            kept.append(row)
    return kept


def _si(value: float) -> str:
    """A rate with its prefix.

    >>> _si(3.35e12), _si(989.4e12), _si(41e9)
    ('3.35 T', '989 T', '41 G')
    """
    prefix, scale = next(
        (pair for pair in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)) if value >= pair[1]), ("", 1.0)
    )
    return f"{number(value / scale)} {prefix}"


def _paper(prediction: Prediction, title: str) -> tuple[Any, Any]:
    """A figure with its head, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.095, 0.13, 0.875, 0.675))
    axes.tick_params(colors=_SOFT, labelsize=9, length=3, width=0.8, which="both")
    axes.grid(axis="y", color="#e6e9ed", lw=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color("#b6bec8")
    tokens = f"{number(prediction.input_tokens)} tokens in"
    if prediction.output_tokens:
        tokens += f", {number(prediction.output_tokens)} out"
    cap = prediction.binding_cap
    bound = f" · bound by {name(cap)} at {number(prediction.caps.get(cap))} in flight" if cap else ""
    below = f"{plain(prediction.model)} on {prediction.gpus} × {prediction.gpu} · {tokens}{bound} · predicted"
    head: dict[str, Any] = {"va": "center", "parse_math": False}
    figure.text(0.025, 0.955, title, fontsize=14, fontweight="bold", color=_INK, **head)
    figure.text(0.025, 0.907, cut(below, 118), fontsize=9.5, color=_SOFT, **head)
    return figure, axes


def _unit(figure: Any, axes: Any, words: str) -> None:
    left, bottom, _, height = axes.get_position().bounds
    figure.text(left, bottom + height + 0.045, words, fontsize=9.5, color=_SOFT, ha="left", va="center")
