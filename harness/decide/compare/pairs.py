"""Two stacks over their common loads: who is faster, at which loads, and what would settle it.

The variance between runs is pooled over all stacks (`spread`). The order changes with the load where the curves cross:
they are drawn from the fits' own posteriors (`analysis.curve`), each draw with a factor that all levels share, as
uncertain as the runs differ; nearly all draws have one stack ahead at the lowest common load and the other at the
highest. The interval is of the last change of order in each draw. Where the curves do not show it, the levels may: each
stack is ahead at loads of its own, all loads judged together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from harness.analysis import curve
from harness.analysis.curve import Fit, interval, throughput
from harness.analysis.points import Point
from harness.analysis.table import Floats
from harness.data.views import Value
from harness.decide.compare import spread
from harness.decide.compare.runs import Run
from harness.decide.compare.spread import ALPHA, Difference, Rates, Spread, Variance

SURE = 0.975  # share of the draws, at each end
_PLACES = 400  # along the loads


class Lead(msgspec.Struct, frozen=True):
    """How far a stack is ahead, by the geometric mean over its loads."""

    stack: str
    times: float
    loads: list[float]


class Crossover(msgspec.Struct, frozen=True, kw_only=True):
    """The order below and above a load, requests in flight."""

    at: Value
    below: str  # the faster stack there
    above: str
    leads: list[Lead] = []  # leads at levels outside the interval, of the stack below and of that above


def crossover_of(
    names: tuple[str, str],
    fits: tuple[Fit, Fit],
    points: tuple[Sequence[Point], Sequence[Point]],
    apart: Difference,
    by_load: Mapping[float, Difference],
) -> Crossover | None:
    """Return the load at which two stacks change their order, by curves and levels; None if that is not shown.

    `apart`: their overall difference, whose error is what all levels share. `by_load`: the difference at each load.
    """
    shown = {load: each.value for load, each in by_load.items() if each.p < ALPHA / len(by_load)}
    of_levels, of_curves = _of_levels(shown), _of_curves(fits, points, apart)
    crossover = of_curves or of_levels
    if crossover is None:
        return None
    if of_curves is not None and of_levels is not None:  # the curves' interval, unless the levels contradict it
        (low, high), (least, most) = of_curves.ends, of_levels.ends
        crossover = of_curves if low <= most and least <= high else of_levels
    low, high = crossover.ends
    before, after = names if crossover.rises else reversed(names)
    every = {load: each.value for load, each in by_load.items()}
    sign = 1.0 if crossover.rises else -1.0
    leads = [
        lead
        for name, side, own in ((before, -sign, lambda load: load <= low), (after, sign, lambda load: load >= high))
        if (lead := _lead(name, shown, side, own) or _lead(name, every, side, own)) is not None
    ]
    return Crossover(at=Value(crossover.at, (low, high)), below=before, above=after, leads=leads)


class _CrossoverLoad(NamedTuple):
    at: float
    ends: tuple[float, float]
    rises: bool  # the second stack is ahead above it


def _lead(name: str, known: Mapping[float, float], side: float, own: Callable[[float], bool]) -> Lead | None:
    """Return the mean ratio by which a stack leads at the known loads that `own` selects; None if it leads at none."""
    ahead = {load: value * side for load, value in known.items() if own(load) and value * side > 0}
    if not ahead:
        return None
    return Lead(name, math.exp(math.fsum(ahead.values()) / len(ahead)), sorted(ahead))


def _of_levels(shown: Mapping[float, float]) -> _CrossoverLoad | None:
    """Return the two neighbouring loads between which the difference (> 0: b is ahead) last changes its sign.

    None if the same stack is ahead at the lowest and at the highest load.

    >>> _of_levels({1.0: -0.5, 4.0: -0.2, 16.0: 0.3, 32.0: 0.4})
    _CrossoverLoad(at=8.0, ends=(4.0, 16.0), rises=True)
    """
    loads = sorted(shown)
    if not loads or (shown[loads[0]] > 0) == (shown[loads[-1]] > 0):
        return None
    rises = shown[loads[-1]] > 0
    low = max(load for load in loads if (shown[load] > 0) != rises)
    high = min(load for load in loads if load > low)
    return _CrossoverLoad(math.sqrt(low * high), (low, high), rises)


def _of_curves(
    fits: tuple[Fit, Fit], points: tuple[Sequence[Point], Sequence[Point]], apart: Difference
) -> _CrossoverLoad | None:
    """Return where two fitted curves cross; None unless nearly all of their draws have opposite orders at both ends."""
    a, b = fits
    if a.draws is None or b.draws is None:
        return None
    loads = [[point.in_flight or point.concurrency for point in each] for each in points]
    low, high = max(map(min, loads)), min(map(max, loads))
    if not low < high:
        return None
    N = np.geomspace(low, high, _PLACES)
    n = min(len(a.draws.hinge), len(b.draws.hinge))
    rng = np.random.default_rng(0)
    error = rng.normal(size=n) if np.isinf(apart.freedom) else rng.standard_t(apart.freedom, n)
    ahead = np.log(b.draws.throughput(N)[:n] / a.draws.throughput(N)[:n]) + (apart.se * error)[:, None]
    first, last = ahead[:, 0] > 0, ahead[:, -1] > 0
    rises = float(np.mean(last)) >= SURE and float(np.mean(~first)) >= SURE
    falls = float(np.mean(~last)) >= SURE and float(np.mean(first)) >= SURE
    if not rises and not falls:
        return None
    crossing = ahead[(last if rises else ~last) & (~first if rises else first)]
    low_end, high_end = interval(_last_change(crossing, N))
    best = np.log(throughput(b.curve, N) / throughput(a.curve, N))[None]
    middle = _last_change(best, N) if (best[0, 0] > 0) != (best[0, -1] > 0) else np.median(_last_change(crossing, N))
    at = float(np.clip(np.ravel(middle)[0], low_end, high_end))
    return _CrossoverLoad(at, (low_end, high_end), rises)


def _last_change(ahead: Floats, N: Floats) -> Floats:
    """Return the load at which each row changes its sign for the last time, interpolated in ln N; shape [rows].

    >>> float(_last_change(np.array([[-1.0, 1.0, 3.0]]), np.array([1.0, 4.0, 5.0]))[0])     # half way, in ln N
    2.0
    """
    sign = ahead > 0
    index = ahead.shape[1] - 2 - np.argmax((sign[:, 1:] != sign[:, :-1])[:, ::-1], axis=1)
    rows = np.arange(len(ahead))
    before, after = ahead[rows, index], ahead[rows, index + 1]
    share = before / (before - after)
    return np.asarray(np.exp(np.log(N[index]) * (1 - share) + np.log(N[index + 1]) * share))


# ---- two stacks -----------------------------------------------------------------------------


Outcome: TypeAlias = Literal[
    "faster", "turns_over", "no_difference", "too_few_repeats", "too_uncertain", "no_common_load", "refused"
]


class Ratio(msgspec.Struct, frozen=True):
    """One throughput over another with its 95 % interval.

    `repeated`: both sides have repeats. `known`: how runs differ is known by repeats, and not by what is usual alone.
    """

    value: float
    ci95: tuple[float, float]
    repeated: bool
    known: bool = True

    @property
    def uncertain(self) -> bool:
        """Return whether the interval says nothing, so that it is not shown."""
        return self.ci95[1] > spread.UNCERTAIN * self.ci95[0]


class LevelRatio(msgspec.Struct, frozen=True, kw_only=True):
    """Two stacks at one load; throughput in each stack's unit, geometric means of their runs."""

    concurrency: float
    a_tokens_per_s: float
    b_tokens_per_s: float
    b_over_a: Ratio


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two stacks over their common loads."""

    a: str
    b: str
    outcome: Outcome
    faster: str | None = None  # the faster stack of the outcome "faster"
    b_over_a: Ratio | None = None  # geometric mean over the loads
    p: float | None = None
    alpha: float = ALPHA  # this pair's share of ALPHA, by Holm
    detectable: float | None = None  # the smallest ratio above 1 that these data could have shown
    enough_runs: int | None = None  # runs of each stack that show a difference of the size found; None: 20 do not
    run_spread: float | None = None  # standard deviation of ln X between runs, that the interval is by
    rounds: bool = False  # the runs alternate in time and are compared in pairs
    interpolated: bool = False  # they have no load in common, and are compared between their levels
    turnover: Crossover | None = None
    levels: list[LevelRatio] = []


def judged(groups: Mapping[str, Sequence[Run]], fits: Mapping[str, curve.Fit], *, refused: bool) -> list[Pair]:
    """Return for every pair of stacks which is faster, or why none is shown to be; errors corrected for all pairs."""
    # If the stacks alternate, the n-th runs are a pair.
    groups = {label: by_beginning(group) for label, group in groups.items()}
    rates = {label: [run.throughput() for run in group] for label, group in groups.items()}
    of_all = spread.pooled(list(rates.values()))
    differences = {
        (a, b): _Two.of((a, b), (rates[a], rates[b]), of_all, rounds=alternate(groups[a], groups[b]))
        for a, b in itertools.combinations(groups, 2)
    }
    known = {pair: two.apart for pair, two in differences.items() if two.apart is not None}
    alphas = dict(zip(known, spread.holm([each.p for each in known.values()]), strict=True))
    out = []
    for (a, b), two in differences.items():
        if two.apart is None:
            out.append(Pair(a=a, b=b, outcome="refused" if refused else "no_common_load"))
            continue
        points = [[point for run in groups[label] for point in run.points] for label in (a, b)]
        crossover = crossover_of((a, b), (fits[a], fits[b]), (points[0], points[1]), two.apart, two.by_load)
        alpha, shown = alphas[a, b]
        out.append(_pair(two, of_all, crossover, alpha, shown=shown, refused=refused))
    return out


class _Two(msgspec.Struct, frozen=True):
    """How far two stacks are apart, over all their loads and at each."""

    names: tuple[str, str]
    rates: tuple[Rates, Rates]
    apart: Difference | None  # None if they have no load in common
    by_load: Mapping[float, Difference]
    rounds: bool
    interpolated: bool

    @classmethod
    def of(cls, names: tuple[str, str], rates: tuple[Rates, Rates], of_all: Spread, *, rounds: bool) -> _Two:
        """Return how two stacks' throughputs differ, at each common load and over all of them.

        Without a common load both are interpolated to loads that lie within all runs; without such a load nothing is
        known. `rounds`: runs of the stacks took turns, so that the first of one is paired with the first of the other.
        """
        loads = spread.common(*rates)
        interpolated = not loads
        if interpolated:
            a, b = spread.aligned(*rates)
            rates, loads = (a, b), spread.common(a, b)
            of_all = of_all if of_all.known else spread.pooled(rates)

        def difference(samples: Sequence[spread.Sample], between: Variance) -> Difference:
            a, b = samples
            return spread.difference(a, b, between, known=of_all.known, rounds=rounds)

        by_load = {load: difference([spread.at_load(rate, load) for rate in rates], of_all.at(load)) for load in loads}
        apart = difference([spread.over_loads(rate, loads) for rate in rates], of_all.run) if loads else None
        return cls(names, rates, apart, by_load, rounds, interpolated)


def _pair(two: _Two, of_all: Spread, crossover: Crossover | None, alpha: float, *, shown: bool, refused: bool) -> Pair:
    """Return the comparison of two servers: the outcome, B's throughput over A's with its interval, and by level."""
    assert two.apart is not None
    (a, b), (of_a, of_b) = two.names, two.rates
    between = math.sqrt(of_all.run.value)
    overall = _ratio(two.apart, alpha)
    outcome = "refused" if refused else _outcome(two.apart, overall, crossover, shown=shown)
    return Pair(
        a=a,
        b=b,
        outcome=outcome,
        faster=(b if two.apart.value > 0 else a) if outcome == "faster" else None,
        b_over_a=overall,
        p=two.apart.p,
        alpha=alpha,
        detectable=math.exp(two.apart.half(alpha)),
        enough_runs=spread.runs_needed(between, two.apart.value),
        run_spread=between,
        rounds=two.rounds and len(of_a) >= spread.PAIRS,
        interpolated=two.interpolated,
        turnover=crossover,
        levels=[
            LevelRatio(
                concurrency=load,
                a_tokens_per_s=spread.at_load(of_a, load).mean,
                b_tokens_per_s=spread.at_load(of_b, load).mean,
                b_over_a=_ratio(each),
            )
            for load, each in two.by_load.items()
        ],
    )


def _outcome(apart: Difference, overall: Ratio, crossover: Crossover | None, *, shown: bool) -> Outcome:
    """Return the outcome of a comparison: a crossover if there is one, else a shown difference, else why there is none.

    Without a difference: too uncertain, none (with repeats), or too few repeats to tell.
    """
    if crossover is not None:
        return "turns_over"
    if shown:
        return "faster"
    if overall.uncertain:
        return "too_uncertain"
    return "no_difference" if apart.repeated else "too_few_repeats"


def _ratio(apart: Difference, alpha: float = ALPHA) -> Ratio:
    value, low, high = apart.ratio(alpha)
    return Ratio(value, (low, high), apart.repeated, apart.known)


def by_beginning(runs: Sequence[Run]) -> list[Run]:
    """Return the runs in the order in which they began."""
    return sorted(runs, key=lambda run: run.began or "")


def alternate(a: Sequence[Run], b: Sequence[Run]) -> bool:
    """Return whether the runs of two stacks come in rounds: each stack once before either begins again."""
    began = [sorted(run.began or "" for run in group) for group in (a, b)]
    rounds = [sorted(each) for each in zip(*began, strict=False)]
    whole = len(a) == len(b) and all(moment for group in began for moment in group)
    return whole and all(before[1] < after[0] for before, after in itertools.pairwise(rounds))
