"""A measured run as thresholds see it, and its levels by their load."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis import at_load, curve, headline, seats, slo, summarise
from harness.analysis.rules import Purpose, invalid_by, usable
from harness.data.judgement import Gravity
from harness.data.manifest import Manifest
from harness.data.roles import Role, role_of
from harness.data.summary import LevelSummary, Summary
from harness.decide.check import figures
from harness.decide.check.expression import Subject
from harness.decide.check.figures import Quantity
from harness.decide.compare import runs
from harness.decide.compare.runs import Run
from harness.results.result import Result
from harness.spec.work import Unit

NOTHING_IN_COMMON = Quantity(
    None, None, "no valid level was measured in every run", "measure the same levels: --levels 1,2,4,8"
)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A run, or one repeat of it, as thresholds see it."""

    run: Run  # its conditions, as it is compared
    summary: Summary
    result: Result | None = None  # its requests; None where they were taken out


def read(place: str) -> list[Measured]:
    """The runs in a result folder: one, or as many as its scenario repeats."""
    manifest, summary, result = runs.opened(place)
    found = runs.of_folder("", place, manifest, summary)
    if not found:
        raise runs.unfinished(place)
    repeats = sorted({level.repeat for level in summary.levels})
    parts = [summary] if len(found) == 1 else [_repeat(manifest, summary, repeat) for repeat in repeats]
    return [Measured(run=run, summary=part, result=result) for run, part in zip(found, parts, strict=True)]


def _repeat(manifest: Manifest, summary: Summary, repeat: int) -> Summary:
    """One repeat of a run, with a curve, knees and cost of its own; phases are known of the whole run alone."""
    levels = [level for level in summary.levels if level.repeat == repeat]
    of_ramp = [level for level in levels if level.input_tokens_asked is None]
    points = [point for point in curve.points_of(of_ramp) if runs.within_reason(point)]
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
    knee = headline.of(knees, fitted, has_slo=any(level.slo for level in of_ramp), sessions=sessions)
    return msgspec.structs.replace(
        summary, levels=levels, curve=fitted, knee=knee, knee_concurrency=knee.value, knees=knees, cost=usd, phases=None
    )


def levels_at(of: Measured, load: float, *, open_loop: bool) -> list[LevelSummary]:
    """The levels of a run at one load."""
    return [each for each in _of_ramp(of, open_loop=open_loop) if each.load == load]


def _of_ramp(of: Measured, *, open_loop: bool) -> list[LevelSummary]:
    levels = [level for level in of.summary.levels if level.input_tokens_asked is None]
    return [level for level in levels if (level.rate is not None) == open_loop and level.load is not None]


def load_of(wanted: Subject, sides: Sequence[Sequence[Measured]]) -> tuple[float, bool] | Quantity:
    """The load of a figure's level, and whether it is a rate; what is missing where a run does not have it.

    The knee's level is the one that the screen reads the answer at (`at_load.knee_load`), of those that are valid in
    every run. Of several runs it is at the median of their knees, of the last side's where there are several: all are
    read at one load.
    """
    every = [each for side in sides for each in side]
    if isinstance(wanted.at, float):
        for each in every:
            if not levels_at(each, wanted.at, open_loop=wanted.open_loop):
                return _no_level(each, wanted.at, open_loop=wanted.open_loop)
        return wanted.at, wanted.open_loop
    knees = [figures.knee(each.summary) for each in sides[-1]]
    unknown = next((each for each in knees if each.value is None), None)
    if unknown is not None:
        return Quantity(None, None, f"no knee: {unknown.why}", unknown.way_out)
    middle = statistics.median(each.value or 0.0 for each in knees)
    loads, open_loop = common(every)
    if not loads:
        return NOTHING_IN_COMMON
    at = at_load.knee_load(middle, loads)
    if at is None:
        way_out = f"measure {max(1, math.floor(middle))} in flight" if not open_loop else "measure a lower rate"
        return Quantity(None, None, f"no valid level of every run lies at the knee, {middle:.3g}, or below it", way_out)
    return at, open_loop


def common(every: Sequence[Measured]) -> tuple[list[float], bool]:
    """The loads of which each run has a valid level, rising, and whether they are rates."""
    open_loop = any(level.rate is not None for level in every[0].summary.levels)
    loads = [_valid(each, open_loop=open_loop) for each in every]
    return sorted(load for load in set.intersection(*loads) if load > 0), open_loop


def lost(baseline: Sequence[Measured], runs: Sequence[Measured], *, open_loop: bool) -> Quantity | None:
    """What is missing at the lowest load that a run lost against the baseline; None where none lost one.

    A load counts that the whole baseline measured, with a valid level at least once. A run lost it where its own level
    is invalid. It also did where it lacks one that the whole baseline has as a valid level, unless a ramp chose that:
    ramps choose other levels each time.
    """
    valid = [_valid(each, open_loop=open_loop) for each in baseline]
    fixed = set.intersection(*(_valid(each, open_loop=open_loop, fixed=True) for each in baseline))
    measured = set.intersection(*(_loads(_of_ramp(each, open_loop=open_loop)) for each in baseline))
    for load in sorted(measured.intersection(set[float]().union(*valid))):
        for each in runs:
            levels = levels_at(each, load, open_loop=open_loop)
            if not levels and load in fixed:
                return _no_level(each, load, open_loop=open_loop)
            if levels and not any(usable(level, Purpose.ANSWER) for level in levels):
                return void(levels, f"{each.run.place}: the level {load:g}{'/s' * open_loop} is invalid")
    return None


def _valid(of: Measured, *, open_loop: bool, fixed: bool = False) -> set[float]:
    """The loads of a run's valid levels; `fixed`: of those that no ramp chose."""
    levels = [level for level in _of_ramp(of, open_loop=open_loop) if usable(level, Purpose.ANSWER)]
    return _loads([level for level in levels if not fixed or role_of(level.reason) in (None, Role.FIXED)])


def _loads(levels: Sequence[LevelSummary]) -> set[float]:
    return {level.load for level in levels if level.load is not None}


def void(levels: Sequence[LevelSummary], fact: str = "the level is invalid") -> Quantity:
    """What is missing where no level is valid: by the verdicts of the first."""
    codes = sorted(invalid_by(levels[0]))
    advice = next((verdict.advice for verdict in levels[0].verdicts if verdict.level == Gravity.INVALID), "")
    return Quantity(None, None, f"{fact}: {', '.join(codes)}", advice)


def _no_level(lacking: Measured, at: float, *, open_loop: bool) -> Quantity:
    """Why a run does not have the level: what it has."""
    loads = sorted(_loads(_of_ramp(lacking, open_loop=open_loop)))
    way_out = f"its levels are {', '.join(f'{load:g}' for load in loads[:40]) or 'none'}"
    if not loads and _of_ramp(lacking, open_loop=not open_loop):
        way_out = f"it has no rates: write @{at:g}" if open_loop else f"its levels are rates: write @{at:g}/s"
    return Quantity(None, None, f"{lacking.run.place} has no level {at:g}{'/s' * open_loop}", way_out)
