"""The two sides of a check, runs and baseline: their levels by load, and one figure over repeats and over runs.

Repeats of one load within a run share what the machine did that day. They show better what the run gave there, by their
own errors and by what lies between them, but nothing of how runs differ.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis import answer, curve, seats, slo, summarise
from harness.analysis.rules import Purpose, invalid_by, usable
from harness.analysis.stats import FLOOR, Z95, scatter_within, t_quantile
from harness.data.judgement import Gravity
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.record import Role
from harness.data.summary import Summary
from harness.decide import levels as reading
from harness.decide.check import figures
from harness.decide.check.expression import Subject
from harness.decide.check.figures import Quantity
from harness.decide.compare import runs
from harness.decide.compare.runs import Run
from harness.results.result import Result
from harness.spec.work import Unit

_LEAST = 1e-12  # smallest error: a figure that is always 0 has none
_MOST_FREEDOM = 1e6  # degrees of freedom, which the normal distribution has
NOTHING_IN_COMMON = Quantity(
    None, None, "no valid level was measured in every run", "measure the same levels: --levels 1,2,4,8"
)


class CheckedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run, or one repeat of it, as thresholds see it."""

    run: Run  # its conditions, as it is compared
    summary: Summary
    result: Result | None = None  # its requests; None if they were taken out


def read(place: str) -> list[CheckedRun]:
    """Read the runs in a result folder, one for each repeat; raise HarnessError if none is finished."""
    manifest, summary, result = reading.opened(place)
    repeated = runs.of_folder(place, manifest, summary)
    if not repeated:
        raise runs.unfinished(place)
    repeats = sorted({level.repeat for level in summary.levels})
    parts = [summary] if len(repeated) == 1 else [_repeat(manifest, summary, repeat) for repeat in repeats]
    return [CheckedRun(run=run, summary=part, result=result) for run, part in zip(repeated, parts, strict=True)]


def _repeat(manifest: Manifest, summary: Summary, repeat: int) -> Summary:
    """Return the summary of one repeat of a run, with its own curve, knees and cost (and no phases)."""
    levels = [level for level in summary.levels if level.repeat == repeat]
    of_ramp = answer.of_ramp(levels)
    points = [point for point in curve.points_of(of_ramp) if reading.within_reason(point)]
    with np.errstate(all="ignore"):  # a stored summary may hold errors that no measurement has
        fit = curve.fit(points) if summary.curve else None
    knees = msgspec.structs.replace(
        fit.knees if fit else summary.knees,
        slo=slo.knee(of_ramp),
        seats=seats.as_value(seats.find(seats.occupancies(of_ramp))),
        slo_rate=slo.rate_knee(of_ramp),
    )
    fitted = fit.curve if fit else None
    usd = summarise.cost(manifest, fitted, of_ramp, Unit(summary.unit))
    sessions = any(level.sessions for level in levels)
    knee = answer.headline(knees, fitted, has_slo=any(level.slo for level in of_ramp), sessions=sessions)
    return msgspec.structs.replace(
        summary, levels=levels, curve=fitted, knee=knee, knee_concurrency=knee.value, knees=knees, cost=usd, phases=None
    )


def levels_at(run: CheckedRun, load: float, *, open_loop: bool) -> list[LevelSummary]:
    """Return the levels of a run at one load."""
    return [each for each in _of_ramp(run, open_loop=open_loop) if each.load == load]


def _of_ramp(run: CheckedRun, *, open_loop: bool) -> list[LevelSummary]:
    levels = answer.of_ramp(run.summary.levels)
    return [level for level in levels if (level.rate is not None) == open_loop and level.load is not None]


