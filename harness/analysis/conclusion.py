"""What a fitted curve shows: whether its knee is found, provisional, beyond or none, why, and what would settle it.

    found        the plateau is reached (docs/method.md, The knees)
    provisional  a hinge inside the levels, but its interval is wide or its tail short
    beyond       throughput still rises at the last level, by more than the levels' errors
    none         fewer than two levels

A figure that the levels support is always given, with the reasons that keep it provisional. Left out: the figures
(`curve`), and how long the levels that would settle it take (`analysis.summarise`, which knows how long levels took).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from harness.analysis import odd_level
from harness.analysis.hyperbolas import CAPPED, HYPERBOLA, PAST, Curves, Solved
from harness.analysis.points import PooledLevels, scatter_of_neighbours
from harness.analysis.stats import Z95, t_quantile
from harness.analysis.stats import slope as slope_of
from harness.analysis.table import Bools, Floats, Ints
from harness.analysis.verdicts.client import IN_FLIGHT
from harness.judgement import CurveState
from harness.summary import BEYOND, FOUND, NONE, PROVISIONAL, Settle

LEVELS = 6  # distinct ones that a found hinge needs (docs/method.md, The fit: n >= k + 3)
ELASTICITY, SURE, BELOW_LAST = 0.10, 0.95, 0.9  # of a plateau that is reached
SATURATED = 0.95  # of its asymptote, from which on a hyperbola counts as flat
HALF_POINTS = SATURATED / (1 - SATURATED)  # N/(a + bN) has as much of 1/b at so many half-points a/b

_LAST = 2.1  # levels within this factor of the last one show whether throughput still rises
_APART = 1.4  # least factor between two of them
_UP = 1.5, 2.5  # levels past the hinge that would settle it, in hinges
_FAR = 100.0  # an asymptote that is reached so many times further up is not reported


class Conclusion(msgspec.Struct, frozen=True):
    """The state, why it is not found, and what follows from it."""

    state: CurveState
    reasons: list[str] = []
    settle: Settle | None = None
    at_least: float | None = None  # concurrency
    expected: float | None = None  # concurrency where the asymptote puts 95 % of it


def of_fit(levels: PooledLevels, best: Solved, draws: Curves, *, dip: bool) -> Conclusion:
    """The conclusion from a fitted curve; `draws`: its bootstrap, `dip`: whether a fall past the hinge is confirmed.

    Where it is provisional and one level is far off the curve of the others, that level is the first reason.
    """
    found = _of_fit(levels, best, draws, dip=dip)
    if found.state != PROVISIONAL or not (odd := odd_level.find(levels)):
        return found
    knee = f", whose knee is {levels.concurrency_at(odd.hinge):.3g}" if math.isfinite(odd.hinge) else ""
    reason = f"the level at {odd.concurrency:g} has {odd.ratio:.2g} times the throughput of the others' curve{knee}"
    again = Settle([round(odd.concurrency)])
    return msgspec.structs.replace(found, reasons=[reason, *found.reasons], settle=again)


def _of_fit(levels: PooledLevels, best: Solved, draws: Curves, *, dip: bool) -> Conclusion:
    family = int(best.chosen.family[0])
    if family == HYPERBOLA and not flat(levels, best.chosen):
        slope, half = last_elasticity(levels, best.sigma[0])  # levels that scatter about the curve tell less of a rise
        if slope - half > 0 or _rises_beyond_scatter(levels):
            return _beyond(levels, best, slope)
        reasons = [f"it is open whether throughput still rises at the last levels ({_change(slope, half)})"]
        bend = float(best.fits[CAPPED].hinge[0]) if len(best.fits) > CAPPED else corner_in_the_last_gap(levels)
        return Conclusion(PROVISIONAL, reasons, _settle(levels, min(bend, levels.N[-1])))
    reasons = _not_reached(levels, best, draws, dip=dip)
    if not reasons:
        return Conclusion(FOUND)
    return Conclusion(PROVISIONAL, reasons, _settle(levels, hinge_of(levels, best.chosen)))


def of_few(levels: PooledLevels) -> Conclusion:
    """The conclusion from fewer levels than any family needs."""
    n = len(levels.N)
    if n < 2:
        few = (
            "no valid level of concurrency was measured"
            if n == 0
            else "one level was measured, a curve needs at least two"
        )
        return Conclusion(NONE, [few], Settle(_new(levels, [1, 2, 4, 8] if n else [1])))
    last, reasons = float(levels.C[-1]), [f"{n} levels, {LEVELS} are needed"]
    rises, bend = _two_rise(levels), bend_of_few(levels)
    if rises and levels.N[-1] / bend <= _LAST:
        return Conclusion(BEYOND, reasons, Settle(_new(levels, [2 * last, 4 * last])), last)
    if rises:
        reasons.append(f"{levels.C[-2]:g} and {last:g} in flight are too far apart to show a rise at the last level")
    return Conclusion(PROVISIONAL, reasons, _settle(levels, bend))


def bend_of_few(levels: PooledLevels) -> float:
    """The least N at which the throughput of two levels may stop rising; the first one's where no rise is shown.

    Throughput rises at most in proportion to N, so that no knee lies below the corner in the gap.
    """
    return corner_in_the_last_gap(levels) if _two_rise(levels) else float(levels.N[0])


def _two_rise(levels: PooledLevels) -> bool:
    """Whether throughput rises from one level to the other, by more than their errors."""
    slope, half = last_elasticity(levels)
    return slope - half > 0


def flat(levels: PooledLevels, curve: Curves) -> bool:
    """Whether throughput stays all but the same from the first level to the last: it lies past any bend."""
    return bool(np.isinf(curve.hinge[0]) and HALF_POINTS * curve.a[0] <= curve.b[0] * levels.N[0])


def hinge_of(levels: PooledLevels, curve: Curves) -> float:
    """The hinge on the axis of N; of a curve that is flat throughout the first level."""
    return float(levels.N[0]) if flat(levels, curve) else float(curve.hinge[0])


def corner_in_the_last_gap(levels: PooledLevels) -> float:
    """N where a line through the last level but one has the last one's throughput, as far as levels go."""
    return float(min(levels.X[-1] * levels.N[-2] / levels.X[-2], levels.N[-1]))


