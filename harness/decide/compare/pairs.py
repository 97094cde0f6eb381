"""Two stacks over their common loads: who is faster, at which loads, and what would settle it.

The variance between runs is pooled over all stacks (`spread`). The order changes with the load where both stacks are
shown to be ahead, each at loads of its own, or where the curves cross (`crossover`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from harness.analysis import curve
from harness.decide.compare import crossover, ratio, spread
from harness.decide.compare.crossover import Crossover
from harness.decide.compare.ratio import ALPHA, Difference
from harness.decide.compare.runs import Run
from harness.decide.compare.spread import Rates, Spread, Variance

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
        """Whether the interval says nothing, so that it is not shown."""
        return self.ci95[1] > ratio.UNCERTAIN * self.ci95[0]


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
    faster: str | None = None  # with the outcome "faster"
    b_over_a: Ratio | None = None  # geometric mean over the loads
    p: float | None = None
    alpha: float = ALPHA  # by Holm, of this pair
    detectable: float | None = None  # the smallest ratio above 1 that these data could have shown
    enough_runs: int | None = None  # of each stack, that show a difference of the size found; None: 20 do not
    run_spread: float | None = None  # standard deviation of ln X between runs, that the interval is by
    rounds: bool = False  # the runs alternate in time and are compared in pairs
    interpolated: bool = False  # they have no load in common, and are compared between their levels
    turnover: Crossover | None = None
    levels: list[LevelRatio] = []


def judged(groups: Mapping[str, Sequence[Run]], fits: Mapping[str, curve.Fit], *, refused: bool) -> list[Pair]:
    """Return every two stacks, judged together."""
    groups = {label: in_time(group) for label, group in groups.items()}  # where they alternate, the n-th are a pair
    rates = {label: [run.throughput() for run in group] for label, group in groups.items()}
    of_all = spread.pooled(list(rates.values()))
    found = {
        (a, b): _Two.of((a, b), (rates[a], rates[b]), of_all, rounds=alternate(groups[a], groups[b]))
        for a, b in itertools.combinations(groups, 2)
    }
    known = {pair: two.apart for pair, two in found.items() if two.apart is not None}
    alphas = dict(zip(known, ratio.holm([each.p for each in known.values()]), strict=True))
    out = []
    for (a, b), two in found.items():
        if two.apart is None:
            out.append(Pair(a=a, b=b, outcome="refused" if refused else "no_common_load"))
            continue
        points = [[point for run in groups[label] for point in run.points] for label in (a, b)]
        turned = crossover.find((a, b), (fits[a], fits[b]), (points[0], points[1]), two.apart, two.by_load)
        alpha, shown = alphas[a, b]
        out.append(_pair(two, of_all, turned, alpha, shown=shown, refused=refused))
    return out


class _Two(msgspec.Struct, frozen=True):
    """How far two stacks are apart, over all their loads and at each."""

    names: tuple[str, str]
    rates: tuple[Rates, Rates]
    apart: Difference | None  # None where they have no load in common
    by_load: Mapping[float, Difference]
    rounds: bool
    interpolated: bool

    @classmethod
    def of(cls, names: tuple[str, str], rates: tuple[Rates, Rates], of_all: Spread, *, rounds: bool) -> _Two:
        loads = spread.common(*rates)
        interpolated = not loads
        if interpolated:
            a, b = spread.aligned(*rates)
            rates, loads = (a, b), spread.common(a, b)
            of_all = of_all if of_all.known else spread.pooled(rates)

        def difference(samples: Sequence[ratio.Sample], between: Variance) -> Difference:
            a, b = samples
            return ratio.difference(a, b, between, known=of_all.known, rounds=rounds)

        by_load = {load: difference([ratio.at_load(each, load) for each in rates], of_all.at(load)) for load in loads}
        apart = difference([ratio.over_loads(each, loads) for each in rates], of_all.run) if loads else None
        return cls(names, rates, apart, by_load, rounds, interpolated)


def _pair(two: _Two, of_all: Spread, turned: Crossover | None, alpha: float, *, shown: bool, refused: bool) -> Pair:
    assert two.apart is not None
    (a, b), (of_a, of_b) = two.names, two.rates
    between = math.sqrt(of_all.run.value)
    overall = _ratio(two.apart, alpha)
    outcome = "refused" if refused else _outcome(two.apart, overall, turned, shown=shown)
    return Pair(
        a=a,
        b=b,
        outcome=outcome,
        faster=(b if two.apart.value > 0 else a) if outcome == "faster" else None,
        b_over_a=overall,
        p=two.apart.p,
        alpha=alpha,
        detectable=math.exp(two.apart.half(alpha)),
        enough_runs=ratio.runs_needed(between, two.apart.value),
        run_spread=between,
        rounds=two.rounds and len(of_a) >= ratio.PAIRS,
        interpolated=two.interpolated,
        turnover=turned,
        levels=[
            LevelRatio(
                concurrency=load,
                a_tokens_per_s=ratio.at_load(of_a, load).mean,
                b_tokens_per_s=ratio.at_load(of_b, load).mean,
                b_over_a=_ratio(each),
            )
            for load, each in two.by_load.items()
        ],
    )


def _outcome(apart: Difference, overall: Ratio, turned: Crossover | None, *, shown: bool) -> Outcome:
    if turned is not None:
        return "turns_over"
    if shown:
        return "faster"
    if overall.uncertain:
        return "too_uncertain"
    return "no_difference" if apart.repeated else "too_few_repeats"


def _ratio(apart: Difference, alpha: float = ALPHA) -> Ratio:
    value, low, high = apart.ratio(alpha)
    return Ratio(value, (low, high), apart.repeated, apart.known)


def in_time(runs: Sequence[Run]) -> list[Run]:
    """Return the runs in the order in which they began."""
    return sorted(runs, key=lambda run: run.began or "")


def alternate(a: Sequence[Run], b: Sequence[Run]) -> bool:
    """Return whether the runs of two stacks come in rounds: each stack once before either begins again."""
    began = [sorted(run.began or "" for run in group) for group in (a, b)]
    rounds = [sorted(each) for each in zip(*began, strict=False)]
    whole = len(a) == len(b) and all(moment for group in began for moment in group)
    return whole and all(before[1] < after[0] for before, after in itertools.pairwise(rounds))
