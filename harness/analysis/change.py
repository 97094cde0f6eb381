"""Whether the whole server changed during a ramp: when, by how much, and which levels were measured since then.

An autoscaler, a neighbour, a lost replica or a throttled GPU moves all levels, or only those above the old knee. So
what the levels before and after a moment say of the curve is compared: the evidence of two curves, each with its own
posterior, against that of one curve for all levels. A level whose window holds the moment may belong to neither.
Where the curves do not differ, a change shows if another number of requests is served at once than was counted before.
What changes all along, as a GPU that heats up or a cache that fills, has no such moment: loads measured again show it.

The answer rests on the last stretch between changes that is long enough for a curve. Left out: changes within a window
(`window`), and the finding on a change (`rules.levels`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np

from harness.analysis import posterior, seats
from harness.analysis.points import FALLEN, SHORT, Point, data_of, points_of, weights
from harness.analysis.posterior import Posterior
from harness.analysis.rules.figures import cut_short
from harness.analysis.seats import Occupancy
from harness.analysis.stats import ASSUMED, FLOOR, Z95
from harness.analysis.table import Floats
from harness.data.levels import LevelSummary
from harness.data.views import Value

FEWEST = 2  # levels on each side of a change
ENOUGH = 4  # distinct levels of a steady stretch that a curve is made of

_SURE = 4.5  # ln of the odds: 90 to 1, by simulated ramps (docs/method.md, When the server changes during a run)
_RANGE = 2.0  # width of the range of ln X that a level or a curve may lie in, before anything is measured
_COLLAPSE = 2.0  # ln of the odds against a curve that collapses
_NOISE = 0.03  # relative error of levels if none has measured its own
_CONTRADICTS = 100.0  # times what levels contradict each other on the same side
_RESOLVED = 0.02  # relative: a lesser contradiction shows no change
_ROUGH = 6  # parts of a ramp, among which the likeliest is searched for the moment
_NEARLY = 1.0  # ln of the odds of the likeliest moment over one that is nearly as likely
_SLACK = 3.0  # standard deviations of noise between two levels
_OTHER = 1.1  # times the seats before, from which on a level shows other ones
_HELD = 0.25  # share of a window with as many streams as seats; without a fixed number the greatest is rare
_AGAIN, _LEAST_AGAIN = 4.0, 0.05  # standard errors, and the relative size, from which loads measured again differ
_DRAWS, _PLACES = 200, 24  # curves that the size of a change is read from, and where


class TimedPoint(Point, frozen=True, kw_only=True):
    """A measured level, and when it was measured."""

    time_s: float = math.nan  # the middle of its window, since the run's start
    occupancy: Occupancy | None = None  # what it shows of the server's seats
    cut: bool = False  # its window ended early: a point of the curve, but no evidence of a change


class Shift(msgspec.Struct, frozen=True):
    """A change of the server; of several, from before the first to after the last."""

    start_s: float  # it lies between these two, since the run's start
    end_s: float
    times: int  # how many there were
    ratio: Value  # throughput after it over before
    concurrency: float  # at which that is
    since: int  # place of the first level after it
    steady: tuple[int, int] | None  # places of the last stretch with enough levels for a curve, and past it
    served: float | None = None  # requests at once before it; None if throughput shows the change

    @property
    def places(self) -> slice:
        """Return the places of the levels that the answer rests on: all if no stretch has enough."""
        return slice(*self.steady) if self.steady else slice(None)


class Again(msgspec.Struct, frozen=True):
    """What came of loads that were measured again, each at first and at last."""

    ratio: Value  # throughput at last over that at first
    apart_s: float  # between the two, on average


class _Levels(NamedTuple):
    """Levels in order of time; arrays of shape [n]."""

    u: Floats  # ln C
    y: Floats  # ln X
    weight: Floats  # the level's error over the noise
    noise: float  # relative error of a usual level, by what levels measured of themselves

    def part(self, start: int, end: int) -> _Levels:
        """Return the levels from one place to before another."""
        return _Levels(self.u[start:end], self.y[start:end], self.weight[start:end], self.noise)


def timed(levels: Sequence[LevelSummary]) -> list[TimedPoint]:
    """Return the levels of a closed loop as points, each with its window's middle and what it shows of the seats."""
    pairs = [(level, point) for level in levels for point in points_of([level])]
    return [
        TimedPoint(
            **msgspec.structs.asdict(point),
            time_s=sum(s.window) / 2,
            occupancy=seats.occupancy(s),
            cut=any(map(cut_short.made, s.verdicts)),
        )
        for s, point in pairs
    ]