def last_elasticity(levels: PooledLevels, sigma: Floats | None = None) -> tuple[float, float]:
    """dlnX/dlnN over the last levels, and half of its 95 % interval.

    `sigma` [n] is the relative error of each level where a curve tells more of it than the level's own.
    """
    return _elasticity(levels, _last(levels), levels.sigma if sigma is None else sigma)


def _last(levels: PooledLevels) -> Ints:
    """The last levels, which show whether throughput still rises."""
    N = levels.N
    near: Ints = np.flatnonzero((N[-1] / N <= _LAST) | (np.arange(len(N)) == len(N) - 1))
    return np.arange(max(0, near[0] - 1), len(N)) if N[-1] / N[near[0]] < _APART else near


def _rises_beyond_scatter(levels: PooledLevels) -> bool:
    """Whether the last levels rise by more than levels scatter about their neighbours, whatever the family lacks."""
    slope, half = _elasticity(levels, _last(levels), scatter_of_neighbours(levels) / levels.widening)
    return slope - half > 0


def past(N: Floats, hinge: float) -> Bools:
    """Which levels lie past the hinge."""
    return np.asarray(N / hinge >= PAST)


def _beyond(levels: PooledLevels, best: Solved, slope: float) -> Conclusion:
    a, b, last = float(best.chosen.a[0]), float(best.chosen.b[0]), float(levels.N[-1])
    most = HALF_POINTS * a / b if b > 0 else math.inf
    expected = levels.concurrency_at(most) if last < most < _FAR * last else None
    reasons = [f"throughput still rises at the last level, by {slope:.2f} % for 1 % more load"]
    C = float(levels.C[-1])
    return Conclusion(BEYOND, reasons, Settle(_new(levels, [2 * C, 4 * C])), C, expected)


