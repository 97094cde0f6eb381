"""Calibration: what a server reaches of its hardware, from a few named levels, judged on all the others.

MBU, MFU and overheads are fitted to throughput, ITL and TTFT of the levels that are named, by least squares in the
logarithm: a level at 100 tok/s counts as much as one at 10,000. Two levels carry at most four figures (below the cap
TTFT and ITL give throughput, by Little's law), and often fewer: a batch limited by reading weights shows nothing of
MFU. A figure that they leave open stays as it was assumed, and is named with the reason. The error is that at the
levels that were not named, compared with the same prediction before, and with a line that turns flat.

Left out: the caps on the batch, which are configuration and no efficiency, and how long requests wait for the step
that runs when they arrive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from harness.base import decoding
from harness.base.errors import HarnessError
from harness.predict.deployment import Deployment
from harness.predict.least_squares import Span, least_squares, standard_errors
from harness.predict.limits import batch_cap, caps
from harness.predict.model import Model, weight_bytes
from harness.predict.steady import steady_state
from harness.predict.step import layer_overhead, step_cost
from harness.spec.work import MeanLengths

FORMAT = 1
USUAL = (1, 16)  # levels to fit on, where none are named
FIGURES = ("output_tokens_per_s", "itl_s", "ttft_s")
_SIGMA = 0.01  # relative error of a measured figure: what levels of half a minute differ by from run to run
_OPEN = 0.5  # a figure is left open unless the levels at least halve what is not known of it beforehand
_CONTRADICTS = 9.0  # by how much χ² rises where a figure goes back to three standard errors from where it fits
_FLOOR = 1e-9  # seconds; an overhead that small is none


class Range(msgspec.Struct, frozen=True):
    """Where a figure may lie, and what is known of it beforehand."""

    low: float
    high: float
    centre: float  # where the deployment has it at 0
    width: float  # a standard deviation of its logarithm: MBU .6-.9, MFU .3-.6, overheads within a factor of three


# Of the overheads a step's is o_layer's: one model has one number of layers, so that o_step, a tenth of it by the
# published fit, cannot be separated from it. o_req grows with the batch, and o_api delays a request without any step.
RANGES = {
    "mbu": Range(0.01, 1.0, 0.8, 0.3),
    "mfu_prefill": Range(0.01, 1.0, 0.45, 0.5),
    "mfu_decode": Range(0.01, 1.0, 0.45, 0.5),
    "o_layer": Range(_FLOOR, 1.0, 32e-6, 1.1),
    "o_req": Range(_FLOOR, 1.0, 4.4e-6, 1.1),
    "o_api": Range(_FLOOR, 60.0, 1e-3, 1.5),
}

_SPANS = {name: Span(math.log(each.low), math.log(each.high), each.width) for name, each in RANGES.items()}


class CalibrationPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One level's means; None where it has none."""

    concurrency: float
    output_tokens_per_s: float
    itl_s: float | None = None
    ttft_s: float | None = None


class UnseenError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Predicted over measured, minus 1, of one figure at a level that no fit has seen."""

    figure: str  # one of FIGURES
    concurrency: float
    measured: float
    calibrated: float
    data_sheet: float
    line_then_flat: float | None = None  # of throughput alone


class Rms(msgspec.Struct, frozen=True):
    """Root mean square of relative errors over the unseen levels; None where there are none."""

    calibrated: float | None
    data_sheet: float | None
    line_then_flat: float | None


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one model's server reached on one kind of card: a Deployment's own figures, and how far they hold."""

    format: int = FORMAT
    model: str
    weight_bytes: float  # distinguishes the quantisations of a model
    gpu: str
    mbu: float
    mfu_prefill: float
    mfu_decode: float
    o_layer: float
    o_step: float
    o_req: float
    o_api: float
    fitted: tuple[str, ...]  # the figures that the levels settle
    kept: dict[str, str]  # those that stay as they were assumed, with the reason
    fitted_on: tuple[float, ...]  # concurrencies
    input_tokens: float
    output_tokens: float
    errors_unseen: tuple[UnseenError, ...]
    notes: tuple[str, ...] = ()
    source: str = ""  # the measurement's folder

    def rms(self, figure: str = FIGURES[0]) -> Rms:
        """How far off the three predictions of a figure are at the levels that none of them has seen."""
        rows = [row for row in self.errors_unseen if row.figure == figure]
        ways = ([row.calibrated for row in rows], [row.data_sheet for row in rows])
        flat = [row.line_then_flat for row in rows if row.line_then_flat is not None]
        return Rms(*(rms(errors) for errors in (*ways, flat)))


