"""Stacks under one work: fairness, throughput by load, curves side by side, and who may be called faster.

Two stacks are ordered by their throughput over all loads that every run of both has, unless their order changes with
the load. Pairs are judged together (Holm).

Requests in flight are no measure of demand: a faster stack answers more requests with the same number of them. So
latencies are compared where stacks deliver the same tokens, and throughputs where they keep the same limit, on straight
lines in logarithms between two levels; beyond the levels nothing is said.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import TypeAlias

import msgspec

from harness.analysis import curve
from harness.analysis.points import pool
from harness.analysis.stats import known_mean, t_quantile
from harness.base.errors import HarnessError
from harness.data.summary import Curve
from harness.data.views import Value
from harness.decide.compare import fairness, pairs, spread
from harness.decide.compare.fairness import Row
from harness.decide.compare.pairs import Pair
from harness.decide.compare.runs import Load, Run
from harness.decide.compare.spread import Odd, Variance
from harness.spec.work import Unit

FORMAT = 1


class Spot(msgspec.Struct, frozen=True):
    """A level of the pooled runs, for the picture."""

    in_flight: float
    tokens_per_s: float
    error: float  # one standard error, relative


class OddRun(msgspec.Struct, frozen=True):
    """A run that is off from a load on, by more than runs differ."""

    place: str
    since: float  # requests in flight
    times: float  # its throughput over that of the other runs
    left_out: bool


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """One stack, all its runs together."""

    label: str
    places: list[str]
    runs: int
    unit: str = Unit.OUTPUT_TOKENS.value  # a Unit: what throughput counts
    curve: Curve
    spots: list[Spot]
    loads: list[Load]  # loads of all runs, one after the other
    of_predicted: float | None = None  # plateau over the predicted one
    seats: str | None = None  # requests that it was seen to serve at once
    start_to_ready_s: float | None = None  # mean of the runs
    first_answer_s: float | None = None  # mean of the runs
    simulated: bool = False
    lacks: list[str] = []
    odd: list[OddRun] = []  # those left out are not among `places`

    @property
    def counts(self) -> Unit:
        """Return what the throughput counts."""
        return Unit.known(self.unit)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `knee compare` found; the first stack is what tables divide by."""

    format: int = FORMAT
    stacks: list[Stack]
    fairness: list[Row]
    fatal: list[str]  # rows that refuse a ranking
    differ: list[str] = []  # rows that the comparison is about
    unknown: list[str]  # rows that weaken it
    forced: bool  # ranked although rows are fatal
    pairs: list[Pair]
    at_throughput: list[AtThroughput] = []
    at_limits: list[AtLimit] = []

    @property
    def refused(self) -> bool:
        return bool(self.fatal) and not self.forced


def compare(runs: Sequence[Run], *, vary: Collection[str] = (), forced: bool = False) -> Comparison:
    """Compare runs of two stacks or more: fairness, ranking of every pair, and equal loads. A label names a stack."""
    groups = {label: [run for run in runs if run.label == label] for label in dict.fromkeys(run.label for run in runs)}
    if len(groups) < 2:
        way_out = "give another, or label the folders: A=DIR B=DIR"
        raise HarnessError("one stack alone cannot be compared", place="knee compare", way_out=way_out)
    stacks = list(groups.values())
    table = fairness.rows(stacks, vary)
    fatal = fairness.fatal(table)
    odd = spread.odd_runs([[run.throughput() for run in group] for group in stacks])
    kept = dict(zip(groups, spread.kept(stacks, odd), strict=True))
    between = spread.pooled([[run.throughput() for run in group] for group in kept.values()]).run
    loads = [[load for run in group for load in run.loads] for group in kept.values()]
    fits = {label: curve.fit([point for run in group for point in run.points]) for label, group in kept.items()}
    return Comparison(
        stacks=[
            _stack(group, fits[label].curve, between, [named(each, stacks) for each in odd if each.stack == s])
            for s, (label, group) in enumerate(kept.items())
        ],
        fairness=table,
        fatal=fatal,
        differ=[row.name for row in fairness.differing(table)],
        unknown=[row.name for row in table if row.state == fairness.UNKNOWN],
        forced=forced and bool(fatal),
        pairs=pairs.judged(kept, fits, refused=bool(fatal) and not forced),
        at_throughput=at_throughput(loads),
        at_limits=at_limits(loads),
    )


def named(odd: Odd, stacks: Sequence[Sequence[Run]]) -> OddRun:
    """Return the run by its place."""
    return OddRun(stacks[odd.stack][odd.run].place, odd.since, odd.times, odd.left_out)


def _stack(runs: Sequence[Run], fitted: Curve, between: Variance, odd: list[OddRun]) -> Stack:
    """Return the figures of one stack from its runs; the curve's intervals are widened by how much runs differ."""
    pooled = pool([point for run in runs for point in run.points])
    shared = t_quantile(0.975, between.freedom) * math.sqrt(between.value / len(runs))
    fitted = msgspec.structs.replace(
        fitted,
        plateau_tokens_per_s=_widened(fitted.plateau_tokens_per_s, shared),
        single_stream_tokens_per_s=_widened(fitted.single_stream_tokens_per_s, shared),
    )
    plateau = fitted.plateau_tokens_per_s.value
    predicted = known_mean(run.predicted_plateau or None for run in runs)
    return Stack(
        label=runs[0].label,
        places=[run.place for run in runs],
        runs=len(runs),
        unit=runs[0].facts.unit or Unit.OUTPUT_TOKENS.value,
        curve=fitted,
        spots=[Spot(*map(float, each)) for each in zip(pooled.N, pooled.X, pooled.sigma, strict=True)],
        loads=[load for run in runs for load in run.loads],
        seats=" / ".join(dict.fromkeys(run.facts.seats for run in runs if run.facts.seats)) or None,
        of_predicted=plateau / predicted if plateau and predicted else None,
        start_to_ready_s=known_mean(run.start_to_ready_s for run in runs),
        first_answer_s=known_mean(run.first_answer_s for run in runs),
        simulated=any(run.simulated for run in runs),
        lacks=list(dict.fromkeys(lack for run in runs for lack in run.lacks)),
        odd=odd,
    )


