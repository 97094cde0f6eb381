"""What a curve shows: whether its knee is found, provisional, beyond or none, why, and what would settle it.

    found        the knee has two ends, the upper at most 1.5 times the lower, and throughput is shown to stay past it
    provisional  a knee inside the levels, but its interval is wide or what follows it is short
    beyond       throughput still rises at the last level
    none         fewer than two levels, or two that show no rise

A figure that the levels support is always given, with the reasons that keep it provisional. Left out: the figures
(`curve`), and how long the levels that would settle it take (`analysis.summarise`, which knows how long levels took).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis.points import PooledLevels
from harness.analysis.posterior import Curves
from harness.analysis.rules.requests import IN_FLIGHT
from harness.analysis.slips import Mixture
from harness.analysis.stats import Z95
from harness.analysis.table import Floats
from harness.data.judgement import CurveState
from harness.data.summary import BEYOND, FOUND, NONE, PROVISIONAL, Settle
from harness.data.views import Value

FEWEST = 3  # distinct levels that a curve is made of
LEVELS = 6  # distinct ones that a found knee needs
NARROW = 1.5  # the upper end of a found knee over its lower
_WIDE_KNEE = f"the knee's 95 % interval is wider than a factor of {NARROW:g}"
PAST = 1.1  # times the knee, from which on a level is past it
ELASTICITY = 0.10  # elasticity past the knee, up to which throughput is on a plateau
SURE, BELOW_LAST = 0.95, 0.9  # chance, and share of the last load: the knee is below that, so a plateau is reached

UNSURE = 0.025  # chance of a knee above the levels, from which on its interval has no upper end
_LOWEST = 1.05  # a knee up to 1.05 times the lowest level lies at it or below
_SHORT = 1.5  # factor of load below the last level, over which a rise is read
_WIDE = 2.1  # times the load by which a rise in proportion would have ended, from which on two levels are too far apart
_ALONE = 1.25  # times the second highest throughput, from which on the highest is supported by no other level
_ABOVE = 1.05  # times the highest throughput, from which on a plateau is supported by no level
_UP = 1.5, 2.5  # levels past the knee that would settle it, in knees


class Conclusion(msgspec.Struct, frozen=True):
    """The state, why it is not found, and what follows from it."""

    state: CurveState
    reasons: list[str] = []
    settle: Settle | None = None
    at_least: float | None = None  # concurrency
    only_wide: bool = False  # the width of the knee's interval is the one reason, which leaves the plateau shown


class Evidence:
    """What a posterior says, as conclusions need it."""

    def __init__(self, levels: PooledLevels, posterior: Mixture, draws: Curves, fall: float) -> None:
        """Take the knee with its interval, and the chances that it lies near or above the last level, from a posterior.

        `fall`: the load from which throughput has collapsed, inf: none; the knee lies below it.
        """
        self.levels, self.draws, self.fall, self.noise = levels, draws, fall, posterior.noise
        last = float(levels.N[-1])
        low, middle, high = posterior.quantiles(0.025, 0.5, 0.975)

        def chance_above(N: float) -> float:
            return 0.0 if fall <= N else 1.0 - posterior.chance_below(N)

        self.above, self.near_last = chance_above(last), chance_above(BELOW_LAST * last)
        low, high = _whole(low, high)
        ends = [min(max(each, float(levels.N[0])), fall) for each in (low, middle, high)]
        self.flat_throughout = ends[1] <= _LOWEST * levels.N[0]  # it lies past any bend
        bounded = self.above <= UNSURE or math.isfinite(fall)
        # A rise that slows before the knee looks like a knee that comes earlier. Only a level past it tells them apart.
        past = levels.N[np.searchsorted(levels.N, ends[1]) :]
        if len(past):
            widest = (NARROW - 1e-9) * ends[0]  # still narrow after it is rounded on the axis of C
            ends[2] = max(ends[2], min(float(past[0]), widest))
        self.knee = Value(
            ends[1] if bounded or self.rises_at_last else min(ends[1], last),
            (None if self.flat_throughout and levels.N[0] > _LOWEST else ends[0], ends[2] if bounded else None),
        )

    @property
    def value(self) -> float:
        """Return the knee, in requests in flight."""
        assert self.knee.value is not None
        return self.knee.value

    @property
    def top(self) -> Floats:
        """Return the throughput of each drawn curve at its knee, or at the highest level if that is lower; shape [D].

        It is at most the curve's highest: a soft corner before a fall never reaches the end of its rising branch.
        """
        last = self.levels.N[-1:]
        bounded = math.isfinite(self.fall)
        inside = self.draws.hinge <= (self.fall if bounded else last[0])
        end = np.where(inside, self.draws.plateau, self.draws.throughput(last)[:, 0])
        return np.asarray(np.minimum(end, np.exp(self.draws.log_X.max(axis=1))))

    @property
    def past(self) -> int:
        """Return how many levels lie past the knee."""
        return int(np.count_nonzero(PAST * self.value <= self.levels.N))

    @property
    def rises(self) -> bool:
        """Return whether any level tells how throughput rises."""
        return not self.flat_throughout

    @property
    def rises_at_last(self) -> bool:
        """Return whether throughput rises at the last level, by the 95 % interval of its elasticity there."""
        return self.elasticity(float(self.levels.N[-1]) / _SHORT)[1] > 0

    def tail(self) -> tuple[float, float, float]:
        """Return dlnX/dlnN of the levels past the knee by themselves, with its 95 % interval; two levels at least.

        The drawn curves are flat there, whatever these levels say: they take a slow rise for noise.
        """
        past = PAST * self.value <= self.levels.N
        x, y, weight = self.levels.data.u[past], self.levels.data.y[past], self.levels.data.g[past] ** -2.0
        x = x - np.average(x, weights=weight)
        spread = float(weight @ x**2)
        middle, half = float(weight @ (x * y)) / spread, Z95 * self.noise / math.sqrt(spread)
        return middle, middle - half, middle + half

    def elasticity(self, start: float) -> tuple[float, float, float]:
        """Return dlnX/dlnN from a load to the last level, with its 95 % interval."""
        ends = np.array([min(start, 0.999 * float(self.levels.N[-1])), float(self.levels.N[-1])])
        rise = np.diff(np.log(self.draws.throughput(ends)), axis=1)[:, 0] / math.log(ends[1] / ends[0])
        middle, low, high = (float(each) for each in np.quantile(rise, (0.5, 0.025, 0.975)))
        return middle, low, high


def _whole(low: float, high: float) -> tuple[float, float]:
    """Return an interval that holds a whole number, widened to the nearest: no server serves 1.5 requests at once.

    >>> _whole(1.26, 1.91), _whole(1.05, 1.3), _whole(7.8, 8.1)
    ((1.26, 2.0), (1.0, 1.3), (7.8, 8.1))
    """
    least, most = math.floor(low), math.ceil(high)
    if low < 1 or least + 1 <= high or least == low:
        return low, high
    return (float(least), high) if low - least < most - high else (low, float(most))


def of(evidence: Evidence) -> Conclusion:
    """Return whether the knee is found, provisional or beyond the levels, why, and which levels to measure next."""
    levels = evidence.levels
    if math.isinf(evidence.fall) and evidence.above > 0.5 and evidence.rises_at_last:
        C, rise = float(levels.C[-1]), evidence.elasticity(float(levels.N[-1]) / _SHORT)[0]
        reasons = [f"throughput still rises at the last level, by {rise:.2f} % for 1 % more load"]
        return Conclusion(BEYOND, reasons, Settle(_new(levels, [2 * C, 4 * C])), C)
    reasons = _not_shown(evidence)
    if not reasons:
        return Conclusion(FOUND)
    return Conclusion(PROVISIONAL, reasons, _settle(evidence), only_wide=reasons == [_WIDE_KNEE])


def of_few(levels: PooledLevels) -> Conclusion:
    """Return the conclusion from fewer levels than a curve is made of.

    Two levels never show a knee: they show whether throughput rises between them.
    """
    n = len(levels.N)
    if n < 2:
        few = "one level is valid, a curve needs more" if n else "no valid level of concurrency was measured"
        return Conclusion(NONE, [few], Settle(_new(levels, [1, 2, 4, 8] if n else [1])))
    first, last = float(levels.C[0]), float(levels.C[-1])
    reasons, above = [f"2 levels, {LEVELS} are needed"], _new(levels, [2 * last, 4 * last])
    gap, gain = levels.N[1] / levels.N[0], levels.X[1] / levels.X[0]
    if gap <= 1:
        reasons.append(f"no more were in flight at {last:g} than at {first:g}")
        return Conclusion(NONE, reasons, Settle(above))
    if gain > 1 and gap / gain > _WIDE:  # throughput in proportion to load would have come so far long before
        reasons.append(f"{first:g} and {last:g} in flight are too far apart to show a rise at the last level")
        return Conclusion(NONE, reasons, Settle(_new(levels, [first * gain, math.sqrt(first * last)]) or above))
    rise = math.log(gain) / math.log(gap)
    half = Z95 * math.hypot(*levels.sigma) / math.log(gap)
    if rise - half > ELASTICITY:
        return Conclusion(BEYOND, reasons, Settle(above), last)
    if rise + half > ELASTICITY:
        reasons.append(f"their errors leave open whether throughput rises from {first:g} to {last:g} in flight")
        return Conclusion(NONE, reasons, Settle(above))
    reasons.append(f"throughput does not rise from {first:g} to {last:g} in flight, so a knee lies below {last:g}")
    return Conclusion(NONE, reasons, Settle(_new(levels, [first / 2, math.sqrt(first * last)]) or above))


def _not_shown(evidence: Evidence) -> list[str]:
    """Return why the knee and the plateau past it are not shown; empty: they are."""
    levels, knee = evidence.levels, evidence.knee
    reasons = [] if len(levels.N) >= LEVELS else [f"{len(levels.N)} levels, {LEVELS} are needed"]
    low, high = knee.ci95 or (None, None)
    highest, second = int(np.argmax(levels.X)), float(np.sort(levels.X)[-2])
    if levels.X[highest] > _ALONE * second:
        times = levels.X[highest] / second
        reasons.append(f"the level at {levels.C[highest]:g} has {times:.2g} times the throughput of any other")
    if (times := float(np.median(evidence.top)) / float(levels.X[highest])) > _ABOVE:
        reasons.append(f"the plateau would be {times:.2f} times the throughput of any level, at a load between two")
    if math.isfinite(evidence.fall):
        reasons.append(f"throughput has collapsed at {evidence.fall:g} in flight")
    elif evidence.past < 2:
        reasons.append(f"{evidence.past} level{'s' * (evidence.past != 1)} past the knee, 2 are needed")
    if evidence.near_last > 1 - SURE:
        reasons.append(f"the knee lies near the highest level or above it with a chance of {evidence.near_last:.0%}")
    elif low is None:
        reasons.append("throughput does not rise from the lowest level on, so the knee lies there or below")
    elif high is None or high > NARROW * low:
        reasons.append(_WIDE_KNEE)
    if evidence.past >= 2 and not math.isfinite(evidence.fall):
        of_levels = evidence.tail()
        middle, least, most = of_levels if of_levels[1] > 0 else evidence.elasticity(PAST * evidence.value)
        if most > ELASTICITY:
            change = f"1 % more load changes it by {_signed(middle)} % ({_signed(least)} to {_signed(most)})"
            reasons.append(f"past the knee throughput is not shown to be flat: {change}")
    if not levels.in_flight_ok[PAST * evidence.value <= levels.N].all():
        reasons.append(f"fewer in flight than {IN_FLIGHT:.0%} of what was requested")
    return reasons


def _signed(x: float) -> str:
    """Return an elasticity in words; one that rounds to zero has no sign.

    >>> _signed(-0.001), _signed(0.25)
    ('0.00', '+0.25')
    """
    return f"{round(x, 2) + 0.0:{'+' if round(x, 2) else ''}.2f}"


def _settle(evidence: Evidence) -> Settle:
    """Return the levels to measure next: two past the knee, else the ends of its interval and the knee itself."""
    levels, knee = evidence.levels, evidence.knee
    C, last = levels.concurrency_at(evidence.value), float(levels.C[-1])
    down = _new(levels, [C / 4, C / 2])
    if evidence.flat_throughout and down:
        return Settle(down)
    up = [each for each in _new(levels, [_UP[0] * C, _UP[1] * C]) if each < evidence.fall]
    if up and evidence.past < 2:
        return Settle(up)
    ends = [each for each in (*(knee.ci95 or ()), evidence.value) if each is not None]
    wanted = sorted({max(1, round(levels.concurrency_at(each))) for each in ends})
    if len(levels.N) < LEVELS and not _new(levels, wanted):  # repeats alone make no more levels
        wanted = [each for each in _new(levels, [2 * last, 4 * last]) if each < evidence.fall] or wanted
    return Settle(wanted)


def _new(levels: PooledLevels, wanted: Sequence[float]) -> list[int]:
    """Return the wanted levels as whole numbers, rising, without those within 10 % of a measured level."""
    whole = {max(1, round(C)) for C in wanted}
    return sorted(C for C in whole if not (np.abs(levels.C / C - 1) < 0.1).any())