def _settle(levels: PooledLevels, hinge: float) -> Settle:
    """Two levels past the hinge; where both were measured, higher ones while there are too few, else these again.

    Where throughput is flat from the first level on, its rise is below it, and no level further up shows it.
    """
    C = levels.concurrency_at(hinge)
    if 1 < C <= levels.C[0]:
        return Settle(_new(levels, [C / 4, C / 2]))
    up = _new(levels, [_UP[0] * C, _UP[1] * C])
    if not up and len(levels.C) < LEVELS:
        last = float(levels.C[-1])
        up = _new(levels, [last + 1, 2 * last])
    if up:
        return Settle(up)
    beyond = levels.C[past(levels.N, hinge)]
    near = levels.C[np.argmin(np.abs(np.log(levels.N / hinge)))]
    return Settle(sorted({round(x) for x in (near, *beyond[:2])}))


def _new(levels: PooledLevels, wanted: list[float]) -> list[int]:
    """Those, as whole numbers, that no measured level lies within a tenth of."""
    whole = {max(1, round(C)) for C in wanted}
    return sorted(C for C in whole if not (np.abs(levels.C / C - 1) < 0.1).any())


def _not_reached(levels: PooledLevels, best: Solved, draws: Curves, *, dip: bool) -> list[str]:
    """Why the plateau, or the fall past it, counts as not shown (docs/method.md, The knees); empty: it is."""
    N, B = levels.N, hinge_of(levels, best.chosen)
    reasons = [] if len(N) >= LEVELS else [f"{len(N)} levels, {LEVELS} are needed"]
    where: Ints = np.flatnonzero(past(N, B))
    if len(where) < 2:
        reasons.append(f"{len(where)} level{'s' * (len(where) != 1)} past the knee, 2 are needed")
    bend, saturated = draws.hinge, flat(levels, best.chosen)
    if saturated:  # most draws have no corner either: these bend where they come near their asymptote
        bend = np.where(np.isinf(bend), HALF_POINTS * draws.a / np.maximum(draws.b, 1e-300), bend)
    sure = float(np.mean(bend / N[-1] < BELOW_LAST))
    if sure < SURE:
        reasons.append(f"the knee lies near the highest level or above it with a chance of {1 - sure:.0%}")
    if len(where) >= 2 and not dip:
        slope, half = _elasticity(levels, where, best.sigma[0])
        if saturated and _falls(levels):
            reasons.append("throughput falls with load from the first level on")
        elif abs(slope) + half > ELASTICITY:
            limit = f"limit ±{ELASTICITY:g} %"
            reasons.append(f"past the knee throughput is not shown to be flat: {_change(slope, half)} ({limit})")
    if not levels.in_flight_ok[where].all():
        reasons.append(f"fewer in flight than {IN_FLIGHT:.0%} of what was requested")
    return reasons


def _change(slope: float, half: float) -> str:
    """The elasticity in words; one that rounds to zero has no sign.

    >>> _change(-0.001, 0.25)
    '1 % more load changes it by 0.00 ± 0.25 %'
    """
    sign = "+" if round(slope, 2) else ""
    return f"1 % more load changes it by {round(slope, 2) + 0.0:{sign}.2f} ± {half:.2f} %"


def _falls(levels: PooledLevels) -> bool:
    """Whether throughput falls over all levels, by their scatter about a line: no family does, and none fits."""
    rise, error = slope_of(levels.log_load, np.log(levels.X))
    return rise + t_quantile(0.975, len(levels.N) - 2) * error < 0


def _elasticity(levels: PooledLevels, where: Ints, sigma: Floats) -> tuple[float, float]:
    """dlnX/dlnN through these levels, weighted, and half of its 95 % interval."""
    s = (sigma * levels.widening)[where]
    w, x = sigma[where] ** -2.0, levels.log_load[where]
    x = x - np.average(x, weights=w)
    lever = float(w @ x**2) or 1e-9
    return float((w * x) @ np.log(levels.X[where])) / lever, Z95 * math.sqrt(float((w * x) ** 2 @ s**2)) / lever
