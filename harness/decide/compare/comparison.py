"""Stacks under one work: fairness, throughput by load, curves side by side, and who may be called faster.

Two stacks are ordered by their throughput over all loads that every run of both has, unless their curves cross. Pairs
are judged together (Holm). `knee compare` writes a `Report` of one comparison a workload.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from harness.analysis import curve
from harness.analysis.points import pool
from harness.analysis.stats import t_quantile
from harness.base.errors import HarnessError
from harness.data.summary import Curve
from harness.data.views import Value
from harness.decide.compare import crossover, fairness, ratio
from harness.decide.compare.crossover import Crossover
from harness.decide.compare.fairness import Row
from harness.decide.compare.ratio import ALPHA, Difference, Rates
from harness.decide.compare.runs import Load, Run
from harness.spec.work import Unit

FORMAT = 1
Outcome: TypeAlias = Literal["faster", "turns_over", "no_difference", "too_few_repeats", "no_common_load", "refused"]


class Ratio(msgspec.Struct, frozen=True):
    """One throughput over another with its 95 % interval; `repeated`: it covers how runs differ."""

    value: float
    ci95: tuple[float, float]
    repeated: bool


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
    rounds: bool = False  # the runs alternate in time and are compared in pairs
    turnover: Crossover | None = None
    levels: list[LevelRatio] = []


class Spot(msgspec.Struct, frozen=True):
    """A level of the pooled runs, for the picture."""

    in_flight: float
    tokens_per_s: float
    error: float  # one standard error, relative


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """One stack, all its runs together."""

    label: str
    places: list[str]
    runs: int
    unit: str = Unit.OUTPUT_TOKENS.value  # a Unit: what throughput counts
    curve: Curve
    spots: list[Spot]
    loads: list[Load]  # of all runs, one after the other
    of_ceiling: float | None = None  # plateau over the data sheet's ceiling
    of_predicted: float | None = None  # plateau over the predicted one
    start_to_ready_s: float | None = None  # mean of the runs
    first_answer_s: float | None = None  # mean of the runs
    simulated: bool = False
    lacks: list[str] = []

    @property
    def counts(self) -> Unit:
        """What its throughput counts."""
        return Unit.known(self.unit)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Stacks under one workload; the first stack is what tables divide by."""

    workload: str
    stacks: list[Stack]
    fairness: list[Row]
    fatal: list[str]  # rows that refuse a ranking
    unknown: list[str]  # rows that weaken it
    forced: bool  # ranked although rows are fatal
    pairs: list[Pair]

    @property
    def refused(self) -> bool:
        return bool(self.fatal) and not self.forced

    @property
    def winner(self) -> str | None:
        """The stack that is shown to be faster than every other."""
        for stack in self.stacks:
            others = [pair for pair in self.pairs if stack.label in (pair.a, pair.b)]
            if others and all(pair.faster == stack.label for pair in others):
                return stack.label
        return None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `knee compare` found: a comparison for each workload."""

    format: int = FORMAT
    workloads: list[Comparison]


def compare(
    runs: Sequence[Run],
    *,
    vary: Collection[str] = (),
    forced: bool = False,
    answers: bool = False,
    workload: str = "",
) -> Comparison:
    """Compare runs of two stacks or more, which their labels name, in the order of the labels' first runs.

    `answers`: a stack whose answers changed under load, or are less often right, is not ranked.
    """
    groups = {label: [run for run in runs if run.label == label] for label in dict.fromkeys(run.label for run in runs)}
    if len(groups) < 2:
        way_out = "give another, or label the folders: A=DIR B=DIR"
        raise HarnessError("one stack alone cannot be compared", place="knee compare", way_out=way_out)
    stacks = list(groups.values())
    table = [*fairness.rows(stacks, vary, answers=answers), *filter(None, [fairness.lost_loads(stacks)])]
    fatal = fairness.fatal(table)
    fits = {label: curve.fit([p for run in group for p in run.points]) for label, group in groups.items()}
    return Comparison(
        workload=workload,
        stacks=[_stack(group, fits[label].curve) for label, group in groups.items()],
        fairness=table,
        fatal=fatal,
        unknown=[row.name for row in table if row.state == fairness.UNKNOWN],
        forced=forced and bool(fatal),
        pairs=_pairs(groups, fits, refused=bool(fatal) and not forced),
    )


def by_workload(
    runs: Sequence[Run],
    scenarios: Sequence[str] = (),
    *,
    vary: Collection[str] = (),
    forced: bool = False,
    answers: bool = False,
) -> Report:
    """Compare under each scenario that is named; without names under each workload, where a stack has several.

    A scenario's name stands at the beginning of its runs' names: `chat` of `chat-vllm-1`.
    """
    if scenarios:
        groups = [[run for run in runs if _is_of(run, name)] for name in scenarios]
        if [] in groups:
            known = ", ".join(sorted({run.scenario for run in runs if run.scenario})) or "none has a name"
            fact = f"no run of scenario '{scenarios[groups.index([])][:40]}'"
            raise HarnessError(fact, place="--scenarios", way_out=f"there are {known}")
    elif all(len(works) < 2 for works in _works(runs).values()):
        groups = [list(runs)]
    else:
        works = dict.fromkeys(run.facts.workload for run in runs)
        groups = [[run for run in runs if run.facts.workload == work] for work in works]
    named = list(scenarios) or [_common_name(group) for group in groups]
    found = [
        compare(group, vary=vary, forced=forced, answers=answers, workload=name)
        for name, group in zip(named, groups, strict=True)
        if len(groups) == 1 or len({run.label for run in group}) > 1
    ]
    if not found:
        way_out = "give runs of one workload for two stacks"
        raise HarnessError("no workload has runs of two stacks", place="knee compare", way_out=way_out)
    return Report(workloads=found)


def _works(runs: Sequence[Run]) -> dict[str, set[str | None]]:
    """Return the workloads of each stack."""
    found: dict[str, set[str | None]] = {}
    for run in runs:
        found.setdefault(run.label, set()).add(run.facts.workload)
    return found


def _is_of(run: Run, scenario: str) -> bool:
    return f"{run.scenario or ''}-".startswith(f"{scenario}-")


def _common_name(runs: Sequence[Run]) -> str:
    """Return what the runs' scenarios are called: their name, or the words that all their names begin with."""
    words = zip(*((run.scenario or "").split("-") for run in runs), strict=False)
    return "-".join(each[0] for each in itertools.takewhile(lambda each: len(set(each)) == 1, words))


