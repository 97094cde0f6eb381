"""What a run measured, by name: figures of its levels and of the whole run, each with its unit and its interval.

A level's figures are those of its summary: a rate by its field's name, a distribution's parts as `ttft_mean` or
`ttft_p99`, the views behind it as `server.kv_usage`, a class as `classes.NAME.ttft_p99`. Where the curve does not show
a knee or a plateau, the levels may still show that it is at least so much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from harness.analysis import answer
from harness.analysis.points import SHORT
from harness.analysis.rules import Purpose, usable
from harness.analysis.stats import SAMPLES, Z95, t_quantile, wilson
from harness.base import units
from harness.base.errors import HarnessError, nearest
from harness.data.figures import value_types
from harness.data.judgement import Outcome
from harness.data.levels import Attainment, ClassSummary, LevelSummary
from harness.data.summary import BEYOND, FOUND, NONE, PROVISIONAL, Curve, Knees, Summary
from harness.data.views import Estimate, Spread, Value
from harness.decide.check.expression import KNEE, NUMBER, PER_SECOND, SECONDS, SHARE, Subject, Threshold

_PARTS = ("mean", "p50", "p90", "p95", "p99", "max")  # statistics of a distribution
_SHARES = ("fraction", "error_rate", "usage", "utilization", "imbalance", "acceptance", "share")  # ends of names
_NO_FIGURES = ("concurrency", "rate", "repeat", "input_tokens_asked", "output_tokens_per_s_se")
PERCENTILES = {name: share for name, (_, share) in units.LIMITS.items() if share is not None}  # an SLO may limit these
_ROUNDED = 1e-9  # error of rounding in a share
AGAIN = "measure it several times: knee run --repeat 3, or several folders"


class Quantity(msgspec.Struct, frozen=True):
    """A figure with its 95 % interval, an end of it None if it is unbounded; what is missing, and the way out."""

    value: float | None
    ci95: tuple[float | None, float | None] | None = None
    why: str = ""
    way_out: str = ""


class LevelFigure(NamedTuple):
    """Where a figure stands in a level's summary, and what it counts."""

    path: tuple[str, ...]
    unit: str


# ---- of a level -----------------------------------------------------------------------------------------------------


@cache
def of_kind(kind: type[msgspec.Struct]) -> Mapping[str, LevelFigure]:
    """Return every figure of a level, or of a class, by its name."""
    return dict(_walk(kind, "", ()))


def _walk(kind: type[msgspec.Struct], prefix: str, above: tuple[str, ...]) -> Iterator[tuple[str, LevelFigure]]:
    """Yield the name that a check writes for each figure of a level's struct `kind`, and the path to it.

    A percentile is named like ttft_p99, a figure of an inner struct like server.kv_usage.
    """
    for field in msgspec.structs.fields(kind):
        members = value_types(field.type)
        inner = next((member for member in members if issubclass(member, msgspec.Struct)), None)
        name, path = prefix + field.name, (*above, field.name)
        if field.name in _NO_FIGURES:
            continue
        if inner is Spread:
            unit = _unit(field.name)
            stem = name.removesuffix("_s") if unit == SECONDS else name
            yield from ((f"{stem}_{part}", LevelFigure((*path, part), unit)) for part in _PARTS)
        elif inner is not None and inner is not Estimate:
            yield from _walk(inner, f"{name}.", path)
        elif inner is Estimate or (not {bool, str}.intersection(members) and {int, float}.intersection(members)):
            yield name, LevelFigure(path, _unit(field.name))


def _unit(field: str) -> str:
    """Return the unit of a summary's field, by the end of its name: per second, seconds, a share or a number.

    >>> [_unit(name) for name in ("requests_per_s", "tokens_per_s_per_user", "ttft_s", "kv_usage", "tokens_per_step")]
    ['/s', '/s', 's', '%', '']
    """
    if field.endswith("_per_s") or "_per_s_" in field:
        return PER_SECOND
    return SECONDS if field.endswith("_s") else SHARE if field.endswith(_SHARES) else NUMBER


def _named(name: str) -> tuple[str, LevelFigure | None]:
    """Return (class, "" for all requests; figure, None if unknown) for a name like "classes.chat.ttft_p50"."""
    if name.startswith("classes.") and name.count(".") >= 2:
        _, class_, name = name.split(".", 2)
        return class_, of_kind(ClassSummary).get(name)
    return "", of_kind(LevelSummary).get(name)


