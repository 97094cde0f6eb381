"""The two charts of a prediction: throughput per user against throughput per GPU, and the roofline.

Both show the data sheet's figures; the calibrated frontier is a line of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.data.prediction import Prediction
from harness.report import chart
from harness.report.chart import Chart, Datum, Guide, Scale, Series
from harness.report.format import number
from harness.report.prediction import binding, subject

if TYPE_CHECKING:
    from harness.predict.question import PredictionResult


def frontier(answer: PredictionResult) -> Chart:
    """Return output tok/s per GPU against output tok/s per user: a point a level with its users; hollow: SLO missed."""
    prediction = answer.prediction
    missed = {float(level.concurrency) for level in prediction.levels if level.meets_slo is False}
    points = [Datum(x, y) for _, x, y in answer.frontier]
    own = prediction.calibrated.levels if prediction.calibrated else []
    calibrated = [Datum(1 / x.itl_s, x.output_tokens_per_s.mid / prediction.gpus) for x in own if x.itl_s]
    met = [Datum(x, y) for users, x, y in answer.frontier if users not in missed]
    not_met = [Datum(x, y) for users, x, y in answer.frontier if users in missed]
    labels = [Datum(x, y, label=users) for users, x, y in _merged(answer.frontier)]
    name = "by the data sheet; the numbers are users in flight"
    series = [
        Series(name=name, tone="measured", points=points, line="solid"),
        Series(tone="measured", points=met, marker="dot"),
        Series(name="misses the SLO", tone="measured", points=not_met, marker="ring"),
        Series(tone="measured", points=labels),
        Series(name="calibrated", tone="knee", points=calibrated, line="dashed", marker="square"),
    ]
    missing = "" if points else "nothing is decoded"
    per_user = "output tok/s per user (1/ITL)"
    return chart.frontier("frontier", per_user, series, room=1.2, subtitle=_subtitle(prediction), missing=missing)


def _merged(frontier: Sequence[tuple[float, float, float]]) -> list[tuple[str, float, float]]:
    """Return the points with their users; points in one place, where a cap limits the batch, share a label.

    >>> _merged([(8, 90.0, 700.0), (16, 70.0, 1000.0), (32, 70.0, 1000.0)])
    [('8', 90.0, 700.0), ('16–32', 70.0, 1000.0)]
    """
    out: list[tuple[str, float, float]] = []
    for users, x, y in frontier:
        if out and math.isclose(x, out[-1][1], rel_tol=1e-3) and math.isclose(y, out[-1][2], rel_tol=1e-3):
            out[-1] = (f"{out[-1][0].partition('–')[0]}–{users:g}", x, y)
        else:
            out.append((f"{users:g}", x, y))
    return out


def roofline(answer: PredictionResult) -> Chart:
    """Return FLOP/s against FLOP/byte: both roofs, their ridge, decoding by batch, and prefill."""
    roof, prediction = answer.roof, answer.prediction
    batches = roof.decode if prediction.output_tokens else []
    reached = [(x, y) for _, x, y in batches] + [roof.prefill]
    low = min(1.0, roof.ridge, *(x for x, _ in reached)) / 2
    high = max(roof.ridge, *(x for x, _ in reached)) * 10  # room for the label right of the last point
    middle = math.sqrt(low * roof.ridge)
    roofs = [
        Datum(low, roof.bandwidth * low),
        Datum(middle, roof.bandwidth * middle, label=f"{_si(roof.bandwidth)}B/s"),
        Datum(roof.ridge, roof.flops),
        Datum(high, roof.flops, label=f"{_si(roof.flops)}FLOP/s, 16 bits dense"),
    ]
    named = set(_labelled(batches))
    decode = [Datum(x, y, label=f"{batch:g}" * ((batch, x, y) in named)) for batch, x, y in batches]
    prefill = Datum(*roof.prefill, label=f"prefill of {number(prediction.input_tokens)} tokens")
    series = [
        Series(tone="fitted", points=roofs, line="solid", labels="above left"),
        Series(
            name="decode, by batch", tone="measured", points=decode, line="solid", marker="dot", labels="below right"
        ),
        Series(tone="knee", points=[prefill], marker="diamond", labels="right"),
    ]
    ridge = f"ridge {number(roof.ridge)} FLOP/byte"
    bottom = min(roof.bandwidth * low, *(y for _, y in reached)) / 2
    return Chart(
        name="roofline",
        title="Roofline of one replica, by the data sheet",
        subtitle=_subtitle(prediction),
        x=Scale(label="arithmetic intensity, FLOP/byte", log=10, ends=(low, high)),
        y=Scale(label="FLOP/s", log=10, ends=(bottom, roof.flops * 3)),
        series=[each for each in series if each.points],
        guides=[Guide(at=roof.ridge, tone="cap", line="dotted", label=ridge, low=True)],
    )


def _labelled(decode: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """Return the batches that get a label: none closer than a fifth of a decade of intensity."""
    kept: list[tuple[float, float, float]] = []
    for row in decode:
        if not kept or math.log10(row[1] / kept[-1][1]) >= 0.2:
            kept.append(row)
    return kept


def _si(value: float) -> str:
    """Return a rate with its prefix.

    >>> _si(3.35e12), _si(989.4e12), _si(41e9)
    ('3.35 T', '989 T', '41 G')
    """
    prefix, scale = next(
        (pair for pair in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)) if value >= pair[1]), ("", 1.0)
    )
    return f"{number(value / scale)} {prefix}"


def _subtitle(prediction: Prediction) -> str:
    """Return what was predicted, in a line."""
    return " · ".join(part for part in (*subject(prediction), binding(prediction), "predicted") if part)