def _pairs(groups: Mapping[str, Sequence[Run]], fits: Mapping[str, curve.Fit], *, refused: bool) -> list[Pair]:
    """Return every two stacks, judged together."""
    groups = {label: in_time(group) for label, group in groups.items()}  # where they alternate, the n-th are a pair
    rates = {label: [run.throughput() for run in group] for label, group in groups.items()}
    rounds = {pair: alternate(*(groups[label] for label in pair)) for pair in itertools.combinations(groups, 2)}
    apart = {(a, b): _apart(rates[a], rates[b], rounds=each) for (a, b), each in rounds.items()}
    repeated = {pair: each for pair, each in apart.items() if each is not None and each.repeated}
    judged = dict(zip(repeated, ratio.holm([each.p for each in repeated.values()]), strict=True))
    out = []
    for (a, b), found in apart.items():
        if found is None:
            out.append(Pair(a=a, b=b, outcome="refused" if refused else "no_common_load"))
            continue
        alpha, shown = judged.get((a, b), (ALPHA, False))
        of_a, of_b = ([point for run in groups[label] for point in run.points] for label in (a, b))
        crossed = crossover.find((a, b), (fits[a], fits[b]), (of_a, of_b), found)
        outcome = _outcome(found, crossed, shown=shown, refused=refused)
        out.append(
            Pair(
                a=a,
                b=b,
                outcome=outcome,
                faster=(b if found.value > 0 else a) if outcome == "faster" else None,
                b_over_a=_ratio(found, alpha),
                p=found.p if found.repeated else None,
                alpha=alpha,
                detectable=math.exp(found.half(alpha)),
                rounds=rounds[a, b] and len(rates[a]) >= ratio.PAIRS,
                turnover=crossed,
                levels=[
                    _level(rates[a], rates[b], load, rounds=rounds[a, b]) for load in ratio.common(rates[a], rates[b])
                ],
            )
        )
    return out