def of_level(level: LevelSummary, name: str) -> Quantity:
    """Return the figure of a level that has this name, with its interval, or the reason why it is missing."""
    class_, figure = _named(name)
    if figure is None:  # a percentile that only an SLO may limit
        return Quantity(None, None, "the summary has no such percentile")
    value: Any = (level.classes or {}).get(class_) if class_ else level
    for attribute in figure.path:
        above, value = value, getattr(value, attribute, None)
        if value is None or value is msgspec.UNSET:
            return _missing(above, attribute)
    if isinstance(value, Estimate):
        return Quantity(value.mean, value.ci95, "", "hold the level longer: --level-seconds")
    return Quantity(float(value), None, "", AGAIN)


def _missing(above: Any, name: str) -> Quantity:
    """Return the reason why a figure is missing: not measured, left out, or too few samples for a percentile."""
    if not isinstance(above, Spread):
        return Quantity(None, None, "it was not measured")
    q = name.removeprefix("p")
    if q.isdigit() and above.n >= SAMPLES.get(int(q), math.inf):
        return Quantity(None, None, "it was left out", "see the level's remarks: knee report DIR --verbose")
    return Quantity(None, None, f"{above.n} samples do not carry it", "hold the level longer")


def error_rate(levels: Sequence[LevelSummary]) -> Quantity:
    """Return failures over requests of all these levels together, by Wilson's score; what Knee cut is left out."""
    errors = sum(level.errors for level in levels)
    n = sum(level.requests - level.cancelled - (level.abandoned or 0) for level in levels)
    if not 0 <= errors <= n or not n:
        return Quantity(
            None, None, "no request was sent" if not n else "its counts of requests and errors do not agree"
        )
    return Quantity(errors / n, wilson(errors, n))


# ---- of a run -------------------------------------------------------------------------------------------------------


def knee(summary: Summary) -> Quantity:
    """Return the knee: the load that meets the limits if the run has some, else the seats, else the curve's hinge."""
    if summary.limited:
        return _by_limits(summary, rates=summary.open_loop)
    if summary.open_loop:
        return Quantity(None, None, "requests were sent at fixed rates", "give the run limits: --slo")
    if answer.own_knee(summary).kind == "seats":
        return _seats(summary)
    least = summary.curve.at_least_concurrency if summary.curve and summary.curve.state == BEYOND else None
    return _fitted(summary, _hinge, least)


def _by_limits(summary: Summary, *, rates: bool) -> Quantity:
    """Return the highest load (or rate) that meets the limits; its upper end is the lowest load that misses them.

    No value where none meets them. It has a reason, too, where it is not decided and where no load misses them.
    """
    if rates and not summary.open_loop:
        return Quantity(None, None, "no request rate was measured", "measure some: knee run --rate auto --slo …")
    load, limited = "rate" if rates else "load", any(level.slo for level in summary.levels)
    levels = [level for level in summary.levels if limited and all(_plausible_or_undecided(each) for each in level.slo)]
    knee = answer.slo_knee(summary.knees, levels, rates=rates)
    ends = (knee.met if knee.decided else None, knee.missed)
    if knee.met is None:
        why = f"the SLO is missed at the lowest {load}" if knee.lowest else f"no {load} is shown to meet the SLO"
        way_out = f"measure a lower {load}" if knee.lowest else "hold the levels longer"
        return Quantity(None, ends, why, way_out) if knee.missed is not None else Quantity(None, None, why)
    if not knee.decided:
        return Quantity(knee.met, ends, "provisional: too few requests to decide", "hold the levels longer")
    if knee.missed is None:
        return Quantity(knee.met, ends, f"no {load} misses the SLO", f"measure a higher {load}")
    return Quantity(knee.met, ends, "", f"measure {load}s between {knee.met:g} and {knee.missed:g}")


def plausible(stored: Attainment) -> bool:
    """Return whether an attainment has an interval about its share; a stored summary may come from anybody."""
    if stored.ci95 is None or not 0 <= stored.met <= stored.n or not stored.n or stored.outcome not in list(Outcome):
        return False
    low, high = stored.ci95
    share = stored.met / stored.n
    about = 0 <= low <= share + _ROUNDED and share - _ROUNDED <= high <= 1
    return about and (0 < low < share if share > 0.5 else share < high < 1)


def _plausible_or_undecided(stored: Attainment) -> bool:
    return plausible(stored) or (stored.ci95 is None and stored.outcome == Outcome.UNRESOLVED)