def rms(errors: Sequence[float]) -> float | None:
    """Root mean square; None of nothing.

    >>> rms([0.03, -0.04, 0.0, 0.0])
    0.025
    """
    return math.sqrt(sum(e * e for e in errors) / len(errors)) if errors else None


def assumed(model: Model, deployment: Deployment) -> dict[str, float]:
    """The figures of RANGES as they are before any fit."""
    stated = msgspec.structs.replace(deployment, o_layer=layer_overhead(model, deployment))
    return {name: float(getattr(stated, name)) for name in RANGES}


def tune(
    model: Model,
    deployment: Deployment,
    workload: MeanLengths,
    points: Iterable[CalibrationPoint],
    on: Sequence[float] = USUAL,
    *,
    source: str = "",
) -> Calibration:
    """Fit what `on` settles of MBU, MFU and overheads, and judge it on the points that are not in `on`.

    `deployment` is the data sheet's: with the limits that the server has, but no figure of this measurement.
    Levels that are void (the client was the limit, errors) are the caller's to leave out; repeats are averaged.
    """
    measured = _averaged(points)
    named = [_named(measured, C) for C in dict.fromkeys(on)]
    if not workload.output_tokens:
        fact = "without output tokens MBU cannot be told from overhead"
        raise HarnessError(fact, place="calibrate model", way_out="measure a workload with output tokens")
    cap = batch_cap(caps(model, deployment, workload))

    def predicted(figures: Mapping[str, float], C: float) -> CalibrationPoint:
        return _at(model, msgspec.structs.replace(deployment, **figures), workload, C, cap)

    before = assumed(model, deployment)
    found, kept = _settled(before, named, workload.output_tokens, predicted)
    unseen = [each for C, each in measured.items() if C not in on]
    whole = {**before, **found}
    return Calibration(
        model=model.name,
        weight_bytes=weight_bytes(model),
        gpu=deployment.gpu.key,
        mbu=whole["mbu"],
        mfu_prefill=whole["mfu_prefill"],
        mfu_decode=whole["mfu_decode"],
        o_layer=whole["o_layer"],
        o_step=deployment.o_step,
        o_req=whole["o_req"],
        o_api=whole["o_api"],
        fitted=tuple(found),
        kept=kept,
        fitted_on=tuple(each.concurrency for each in named),
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        errors_unseen=tuple(_errors(unseen, named, lambda C: predicted(whole, C), lambda C: predicted({}, C))),
        notes=tuple(_at_bounds(found)),
        source=source,
    )


def apply(model: Model, deployment: Deployment, calibration: Calibration) -> Deployment:
    """The deployment with the calibrated figures in place of the data sheet's; another model or card is refused."""
    wanted = (model.name, weight_bytes(model), deployment.gpu.key)
    calibrated = (calibration.model, calibration.weight_bytes, calibration.gpu)
    if wanted != calibrated:
        these, those = (f"{name} ({size / 1e9:.3g} GB) on {card}" for name, size, card in (calibrated, wanted))
        way_out = "calibrate on that one, or leave --calibration out"
        raise HarnessError(f"it was made for {these}, not for {those}", place="--calibration", way_out=way_out)
    return msgspec.structs.replace(
        deployment, o_step=calibration.o_step, **{name: getattr(calibration, name) for name in RANGES}
    )