def _apart(a: Rates, b: Rates, *, rounds: bool) -> Difference | None:
    """Return how far two stacks are apart over their common loads; None where they have none."""
    loads = ratio.common(a, b)
    return ratio.difference(ratio.over_loads(a, loads), ratio.over_loads(b, loads), rounds=rounds) if loads else None


def _outcome(apart: Difference, crossed: Crossover | None, *, shown: bool, refused: bool) -> Outcome:
    if refused:
        return "refused"
    if not apart.repeated:
        return "too_few_repeats"
    if crossed is not None:
        return "turns_over"
    return "faster" if shown else "no_difference"


def in_time(runs: Sequence[Run]) -> list[Run]:
    """Return the runs in the order in which they began."""
    return sorted(runs, key=lambda run: run.began or "")


def alternate(a: Sequence[Run], b: Sequence[Run]) -> bool:
    """Return whether the runs of two stacks come in rounds: each stack once before either begins again."""
    began = [sorted(run.began or "" for run in group) for group in (a, b)]
    rounds = [sorted(each) for each in zip(*began, strict=False)]
    whole = len(a) == len(b) and all(moment for group in began for moment in group)
    return whole and all(before[1] < after[0] for before, after in itertools.pairwise(rounds))


def _level(a: Rates, b: Rates, load: float, *, rounds: bool) -> LevelRatio:
    one, other = ratio.at_load(a, load), ratio.at_load(b, load)
    return LevelRatio(
        concurrency=load,
        a_tokens_per_s=one.mean,
        b_tokens_per_s=other.mean,
        b_over_a=_ratio(ratio.difference(one, other, rounds=rounds)),
    )


def _ratio(apart: Difference, alpha: float = ALPHA) -> Ratio:
    value, low, high = apart.ratio(alpha)
    return Ratio(value, (low, high), apart.repeated)


def _stack(runs: Sequence[Run], fitted: Curve) -> Stack:
    pooled = pool([point for run in runs for point in run.points])
    rates = [run.throughput() for run in runs]
    shared = _shared(rates)
    fitted = msgspec.structs.replace(
        fitted,
        plateau_tokens_per_s=_widened(fitted.plateau_tokens_per_s, shared),
        single_stream_tokens_per_s=_widened(fitted.single_stream_tokens_per_s, shared),
    )
    plateau = fitted.plateau_tokens_per_s.value
    ceiling = _mean(run.ceiling or None for run in runs)
    predicted = _mean(run.predicted_plateau or None for run in runs)
    return Stack(
        label=runs[0].label,
        places=[run.place for run in runs],
        runs=len(runs),
        unit=runs[0].facts.unit or Unit.OUTPUT_TOKENS.value,
        curve=fitted,
        spots=[Spot(*map(float, each)) for each in zip(pooled.N, pooled.X, pooled.sigma, strict=True)],
        loads=[load for run in runs for load in run.loads],
        of_ceiling=plateau / ceiling if plateau and ceiling else None,
        of_predicted=plateau / predicted if plateau and predicted else None,
        start_to_ready_s=_mean(run.start_to_ready_s for run in runs),
        first_answer_s=_mean(run.first_answer_s for run in runs),
        simulated=any(run.simulated for run in runs),
        lacks=list(dict.fromkeys(lack for run in runs for lack in run.lacks)),
    )


def _shared(rates: Rates) -> float:
    """Return half of the 95 % interval, in ln X, of what all levels of a run share; 0 for a single run."""
    loads = ratio.common(rates)
    if len(rates) < 2 or not loads:
        return 0.0
    values = np.array(ratio.over_loads(rates, loads).values)
    return t_quantile(0.975, len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))


def _widened(value: Value, shared: float) -> Value:
    """Return the value with its interval widened by what the fit, which takes levels as independent, does not know."""
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


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
