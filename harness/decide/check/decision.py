"""Thresholds decided: met or missed where all of an interval lies on one side of the bound, else unresolved.

One run's figure has the interval of its summary. A percentile against a limit is decided by attainment, as an SLO is
(`analysis.slo`): the share of requests within it. Error rates are counts, by Wilson's score. Several runs of one side
(folders, or repeats of one folder) are a sample: Student's t on their mean. Against a baseline the runs of both sides
make a ratio, as in `decide.compare.spread`. One run a side decides of throughput what the usual spread between runs
allows, and nothing of other figures. A figure that is open above, or provisional, can meet what it is at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from harness.analysis import slo
from harness.analysis.level import Facts, attainments
from harness.analysis.rules import Purpose, usable
from harness.analysis.stats import t_quantile
from harness.base.errors import HarnessError
from harness.data.judgement import Gravity, Outcome
from harness.data.levels import Attainment, LevelSummary
from harness.data.summary import Summary
from harness.decide.check import figures, sides
from harness.decide.check.expression import ALL, Subject, Threshold
from harness.decide.check.figures import AGAIN, Quantity
from harness.decide.check.sides import CheckedRun
from harness.decide.compare import comparison, fairness, spread
from harness.decide.compare.comparison import OddRun
from harness.decide.compare.pairs import Ratio, alternate
from harness.spec.work import Unit

FORMAT = 1
_MAY_VARY = set(fairness.VARIED) - {"start"}  # how a level starts is of the measurement, not of the stack
_THROUGHPUT = ("plateau", "single_stream", "output_tokens_per_s", "requests_per_s", "input_tokens_per_s")
_FAILING = ("error_rate", "errors")  # figures that an overloaded level may be judged by


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one threshold."""

    threshold: str
    outcome: str  # an Outcome
    figure: str
    unit: str  # s, %, /s or "": shares are of 1
    per_s: str = ""  # the run's unit of throughput, unless it is output tokens
    at: float | None = None  # load of the level
    open_loop: bool = False  # `at` is a rate
    value: float | None = None
    ci95: tuple[float | None, float | None] | None = None
    bound: float | None = None
    attainment: Attainment | None = None  # attainment that decides it, if one does
    factor: float | None = None  # bound over the baseline
    baseline: float | None = None  # geometric mean of its runs
    ratio: Ratio | None = None  # figure over the baseline
    why: str = ""
    way_out: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All thresholds of a check."""

    format: int = FORMAT
    outcome: str
    runs: list[str]  # places; each repeat counts
    baseline: list[str]
    simulated: bool
    differ: list[str] = []  # what must be alike and is not
    odd: list[OddRun] = []  # runs of either side that are off
    decisions: list[Decision]


class Conditions(NamedTuple):
    """What both sides are compared under; a side that is not alike says why.

    Means and ratios leave a run out that is off, as a comparison does; what requests met or failed counts in all runs.
    """

    runs: Sequence[CheckedRun]
    baseline: Sequence[CheckedRun]
    kept: Sequence[CheckedRun]  # the runs that are compared
    kept_baseline: Sequence[CheckedRun]
    of_runs: str = ""  # why the runs are no repeats of each other
    of_both: str = ""  # why they do not compare with the baseline


def decide(wanted: Sequence[Threshold], runs: Sequence[CheckedRun], baseline: Sequence[CheckedRun] = ()) -> Report:
    """Return the decision on every threshold; the whole is missed if any is, else unresolved if any is, else met.

    A run whose throughput is far from that of its repeats is left out and named in `odd`.
    """
    own = fairness.fatal(fairness.rows([[run.run for run in runs]], _MAY_VARY))
    stacks = [[run.run for run in side] for side in (baseline, runs)]
    both = fairness.fatal(fairness.rows(stacks, _MAY_VARY)) if baseline else []
    odd = spread.odd_runs([[run.throughput() for run in stack] for stack in stacks])
    kept_baseline, kept = spread.kept((baseline, runs), odd)
    conditions = Conditions(
        runs,
        baseline,
        kept,
        kept_baseline,
        of_runs=f"the runs are not repeats of each other: {', '.join(own)}" if own else "",
        of_both=f"not alike: {', '.join(both)}" if both else "",
    )
    decisions = [_decide(threshold, conditions) for threshold in wanted]
    outcomes = {decision.outcome for decision in decisions}
    return Report(
        outcome=next(each for each in Outcome if each in outcomes),
        runs=[run.run.place for run in runs],
        baseline=[run.run.place for run in baseline],
        simulated=any(run.summary.simulated for run in runs),
        differ=list(dict.fromkeys([*own, *both])),
        odd=[comparison.named(each, stacks) for each in odd],
        decisions=decisions,
    )


def _decide(wanted: Threshold, under: Conditions) -> Decision:
    """Return whether a threshold is met, missed or unresolved; raise HarnessError if it lacks its baseline."""
    made = Decision(
        threshold=wanted.text,
        outcome=Outcome.UNRESOLVED,
        figure=wanted.figure,
        unit=figures.must_fit(wanted),
        per_s=_per_s(wanted.figure, under.runs[0].summary),
        bound=wanted.bound,
        factor=wanted.factor,
    )
    relative = wanted.factor is not None
    if relative and not under.baseline:
        raise HarnessError(f"{wanted.text!r} has no baseline", place="--threshold", way_out="give --baseline DIR")
    concerned = [under.runs, under.baseline] if relative else [under.runs]
    if problem := under.of_runs or (under.of_both if relative else ""):
        return _unresolved(made, problem, "measure them under the same conditions")
    broken = [v for side in concerned for run in side for v in run.summary.verdicts if v.level == Gravity.INVALID]
    if broken:
        why = f"the run is invalid: {broken[0].code}: {broken[0].message}"
        return _unresolved(made, why, broken[0].advice)
    if wanted.at is not None and wanted.at != ALL:
        loads = sides.load_of(wanted, concerned)
        if isinstance(loads, Quantity):
            return _missing(made, loads)
        made = msgspec.structs.replace(made, at=loads[0], open_loop=loads[1])
        if wanted.figure in figures.PERCENTILES and wanted.bound is not None:
            return _by_attainment(made, wanted, under.runs)
    return _by_ratio(made, wanted, under) if relative else _by_interval(made, wanted, under)


def _per_s(figure: str, summary: Summary) -> str:
    counted = Unit.known(summary.unit)
    return counted.per_s if figure in ("plateau", "single_stream") and not counted.decodes else ""


def judged(wanted: Threshold, ci95: tuple[float | None, float | None], bound: float) -> Outcome:
    """Return MET, MISSED or UNRESOLVED: on which side of the threshold's bound an interval lies; None: no end.

    >>> from harness.decide.check.expression import parse
    >>> [str(judged(parse("plateau >= 100"), ends, 100)) for ends in ((100, 110), (90, 99), (90, 110), (None, 99))]
    ['met', 'missed', 'unresolved', 'missed']
    """
    low, high = (-math.inf if ci95[0] is None else ci95[0]), (math.inf if ci95[1] is None else ci95[1])
    match wanted.comparison:
        case ">=":
            met, missed = low >= bound, high < bound
        case ">":
            met, missed = low > bound, high <= bound
        case "<=":
            met, missed = high <= bound, low > bound
        case _:
            met, missed = high < bound, low >= bound
    return Outcome.MET if met else Outcome.MISSED if missed else Outcome.UNRESOLVED


def _of_run(wanted: Subject, run: CheckedRun, at: float | None, *, open_loop: bool) -> Quantity:
    """Return the wanted figure of a run: of the whole run, or at load `at` from the valid repeats of that level."""
    if at is None:
        return figures.OF_RUN[wanted.figure][1](run.summary)
    levels = sides.levels_at(run, at, open_loop=open_loop)
    purpose = Purpose.MISS if wanted.figure in _FAILING else Purpose.ANSWER
    sound = [level for level in levels if usable(level, purpose)]
    if not sound:
        return sides.no_valid_level(levels)
    return sides.within_run([figures.of_level(level, wanted.figure) for level in sound])


def quantity(wanted: Subject, run: CheckedRun) -> Quantity:
    """Return the wanted figure of one run with its interval, without any threshold to compare it with."""
    if wanted.at is None:
        return _of_run(wanted, run, None, open_loop=False)
    found = sides.load_of(wanted, [[run]])
    return found if isinstance(found, Quantity) else _of_run(wanted, run, found[0], open_loop=found[1])


# ---- outcomes -------------------------------------------------------------------------------------------------------


def _unresolved(made: Decision, why: str, way_out: str, value: float | None = None) -> Decision:
    value = made.value if value is None else value
    return msgspec.structs.replace(made, outcome=Outcome.UNRESOLVED, value=value, why=why, way_out=way_out)


def _missing(made: Decision, found: Quantity) -> Decision:
    return _unresolved(made, found.why, found.way_out, found.value)


def _by_interval(made: Decision, wanted: Threshold, under: Conditions) -> Decision:
    """Return the decision on a threshold with a fixed bound, with the figure's value and interval over the runs.

    Met or missed where the whole interval lies on one side of the bound; else unresolved, with why and what helps.
    Unresolved, too, without an interval.
    """
    assert wanted.bound is not None
    if wanted.figure == "error_rate":
        found = _failures(under.runs, made)
    else:
        found = sides.over_runs([_of_run(wanted, each, made.at, open_loop=made.open_loop) for each in under.kept])
    made = msgspec.structs.replace(made, value=found.value, ci95=found.ci95)
    if found.ci95 is None:
        way_out = found.way_out or (AGAIN if found.value is not None else "")
        return _unresolved(made, found.why or "no interval", way_out, found.value)
    outcome = judged(wanted, found.ci95, wanted.bound)
    if outcome is not Outcome.UNRESOLVED:
        return msgspec.structs.replace(made, outcome=outcome)
    why = found.why or "the bound lies in the interval"
    way_out = found.way_out or f"measure longer, or {AGAIN.partition(': ')[2]}"
    return _unresolved(made, why, way_out, found.value)


def _failures(side: Sequence[CheckedRun], made: Decision) -> Quantity:
    """Return the error rate over all runs, of every level or of those at one load, overloaded ones included."""
    counted: list[LevelSummary] = []
    for run in side:
        if made.at is None:
            counted += run.summary.levels
            continue
        levels = sides.levels_at(run, made.at, open_loop=made.open_loop)
        failing = [level for level in levels if usable(level, Purpose.MISS)]
        if not failing:
            return sides.no_valid_level(levels)
        counted += failing
    return figures.error_rate(counted)


def _by_attainment(made: Decision, wanted: Threshold, side: Sequence[CheckedRun]) -> Decision:
    """Return the decision on a threshold on a percentile, by the share of requests within its bound over all repeats.

    An invalid repeat may count as a miss, never as met; too many of them leave the decision unresolved, as do too few
    requests.
    """
    assert made.at is not None
    assert wanted.bound is not None
    (limit,) = slo.limits({wanted.figure: wanted.bound})
    repeats: list[_Repeat] = []
    for run in side:
        levels = sides.levels_at(run, made.at, open_loop=made.open_loop)
        if not any(usable(level, Purpose.MISS) for level in levels):
            return _missing(made, sides.no_valid_level(levels))
        repeats += _repeats(run, levels, limit)
    sound = [repeat for repeat in repeats if repeat.valid]
    failed = [repeat for repeat in repeats if not repeat.valid]
    value = sides.mean([figures.of_level(each.level, wanted.figure) for each in sound or failed])
    made = msgspec.structs.replace(made, value=value)
    within, beyond = ([each.attained for each in part if each.attained is not None] for part in (sound, failed))
    if len(within) + len(beyond) < len(repeats):
        return _unresolved(made, "no interval", f"measure it with --slo {limit}", value)
    unsure = [each for each in failed if not each.missed]
    missed = bool(within) and slo.pooled(within).outcome == Outcome.MISSED
    against = 0 if missed else len(failed)  # what failed adds nothing if the valid ones missed it themselves
    undecided = against > 0 and (against == len(sound) or (against > len(sound) and bool(unsure)))
    if undecided or any(each.alone for each in unsure):
        fact = f"{len(failed)} of {len(repeats)} repeats of the level are invalid" if sound else "the level is invalid"
        return _missing(made, sides.no_valid_level([each.level for each in failed], fact))
    together = slo.judged([(each,) for each in within], against)
    pooled = together.pooled[0] if together.pooled else slo.pooled(beyond)
    made = msgspec.structs.replace(made, attainment=pooled)
    if pooled.ci95 is None:
        return _unresolved(made, "no interval: tokens came in chunks", "limit tpot or icl instead", value)
    swapped = {Outcome.MET: Outcome.MISSED, Outcome.MISSED: Outcome.MET}
    outcome = swapped.get(together.outcome, together.outcome) if wanted.least else together.outcome
    if outcome is Outcome.UNRESOLVED:
        needed = slo.enough(pooled)
        way_out = f"{needed:,} requests would tell: hold the level longer" if needed else "hold the level longer"
        return _unresolved(made, f"{pooled.n:,} requests do not tell", way_out, value)
    return msgspec.structs.replace(made, outcome=outcome)


class _Repeat(NamedTuple):
    """One time that a run measured a load: how much of it met a limit."""

    level: LevelSummary
    attained: Attainment | None  # None if its requests are not there
    valid: bool
    alone: bool  # its run has no valid one

    @property
    def missed(self) -> bool:
        return self.attained is not None and self.attained.outcome == Outcome.MISSED


def _repeats(run: CheckedRun, levels: Sequence[LevelSummary], limit: slo.SloLimit) -> list[_Repeat]:
    """Return the repeats of a load with their attainment of a limit; of invalid ones, only those that show a miss."""
    alone = not any(usable(level, Purpose.ANSWER) for level in levels)
    repeats = [
        _Repeat(level, _attained(run, level, limit), usable(level, Purpose.ANSWER), alone)
        for level in levels
        if usable(level, Purpose.MISS)
    ]
    return [repeat for repeat in repeats if repeat.valid or alone or repeat.missed or slo.overloaded(repeat.level)]


def _attained(run: CheckedRun, level: LevelSummary, limit: slo.SloLimit) -> Attainment | None:
    """Return a level's attainment of a limit: from its summary if stored there, else from its requests, else None."""
    of_all = not any(each.class_ for each in level.slo)  # else it is of the classes that have no limits of their own
    for attainment in level.slo:
        if of_all and attainment.limit == str(limit) and figures.plausible(attainment):
            return attainment
    if run.result is None:
        return None
    facts = Facts.of(run.result.manifest)
    known = (level.concurrency, level.rate, level.repeat)
    for own in run.result.levels:
        within = own.window_end_s is not None and own.begin_s <= level.window[0] <= own.window_end_s
        if within and own.finished and (own.concurrency, own.rate, own.repeat) == known:
            return attainments(facts.table(run.result.records), own, facts, [limit])[0]
    return None