def load_of(wanted: Subject, sides: Sequence[Sequence[CheckedRun]]) -> tuple[float, bool] | Quantity:
    """Return (load, whether it is a rate) at which a figure is read, or what is missing if a run has no such level.

    The knee's level is the one that the screen reads the answer at (`answer.knee_load`), of those that are valid in
    every run. Several runs are all read at one load, by the median of their knees; of two sides, by that of the last.
    """
    every = [run for side in sides for run in side]
    if isinstance(wanted.at, float):
        for each in every:
            if not levels_at(each, wanted.at, open_loop=wanted.open_loop):
                return _no_level(each, wanted.at, open_loop=wanted.open_loop)
        return wanted.at, wanted.open_loop
    knees = [figures.knee(run.summary) for run in sides[-1]]
    unknown = next((knee for knee in knees if knee.value is None), None)
    if unknown is not None:
        return Quantity(None, None, f"no knee: {unknown.why}", unknown.way_out)
    middle = statistics.median(knee.value or 0.0 for knee in knees)
    loads, open_loop = common(every)
    if not loads:
        return NOTHING_IN_COMMON
    at = answer.knee_load(middle, loads)
    if at is None:
        way_out = f"measure {max(1, math.floor(middle))} in flight" if not open_loop else "measure a lower rate"
        return Quantity(None, None, f"no valid level of every run lies at the knee, {middle:.3g}, or below it", way_out)
    return at, open_loop


def common(every: Sequence[CheckedRun]) -> tuple[list[float], bool]:
    """Return the loads of which each run has a valid level, rising, and whether they are rates."""
    open_loop = every[0].summary.open_loop
    loads = [_valid(run, open_loop=open_loop) for run in every]
    return sorted(load for load in set.intersection(*loads) if load > 0), open_loop


def lost(baseline: Sequence[CheckedRun], runs: Sequence[CheckedRun], *, open_loop: bool) -> Quantity | None:
    """Return the lowest load that the baseline has and a run lost, as a missing figure; None if no load was lost.

    A load counts that the whole baseline measured, with a valid level at least once. A run lost it where its own level
    is invalid. It also did where it lacks one that the whole baseline has as a valid level, unless a ramp chose that:
    ramps choose other levels each time.
    """
    valid = [_valid(each, open_loop=open_loop) for each in baseline]
    fixed = set.intersection(*(_valid(each, open_loop=open_loop, fixed=True) for each in baseline))
    measured = set.intersection(*(_loads(_of_ramp(each, open_loop=open_loop)) for each in baseline))
    for load in sorted(measured.intersection(set[float]().union(*valid))):
        for run in runs:
            levels = levels_at(run, load, open_loop=open_loop)
            if not levels and load in fixed:
                return _no_level(run, load, open_loop=open_loop)
            if levels and not any(usable(level, Purpose.ANSWER) for level in levels):
                return no_valid_level(levels, f"{run.run.place}: the level {load:g}{'/s' * open_loop} is invalid")
    return None


def _valid(run: CheckedRun, *, open_loop: bool, fixed: bool = False) -> set[float]:
    """Return the loads of a run's valid levels; `fixed`: of those that no ramp chose."""
    levels = [level for level in _of_ramp(run, open_loop=open_loop) if usable(level, Purpose.ANSWER)]
    return _loads([level for level in levels if not fixed or level.role in (None, Role.FIXED)])


def _loads(levels: Sequence[LevelSummary]) -> set[float]:
    return {level.load for level in levels if level.load is not None}


def no_valid_level(levels: Sequence[LevelSummary], fact: str = "the level is invalid") -> Quantity:
    """Return a figure that is missing, as no level is valid: the reason names the first one's verdicts."""
    codes = sorted(invalid_by(levels[0]))
    advice = next((verdict.advice for verdict in levels[0].verdicts if verdict.level == Gravity.INVALID), "")
    return Quantity(None, None, f"{fact}: {', '.join(codes)}", advice)


def _no_level(lacking: CheckedRun, at: float, *, open_loop: bool) -> Quantity:
    """Return a missing figure: the run has no level at load `at`; the way out names the loads that it has."""
    loads = sorted(_loads(_of_ramp(lacking, open_loop=open_loop)))
    way_out = f"its levels are {', '.join(f'{load:g}' for load in loads[:40]) or 'none'}"
    if not loads and _of_ramp(lacking, open_loop=not open_loop):
        way_out = f"it has no rates: write @{at:g}" if open_loop else f"its levels are rates: write @{at:g}/s"
    return Quantity(None, None, f"{lacking.run.place} has no level {at:g}{'/s' * open_loop}", way_out)


