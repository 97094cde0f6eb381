"""The charts of a run: throughput against load with fit, prediction and knees, and latencies against load.

Load is requests in flight, sessions, or in an open loop the target rate, on a log2 axis, for levels double. No
statistics are computed here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from statistics import fmean
from types import MappingProxyType

import msgspec
import numpy as np

from harness.analysis.answer import of_ramp, own_knee
from harness.analysis.stats import Z95
from harness.base.units import LIMITS, duration
from harness.data.judgement import Gravity
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.prediction import PredictedLevel
from harness.data.summary import BEYOND, PROVISIONAL, Summary, is_decided
from harness.data.views import Value
from harness.report import chart
from harness.report.answer import answer, plateau_of, state, unit_of
from harness.report.chart import Chart, Datum, Guide, Marker, Scale, Series, Stroke, Tone, ticks
from harness.report.facts import simulated_words, subject
from harness.report.format import flat, half_width, interval, load_of, ms, number, percent
from harness.report.remarks import worst
from harness.spec.work import Unit

_ASSUMED = 1.25  # times the highest level: as far up the axis reaches for an error that is only assumed
LATENCIES = {"ttft": "Time to first token", "itl": "Inter-token latency", "e2e": "End-to-end latency"}


def latencies(unit: Unit) -> list[str]:
    """Return those of LATENCIES that a run has."""
    return list(LATENCIES) if unit.decodes else ["e2e"]


_Measured = tuple[float, float, LevelSummary]


def measured(summary: Summary) -> list[_Measured]:
    """Return the levels as (load, throughput, level), by load: requests in flight, sessions, or the target rate.

    C is used where N is unknown, and where it is 0, which a log axis does not have. Levels of a prefill probe, whose
    prompts have other lengths, are left out where there are those of a curve.
    """
    groups = [
        (level.rate or level.in_slots or float(level.concurrency or 1), mean, level)
        for level in of_ramp(summary.levels) or summary.levels
        if (mean := level.throughput.mean) is not None
    ]
    return sorted(groups, key=lambda point: point[0])


def curve(summary: Summary, manifest: Manifest) -> Chart:
    """Return throughput against load: levels, fit, knee and plateau, prediction, and caps."""
    levels, ends = measured(summary), _extent(summary)
    series = [
        *_predictions(summary),
        *_fitted(summary),
        *_levels(levels, summary.curve.parameters.get("noise") if summary.curve else None),
    ]
    tops = [(level.throughput.ci95 or (0.0, mean))[1] for _, mean, level in levels]
    tops += [point.high or point.y for each in series if each.line for point in each.points]
    assumed = [point.high or 0.0 for each in series if each.pale for point in each.points]
    top = max(tops, default=0.0) or 1.0
    top = max(top, min(max(assumed, default=0.0), _ASSUMED * top)) * 1.06
    title, subtitle = subject(summary, manifest)
    beyond = ", ".join(label for cap, label in _caps(summary) if cap >= ends[1])
    return Chart(
        name="curve",
        title=title,
        subtitle=subtitle,
        answer=answer(summary).sentence,
        simulated=simulated_words(summary, manifest),
        x=load_axis(summary),
        y=Scale(label=unit_of(summary).per_s, ends=(0, top)),
        series=[_within(each, top) for each in series],
        guides=[*_knees(summary), *_caps_in(summary, *ends)],
        switch=True,
        missing="" if levels else "nothing measured",
        foot=f"caps beyond the axis: {beyond}" if beyond else "",
    )


def latency(summary: Summary, name: str, slo: Mapping[str, float] = MappingProxyType({})) -> Chart:
    """Return p50, p90 and p99 of one of LATENCIES against load, in milliseconds, with the limits of an SLO on these.

    ITL percentiles do not exist where chunks contain several tokens: its mean and the percentiles of TPOT replace them.
    """
    levels = [(x, level) for x, _, level in measured(summary)]
    wanted: list[tuple[str, Tone]] = [(name, "p50"), (name, "p90"), (name, "p99")]
    if name == "itl" and all(level.itl_s.p50 is None for _, level in levels):
        wanted = [("itl", "mean"), ("tpot", "p50"), ("tpot", "p90"), ("tpot", "p99")]
    series = []
    for source, quantile in wanted:
        label = quantile if source == name else f"{source.upper()} {quantile}"
        found = [(x, level, getattr(getattr(level, f"{source}_s"), quantile)) for x, level in levels]
        points = [
            Datum(x, seconds * 1e3, hover=(f"{load_of(level)}: {label} {ms(seconds)} ms",))
            for x, level, seconds in found
            if seconds is not None
        ]
        if points:
            line, marker = _QUANTILES[quantile]
            series += _through(Series(name=label, tone=quantile, points=points, line=line, marker=marker), levels)
    knee = [Guide(at=guide.at, tone=guide.tone, line=guide.line) for guide in _own_knee(summary)]
    log = name == "ttft" and all(point.y > 0 for each in series for point in each.points)
    return Chart(
        name=name,
        title=LATENCIES[name] if unit_of(summary).decodes else "Latency",
        x=load_axis(summary, octaves=0.8),
        y=Scale(label="ms", log=10 if log else 0),
        series=series,
        guides=[*knee, *_limits({source for source, quantile in wanted if quantile != "mean"}, slo, series)],
    )


# How a quantile's line and points differ from the others' where colours do not.
_QUANTILES: dict[str, tuple[Stroke, Marker]] = {
    "mean": ("dotted", "ring"),
    "p50": ("solid", "dot"),
    "p90": ("dashed", "square"),
    "p99": ("dotted", "diamond"),
}


def _through(series: Series, levels: Sequence[tuple[float, LevelSummary]]) -> list[Series]:
    """Return the series, split in two where loads were repeated: a line through each load's mean, and all markers."""
    by: dict[float | None, list[Datum]] = {}
    at = {x: level.load for x, level in levels}
    for point in series.points:
        by.setdefault(at[point.x], []).append(point)
    if len(by) == len(series.points):
        return [series]
    means = [Datum(fmean(each.x for each in own), fmean(each.y for each in own)) for own in by.values()]
    line = msgspec.structs.replace(series, name="", points=sorted(means, key=lambda point: point.x), marker="")
    return [line, msgspec.structs.replace(series, line="")]


