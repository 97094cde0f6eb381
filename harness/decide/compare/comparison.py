"""Stacks under one work: fairness, throughput by load, curves side by side, and who may be called faster.

The order of two stacks is that of their throughput over all loads that every run of both has, unless it turns over.
Pairs are judged together (Holm). `knee compare` writes a `Report` of one comparison a workload.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from harness.analysis import curve
from harness.analysis.points import pool
from harness.analysis.stats import t_quantile
from harness.base.errors import HarnessError
from harness.data.summary import Curve, Value
from harness.decide.compare import fairness, ratio, turnover
from harness.decide.compare.fairness import Row
from harness.decide.compare.ratio import ALPHA, Difference
from harness.decide.compare.runs import Load, Run
from harness.decide.compare.turnover import Turnover
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
    turnover: Turnover | None = None
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
    first_answer_s: float | None = None  # likewise
    simulated: bool = False
    lacks: list[str] = []

    @property
    def counts(self) -> Unit:
        """Its unit; output tokens where a later version counts what this one does not know."""
        return Unit(self.unit) if self.unit in list(Unit) else Unit.OUTPUT_TOKENS


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
    """Runs of two stacks or more, told apart by their labels, in the order of the labels' first runs.

    `answers`: a stack whose answers changed under load, or are less often right, is not ranked.
    """
    labels = list(dict.fromkeys(run.label for run in runs))
    if len(labels) < 2:
        way_out = "give another, or label the folders: A=DIR B=DIR"
        raise HarnessError("one stack alone cannot be compared", place="knee compare", way_out=way_out)
    groups = [[run for run in runs if run.label == label] for label in labels]
    table = [*fairness.rows(groups, vary, answers=answers), *filter(None, [fairness.lost_loads(groups)])]
    fatal = fairness.fatal(table)
    fits = {
        label: curve.fit([p for run in group for p in run.points]) for label, group in zip(labels, groups, strict=True)
    }
    refused = bool(fatal) and not forced
    pairs = _pairs(dict(zip(labels, groups, strict=True)), fits, refused=refused)
    return Comparison(
        workload=workload,
        stacks=[_stack(group, fits[label].curve) for label, group in zip(labels, groups, strict=True)],
        fairness=table,
        fatal=fatal,
        unknown=[row.name for row in table if row.state == fairness.UNKNOWN],
        forced=forced and bool(fatal),
        pairs=pairs,
    )


def by_workload(
    runs: Sequence[Run],
    scenarios: Sequence[str] = (),
    *,
    vary: Collection[str] = (),
    forced: bool = False,
    answers: bool = False,
) -> Report:
    """A comparison for each scenario that is named; without names for each workload, where a stack has several.

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
    """The workloads of each stack."""
    found: dict[str, set[str | None]] = {}
    for run in runs:
        found.setdefault(run.label, set()).add(run.facts.workload)
    return found


def _is_of(run: Run, scenario: str) -> bool:
    return f"{run.scenario or ''}-".startswith(f"{scenario}-")


def _common_name(runs: Sequence[Run]) -> str:
    """What the runs' scenarios are called: their name, or the words that all their names begin with."""
    words = zip(*((run.scenario or "").split("-") for run in runs), strict=False)
    return "-".join(each[0] for each in itertools.takewhile(lambda each: len(set(each)) == 1, words))


