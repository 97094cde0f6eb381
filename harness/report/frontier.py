"""The chart of what a user gets against what a GPU gives, level by level, measured and predicted."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.data.summary import Summary
from harness.report.chart import Chart, Datum, Scale, Series
from harness.report.charts import measured
from harness.report.format import load_of, number
from harness.report.headline import is_open


def frontier(summary: Summary) -> Chart:
    """Output tok/s per GPU against output tok/s per user, measured and predicted: a point a level."""
    levels = [
        (level.tokens_per_s_per_user, level.output_tokens_per_s_per_gpu, level) for _, _, level in measured(summary)
    ]
    points = [
        Datum(
            x, y, label=f"{level.load:g}", hover=(f"{load_of(level)}: {number(x)} tok/s per user, {number(y)} per GPU",)
        )
        for x, y, level in levels
        if x is not None and y is not None and level.load is not None
    ]
    points = _labelled_apart(points)
    prediction, series = summary.prediction, []
    if prediction is not None and points and not is_open(summary):
        guesses = [(each, each.itl_s, each.output_tokens_per_s.mid / prediction.gpus) for each in prediction.levels]
        predicted = [
            Datum(
                1 / itl,
                y,
                hover=(f"predicted at C = {each.concurrency}: {number(1 / itl)} per user, {number(y)} per GPU",),
            )
            for each, itl, y in guesses
            if itl
        ]
        series = [Series(name="predicted", tone="predicted", points=predicted, line="dashed", marker="square")]
    load = "target rate" if is_open(summary) else summary.load_unit
    name = f"measured; the numbers are {load}"
    series.append(Series(name=name, tone="measured", points=points, line="solid", marker="dot"))
    everywhere = [point for each in series for point in each.points]
    return Chart(
        name="frontier",
        title="Throughput per user against throughput per GPU",
        x=Scale(label="output tok/s per user (1/ITL)", ends=(0, 1.1 * max((p.x for p in everywhere), default=1.0))),
        y=Scale(label="output tok/s per GPU", ends=(0, 1.15 * max((p.y for p in everywhere), default=1.0))),
        series=[each for each in series if each.points],
    )


def _labelled_apart(points: Sequence[Datum]) -> list[Datum]:
    """The points without the labels that would stand over another."""
    width, height = max((p.x for p in points), default=1.0), max((p.y for p in points), default=1.0)
    kept: list[Datum] = []
    for point in points:
        near = any(abs(p.x - point.x) < 0.06 * width and abs(p.y - point.y) < 0.06 * height for p in kept if p.label)
        kept.append(msgspec.structs.replace(point, label="") if near else point)
    return kept
