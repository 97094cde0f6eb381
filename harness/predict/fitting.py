"""What a server reaches of its hardware, fitted to a few named levels and judged on all the others.

MBU, MFU and overheads are fitted to throughput, ITL and TTFT of the levels that are named, by least squares in the
logarithm: a level at 100 tok/s counts as much as one at 10,000. Two levels carry at most four figures (below the cap
TTFT and ITL give throughput, by Little's law), and often fewer: a batch limited by reading weights shows nothing of
MFU. A figure that they leave open stays as it was assumed, and is named with the reason. The error is that at the
levels that were not named, compared with the same prediction before, and with a line that turns flat.

Left out: the caps on the batch, which are configuration and no efficiency, and how long requests wait for the step
that runs when they arrive. numpy is imported where it is used: a prediction without a fit does without it. Why not
scipy is in docs/design.md, Budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from harness.base.errors import HarnessError
from harness.data.prediction import batch_cap
from harness.predict.calibration import FIGURES, FLOOR, RANGES, Calibration, UnseenError
from harness.predict.deployment import Deployment
from harness.predict.model import Model, weight_bytes
from harness.predict.roofline import over_replicas
from harness.predict.steady import caps, latencies
from harness.predict.step import layer_overhead, step_cost
from harness.spec.work import MeanLengths

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

USUAL = (1, 16)  # levels to fit on, if none are named
_SIGMA = 0.01  # relative error of a measured figure: what levels of half a minute differ by from run to run
_OPEN = 0.5  # a figure is left open unless the levels at least halve what is not known of it beforehand
_HARDLY = 0.99  # share of a range's width that is left, above which the levels say nothing of the figure
_CONTRADICTS = 9.0  # rise of χ² where a figure is moved three standard errors from its fit


class CalibrationPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One level's means; None if it has none."""

    concurrency: float
    output_tokens_per_s: float
    itl_s: float | None = None
    ttft_s: float | None = None


def assumed(model: Model, deployment: Deployment) -> dict[str, float]:
    """Return the figures of RANGES as they are before any fit."""
    stated = msgspec.structs.replace(deployment, o_layer=layer_overhead(model, deployment))
    return {name: float(getattr(stated, name)) for name in RANGES}


def fit(
    model: Model,
    deployment: Deployment,
    workload: MeanLengths,
    points: Iterable[CalibrationPoint],
    on: Sequence[float] = USUAL,
    *,
    source: str = "",
) -> Calibration:
    """Fit MBU, MFU and overheads to the points at concurrencies `on`; return them with errors at the other points.

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
    parameters, kept = _settled(before, named, workload.output_tokens, predicted)
    unseen = [each for C, each in measured.items() if C not in on]
    whole: dict[str, Any] = {**before, **parameters}
    return Calibration(
        model=model.name,
        weight_bytes=weight_bytes(model),
        gpu=deployment.gpu.key,
        o_step=deployment.o_step,
        **whole,
        fitted=tuple(parameters),
        kept=kept,
        fitted_on=tuple(each.concurrency for each in named),
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        errors_unseen=tuple(_errors(unseen, named, lambda C: predicted(whole, C), lambda C: predicted({}, C))),
        notes=tuple(_at_bounds(parameters)),
        source=source,
    )


def line_then_flat(named: Sequence[CalibrationPoint], C: float) -> float:
    """Return the simple prediction at C that a calibration should beat, min(X1 C, X_max) of the named levels; tok/s.

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
    """Return the points by rising concurrency, with the repeats of each averaged."""
    by: dict[float, list[CalibrationPoint]] = {}
    for point in sorted(points, key=lambda point: point.concurrency):
        by.setdefault(point.concurrency, []).append(point)
    out = {}
    for C, repeats in by.items():
        tokens, itl, ttft = (_mean([getattr(repeat, figure) for repeat in repeats]) for figure in FIGURES)
        out[C] = CalibrationPoint(concurrency=C, output_tokens_per_s=tokens or 0.0, itl_s=itl, ttft_s=ttft)
    return out


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _named(measured: Mapping[float, CalibrationPoint], C: float) -> CalibrationPoint:
    if C in measured and measured[C].output_tokens_per_s > 0:
        return measured[C]
    there = ", ".join(f"{each:g}" for each, point in measured.items() if point.output_tokens_per_s > 0) or "none"
    raise HarnessError(f"no valid level at {C:g}", place="--on", way_out=f"measured: {there}")


def _at(model: Model, deployment: Deployment, workload: MeanLengths, C: float, cap: float) -> CalibrationPoint:
    """Return throughput, ITL and TTFT of C users by the closed form, divided evenly among the replicas."""
    cost = step_cost(model, deployment)
    point = over_replicas(cost, cap, workload, C, deployment.dp)
    ttft = latencies(point, cost, workload, "evenly").ttft
    return CalibrationPoint(concurrency=C, output_tokens_per_s=point.throughput, itl_s=point.itl, ttft_s=ttft)