def _pairs(groups: Mapping[str, Sequence[Run]], fits: Mapping[str, curve.Fit], *, refused: bool) -> list[Pair]:
    """Every two stacks, judged together."""
    groups = {label: in_time(group) for label, group in groups.items()}  # where they alternate, the n-th are a pair
    rates = {label: [run.throughput() for run in group] for label, group in groups.items()}
    found: list[tuple[str, str, list[float], bool, Difference | None]] = []
    for a, b in itertools.combinations(groups, 2):
        loads, rounds = ratio.common(rates[a], rates[b]), alternate(groups[a], groups[b])
        samples = [ratio.over_loads(rates[label], loads) for label in (a, b)] if loads else []
        found.append((a, b, loads, rounds, ratio.difference(*samples, rounds=rounds) if samples else None))
    judged = [i for i, (*_, apart) in enumerate(found) if apart is not None and apart.repeated]
    levels = dict(zip(judged, ratio.holm([found[i][4].p for i in judged]), strict=True))  # type: ignore[union-attr]
    out = []
    for i, (a, b, loads, rounds, apart) in enumerate(found):
        if apart is None:
            out.append(Pair(a=a, b=b, outcome="refused" if refused else "no_common_load"))
            continue
        alpha, shown = levels.get(i, (ALPHA, False))
        points = tuple([p for run in groups[label] for p in run.points] for label in (a, b))
        turned = turnover.find((a, b), (fits[a], fits[b]), (points[0], points[1]), apart)
        outcome = _outcome(apart, turned, shown=shown, refused=refused)
        out.append(
            Pair(
                a=a,
                b=b,
                outcome=outcome,
                faster=(b if apart.value > 0 else a) if outcome == "faster" else None,
                b_over_a=_ratio(apart, alpha),
                p=apart.p if apart.repeated else None,
                alpha=alpha,
                detectable=math.exp(apart.half(alpha)),
                rounds=rounds and len(rates[a]) >= ratio.PAIRS,
                turnover=turned,
                levels=[_level(rates[a], rates[b], load, rounds=rounds) for load in loads],
            )
        )
    return out


def _outcome(apart: Difference, turned: Turnover | None, *, shown: bool, refused: bool) -> Outcome:
    if refused:
        return "refused"
    if not apart.repeated:
        return "too_few_repeats"
    if turned is not None:
        return "turns_over"
    return "faster" if shown else "no_difference"


def in_time(runs: Sequence[Run]) -> list[Run]:
    """The runs in the order in which they began."""
    return sorted(runs, key=lambda run: run.began or "")


def alternate(a: Sequence[Run], b: Sequence[Run]) -> bool:
    """Whether the runs of two stacks come in rounds: each stack once before either begins again."""
    began = [sorted(run.began or "" for run in group) for group in (a, b)]
    rounds = [sorted(each) for each in zip(*began, strict=False)]
    whole = len(a) == len(b) and all(moment for group in began for moment in group)
    return whole and all(before[1] < after[0] for before, after in itertools.pairwise(rounds))


def _level(
    a: Sequence[dict[float, tuple[float, float]]],
    b: Sequence[dict[float, tuple[float, float]]],
    load: float,
    *,
    rounds: bool,
) -> LevelRatio:
    one, other = ratio.at_load(a, load), ratio.at_load(b, load)
    return LevelRatio(
        concurrency=load,
        a_tokens_per_s=math.exp(math.fsum(one.values) / len(one.values)),
        b_tokens_per_s=math.exp(math.fsum(other.values) / len(other.values)),
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
    ceilings = [run.ceiling for run in runs if run.ceiling]
    predicted = [run.predicted_plateau for run in runs if run.predicted_plateau]
    ready = [run.start_to_ready_s for run in runs if run.start_to_ready_s is not None]
    answered = [run.first_answer_s for run in runs if run.first_answer_s is not None]
    return Stack(
        label=runs[0].label,
        places=[run.place for run in runs],
        runs=len(runs),
        unit=runs[0].facts.unit or Unit.OUTPUT_TOKENS.value,
        curve=fitted,
        spots=[Spot(*map(float, each)) for each in zip(pooled.N, pooled.X, pooled.sigma, strict=True)],
        loads=[load for run in runs for load in run.loads],
        of_ceiling=plateau / _mean(ceilings) if plateau and ceilings else None,
        of_predicted=plateau / _mean(predicted) if plateau and predicted else None,
        start_to_ready_s=_mean(ready) if ready else None,
        first_answer_s=_mean(answered) if answered else None,
        simulated=any(run.simulated for run in runs),
        lacks=list(dict.fromkeys(lack for run in runs for lack in run.lacks)),
    )


def _shared(rates: Sequence[dict[float, tuple[float, float]]]) -> float:
    """Half of the 95 % interval, in ln X, of what all levels of a run share: 0 for a single run, which cannot tell."""
    loads = ratio.common(rates)
    if len(rates) < 2 or not loads:
        return 0.0
    values = np.array(ratio.over_loads(rates, loads).values)
    return t_quantile(0.975, len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))


def _widened(value: Value, shared: float) -> Value:
    """The value with its interval widened by what the fit, which takes levels as independent, does not know."""
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


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