def _limits(figures: Set[str], slo: Mapping[str, float], series: Sequence[Series]) -> list[Guide]:
    """Return horizontal lines for the SLO's limits on these figures, but for any far above all measured points."""
    highest = max((point.y for each in series for point in each.points), default=0.0)
    limits = [(limit, seconds * 1e3) for limit, seconds in slo.items() if LIMITS.get(limit, ("",))[0] in figures]
    return [
        Guide(at=at, axis="y", tone="limit", line="dashed", label=f"{limit} = {duration(at / 1e3)}")
        for limit, at in limits
        if at <= 4 * highest
    ]


def _within(series: Series, top: float) -> Series:
    """Return a series of markers with their intervals cut to the axis, 0 to `top`; a line is returned as it is."""
    if series.line or not series.marker:
        return series
    points = [
        point if point.low is None or point.high is None
        else msgspec.structs.replace(point, low=max(0.0, point.low), high=min(top, point.high))
        for point in series.points
    ]  # fmt: skip
    return msgspec.structs.replace(series, points=points)


def load_axis(summary: Summary, octaves: float = 0.34) -> Scale:
    """Return the logarithmic load axis, from below the lowest level to above the highest, with ticks at levels."""
    ends = _extent(summary)
    if summary.open_loop:
        rates = [level.rate for level in summary.levels if level.rate]
        named = [(rate, f"{rate:g}") for rate in ticks(rates, octaves)]
        return Scale(label="target rate, requests/s", log=2, ends=ends, ticks=named)
    levels = [level.concurrency or max(1, round(level.in_flight or 1)) for level in summary.levels] or [1]
    named = [(float(tick), f"{tick:,}") for tick in ticks(levels, octaves)]
    return Scale(label=summary.load_unit, log=2, ends=ends, ticks=named)


def _extent(summary: Summary) -> tuple[float, float]:
    """Return the ends of the load axis: around all measured and predicted loads, and a cap that is near these."""
    loads = [x for x, _, _ in measured(summary)]
    loads += [x for x, *_ in _predicted_rates(summary)]
    if summary.prediction and not summary.open_loop:
        loads += [float(level.concurrency) for level in summary.prediction.levels]
    low, high = min(loads, default=1.0), max(loads, default=1.0)
    near = [cap for cap, _ in _caps(summary) if high < cap <= 2 * high]
    return low / 1.18, 1.18 * max([high, *near])


def _predicted_rates(summary: Summary) -> list[tuple[float, float]]:
    """Return output tokens per second that the step machine predicts at each rate of an open loop."""
    levels = (summary.prediction.step_machine or []) if summary.prediction and summary.open_loop else []
    return [(level.rate, level.output_tokens_per_s) for level in levels if level.rate and level.output_tokens_per_s]


def _caps(summary: Summary) -> list[tuple[float, str]]:
    """Return the predicted caps with their labels, the lowest first; they are requests in flight, not rates."""
    caps = summary.prediction.caps if summary.prediction and not summary.open_loop else {}
    found = [(cap, f"{flat(name)} {number(cap)}") for name, cap in caps.items() if cap is not None]
    return sorted(((cap, label) for cap, label in found if 0 < cap < math.inf), key=lambda each: each[0])