# ---- repeats: of a load within a run, and of a run ------------------------------------------------------------------


def within_run(quantities: Sequence[Quantity]) -> Quantity:
    """Return the mean of a figure over repeats of one load in a run, weighted by their errors, with its interval.

    No error is below the 0.5 % that nothing is known better than. What lies between repeats beyond them counts
    (Paule and Mandel), with Student's t for as few degrees of freedom as that is known by (Satterthwaite 1946). Without
    intervals there is a mean alone.

    >>> alike = within_run([Quantity(1000.0, (990.0, 1010.0)), Quantity(1004.0, (994.0, 1014.0))])
    >>> apart = within_run([Quantity(1000.0, (990.0, 1010.0)), Quantity(1040.0, (1030.0, 1050.0))])
    >>> [round(end) for each in (alike, apart) for end in each.ci95 or ()]
    [995, 1009, 802, 1238]
    """
    if any(quantity.why or quantity.value is None for quantity in quantities):
        return quantities[0] if len(quantities) == 1 else _with_reason(quantities)
    known = [quantity for quantity in quantities if quantity.ci95]
    if len(known) < 2:
        return known[0] if known else Quantity(mean(quantities), None, "", quantities[0].way_out)
    values = np.array([each.value for each in known], dtype=np.float64)
    sigma = np.array([max(error(each), FLOOR * abs(each.value or 0.0), _LEAST) for each in known])
    with np.errstate(all="ignore"):  # a stored summary may hold what no measurement has
        drift = scatter_within(values, sigma, np.zeros(len(values), np.int64))
        w = 1 / (sigma**2 + drift**2)
        middle, variance = float(w @ values / w.sum()), float(1 / w.sum())
        of_drift = float(drift**2 * (w @ w) / w.sum() ** 2) / variance  # share of the variance
    if not (math.isfinite(middle) and 0 < variance < math.inf):
        return Quantity(mean(quantities), None, "", quantities[0].way_out)
    half = t_quantile(0.975, (len(values) - 1) / max(of_drift**2, 1 / _MOST_FREEDOM)) * math.sqrt(variance)
    return Quantity(middle, (middle - half, middle + half))


def over_runs(quantities: Sequence[Quantity]) -> Quantity:
    """Return the mean of a figure over runs, with its interval by Student's t.

    The variance is at least that of the runs' own intervals, and of the 0.5 % that nothing is known better than. Where
    the figure of a run is only known to lie between two ends, or beyond one, so is that of all. Where a run has no
    figure, or a reason to doubt it, the whole has that reason, the mean of those known, and the hull of all intervals.

    >>> [round(end, 2) for end in over_runs([Quantity(99.0), Quantity(100.0), Quantity(101.0)]).ci95 or ()]
    [97.52, 102.48]
    >>> over_runs([Quantity(16.0, (16.0, 32.0)), Quantity(24.0, (24.0, 32.0))])
    Quantity(value=20.0, ci95=(16.0, 32.0), why='', way_out='')
    """
    if len(quantities) == 1:
        return quantities[0]
    values = [quantity.value for quantity in quantities if quantity.value is not None]
    if len(values) < len(quantities) or any(quantity.why for quantity in quantities):
        return _with_reason(quantities)
    middle = math.fsum(values) / len(values)
    if any(is_bracket(quantity) for quantity in quantities):
        return Quantity(middle, hull(quantities), "", quantities[0].way_out)
    own = math.fsum(max(error(quantity), FLOOR * abs(middle)) ** 2 for quantity in quantities) / len(quantities)
    variance = max(float(np.var(values, ddof=1)), own)
    half = t_quantile(0.975, len(quantities) - 1) * math.sqrt(variance / len(quantities))
    return Quantity(middle, (middle - half, middle + half))