def encode(calibration: Calibration) -> str:
    """The calibration as the text of its file."""
    return msgspec.json.format(msgspec.json.encode(calibration), indent=2).decode() + "\n"


def decode(text: str | bytes, place: str = "--calibration") -> Calibration:
    """A calibration from the text of its file; `place` names that file."""
    way_out = "write one with `knee calibrate model DIR --out FILE`"
    with decoding.reading(place, "a calibration", way_out):
        data = text.encode() if isinstance(text, str) else text
        found = decoding.typed(decoding.json(data), Calibration)
    if found.format != FORMAT:
        raise HarnessError(f"a calibration of format {found.format}, not {FORMAT}", place=place, way_out=way_out)
    return found


def line_then_flat(named: Sequence[CalibrationPoint], C: float) -> float:
    """The prediction to beat, which knows no hardware: X = min(X1 C, X_max), both of the named levels; tok/s.

    >>> pairs = ((1, 100), (16, 620))
    >>> two = [CalibrationPoint(concurrency=C, output_tokens_per_s=X) for C, X in pairs]
    >>> line_then_flat(two, 4), line_then_flat(two, 32)
    (400.0, 620)
    """
    least = min(named, key=lambda each: each.concurrency)
    return min(
        least.output_tokens_per_s / least.concurrency * C,
        max(each.output_tokens_per_s for each in named),
    )


# ---- levels ---------------------------------------------------------------------------------------------


def _averaged(points: Iterable[CalibrationPoint]) -> dict[float, CalibrationPoint]:
    """One point a concurrency, in order of it."""
    ordered = sorted(points, key=lambda point: point.concurrency)
    out = {}
    for C, same in itertools.groupby(ordered, key=lambda point: point.concurrency):
        repeats = list(same)

        def mean(figure: str, repeats: Sequence[CalibrationPoint] = repeats) -> float | None:
            values = [value for each in repeats if (value := getattr(each, figure)) is not None]
            return sum(values) / len(values) if values else None

        out[C] = CalibrationPoint(
            concurrency=C,
            output_tokens_per_s=mean("output_tokens_per_s") or 0.0,
            itl_s=mean("itl_s"),
            ttft_s=mean("ttft_s"),
        )
    return out


def _named(measured: Mapping[float, CalibrationPoint], C: float) -> CalibrationPoint:
    if C in measured and measured[C].output_tokens_per_s > 0:
        return measured[C]
    there = ", ".join(f"{each:g}" for each, point in measured.items() if point.output_tokens_per_s > 0) or "none"
    raise HarnessError(f"no valid level at {C:g}", place="--on", way_out=f"measured: {there}")


def _at(model: Model, deployment: Deployment, workload: MeanLengths, C: float, cap: float) -> CalibrationPoint:
    """What the closed form says of C users, shared evenly by the replicas."""
    dp = deployment.dp
    point = steady_state(step_cost(model, deployment), workload, max(1.0, C / dp), cap)
    return CalibrationPoint(
        concurrency=C, output_tokens_per_s=min(dp, C) * point.throughput, itl_s=point.itl, ttft_s=point.ttft
    )


def _ratios(measured: CalibrationPoint, predicted: CalibrationPoint) -> dict[str, float]:
    """Predicted over measured of every figure that was measured."""
    values = {figure: getattr(measured, figure) for figure in FIGURES}
    return {figure: getattr(predicted, figure) / value for figure, value in values.items() if value}


def _errors(
    unseen: Sequence[CalibrationPoint],
    named: Sequence[CalibrationPoint],
    calibrated: Callable[[float], CalibrationPoint],
    data_sheet: Callable[[float], CalibrationPoint],
) -> Iterable[UnseenError]:
    for each in unseen:
        C = each.concurrency
        ours, theirs = _ratios(each, calibrated(C)), _ratios(each, data_sheet(C))
        for figure in ours:
            flat = line_then_flat(named, C) / each.output_tokens_per_s - 1 if figure == FIGURES[0] else None
            yield UnseenError(
                figure=figure,
                concurrency=C,
                measured=getattr(each, figure),
                calibrated=ours[figure] - 1,
                data_sheet=theirs[figure] - 1,
                line_then_flat=flat,
            )