def _seats(summary: Summary) -> Quantity:
    """Return how many requests the server serves at once (seats), or why the records do not show it."""
    seats = summary.knees.seats
    if seats is None:
        way_out = "measure two levels at which requests wait"
        return Quantity(None, None, "the records do not show how many requests are served at once", way_out)
    return Quantity(seats.value, seats.ci95, "", "measure more levels at which requests wait")


def _hinge(curve: Curve, knees: Knees) -> Value | None:
    return knees.hinge or curve.hinge_concurrency


def plateau(summary: Summary) -> Quantity:
    """Return the plateau's throughput; if it is not found, at least what the valid levels and the fit show."""
    levels = [level for level in answer.of_ramp(summary.levels) if usable(level, Purpose.ANSWER)]
    sound = [(mean, level.throughput.ci95, level) for level in levels if (mean := level.throughput.mean)]
    low_ends = [(mean, ends[0]) for mean, ends, _ in sound if ends]
    bare = [(mean, mean - Z95 * _short_error(each)) for mean, ends, each in sound if not ends]
    curve = summary.curve
    fitted = curve.plateau_tokens_per_s if curve else Value(None)
    if fitted.value is not None and fitted.ci95 and fitted.ci95[0] is not None and curve and curve.state == PROVISIONAL:
        low_ends.append((fitted.value, fitted.ci95[0]))  # past its last level throughput only rises, or stays
    least = max((each for each in (highest(low_ends), highest(bare)) if each is not None), default=None)
    if curve and curve.only_wide and curve.dip is None:
        plateau = Quantity(fitted.value, fitted.ci95)
    else:
        plateau = _fitted(summary, lambda curve, _: curve.plateau_tokens_per_s, least)
    open_above = plateau.ci95 is not None and plateau.ci95[1] is None and plateau.value is not None and not plateau.why
    if open_above and least is not None and curve and curve.dip is None:
        low = max(min(least, plateau.value or least), plateau.ci95[0] or 0.0) if plateau.ci95 else least
        return Quantity(plateau.value, (low, None), plateau.why, plateau.way_out)
    return plateau


def _short_error(level: LevelSummary) -> float:
    """Return one standard error of a level without an interval, as much as short windows scatter."""
    mean = level.throughput.mean or 0.0
    return min(max(level.output_tokens_per_s_se or 0.0, SHORT[0] * mean), SHORT[1] * mean)


def highest(low_ends: Sequence[tuple[float, float]]) -> float | None:
    """Return a lower bound, with 97.5 % confidence, of the highest of values that come as (value, its 95 % low end).

    The highest of k low ends is too high up to k times as often as one of them, so each is lowered to where that is k
    times as rare (Bonferroni): t of 1 - 0.025/k over t of 0.975. Batch means have 9 degrees of freedom or more; the
    ratio of 9 is the largest.

    >>> highest([(100.0, 98.0)]), round(highest([(100.0, 98.0), (100.0, 97.0)]), 2), highest([])
    (98.0, 97.63, None)
    """
    if not low_ends:
        return None
    wider = t_quantile(1 - 0.025 / len(low_ends), 9) / t_quantile(0.975, 9)
    return max(value - wider * (value - low) for value, low in low_ends)


def _fitted(summary: Summary, pick: Callable[[Curve, Knees], Value | None], least: float | None = None) -> Quantity:
    """Return a figure of the curve: as it is where the curve is found, else with the reason and what to measure.

    A provisional curve still has a value. `least` is the lower bound of an interval where the curve has none.
    """
    curve = summary.curve
    if curve is None:
        return Quantity(None, None, "the run has no curve", "measure several levels of concurrency")
    value = pick(curve, summary.knees) or Value(None)
    if curve.state == FOUND:
        return Quantity(value.value, value.ci95, "" if value.value is not None else "the curve does not have it")
    way_out = f"measure {', '.join(map(str, curve.settle.levels[:20]))} in flight" if curve.settle else ""
    known = None if least is None else (least, None)
    why = "; ".join(curve.reasons) or "too few levels for a curve"
    if curve.state == PROVISIONAL:
        return Quantity(value.value, known, f"provisional: {why}", way_out)
    return Quantity(None, known, "throughput still rises at the last level" if curve.state == BEYOND else why, way_out)


def _of_curve(of: Callable[[Curve, Knees], Value | None]) -> Callable[[Summary], Quantity]:
    return lambda summary: _fitted(summary, of)


def _single_stream(summary: Summary) -> Quantity:
    found = summary.curve.single_stream_tokens_per_s if summary.curve and summary.curve.state != NONE else None
    return Quantity(found.value, found.ci95) if found else Quantity(None, None, "the run has no curve")