def again(points: Sequence[TimedPoint]) -> Again | None:
    """Return how throughput of loads measured more than once differs from first to last; None: not surely, or little.

    It is the mean over the loads of ln(last ÷ first), weighted by the errors that the levels have of themselves.
    """
    measured = [p for p in points if p.valid and p.throughput > 0 and not p.cut]
    places = defaultdict[float, list[int]](list)  # of the levels of each load, in order of time
    for i, point in enumerate(measured):
        places[point.concurrency].append(i)
    pairs = [(at[0], at[-1]) for at in places.values() if len(at) > 1]
    if not pairs:
        return None
    before, after = np.array(pairs).T
    y, sigma = np.log([p.throughput for p in measured]), _errors(measured)
    time_s = np.array([p.time_s for p in measured])
    weight = 1 / (sigma[before] ** 2 + sigma[after] ** 2)
    change = float(np.average(y[after] - y[before], weights=weight))
    apart_s = float(np.average(time_s[after] - time_s[before], weights=weight))
    error = float(weight.sum()) ** -0.5
    if abs(change) < max(_AGAIN * error, _LEAST_AGAIN):
        return None
    low, middle, high = np.exp([change - Z95 * error, change, change + Z95 * error]).tolist()
    return Again(Value(middle, (low, high)), apart_s)


class Steady(NamedTuple):
    """The levels that an answer is made of, and the change that parts them from the others."""

    points: list[TimedPoint]  # the points of the curve: all of them if no stretch between changes is long enough
    crowd: list[Occupancy]  # what levels show of the seats since their number changed: a slower server keeps its own
    shift: Shift | None
    again: Again | None = None  # what loads measured again show, where no change parts the levels


def steady(points: Sequence[TimedPoint], *, fast: bool = False) -> Steady:
    """Return the levels (in order of time) since the server last changed, and what they show of the seats.

    `fast`, for a search: look for a change of the curve only if levels contradict each other or seats changed.
    """
    crowd = [point.occupancy for point in points]
    moments, _ = _by_seats([None if point.cut else point.occupancy for point in points])
    shift = of_levels(points) if not fast or moments or contradict(points) else None
    start, places = moments[-1][1] if moments else 0, shift.places if shift else slice(None)
    of_seats = crowd[places] if places.stop is not None and places.stop <= start else crowd[start:]
    seen = [occupancy for occupancy in of_seats if occupancy is not None]
    return Steady(list(points[places]), seen, shift, again(points) if shift is None and not fast else None)


def of_levels(points: Sequence[TimedPoint]) -> Shift | None:
    """Return how the server changed while the points were measured, which are in order of time; None: it did not."""
    place = [i for i, p in enumerate(points) if p.valid and p.throughput > 0 and not p.cut]
    kept = [points[i] for i in place]
    levels = _levels(kept)
    shift = _shift(levels, kept, _moments(levels, 0, len(kept)))
    low, high = shift.ratio.ci95 if shift and shift.ratio.ci95 else (1.0, 1.0)
    if low is None or high is None or low <= 1 <= high:  # it was there and is gone, or a few levels erred by chance
        moments, served = _by_seats([p.occupancy for p in kept])
        shift = _shift(levels, kept, moments, served)
    if shift is None:
        return None
    steady = (place[shift.steady[0]], place[shift.steady[1] - 1] + 1) if shift.steady else None
    return msgspec.structs.replace(shift, since=place[shift.since], steady=steady)