def _caps_in(summary: Summary, low: float, high: float) -> list[Guide]:
    """Return vertical lines for the predicted caps within the axis; caps that nearly coincide get one line."""
    out: list[tuple[float, str]] = []
    for cap, label in _caps(summary):
        if out and low < cap < high and math.log2(cap / out[-1][0]) < 0.03 * math.log2(high / low):
            out[-1] = (out[-1][0], f"{out[-1][1]}, {label}")
        elif low < cap < high:
            out.append((cap, label))
    return [Guide(at=cap, tone="cap", line="dotted", label=label, low=True) for cap, label in out]


def _predictions(summary: Summary) -> list[Series]:
    """Return the data sheet's prediction as a band, and the calibrated one as a line."""
    prediction = summary.prediction
    if prediction is None:
        return []
    if summary.open_loop:
        points = [
            Datum(x, y, hover=(f"predicted at {x:g} req/s: {number(y)} tok/s",)) for x, y in _predicted_rates(summary)
        ]
        return [Series(name="predicted", tone="predicted", points=points, line="dashed")] if points else []
    out, unit = [], unit_of(summary)
    per_s = "tok/s" if unit.decodes else unit.per_s
    if band := _predicted_band(prediction.levels):
        hovering = [
            Datum(n, mid, low, high, hover=(f"predicted at {number(n)}: {number(round(mid, 1))} {per_s}",))
            for n, low, mid, high in band
        ]
        _, low, mid, high = band[-1]
        end = f"predicted {number(round(mid, 1))}\n{number(round(low, 1))}–{number(round(high, 1))}"
        name = "predicted, low–mid–high"
        out.append(Series(name=name, tone="predicted", points=hovering, line="dashed", end=end))
    own = _predicted_band(prediction.calibrated.levels) if prediction.calibrated else []
    if own:
        points = [Datum(n, mid) for n, _, mid, _ in own]
        out.append(Series(name="predicted, calibrated", tone="calibrated", points=points, line="dotted"))
    return out


def _predicted_band(predicted: Sequence[PredictedLevel]) -> list[tuple[float, float, float, float]]:
    """Return the predicted band as (in flight, low, mid, high), with points between the levels.

    N/X is straight in N on both sides of a cap (docs/method.md, The steady state), so that is what is
    interpolated: straight lines in X would bend upwards on a log axis.
    """
    levels = sorted(predicted, key=lambda x: x.concurrency)
    loads = [float(level.concurrency) for level in levels]
    bands = [[getattr(level.throughput, end) for level in levels] for end in ("low", "mid", "high")]
    if len(loads) == 1:  # a dash, for a point has no line
        return [(loads[0] * side, *(band[0] for band in bands)) for side in (1 / 1.03, 1.03)]
    fine = [low + (high - low) * step / 12 for low, high in itertools.pairwise(loads) for step in range(12)]
    fine += loads[-1:]
    rates = [[n / float(np.interp(n, loads, np.divide(loads, band))) for n in fine] for band in bands]
    return list(zip(fine, *rates, strict=True))


def _fitted(summary: Summary) -> list[Series]:
    """Return the curve over the levels, with its 95 % band."""
    if summary.curve is None or summary.open_loop:
        return []
    points = [Datum(point.in_flight, point.per_s, point.low, point.high) for point in summary.curve.line]
    return [Series(name="curve, 95 % band", tone="fitted", points=points, line="solid")] if points else []


def _levels(levels: Sequence[_Measured], noise: float | None) -> list[Series]:
    """Return the levels as markers with 95 % intervals; a window too short for one gets the fit's relative `noise`."""
    kinds: dict[str, list[Datum]] = {"own": [], "short": [], "void": []}
    for x, y, level in levels:
        assumed = level.output_tokens_per_s_se_assumed and noise is not None
        half = Z95 * ((noise or 0.0) * y if assumed else level.output_tokens_per_s_se or 0.0)
        low, high = level.throughput.ci95 or (y - half, y + half)
        kind = "void" if worst(level) == Gravity.INVALID else "own" if level.throughput.ci95 else "short"
        kinds[kind].append(Datum(x, y, min(low, y), max(high, y), hover=_hover(level)))
    names: list[tuple[str, str, Marker]] = [
        ("own", "measured, 95 % interval", "dot"),
        ("short", "measured, pale: the fit's own error", "dot"),
        ("void", "invalid level", "ring"),
    ]
    return [
        Series(name=name, tone="measured", points=kinds[kind], marker=marker, pale=kind == "short")
        for kind, name, marker in names
        if kinds[kind]
    ]


