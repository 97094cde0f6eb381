"""The curve through the levels, and its knees, each with a 95 % interval (docs/method.md, The fit).

The levels become distinct points (`points.pool`), the points a posterior over curves (`posterior`), of which one may be
off by itself (`slips`), and the posterior the knees, by its quantiles. What they mean together is said by `conclusion`.

Levels at the end whose throughput has collapsed take no part: what a server does that thrashes is another curve. They
bound the knee from above.

Left out: choosing the next level (`ramp`), and why throughput falls (`rules.levels`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis import conclusion, posterior, slips
from harness.analysis.conclusion import Evidence
from harness.analysis.points import Point as Point
from harness.analysis.points import PooledLevels, pool
from harness.analysis.points import points_of as points_of
from harness.analysis.posterior import Curves
from harness.analysis.rules import findings
from harness.analysis.rules.levels import Fitted
from harness.analysis.slips import Mixture
from harness.analysis.table import Floats
from harness.data.summary import BEYOND, FOUND, NONE, PROVISIONAL, Curve, CurvePoint, Knees
from harness.data.views import Value

DRAWS = 300  # curves that figures other than the knee are read from
_PLACES, _AT_KNEE = 36, 16  # places of the grid of drawn curves: over the loads, and by the quantiles of the knee
_LINE = 33  # places of the curve that is kept in a summary
_ENDS = 0.025, 0.975
_LOST = 0.02  # share of the plateau that a fall past the knee loses at least


class Fit(msgspec.Struct, frozen=True):
    """The curve, its knees, and curves drawn from its posterior; None where there are too few levels for one."""

    curve: Curve
    knees: Knees
    draws: Curves | None = None
    posterior: Mixture | None = None


def fit(points: Sequence[Point], *, seed: int = 0, draws: int = DRAWS) -> Fit:
    """Return the curve through the valid points and its knees, with 95 % intervals.

    Knees are given on the axis of C, draws on that of N, the mean in flight. Fewer draws make a cheaper fit: 100
    suffice to choose a level by.
    """
    levels = pool(points)
    if len(levels.N) < conclusion.FEWEST:
        return _of_few(levels)
    kept = levels.lowest(levels.upright)
    fall = float(levels.N[levels.upright]) if levels.upright < len(levels.N) else math.inf
    found = slips.of(kept.data, kept.times == 1, fall)
    many = found.draw(_grid(kept, found, fall), draws, np.random.default_rng(seed))
    return _fitted(levels, Evidence(kept, found, many, fall), many, found)


def _fitted(levels: PooledLevels, evidence: Evidence, draws: Curves, found: Mixture) -> Fit:
    """Return the fit of enough levels: the curve, its knees (None where none is shown), and the posterior's draws."""
    kept, said = evidence.levels, conclusion.of(evidence)
    bends = said.state in (FOUND, PROVISIONAL)
    top = evidence.top
    figures = {
        "single": draws.throughput(np.ones(1))[:, 0],
        "half": draws.reaching(0.5, top),
        "plateau95": np.clip(draws.reaching(0.95, top) * draws.blur, kept.N[0], evidence.fall),
    }
    hinge = _on_c(kept, evidence.knee)
    plateau = _value(top)
    if evidence.knee.ci95 and evidence.knee.ci95[1] is None and plateau.ci95:
        plateau = Value(plateau.value, (plateau.ci95[0], None))
    lost = 1 - (levels.X[-1] if math.isfinite(evidence.fall) else draws.throughput(kept.N[-1:])[:, 0]) / top
    dip = _value(np.asarray(lost))
    falls = bool(bends and evidence.past >= 2 and dip.ci95 and (dip.ci95[0] or 0.0) > _LOST)
    tau, w = found.mean_form()
    curve = Curve(
        state=said.state,
        reasons=said.reasons,
        settle=said.settle,
        at_least_concurrency=said.at_least,
        only_wide=said.only_wide,
        single_stream_tokens_per_s=_value(figures["single"]),
        hinge_concurrency=hinge if bends else Value(None),
        plateau_tokens_per_s=plateau if bends else Value(None),
        plateau_reached=said.state == FOUND and not falls,
        dip=dip if falls else None,
        parameters={"noise": found.noise, "roughness": tau, "softness": w},
        line=_line(kept, draws, evidence),
        verdicts=findings(Fitted(levels=levels, upright=levels.upright, slip=found.slip, reasons=said.reasons)),
    )
    knees = Knees(
        hinge=hinge if bends else None,
        plateau95=_on_c(kept, _value(figures["plateau95"])) if bends else None,
        half_point=_on_c(kept, _value(figures["half"])) if bends and evidence.rises else None,
        peak=hinge if said.state == FOUND else None,  # the least load that gives the most, whether it falls or not
    )
    return Fit(curve, knees, draws, found)