def _shift(
    levels: _Levels, points: Sequence[TimedPoint], moments: Sequence[tuple[int, int]], served: float | None = None
) -> Shift | None:
    """Return the server's change at these moments: when, throughput after ÷ before, the last long stretch; or None."""
    if not moments:
        return None
    first, since = moments[0][0], moments[-1][1]
    ratio, C = _ratio(levels.part(0, first), levels.part(since, len(points)))
    times = points[first - 1].time_s, points[since].time_s
    starts, ends = [0, *(a for _, a in moments)], [*(b for b, _ in moments), len(points)]
    long = [(a, b) for a, b in zip(starts, ends, strict=True) if len(np.unique(levels.u[a:b])) >= ENOUGH]
    return Shift(*times, len(moments), ratio, C, since, long[-1] if long else None, served)


def _by_seats(levels: Sequence[Occupancy | None]) -> tuple[list[tuple[int, int]], float | None]:
    """Return the places at which the number of requests served at once changed, and that number before the last change.

    A change shows at the first level at which clearly more requests stream than did while others waited, or clearly
    fewer than at a load no higher, though others wait. At a lower load fewer may stream though nothing changed: they
    wait for one replica while another has room.
    """
    moments: list[tuple[int, int]] = []
    before: float | None = None
    since: list[Occupancy] = []
    for i, level in enumerate(levels):
        if level is None:
            continue
        served = _served(since)
        full = level.most_fraction >= _HELD and level.in_flight >= seats.CROWDED * level.most
        below = max((each.most for each in since if each.load <= level.load), default=0)
        if served and (level.streaming > _OTHER * served or (full and level.most < below / _OTHER)):
            moments.append((i, i))
            before, since = served, []
        since.append(level)
    return moments, before


def _served(levels: Sequence[Occupancy]) -> float | None:
    """Return how many requests are served at once, as two loads count it; None if they do not agree.

    One load alone does not tell: where first tokens come late, few of those in flight stream though nobody waits.
    """
    found = seats.find(levels)
    if not found or not found.counted:
        return None
    counted = {level.load for level in levels if level.most == found.value and level.most_fraction >= _HELD}
    return found.value if len(counted) > 1 else None


def contradict(points: Sequence[TimedPoint]) -> bool:
    """Return whether levels before some moment contradict those after it, whatever the shape of the curve.

    Throughput neither falls with load nor rises faster than in proportion to it. Two levels contradict each other by
    what lies outside of that, squared, which is compared with levels of the same side.
    """
    levels = _levels([point for point in points if point.valid and point.throughput > 0])
    rise, gain = levels.u - levels.u[:, None], levels.y - levels.y[:, None]
    off = gain - np.clip(gain, np.minimum(rise, 0.0), np.maximum(rise, 0.0))
    square = np.triu(2 * off**2 / (levels.weight**2 + levels.weight[:, None] ** 2))
    n, every = len(square), float(square.sum())
    for b in range(FEWEST, n - FEWEST + 1):
        across = float(square[:b, b:].sum())
        within = (every - across) / (math.comb(b, 2) + math.comb(n - b, 2))
        if across > _CONTRADICTS * (within + _RESOLVED**2):
            return True
    return False


def _errors(points: Sequence[TimedPoint]) -> Floats:
    """Return the relative error that each level has of itself, shape [n]."""
    return np.array([max((p.se or ASSUMED * p.throughput) / p.throughput, FLOOR, p.chance) for p in points])


def _levels(points: Sequence[TimedPoint]) -> _Levels:
    """Return the points as logarithms of load and throughput, with their weights and the noise of a level alone."""
    X, sigma = np.array([point.throughput for point in points]), _errors(points)
    measured = np.array([point.se is not None and not point.assumed for point in points], dtype=np.bool_)
    weight = weights(sigma, np.array([point.chance for point in points]))
    # A change within a window adds to its error: the lower ones tell the noise.
    noise = min(float(np.quantile((sigma / weight)[measured], 0.25)), SHORT[1]) if measured.any() else _NOISE
    u = np.log(np.array([point.concurrency for point in points], dtype=np.float64))
    return _Levels(u, np.log(X), weight, noise)


def _moments(levels: _Levels, start: int, end: int) -> list[tuple[int, int]]:
    """Return every change among levels[start:end], as (end of the levels before it, first level after it)."""
    moment = _moment(levels.part(start, end))
    if moment is None:
        return []
    b, a = start + moment[0], start + moment[1]
    return [*_moments(levels, start, b), (b, a), *_moments(levels, a, end)]