# ---- the fit --------------------------------------------------------------------------------------------


def _settled(
    assumed: Mapping[str, float],
    named: Sequence[CalibrationPoint],
    G: float,
    predicted: Callable[[Mapping[str, float], float], CalibrationPoint],
) -> tuple[dict[str, float], dict[str, str]]:
    """The figures that the named levels settle, fitted, and why each of the others is kept.

    All are fitted first, each with a prior around what is assumed, of its own width. Of those that the levels leave
    open, the one they constrain least is set back and the rest fitted again, unless the levels contradict the value it
    goes back to. Those that are left are fitted once more without priors.
    """
    start = {name: math.log(value or RANGES[name].centre) for name, value in assumed.items()}
    uncertain = [_uncertain(each, G) for each in named]
    kept: dict[str, str] = {}

    def residuals(at: Mapping[str, float]) -> list[float]:
        figures = {name: math.exp(value) for name, value in at.items()}
        ratios = [_ratios(each, predicted(figures, each.concurrency)) for each in named]
        return [
            math.log(ratio) / errors[figure]
            for errors, level in zip(uncertain, ratios, strict=True)
            for figure, ratio in level.items()
        ]

    def penalised(at: Mapping[str, float]) -> list[float]:
        return residuals(at) + [(value - start[name]) / RANGES[name].width for name, value in at.items()]

    here, cost = least_squares(penalised, start, _SPANS)
    while here:
        left = {name: s / RANGES[name].width for name, s in standard_errors(penalised, here, _SPANS).items()}
        free = [name for name in sorted(here, key=lambda name: -left[name]) if left[name] > _OPEN]
        allowed = cost + _CONTRADICTS * max(1.0, cost / len(residuals(here)))
        for name in free:
            rest, higher = least_squares(penalised, {each: x for each, x in here.items() if each != name}, _SPANS)
            if higher <= allowed:
                break
        else:
            break
        here, cost, kept[name] = rest, higher, _why(left[name])
    here, _ = least_squares(residuals, here, _SPANS)
    return {name: _rounded(math.exp(here[name])) for name in here}, kept


def _uncertain(measured: CalibrationPoint, G: float) -> dict[str, float]:
    """Relative error of each figure, as far as the closed form can explain it.

    With others in flight, a request arrives while a step runs and waits for its end, which the closed form leaves out:
    up to an ITL, √⅓ of one in the mean square. That is much of a TTFT and little of the C G / X that a request lasts.
    """
    C, X = measured.concurrency, measured.output_tokens_per_s
    wait = max(0.0, 1 - 1 / C) * (measured.itl_s or 0.0) / math.sqrt(3)
    return {
        "output_tokens_per_s": math.hypot(_SIGMA, wait * X / (C * G)),
        "itl_s": _SIGMA,
        "ttft_s": math.hypot(_SIGMA, wait / measured.ttft_s if measured.ttft_s else 0.0),
    }


def _why(left: float) -> str:
    if left > 0.99:
        return "the named levels hardly change with it"
    return "the named levels do not tell it from the others"


def _rounded(value: float) -> float:
    return 0.0 if value <= _FLOOR * 1.001 else value


def _at_bounds(found: Mapping[str, float]) -> Iterable[str]:
    for name, value in found.items():
        if value >= 0.999 * RANGES[name].high:
            yield f"{name} is at its most, {value:g}: the hardware is faster than stated, or did less than was counted"
        elif value <= 1.001 * RANGES[name].low:
            yield f"{name} is at its least, {value:g}: other figures explain all that it could"