def _grid(levels: PooledLevels, found: Mixture, fall: float) -> Floats:
    """Return the loads, in flight, at which curves are evaluated: from 1 or the lowest level to twice the highest.

    They are dense where the knee may be: between two of them a curve is a straight line, which would cut its corner.
    """
    low, high = min(1.0, float(levels.N[0])), min(2.0 * float(levels.N[-1]), fall)
    corners = np.array(found.quantiles(*np.linspace(0.01, 0.99, _AT_KNEE)))
    inside = corners[(corners > low) & (corners < high)]
    return posterior.grid(np.geomspace(low, high, _PLACES), np.exp(levels.data.u), inside)


def _line(levels: PooledLevels, draws: Curves, evidence: Evidence) -> list[CurvePoint]:
    """Return points of the fitted curve from the lowest level to the highest, with the 95 % band; one is the knee."""
    low, high = float(levels.N[0]), float(levels.N[-1])
    N = np.geomspace(low, high, _LINE)
    if evidence.knee.value is not None and low < evidence.knee.value < high:
        N = np.sort(np.append(N, evidence.knee.value))
    at = draws.throughput(N)
    middle, ends = np.median(at, axis=0), np.quantile(at, _ENDS, axis=0)
    C = [levels.concurrency_at(each) for each in N]
    return [CurvePoint(*map(float, row)) for row in zip(N, C, middle, *ends, strict=True)]


def throughput(curve: Curve, N: Floats) -> Floats:
    """Return the fitted curve's throughput at N in flight, in work per second, shape of N; nan without a curve.

    Below the levels it is in proportion to N, above them that of the highest.
    """
    if not curve.line:
        return np.full(np.shape(N), np.nan)
    x, y = np.log([each.in_flight for each in curve.line]), np.log([each.per_s for each in curve.line])
    at = np.log(N)
    return np.asarray(np.exp(np.interp(at, x, y) + np.minimum(at - x[0], 0.0)))


def operating_point(curve: Curve | None, concurrency: float) -> Value:
    """Return what the curve gives at a concurrency, in work per second with its 95 % interval.

    The value is None outside the levels that the curve was fitted to.
    """
    line = curve.line if curve else []
    if not line or not 0.999 * line[0].concurrency <= concurrency <= 1.001 * line[-1].concurrency:
        return Value(None)
    x = np.log([each.concurrency for each in line])
    middle, low, high = (
        float(np.exp(np.interp(math.log(concurrency), x, np.log([getattr(each, name) for each in line]))))
        for name in ("per_s", "low", "high")
    )
    return Value(middle, (low, high))


def interval(draws: Floats) -> tuple[float, float]:
    """Return 2.5 % and 97.5 % of the draws, outwards to the next draw, since infinities do not interpolate."""
    ordered = np.sort(draws)
    last = len(ordered) - 1
    return float(ordered[math.floor(_ENDS[0] * last)]), float(ordered[math.ceil(_ENDS[1] * last)])


def _value(draws: Floats) -> Value:
    """Return the median of the draws with their 95 % interval."""
    low, middle, high = (float(each) for each in np.quantile(draws, (_ENDS[0], 0.5, _ENDS[1])))
    return Value(middle, (low, high))


def _on_c(levels: PooledLevels, figure: Value) -> Value:
    """Return a load, given as requests in flight, as the concurrency that keeps so many in flight."""
    if figure.value is None or figure.ci95 is None:
        return figure
    low, high = (None if end is None else levels.concurrency_at(end) for end in figure.ci95)
    return Value(levels.concurrency_at(figure.value), (low, high))


def _of_few(levels: PooledLevels) -> Fit:
    """Return the fit of fewer levels than a curve needs: no knee and no plateau, only reasons and levels to measure."""
    said, nothing = conclusion.of_few(levels), Value(None)
    curve = Curve(
        state=said.state,
        reasons=said.reasons,
        settle=said.settle,
        at_least_concurrency=said.at_least if said.state == BEYOND else None,
        single_stream_tokens_per_s=nothing,
        hinge_concurrency=nothing,
        plateau_tokens_per_s=nothing,
        plateau_reached=False,
        dip=None,
        parameters={},
        verdicts=findings(Fitted(levels=levels, upright=len(levels.N))),
    )
    assert said.state in (NONE, BEYOND)
    return Fit(curve, Knees())