def _by_ratio(made: Decision, wanted: Threshold, under: Conditions) -> Decision:
    """Return the decision on a threshold relative to a baseline, by the interval of the runs' ratio to the baseline's.

    The ratio is that at one load, or over all that both sides have. It is unresolved where a side lacks the figure,
    where a single run cannot show how runs differ (except in throughput), and where the bound lies in the interval.
    """
    assert wanted.factor is not None
    loads: Sequence[float | None] = [made.at]
    both = (under.kept_baseline, under.kept)
    if wanted.at == ALL:
        loads, open_loop = sides.common([*both[0], *both[1]])
        made = msgspec.structs.replace(made, open_loop=open_loop)
        if gone := sides.lost(*both, open_loop=open_loop):
            return _missing(made, gone)
    if not loads:
        return _missing(made, sides.NOTHING_IN_COMMON)
    logs: list[list[dict[float, tuple[float, float]]]] = []
    known: list[list[Quantity]] = []  # figures of each side, at the first load
    for side in both:
        ordered = sorted(side, key=lambda each: each.run.began or "")  # where they alternate, the n-th are a pair
        quantities = [[_of_run(wanted, each, load, open_loop=made.open_loop) for load in loads] for each in ordered]
        known.append([own[0] for own in quantities])
        lacking = next((each for own in quantities for each in own if sides.no_ratio(each)), None)
        if lacking is not None:
            own_side = "the baseline: " if side is under.kept_baseline else ""
            return _of_least(made, wanted, under, lacking, own_side)
        logs.append([{float(i): sides.in_logarithms(each) for i, each in enumerate(own)} for own in quantities])
    samples = [spread.over_loads(side, list(side[0])) if len(loads) > 1 else spread.at_load(side, 0) for side in logs]
    means = [sample.mean for sample in samples]
    made = msgspec.structs.replace(made, value=means[1], baseline=means[0])
    of_throughput = made.figure in _THROUGHPUT
    if min(len(side) for side in logs) < 2 and not of_throughput:
        return _unresolved(made, "one run of a side cannot show how runs differ", f"of each side, {AGAIN}", means[1])
    of_figure = spread.pooled(logs, usual=of_throughput)
    between = of_figure.run if made.at is None else of_figure.at(0.0)
    if of_throughput and of_figure.known and wanted.at is None:  # a figure of the curve, which all levels make
        shared = spread.pooled([[run.run.throughput() for run in side] for side in both])
        between = spread.of_figure(between, shared.run, math.fsum(sample.own for sample in samples) / 2)
    apart = spread.difference(
        samples[0],
        samples[1],
        between,
        known=of_figure.known,
        rounds=alternate(*([run.run for run in side] for side in both)),
    )
    value, low, high = apart.ratio()
    low, high = sides.no_nearer((low, high), *known)
    made = msgspec.structs.replace(made, ratio=Ratio(value, (low, high), apart.repeated, apart.known))
    outcome = judged(wanted, (low, high), wanted.factor)
    if outcome is Outcome.UNRESOLVED:
        between_levels = next(
            (each.way_out for each in (*known[0], *known[1]) if sides.is_bracket(each) and each.way_out), ""
        )
        way_out = between_levels or "add repeats of both sides"
        return _unresolved(made, "the bound lies in the interval", way_out, means[1])
    return msgspec.structs.replace(made, outcome=outcome)


def _of_least(made: Decision, wanted: Threshold, under: Conditions, lacking: Quantity, whose: str) -> Decision:
    """Decide a throughput threshold relative to a baseline where only bounds of a side's figure are known."""
    assert wanted.factor is not None
    value = None if whose else lacking.value
    undecided = _unresolved(
        made, f"{whose}{sides.no_ratio(lacking)}", lacking.way_out or "measure higher levels", value
    )
    if made.at is not None or wanted.at is not None or made.figure not in _THROUGHPUT:
        return undecided
    old, new = (
        sides.hull([_of_run(wanted, run, None, open_loop=False) for run in side])
        for side in (under.kept_baseline, under.kept)
    )
    if old is None or new is None:
        return undecided
    usual = spread.pooled([])
    shared = math.exp(t_quantile(0.975, usual.run.freedom) * math.sqrt(2 * usual.run.value))
    low = new[0] / old[1] / shared if new[0] is not None and old[1] else None
    high = new[1] / old[0] * shared if new[1] is not None and old[0] else None
    outcome = judged(wanted, (low, high), wanted.factor)
    return undecided if outcome is Outcome.UNRESOLVED else msgspec.structs.replace(made, value=value, outcome=outcome)
