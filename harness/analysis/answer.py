"""The answer of a run: its knee unqualified, which load "at the knee" means, and what is served there.

The knee is that of its limits, else the seats, else that of the curve. Everything that reads a run takes its operating
points from here: its screen, its checks, thresholds and plans.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from harness.analysis import slo
from harness.analysis.conclusion import NARROW
from harness.analysis.curve import operating_point
from harness.analysis.points import Point, pool
from harness.analysis.rules.requests import unstable
from harness.analysis.stats import Z95
from harness.data.judgement import Outcome
from harness.data.levels import LevelSummary
from harness.data.record import Role
from harness.data.summary import FOUND, NONE, PROVISIONAL, Curve, Headline, Knees, Summary, is_decided
from harness.data.views import Value


def headline(knees: Knees, fitted: Curve | None, *, has_slo: bool = False, sessions: bool = False) -> Headline:
    """Return the knee that a run reports at its top: the SLO's if there is one, else the seats, else the curve's hinge.

    Seats are a number of requests, so a load of sessions skips them. Without a found or provisional hinge the headline
    has only the curve's state (docs/definitions.md, The answer).
    """
    if has_slo:
        return _of_value("slo", knees.slo)
    if knees.seats and not sessions:
        return _of_value("seats", knees.seats)
    state = fitted.state if fitted else NONE
    if fitted is None or state not in (FOUND, PROVISIONAL):
        return Headline("hinge", state)
    found = _of_value("hinge", fitted.hinge_concurrency)
    return msgspec.structs.replace(found, state=PROVISIONAL) if state == PROVISIONAL else found


def own_knee(summary: Summary) -> Headline:
    """Return the server's own knee, whatever limits a run has: its seats if they are known, else the curve's."""
    return headline(summary.knees, summary.curve, sessions=summary.of_sessions)


def of_ramp(levels: Iterable[LevelSummary]) -> list[LevelSummary]:
    """Return the levels without those of a probe, whose prompts have lengths of their own, and that of a loss."""
    return [level for level in levels if level.input_tokens_asked is None and level.role is not Role.LOSS]


def _of_value(kind: str, value: Value | None) -> Headline:
    """Return a knee as headline: found where its 95 % interval is narrow enough, provisional where not."""
    if value is None or value.value is None:
        return Headline(kind, NONE)
    low, high = value.ci95 or (None, None)
    narrow = low is not None and high is not None and high <= NARROW * low
    return Headline(kind, FOUND if narrow else PROVISIONAL, value.value, value.ci95)


class SloKnee(msgspec.Struct, frozen=True):
    """Up to which load a run meets its limits; a load is a concurrency, or a rate in requests per second."""

    met: float | None  # the highest load that meets them, or likely does
    missed: float | None  # the lowest load above it that misses them
    decided: bool = False  # it is known that `met` meets them
    lowest: bool = False  # `missed` is the lowest load of all
    overloaded: str = ""  # what happened at `missed`, if no limit is known to be missed there
    judged: bool = True  # some load says something of the limits
    chunked: Sequence[str] = ()  # limits that no load can be judged by, since its tokens come in chunks


def slo_knee(knees: Knees, levels: Sequence[LevelSummary], *, rates: bool) -> SloKnee:
    """Return the SLO knee in concurrency or in rate; without one, the lowest load that missed the limits."""
    knee = knees.slo_rate if rates else knees.slo
    if knee is not None and knee.value is not None:
        above = knee.ci95[1] if knee.ci95 else None
        return SloKnee(knee.value, above, is_decided(knee), overloaded=_overloaded_at(above, levels, rates=rates))
    by_load = slo.by_load(levels, rates=rates)
    missed = next((load for load, each in by_load.items() if each.outcome == Outcome.MISSED), None)
    lowest = missed is not None and missed == min(by_load)
    return SloKnee(
        None,
        missed,
        lowest=lowest,
        overloaded=_overloaded_at(missed, levels, rates=rates),
        judged=bool(by_load),
        chunked=slo.by_chunks(by_load),
    )


def _overloaded_at(load: float | None, levels: Sequence[LevelSummary], *, rates: bool) -> str:
    """Return what happened at a load that was too much for the server, "" if a limit was seen to be missed there."""
    at = [level for level in levels if load is not None and (level.rate if rates else level.concurrency) == load]
    if any(slo.outcome(level.slo) == Outcome.MISSED for level in at):
        return ""
    if any(unstable.voids(level) for level in at) or (rates and load is not None and load >= slo.capacity(levels)):
        return "requests pile up"
    return "more than 1 % of the requests fail" if any(slo.overloaded(level) for level in at) else ""


_AT = 1.05  # a load up to 1.05 times the knee counts as at the knee


def knee_load(knee: float | None, loads: Iterable[float]) -> float | None:
    """Return the highest of `loads` that is at most 5 % above the knee; None without a knee or such a load.

    A load past the knee shows how long requests wait, not what a server does that has no more than it serves.

    >>> knee_load(16.2, [8, 11, 17, 24]), knee_load(16.2, [24]), knee_load(None, [8])
    (17, None, None)
    """
    return max((load for load in loads if knee is not None and load <= _AT * knee), default=None)


def throughput(curve: Curve | None, levels: Sequence[LevelSummary]) -> Value:
    """Return the throughput at the one load of these levels, in work per second: the curve's, else the levels' mean.

    The curve knows all levels: one that had luck is no better than its neighbours. The mean has an interval where
    each level measured its own.
    """
    of_curve = operating_point(curve, float(levels[0].concurrency or 0.0))
    if of_curve.value is not None:
        return of_curve
    pooled = pool([point(level) for level in levels])
    if not len(pooled.X):
        return Value(None)
    X, half = float(pooled.X[0]), Z95 * float(pooled.sigma[0])
    known = all(level.throughput.ci95 for level in levels)
    return Value(X, (X * math.exp(-half), X * math.exp(half)) if known else None)


def point(level: LevelSummary) -> Point:
    """Return a level as a point at its load, which may be a rate."""
    X = level.throughput.mean or math.nan
    assumed = level.output_tokens_per_s_se_assumed
    return Point(float(level.load or 0), level.in_flight, X, level.output_tokens_per_s_se, assumed=assumed)