def _moment(levels: _Levels) -> tuple[int, int] | None:
    """Return how many levels come before the likeliest change, and the first after it; None: no change is likely.

    First some levels at a time are left out, which hides no change among them, then the moments among these are tried.
    Of those that are nearly as likely the last one counts: a level too few is better than one from before the change.
    """
    n = len(levels.u)

    @cache
    def evidence(start: int, end: int) -> float:
        return _evidence(levels.part(start, end))

    def gain(moment: tuple[int, int]) -> float:
        b, a = moment
        if _by_load(levels, b, a):
            return -math.inf
        return evidence(0, b) + evidence(a, n) - (a - b) * math.log(_RANGE)

    out = max(1, n // _ROUGH)
    rough = [(b, b + out) for b in range(FEWEST, n - FEWEST - out + 1, out)]
    if not rough:
        return None
    first, last = max(rough, key=gain)
    near = [(b, a) for b in range(first, last + 1) for a in (b, b + 1) if a <= last]
    best = max(map(gain, near))
    if best - evidence(0, n) <= _SURE:
        return None
    return max((moment for moment in near if gain(moment) > best - _NEARLY), key=lambda moment: (moment[1], moment[0]))


def _by_load(levels: _Levels, b: int, a: int) -> bool:
    """Return whether load alone may part the levels before b from those from a on, as steps of a curve do.

    It may where every later level has a higher load than every earlier one, and where its throughput, noise apart, is
    not lower, and is not higher by a larger factor than the load is.
    """
    rise, gain = (each[a:] - each[:b, None] for each in (levels.u, levels.y))
    slack = _SLACK * levels.noise * np.hypot(levels.weight[a:], levels.weight[:b, None])
    return bool((rise > 0).all() and (gain >= -slack).all() and (gain <= rise + slack).all())


def _evidence(levels: _Levels) -> float:
    """Return ln of the probability density of the levels if one curve, of any height within _RANGE, made all of them.

    Past a collapse (all below FALLEN of the second highest throughput) a level may have any throughput.
    """
    found = _posterior(levels)
    constants = (len(levels.y) - 1) / 2 * math.log(2 * math.pi) + math.log(_RANGE * len(found.half_points))
    one = found.evidence - constants - float(np.log(levels.weight).sum())
    standing = levels.y >= np.sort(levels.y)[-2] + math.log(FALLEN)
    upright = levels.u <= levels.u[standing].max()
    if upright.all() or np.count_nonzero(upright) < FEWEST:
        return one
    rest = _Levels(levels.u[upright], levels.y[upright], levels.weight[upright], levels.noise)
    return max(one, _evidence(rest) - _COLLAPSE - math.log(_RANGE) * np.count_nonzero(~upright))


def _posterior(levels: _Levels) -> Posterior:
    """Return the curve's posterior for the levels, repeats of one load taken as one."""
    u, at = np.unique(levels.u, return_inverse=True)
    return posterior.of(data_of(u, levels.y, levels.weight, at, levels.noise))


def _ratio(before: _Levels, after: _Levels) -> tuple[Value, float]:
    """Return throughput after a change over that before it, with its 95 % interval, and the concurrency of this ratio.

    That is the one where the change is surest: more seats show only where there were too few.
    """
    loads = np.unique(np.concatenate([before.u, after.u]))
    at = np.exp(loads[loads >= min(max(before.u.min(), after.u.min()), before.u.max(), after.u.max())])
    rng = np.random.default_rng(0)

    def logs(levels: _Levels) -> Floats:
        ends = min(at[0], math.exp(levels.u.min())), max(at[-1], math.exp(levels.u.max()))
        grid = posterior.grid(np.geomspace(*ends, _PLACES), at)
        return np.log(posterior.draw(_posterior(levels), grid, _DRAWS, rng).throughput(at))

    change = logs(after) - logs(before)
    surest = int(np.argmax(np.abs(change.mean(0)) / change.std(0)))
    low, middle, high = np.exp(np.quantile(change[:, surest], (0.025, 0.5, 0.975))).tolist()
    return Value(middle, (low, high)), float(at[surest])