def _cost(name: str) -> Callable[[Summary], Quantity]:
    """Return what reads the cost `name` from a summary; no value, but a reason, where no price is known."""

    def read(summary: Summary) -> Quantity:
        usd = getattr(summary.cost, name, None)
        if usd is None:
            return Quantity(None, None, "no price is known", "give it: --price")
        return Quantity(usd, None, "", AGAIN)

    return read


OF_RUN: Mapping[str, tuple[str, Callable[[Summary], Quantity]]] = {
    "knee": (NUMBER, knee),
    "seats": (NUMBER, _seats),
    "hinge": (NUMBER, _of_curve(_hinge)),
    "plateau": (PER_SECOND, plateau),
    "single_stream": (PER_SECOND, _single_stream),
    "half_point": (NUMBER, _of_curve(lambda _, knees: knees.half_point)),
    "plateau95": (NUMBER, _of_curve(lambda _, knees: knees.plateau95)),
    "peak": (NUMBER, _of_curve(lambda _, knees: knees.peak)),
    "dip": (SHARE, _of_curve(lambda curve, _: curve.dip)),
    "slo_rate": (PER_SECOND, lambda summary: _by_limits(summary, rates=True)),
    "error_rate": (SHARE, lambda summary: error_rate(summary.levels)),
    "usd_per_million_output_tokens": (NUMBER, _cost("usd_per_million_output_tokens")),
    "usd_per_million_input_tokens": (NUMBER, _cost("usd_per_million_input_tokens")),
}  # fmt: skip


# ---- names ----------------------------------------------------------------------------------------------------------


def must_be_decidable(wanted: Sequence[tuple[Threshold, str]], *, baseline: bool) -> None:
    """Raise HarnessError if a threshold names no figure, or needs a baseline and none is given."""
    for each, place in wanted:
        must_fit(each, place)
        if each.factor is not None and not baseline:
            raise HarnessError(f"{each.text!r} has no baseline", place=place, way_out="give --baseline DIR")


def must_fit(wanted: Threshold, place: str = "--threshold") -> str:
    """Return the unit of a threshold's figure; raise HarnessError if there is none or its bound has another unit."""
    name = wanted.figure
    known = unit(wanted, place)
    if wanted.bound is not None and not _fits(wanted, known):
        fact, way_out = {
            SECONDS: ("is a time", "write it like 2s or 50ms"),
            SHARE: ("is a share", "write it like 1% or 0.01"),
            PER_SECOND: ("is a rate", "write it like 1500 or 1500tok/s"),
            NUMBER: ("is a number", "leave the unit out"),
        }[known]
        raise HarnessError(f"{name} of {wanted.text!r} {fact}", place=place, way_out=way_out)
    return known


def _fits(wanted: Threshold, unit: str) -> bool:
    """Return whether the bound counts what the figure does; a rate needs no unit, nor does a share below 1."""
    bare = wanted.unit == NUMBER and (unit == PER_SECOND or (unit == SHARE and (wanted.bound or 0.0) < 1))
    return wanted.unit == unit or bare


_THROUGHPUT = {"throughput", "output_throughput", "tokens_per_second", "tokens_per_s", "tps"}  # which of them is asked


def unit(wanted: Subject, place: str) -> str:
    """Return the unit of a figure of a level or a run; raise HarnessError with the nearest name if there is none."""
    name = wanted.figure
    of_run, of_level = OF_RUN.get(name), _unit_of_level(name)
    if wanted.at is None and of_run:
        return of_run[0]
    if wanted.at is not None and of_level is not None:
        return of_level
    if of_level is not None:
        raise HarnessError(f"{name!r} is a figure of a level", place=place, way_out=f"write {name}@{KNEE} or {name}@32")
    if of_run:
        raise HarnessError(f"{name!r} is a figure of the whole run", place=place, way_out="write it without '@'")
    if name in _THROUGHPUT:
        way_out = f"write plateau, or output_tokens_per_s@{KNEE}"
        raise HarnessError(f"unknown figure {name!r}", place=place, way_out=way_out)
    known = [*OF_RUN, *PERCENTILES, *of_kind(LevelSummary)]
    raise HarnessError(f"unknown figure {name!r}", place=place, way_out=nearest(name, known))


def _unit_of_level(name: str) -> str | None:
    """Return the unit of a level's figure; None if it has none of that name."""
    _, figure = _named(name)
    return SECONDS if name in PERCENTILES else figure.unit if figure else None