def is_bracket(quantity: Quantity) -> bool:
    """Return whether an interval brackets the figure between measured loads, so that repeats make it no narrower.

    It does if it is open, or the figure is its lower end: a knee by limits is the highest load that met them, and lies
    between it and the lowest that missed them. A share of 0 is a lower end too, but scatters.

    >>> is_bracket(Quantity(16.0, (16.0, 32.0))), is_bracket(Quantity(16.2, (15.4, 17.1)))
    (True, False)
    """
    if quantity.ci95 is None:
        return False
    low, high = quantity.ci95
    return low is None or high is None or (quantity.value == low and 0 < low < high)


def hull(quantities: Sequence[Quantity]) -> tuple[float | None, float | None] | None:
    """Return the interval around all intervals; an end is None if any is open there; None if both ends are.

    >>> hull([Quantity(16.0, (16.0, 32.0)), Quantity(24.0, (24.0, None))]), hull([Quantity(16.0)])
    ((16.0, None), None)
    """
    intervals = [quantity.ci95 for quantity in quantities if quantity.ci95 is not None]
    lows = [low for low, _ in intervals if low is not None]
    highs = [high for _, high in intervals if high is not None]
    low = min(lows) if lows and len(lows) == len(quantities) else None
    high = max(highs) if highs and len(highs) == len(quantities) else None
    return None if low is None and high is None else (low, high)


def _with_reason(quantities: Sequence[Quantity]) -> Quantity:
    """Return the mean of the known figures, the hull of their intervals, and why one is missing or doubted."""
    lacking = next(quantity for quantity in quantities if quantity.why or quantity.value is None)
    return Quantity(mean(quantities), hull(quantities), lacking.why or "it was not measured", lacking.way_out)


def mean(quantities: Sequence[Quantity]) -> float | None:
    """Return the mean of those that have a value; None if none has."""
    values = [quantity.value for quantity in quantities if quantity.value is not None]
    return math.fsum(values) / len(values) if values else None


def error(quantity: Quantity) -> float:
    """Return one standard error by the figure's own interval; 0 if it has none."""
    low, high = quantity.ci95 or (None, None)
    return (high - low) / 2 / Z95 if low is not None and high is not None else 0.0


# ---- of a ratio -----------------------------------------------------------------------------------------------------


def no_ratio(quantity: Quantity) -> str:
    """Return why a figure cannot be part of a ratio: doubted, 0, not measured or with an open interval; "": it can."""
    if quantity.why:
        return quantity.why
    if quantity.value == 0:
        return "there is no ratio to 0"
    if quantity.value is None or quantity.value < 0:
        return "it was not measured"
    return "its interval is open" if quantity.ci95 is not None and None in quantity.ci95 else ""


def in_logarithms(quantity: Quantity) -> tuple[float, float]:
    """Return ln of a figure above 0, and its own relative error."""
    value = quantity.value or math.nan
    return math.log(value), error(quantity) / value


def no_nearer(ends: tuple[float, float], baseline: Sequence[Quantity], runs: Sequence[Quantity]) -> tuple[float, float]:
    """Return a ratio's interval, widened to what the brackets (`is_bracket`) of runs and baseline leave possible.

    >>> met = Quantity(16.0, (16.0, 32.0))
    >>> no_nearer((0.9, 1.1), [met, met], [met, met]), no_nearer((0.9, 1.1), [Quantity(16.0)], [Quantity(16.0)])
    ((0.5, 2.0), (0.9, 1.1))
    """
    old, new = hull(baseline), hull(runs)
    if old is None or new is None or not any(is_bracket(run) for run in (*baseline, *runs)):
        return ends
    (old_low, old_high), (new_low, new_high) = old, new
    if not (old_low and old_high and new_low and new_high):
        return ends
    return min(ends[0], new_low / old_high), max(ends[1], new_high / old_low)