def _widened(value: Value, shared: float) -> Value:
    """Return the value with each end of its interval moved out, in logarithms, by the added error `shared`."""
    if not value.value or value.ci95 is None or not shared:
        return value
    low, high = value.ci95
    return Value(
        value.value,
        (
            value.value * math.exp(-math.hypot(math.log(value.value / low), shared)) if low else low,
            value.value * math.exp(math.hypot(math.log(high / value.value), shared)) if high else high,
        ),
    )


# ---- At the same throughput, and at the same latency -----------------------------------------------------------------


Points: TypeAlias = Sequence[tuple[float, float]]  # throughput and latency of each level, by rising load
FIGURES = ("ttft_p50_s", "itl_mean_s")
_SHARES = (0.25, 0.5, 0.75, 0.9)  # shares of the throughput that every stack reaches
_GRID = (1.0, 2.0, 5.0)  # limits to try, times each power of ten
_LIMITS = 3  # most limits of each figure


class AtThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies where each stack delivers so many tokens a second; seconds, in the order of the stacks."""

    tokens_per_s: float
    ttft_p50_s: list[float | None]
    itl_mean_s: list[float | None]


class AtLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The most tokens a second that each stack delivers within a limit; `open`: whether no level of it misses that."""

    figure: str
    limit_s: float
    tokens_per_s: list[float | None]
    open: list[bool]


def at_throughput(stacks: Sequence[Sequence[Load]]) -> list[AtThroughput]:
    """Return each stack's latencies at a few shares of the highest throughput that all stacks reach."""
    points = {name: [_points(loads, name) for loads in stacks] for name in FIGURES}
    tops = [max((X for name in FIGURES for X, _ in points[name][i]), default=0.0) for i in range(len(stacks))]
    reached = min(tops, default=0.0)
    rows = [
        AtThroughput(
            tokens_per_s=share * reached,
            **{name: [latency_at(each, share * reached) for each in points[name]] for name in FIGURES},
        )
        for share in _SHARES
        if reached
    ]
    return [row for row in rows if any(_known(getattr(row, name)) for name in FIGURES)]


def at_limits(stacks: Sequence[Sequence[Load]]) -> list[AtLimit]:
    """Return each stack's throughput within a few round latency limits, which lie among the measured latencies."""
    out = []
    for name in FIGURES:
        points = [_points(loads, name) for loads in stacks]
        if not all(points):
            continue
        low, high = max(point[0][1] for point in points), max(latency for point in points for _, latency in point)
        for limit in _round_limits(low, high)[:_LIMITS]:
            found = [throughput_within(point, limit) for point in points]
            tokens, unbounded = [each[0] for each in found], [each[1] for each in found]
            if _known(tokens):
                out.append(AtLimit(figure=name, limit_s=limit, tokens_per_s=tokens, open=unbounded))
    return out


def _known(values: Sequence[float | None]) -> bool:
    return sum(value is not None for value in values) > 1


def _round_limits(low: float, high: float) -> list[float]:
    """Return round limits between two latencies, rising.

    >>> _round_limits(0.013, 0.21)
    [0.02, 0.05, 0.1, 0.2]
    """
    if not 0 < low < high:
        return []
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [limit for power in powers for each in _GRID if low <= (limit := round(each * 10.0**power, 9)) < high]


def _points(loads: Sequence[Load], name: str) -> Points:
    """Return (throughput, latency `name`) of each closed-loop load, rising; geometric means over the runs."""
    points: dict[float, list[tuple[float, float]]] = {}
    for load in loads:
        latency = getattr(load, name)
        if not load.open_loop and load.tokens_per_s and latency:
            points.setdefault(load.load, []).append((load.tokens_per_s, latency))
    return [(_middle([X for X, _ in own]), _middle([s for _, s in own])) for _, own in sorted(points.items())]


def _middle(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def latency_at(points: Points, X: float) -> float | None:
    """Return the latency at the lowest load that reaches throughput X, interpolated; None if no two levels do.

    >>> latency_at([(100.0, 0.01), (200.0, 0.02), (200.0, 0.5)], 150.0)
    0.015
    """
    for (low, before), (high, after) in itertools.pairwise(points):
        if low <= X <= high and low < high:
            share = math.log(X / low) / math.log(high / low)
            return round(math.exp(math.log(before) + share * math.log(after / before)), 12)
    return None


def throughput_within(points: Points, limit: float) -> tuple[float | None, bool]:
    """Return (highest throughput with a latency within `limit`, interpolated; whether no level misses the limit).

    >>> throughput_within([(100.0, 0.01), (400.0, 0.04)], 0.02), throughput_within([(100.0, 0.01)], 0.02)
    ((200.0, False), (100.0, True))
    """
    best: float | None = None
    for i, (X, latency) in enumerate(points):
        if latency > limit:
            if i == 0:
                return None, False
            low, before = points[i - 1]
            share = math.log(limit / before) / math.log(latency / before)
            between = math.exp(math.log(low) + share * math.log(X / low))
            return round(max(best or 0.0, between), 9), False
        best = max(best or 0.0, X)
    return best, True