def _ratios(measured: CalibrationPoint, predicted: CalibrationPoint) -> dict[str, float]:
    """Return predicted over measured of every figure that was measured."""
    values = {figure: getattr(measured, figure) for figure in FIGURES}
    return {figure: getattr(predicted, figure) / value for figure, value in values.items() if value}


def _errors(
    unseen: Sequence[CalibrationPoint],
    named: Sequence[CalibrationPoint],
    calibrated: Callable[[float], CalibrationPoint],
    data_sheet: Callable[[float], CalibrationPoint],
) -> Iterable[UnseenError]:
    """Yield each figure's relative errors at points not fitted on: calibrated, by data sheet, of a line then flat."""
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
    """Return ({figure: fitted value}, {figure: why it stays as assumed}); only what the named levels tell is fitted.

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

    here, cost = least_squares(penalised, start)
    while here:
        left = {name: s / RANGES[name].width for name, s in standard_errors(penalised, here).items()}
        free = [name for name in sorted(here, key=lambda name: -left[name]) if left[name] > _OPEN]
        allowed = cost + _CONTRADICTS * max(1.0, cost / len(residuals(here)))
        for name in free:
            rest, higher = least_squares(penalised, {each: x for each, x in here.items() if each != name})
            if higher <= allowed:
                break
        else:
            break
        hardly = "the named levels hardly change with it"
        here, cost = rest, higher
        kept[name] = hardly if left[name] > _HARDLY else "the named levels do not tell it from the others"
    here, _ = least_squares(residuals, here)
    return {name: _rounded(math.exp(here[name])) for name in here}, kept


def _uncertain(measured: CalibrationPoint, G: float) -> dict[str, float]:
    """Return the relative error of each figure of a measured level within which the closed form may miss it.

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


def _rounded(value: float) -> float:
    return 0.0 if value <= FLOOR * 1.001 else value


def _at_bounds(parameters: Mapping[str, float]) -> Iterable[str]:
    for name, value in parameters.items():
        if value >= 0.999 * RANGES[name].high:
            yield f"{name} is at its most, {value:g}: the hardware is faster than stated, or did less than was counted"
        elif value <= 1.001 * RANGES[name].low:
            yield f"{name} is at its least, {value:g}: other figures explain all that it could"


# ---- least squares within ranges ----

Residuals = Callable[[Mapping[str, float]], list[float]]  # residuals for figures by name

_STEPS = 60
_FARTHEST = 1.0  # farthest that a figure goes in one step
_DAMPING, _MOST_DAMPING = 1e-3, 1e9
_CLOSE = 1e-9  # relative gain of a step after which none is taken
_SINGULAR = 1e-12


def least_squares(f: Residuals, start: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """Return (the point within the ranges with the least Σ f², that sum), searched from `start`.

    A figure at that end of its range which it would leave is kept for the step.
    """
    import numpy as np

    names = list(start)
    low, high = np.array([RANGES[name].logs for name in names]).reshape(-1, 2).T
    x = np.clip([start[name] for name in names], low, high)
    r = np.array(f(_by_name(names, x)))
    cost, damping = float(r @ r), _DAMPING
    for _ in range(_STEPS):
        J = _slopes(f, _by_name(names, x), 1e-4)
        uphill = J @ r
        moving = ~((x <= low) & (uphill > 0) | (x >= high) & (uphill < 0))
        A = J[moving] @ J[moving].T
        A[np.diag_indices_from(A)] = np.diagonal(A) * (1 + damping) + _SINGULAR
        step = np.zeros(len(names))
        step[moving] = np.linalg.solve(A, -uphill[moving])
        there = np.clip(x + np.clip(step, -_FARTHEST, _FARTHEST), low, high)
        r_there = np.array(f(_by_name(names, there)))
        if (lower := float(r_there @ r_there)) < cost:
            gained, x, r, cost, damping = cost - lower, there, r_there, lower, damping / 5
            if gained <= _CLOSE * cost + _SINGULAR:
                break
        elif damping > _MOST_DAMPING:
            break
        else:
            damping *= 4
    return _by_name(names, x), cost


def standard_errors(f: Residuals, at: Mapping[str, float]) -> dict[str, float]:
    """Return of each figure, where f are residuals in units of their own errors: √diag (JᵀJ)⁻¹.

    The slopes are those over half of a width: a fit likes to end where one cause takes over from another, and right
    there neither seems to matter.
    """
    import numpy as np

    J = _slopes(f, at, 0.5)
    return _by_name(list(at), np.sqrt(np.diagonal(np.linalg.inv(J @ J.T))))


def _slopes(f: Residuals, at: Mapping[str, float], share: float) -> npt.NDArray[np.float64]:
    """Return df/dx by central differences over that share of each figure's width, shape [figures, residuals]."""
    import numpy as np

    steps = {name: share * RANGES[name].width for name in at}
    ends = [(f({**at, name: at[name] + d}), f({**at, name: at[name] - d})) for name, d in steps.items()]
    return np.array([(np.array(up) - down) / (2 * d) for (up, down), d in zip(ends, steps.values(), strict=True)])


def _by_name(names: list[str], x: npt.NDArray[np.float64]) -> dict[str, float]:
    return dict(zip(names, x.tolist(), strict=True))
