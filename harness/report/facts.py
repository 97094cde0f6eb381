"""The facts of a run's answer after the headline: why it is provisional, limits, phases, prediction, cost, client."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis import slo
from harness.analysis.rules import Purpose, usable
from harness.data.judgement import AGREES, Cause, Outcome
from harness.data.summary import Calibrated, Curve, Gap, PredictedLevel, Summary, Value, is_decided
from harness.report.document import Fact
from harness.report.format import confidence, joined, load, load_of, number, percent, plain, slo_met
from harness.report.headline import (
    by_curve,
    is_open,
    limited,
    of_curve,
    of_ramp,
    of_seats,
    one_alone,
    own_knee,
    plateau_of,
    price,
    throughputs_alone,
    undecided,
    unit_of,
    unsettled,
)
from harness.report.subject import BY_CONSTRUCTION

_AGREES = f"{AGREES[0]:.2f}–{AGREES[1]:.2f} counts as agreement"  # docs/method.md, Measured against predicted


def details(summary: Summary) -> list[Fact]:
    """What stands behind the headline, most important first."""
    own = of_ramp(summary.levels)
    loads = [each.concurrency for each in own if each.concurrency is not None and usable(each, Purpose.ANSWER)]
    curve = [] if is_open(summary) else unsettled(summary.curve, loads)
    if not (is_open(summary) or by_curve(summary)):
        curve = [of_curve(summary.curve, summary.knees, loads, label="Hinge", unit=summary.load_unit), *curve]
    if limited(summary) and (seats := own_knee(summary)).kind == "seats":
        curve = [of_seats(seats, label="Seats"), *curve]
    curve += [*_plateau(summary), *_single_stream(summary)]
    found = [*_slo(summary), *_prediction(summary), *_cost(summary), *_gpu(summary)]
    return [*_interrupted(summary), *curve, *found, *_client(summary)]


def _interrupted(summary: Summary) -> list[Fact]:
    if summary.complete:
        return []
    finished = {0: "no level was finished", 1: "1 level was finished"}
    count = len(summary.levels)
    return [Fact("Interrupted", "the run ended early", finished.get(count, f"{count} levels were finished"))]


def _plateau(summary: Summary) -> list[Fact]:
    """Where half of the plateau is reached, and what is lost of it."""
    curve, half = summary.curve, summary.knees.half_point
    reached = half.value if plateau_of(curve) and half else None
    lost = curve.dip.value if curve and curve.dip else None
    value = joined(
        f"half of it at {number(reached)} in flight" if reached is not None else "",
        f"it falls by {percent(round(lost, 3))} to the last level" if lost is not None else "",
    )
    return [Fact("Of the plateau", value)] if value else []


def _single_stream(summary: Summary) -> list[Fact]:
    """One request in flight, or one session: as it was measured, then as the curve has it."""
    label, per_s = one_alone(summary).capitalize(), unit_of(summary).per_s
    fitted = summary.curve.single_stream_tokens_per_s if summary.curve else Value(None)
    ones = throughputs_alone(summary)
    rates = [each.mean for each in ones if each.mean is not None]
    curve = f"{number(fitted.value)} {{}}by the curve ({confidence(fitted.ci95)})" if fitted.value is not None else ""
    if not rates:
        return [Fact(label, curve.format(f"{per_s} "))] if curve else []
    how = confidence(ones[0].ci95) if len(rates) == 1 else f"mean of {len(rates)} levels"
    return [Fact(label, f"{number(sum(rates) / len(rates))} {per_s} measured ({how})", curve.format(""))]


def _slo(summary: Summary) -> list[Fact]:
    """The highest load that meets the limits, or why there is none."""
    judged = [level for level in summary.levels if level.slo]
    if not judged:
        return []
    limits = ", ".join(
        f"{f'{plain(each.class_)} ' if each.class_ else ''}{plain(each.limit)} for {percent(each.needed)}"
        for each in judged[0].slo
    )
    open_loop = is_open(summary)
    knee = summary.knees.slo_rate if open_loop else summary.knees.slo
    unit = "requests per second" if open_loop else summary.load_unit
    if knee is not None and knee.value is not None:
        missed = knee.ci95[1] if knee.ci95 else None
        beyond = f"missed at {number(missed)}" if missed is not None else "no level misses them"
        if not is_decided(knee):
            likely = f"likely met up to {number(knee.value)} {unit}, with too few requests to decide"
            return [Fact("SLO", likely, joined(limits, beyond))]
        return [Fact("SLO", f"met up to {number(knee.value)} {unit}", joined(limits, beyond))]
    found = slo.by_load(summary.levels, rates=open_loop)
    lowest = next(iter(found), None)
    if lowest is not None and found[lowest].outcome == Outcome.MISSED:
        return [Fact("SLO", f"missed at the lowest level, {load(open_loop, lowest)}", limits)]
    return [Fact("SLO", "unresolved", joined(limits, undecided(found, unit)))]


def _prediction(summary: Summary) -> list[Fact]:
    prediction = summary.prediction
    if prediction is None:
        return [Fact("Prediction", "not made", "it needs a GPU (--gpu) and a model config (--model-config)")]
    band, cap = prediction.plateau_tokens_per_s, prediction.binding_cap
    limit = prediction.caps.get(cap) if cap else None
    detail = joined(
        f"band {number(band.low)}–{number(band.high)}",
        f"single stream {number(prediction.single_stream_tokens_per_s.mid)}",
        f"knee at {number(prediction.hinge_concurrency)}" if prediction.hinge_concurrency is not None else "no knee",
        _binding(cap, limit),
    )
    out = [Fact("Prediction", f"plateau {number(band.mid)} {unit_of(summary).per_s}", detail)]
    curve, one = summary.curve, prediction.single_stream_tokens_per_s.mid
    if agreement := _agreement(curve, band.mid, prediction.levels):
        single = curve.single_stream_tokens_per_s.value if curve else None
        alone = f"single stream {single / one:.2f}" if single is not None and one > 0 else ""
        because = f"{BY_CONSTRUCTION} (simulated)" if summary.simulated else _AGREES
        out.append(Fact("Measured / predicted", agreement, joined(alone, because)))
    return [*out, *_gap(prediction.gap), *_calibrated(curve, prediction.calibrated)]


def _agreement(curve: Curve | None, plateau: float, levels: Sequence[PredictedLevel]) -> str:
    """Measured over predicted at the plateau, else at the highest level; "" where there is neither."""
    reached = curve.plateau_tokens_per_s.value if curve and curve.plateau_reached else None
    if reached is not None and plateau > 0:
        return f"{reached / plateau:.2f} at the plateau"
    judged = [level for level in levels if level.measured_over_predicted is not None]
    top = max(judged, key=lambda level: level.concurrency, default=None)
    return f"{top.measured_over_predicted:.2f} at C = {top.concurrency}" if top else ""


def _binding(cap: str | None, limit: float | None) -> str:
    """What limits the batch, or the SLO before."""
    if cap is None:
        return "no cap binds"
    if cap == "slo":
        return slo_met(limit or 0.0)
    return f"bound by {plain(cap)}" + (f" = {number(limit)}" if limit is not None else "")


def _gap(gap: Gap | None) -> list[Fact]:
    """Why the measurement differs from the prediction: the largest cause, and every factor."""
    if gap is None:
        return []
    factors = ", ".join(f"{cause} {factor:.2f}" for cause, factor in gap.factors.items())
    reached = [f"{name} {x.value:.2f} reached" for name, x in (("MBU", gap.mbu), ("MFU", gap.mfu)) if x is not None]
    largest = "agrees" if gap.largest == Cause.NONE else gap.largest
    return [Fact("Gap", largest, joined(plain(gap.sentence).rstrip("."), f"factors: {factors}", ", ".join(reached)))]


def _calibrated(curve: Curve | None, own: Calibrated | None) -> list[Fact]:
    """The calibrated prediction, and what it was fitted on."""
    if own is None:
        return []
    detail = joined(
        f"single stream {number(own.single_stream_tokens_per_s)}",
        f"knee at {number(own.hinge_concurrency)}" if own.hinge_concurrency is not None else "no knee",
        f"fitted at {load(False, *own.fitted_on)} of {plain(own.source) or 'another run'}",
        f"error {percent(own.error_unseen)} at the other levels" if own.error_unseen is not None else "",
    )
    out = [Fact("Calibrated", f"plateau {number(own.plateau_tokens_per_s)} output tok/s", detail)]
    agreement = _agreement(curve, own.plateau_tokens_per_s, own.levels)
    return [*out, *([Fact("Measured / calibrated", agreement)] if agreement else [])]


def _cost(summary: Summary) -> list[Fact]:
    cost, each = summary.cost, price(summary)
    if cost is None or not each:
        return []
    per_hour, at = cost.usd_per_gpu_hour, cost.at_concurrency
    detail = joined(
        f"at {number(at)} in flight" if at is not None else "",
        f"${per_hour:,.2f} per GPU-hour" if per_hour is not None else "",
        f"{cost.gpus} GPUs" if cost.gpus and cost.gpus > 1 else "",
    )
    return [Fact("Cost", each, detail)]


def _gpu(summary: Summary) -> list[Fact]:
    """What the GPUs drew at the fastest level at which they were watched."""
    watched = [level for level in summary.levels if level.gpu and level.gpu.power_w is not None]
    top = max(watched, key=lambda level: level.throughput.mean or 0.0, default=None)
    if top is None or top.gpu is None:
        return []
    gpu = top.gpu
    clock, least, memory = gpu.sm_clock_hz, gpu.sm_clock_min_hz, gpu.memory_used_bytes
    detail = joined(
        f"{number(gpu.joules_per_output_token)} J per output token" if gpu.joules_per_output_token is not None else "",
        f"SM clock {clock / 1e6:,.0f} MHz, lowest {least / 1e6:,.0f}" if clock and least else "",
        f"{number(memory / 1e9)} GB in use" if memory is not None else "",
    )
    many = f" on {gpu.gpus} GPUs" if gpu.gpus > 1 else ""
    return [Fact("GPU", f"{number(gpu.power_w)} W{many} at {load_of(top)}", detail)]


def _client(summary: Summary) -> list[Fact]:
    """The load generator: its ceiling, how much of it was used, and the error of its time stamps."""
    client = summary.client
    if client.timestamp_source is None:
        return []
    value = f"{client.workers} worker{'' if client.workers == 1 else 's'}, {client.timestamp_source} stamps"
    if client.transport != "socket":
        value += f", {client.transport} transport"
    ceiling, error = client.events_per_s_ceiling, client.timestamp_error_p99_s
    used = [x.client.ceiling_fraction for x in summary.levels if x.client.ceiling_fraction is not None]
    detail = joined(
        f"ceiling {'at least ' if client.ceiling_is_lower_bound else ''}{number(ceiling)} tok/s" if ceiling else "",
        f"{percent(max(used))} of it used" if used else "",
        f"arrival error p99 {number(error * 1e6)} µs" if error is not None else "",
    )
    return [Fact("Client", value, detail or "ceiling and error unknown")]