def _hover(level: LevelSummary) -> list[str]:
    """Return the lines that are shown when a pointer is over a level: its throughput, latencies, errors, verdicts."""
    out, half = level.throughput, half_width(level.throughput.ci95)
    figure = f"{number(out.mean)}{'' if half is None else f' ± {number(half, 2)}'}"
    if level.unit:
        spreads = {"latency": level.e2e_s}
        documents = number(level.documents_per_s.mean if level.documents_per_s else None)
        rates = [f"{figure} {Unit(level.unit).per_s}", f"{documents} documents/s"]
    else:
        spreads = {"TTFT": level.ttft_s, "ITL": level.itl_s, "TPOT": level.tpot_s, "E2E": level.e2e_s}
        rates = [
            f"output {figure} tok/s",
            f"per user {number(level.tokens_per_s_per_user)} tok/s",
            f"input {number(level.input_tokens_per_s.mean)} tok/s, cached {percent(level.cached_input_fraction)}",
        ]
    return [
        f"{load_of(level)}, in flight {number(level.in_flight)}",
        *rates,
        f"{number(level.requests_per_s.mean)} req/s, {number(level.requests)} requests in {number(level.window_s)} s",
        *(
            f"{name} p50 {ms(x.p50)}, p90 {ms(x.p90)}, p99 {ms(x.p99)}, mean {ms(x.mean)} ms"
            for name, x in spreads.items()
        ),
        f"errors {number(level.errors)}" + (f" ({flat(level.errors_by_type)})" if level.errors_by_type else ""),
        *(f"{verdict.level}: {verdict.code}" for verdict in level.verdicts),
    ]


def _knees(summary: Summary) -> list[Guide]:
    """Return the lines drawn for the server's knee, its plateau and the knee of the limits, with their intervals."""
    if summary.open_loop:
        rate = summary.knees.slo_rate
        return [_by_limits(rate, " requests/s")] if rate and rate.value is not None else []
    found, slo, plateau = summary.curve, summary.knees.slo, plateau_of(summary.curve)
    out = _own_knee(summary)
    if slo and slo.value is not None:
        out.append(msgspec.structs.replace(_by_limits(slo), low=True))
    if plateau and plateau.value is not None:
        about = "about " if state(found) == PROVISIONAL else ""
        label, words = f"plateau {about}{number(plateau.value)}", interval(plateau.ci95)
        at, ends = plateau.value, plateau.ci95
        out.append(Guide(at=at, axis="y", tone="knee", line="dashed", ci95=ends, label=label, detail=words))
    return out


def _by_limits(knee: Value, unit: str = "") -> Guide:
    """Return the highest load that meets the limits, dashed where too few requests decide it."""
    sure = is_decided(knee)
    label = f"knee {'' if sure else 'about '}{number(knee.value)}{unit}, by the limits"
    return Guide(at=knee.value or 0.0, tone="limit", line="solid" if sure else "dashed", label=label)


def _own_knee(summary: Summary) -> list[Guide]:
    """Return the server's own knee with its interval, dashed if it is provisional; [] if there is none.

    Where throughput still rises it is a label at the right end. An open loop has no such knee.
    """
    if summary.open_loop:
        return []
    own = own_knee(summary)
    name = own.kind if summary.limited else "knee"
    if own.state == BEYOND and summary.curve and summary.curve.at_least_concurrency:
        return [Guide(at=math.inf, tone="knee", label=f"{name} above {number(summary.curve.at_least_concurrency)} →")]
    if own.value is None:
        return []
    provisional = own.state == PROVISIONAL
    label = f"{name} {'about ' * provisional}{number(own.value)}"
    words = ", ".join(part for part in ("provisional" * provisional, interval(own.ci95)) if part)
    line: Stroke = "dashed" if provisional else "solid"
    return [Guide(at=own.value, tone="knee", line=line, ci95=own.ci95, label=label, detail=words)]


def frontier(summary: Summary) -> Chart:
    """Return output tok/s per GPU against output tok/s per user, measured and predicted: a point a level."""
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
    points = chart.labelled_apart(points)
    prediction, series = summary.prediction, []
    if prediction is not None and points and not summary.open_loop:
        guesses = [(level, level.itl_s, level.output_tokens_per_s.mid / prediction.gpus) for level in prediction.levels]
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
    load = "target rate" if summary.open_loop else summary.load_unit
    name = f"measured; the numbers are {load}"
    series.append(Series(name=name, tone="measured", points=points, line="solid", marker="dot"))
    return chart.frontier(series)
