"""How long a level lasts, by its role.

Where the ramp chooses its levels, the first pass has windows of one or two request times, so that there is an answer
early, and the refinement has longer ones. A level next to where the SLO stops being met has as many requests as decide
it. One whose own figures are wanted lasts until its throughput is precise.

The 95 % interval is checked only at a few lengths, each 1.5 times the one before. A check at every moment would stop
when the batches agree by chance, and the interval would then cover the truth in less than 95 % of the windows. The
first check is at the shortest length that carries an interval; the last one ends the window, precise or not.

The levels of a shard follow from the scenario alone (`moments`): the same on every machine, whatever one of them sees.
Left out: when a window begins and ends (`timing`, `analysis.window.truncation`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from harness.analysis import slo
from harness.analysis.stats import half_width, running_means
from harness.analysis.table import Floats
from harness.data.record import Role
from harness.spec import traffic
from harness.spec.load import Search
from harness.spec.scenario import Scenario

FIRST_PASS, REFINEMENT = 1.5, 6.0  # request times of a window
SHORTEST_S = 1.0  # seconds of the shortest window, whatever a request takes
LEAST_REQUEST_TIMES = 1.8  # request times of the shortest level: slots begin over 1/3, half of one measured, one to end
RATE_S = 60.0  # seconds of the shortest window that decides a searched rate, unless time is short
LONGEST_DECISION_S = 600.0  # seconds of the longest window that decides whether a load meets the SLO
SHORT = 4.0  # request times of a window, below which its level warms up once, not twice

_LONG_REQUEST_S = 10.0  # requests this long get windows of fewer request times
_SPARE = 1.1  # times the requests that decide an SLO which all of them meet: one may miss it
_CLUMPS = 1.25 * slo.CLUMP_TIMES  # request times of a window that shows how misses come, though requests grow longer
_TIGHT = 10.0  # request times left, below which new slots begin twice as fast and a level does not warm up
_WHOLE, _ROOM = 1.05, 4.0  # request times that a window has at least, where so many are left of the run
_ROUNDING = 1e-9  # error of rounding in a number of periods
_FIRST_SHARE, _SHARE = 0.1, 0.2  # share of the time left that one window of the first pass, or a later one, may take


class Pace(msgspec.Struct, frozen=True):
    """How long a level lasts: seconds that its new slots begin over, requests a slot before its window, the window."""

    spread_s: float
    warm_up: int
    window_s: float | None  # None: until it is precise


def pace(request_times: float, request_s: float, seconds_left: float | None, *, share: float) -> Pace:
    """Return the pace (spread of starts, warm-up, window) of a level whose window shall last `request_times`.

    The window takes at most a `share` of the time left, but a whole request time: where slots are in step, less is no
    measurement of them (`window.whole_requests`). Where little time is left, new slots begin twice as fast, nothing
    warms up, and half a request time has to do.

    >>> pace(1.5, 1.2, None, share=0.1).window_s, pace(6.0, 1.2, None, share=0.2).window_s
    (1.7999999999999998, 7.199999999999999)
    >>> pace(6.0, 20.0, None, share=0.2).window_s  # 60 s, not 120
    60.0
    >>> pace(1.5, 5.0, 60.0, share=0.1)
    Pace(spread_s=5.0, warm_up=1, window_s=6.0)
    >>> pace(1.5, 20.0, 60.0, share=0.1)
    Pace(spread_s=10.0, warm_up=0, window_s=10.0)
    """
    whole = _WHOLE * request_s
    window = max(SHORTEST_S, min(request_times * request_s, max(request_times * _LONG_REQUEST_S, whole)))
    if seconds_left is None:
        return Pace(spread_s=request_s, warm_up=1, window_s=window)
    least = whole if seconds_left >= _ROOM * request_s else 0.5 * request_s
    window = max(SHORTEST_S, min(window, max(least, share * seconds_left)))
    if seconds_left < _TIGHT * request_s:
        return Pace(spread_s=0.5 * request_s, warm_up=0, window_s=window)
    return Pace(spread_s=request_s, warm_up=1, window_s=window)


def first_pass(request_s: float, seconds_left: float | None) -> Pace:
    """Return the pace of a level of the first pass, which finds where the bend is."""
    return pace(FIRST_PASS, request_s, seconds_left, share=_FIRST_SHARE)


def refinement(request_s: float, seconds_left: float | None) -> Pace:
    """Return the pace of a level that narrows the answer."""
    return pace(REFINEMENT, request_s, seconds_left, share=_SHARE)


def fixed(window_s: float, request_s: float) -> Pace:
    """Return the pace of a level with a window of a fixed length; a short one gets a short warm-up.

    Its slots begin over a whole request time all the same: else a window shorter than that would fall on the moment
    when all of them wait for their first token, or when none does.
    """
    return Pace(spread_s=request_s, warm_up=1 if window_s < SHORT * request_s else 2, window_s=window_s)


def paced(scenario: Scenario) -> bool:
    """Return whether the ramp decides how long its levels last: no option sets levels, length or precision."""
    spec = scenario.ramp
    return isinstance(spec.load, Search) and spec.level_seconds is None and spec.precision is None


def decision(
    scenario: Scenario, request_s: float, requests_per_s: float, seconds_left: float | None, wanted_s: float = 0.0
) -> Pace:
    """Return the pace of a level that decides whether its load meets the SLO, by a window of enough requests.

    They are a few more, since one may miss, and the window lasts for as long as shows whether misses come together, or
    as the level's earlier windows say that it needs. It takes at most half of the time left, unless the level needs
    more of it.
    """
    wanted = _SPARE * _samples(scenario) / requests_per_s if requests_per_s else math.inf
    shows = _CLUMPS * request_s
    least = max(wanted_s, shows, RATE_S if scenario.ramp.search_rate else 0.0)
    most = LONGEST_DECISION_S
    if seconds_left is not None:
        needed = max(wanted_s, shows if _of_requests(scenario) else 0.0)
        possible = max(0.0, seconds_left - LEAST_REQUEST_TIMES * request_s)
        most = min(most, possible, max(seconds_left / 2, needed))
    return fixed(min(max(wanted, least), most), request_s)


def _of_requests(scenario: Scenario) -> bool:
    """Return whether a limit has requests as its samples, which may miss it together; gaps tell that sooner."""
    every = [scenario.slo, *(each.slo for each in scenario.class_ or ())]
    return any(not limit.of_gaps for limits in every for limit in slo.limits(limits))


def _samples(scenario: Scenario) -> float:
    """Return how many requests of a level decide the strictest limit; a class's limit needs more, by its share."""
    own = [each for each in scenario.class_ or () if each.slo]
    weights = sum(each.share for each in scenario.class_ or ())

    def needed(limits: Mapping[str, float]) -> int:
        return slo.samples_needed(slo.limits(limits, scenario.slo_confidence))

    of_classes = [needed(each.slo) * weights / each.share for each in own if each.share]
    return max([float(needed(scenario.slo)), *of_classes])


def soaks(scenario: Scenario, role: Role | None) -> bool:
    """Return whether a level is that of a soak: its window has a fixed length, and what changes in it is its answer."""
    return bool(scenario.ramp.duration) and role in (Role.FIXED, Role.SOAK)


def of_level(
    scenario: Scenario,
    role: Role | None,
    request_s: float,
    seconds_left: float | None,
    requests_per_s: float = 0.0,
    wanted_s: float = 0.0,
) -> Pace:
    """Return the pace (spread of starts, warm-up, window) of a level, by the ramp's options and the level's role.

    `request_s` is the time of a request. With `requests_per_s` 0, not known, a level that decides an SLO lasts as long
    as it can; `wanted_s` is what such a level needs by its earlier windows.

    Where the rate varies over time the window is of whole periods, in which it has its mean.
    """
    window_s = scenario.ramp.level_seconds
    if scenario.ramp.duration and soaks(scenario, role):
        window_s = scenario.ramp.duration
    if (period := traffic.parse(scenario.ramp.arrivals).period_s) is not None:
        least = window_s or REFINEMENT * request_s
        return fixed(max(1, math.ceil(least / period - _ROUNDING)) * period, request_s)
    if window_s is not None:
        return fixed(window_s, request_s)
    if paced(scenario) and role is Role.FIRST_PASS:
        return first_pass(request_s, seconds_left)
    if role is Role.SLO_DECISION and scenario.ramp.precision is None:
        return decision(scenario, request_s, requests_per_s, seconds_left, wanted_s)
    if paced(scenario) and role in (Role.REFINEMENT, Role.REPEAT, Role.SLO):
        return refinement(request_s, seconds_left)
    return Pace(spread_s=request_s, warm_up=2, window_s=None)  # the window lasts until it is precise


REQUEST_TIMES = 22  # request times before the first check: an interval needs 20, and those in flight move the mean
APART = 1.5  # factor on the window from one check to the next (docs/method.md, The window)
CHECKS = 6  # so the last one comes at 1.5⁵ = 7.6 times the first


def lengths(request_s: float, *, least: float = 0.0, most: float = math.inf) -> list[float]:
    """Return the lengths of a window, in seconds, at which its precision is checked, rising; the last one ends it.

    >>> [round(length, 1) for length in lengths(1.0)]
    [22.0, 33.0, 49.5, 74.2, 111.4, 167.1]
    >>> lengths(0.01, least=3.0, most=5.0)
    [3.0, 4.5, 5.0]
    """
    first = max(least, REQUEST_TIMES * request_s)
    out = [first * APART**i for i in range(CHECKS)]
    short = [length for length in out if length < most]
    return short if len(short) == len(out) else [*short, most]


def precise(times: Floats, counts: Floats, start: float, end: float, request_s: float, precision: float) -> bool:
    """Return whether the mean rate in [start, end) is precise: half its 95 % interval is at most `precision` of it.

    `counts` is a running count of tokens (or chunks of them) at `times`.
    """
    half = half_width(running_means(times, counts, start, end, request_s))
    return half is not None and half <= precision


_READY_S, _READY_SHARE = 1.0, 0.25  # seconds to make the next level ready, or share of a short window


class Moments(msgspec.Struct, frozen=True):
    """The moments of a level, in seconds since the run's start."""

    begin_s: float
    window_start_s: float
    window_end_s: float
    end_s: float


def moments(scenario: Scenario, index: int) -> Moments:
    """Return when level `index` and its window begin and end, in seconds since the run's start; all by the plan.

    A level takes three times the length of its window: a third to warm up, the window, a third for the requests that
    began in it. The next level is made ready in the last moments of that.

    >>> from harness.spec.scenario import Ramp
    >>> moments(Scenario(ramp=Ramp(levels=[1, 2], level_seconds=10.0)), 1)
    Moments(begin_s=30.0, window_start_s=40.0, window_end_s=50.0, end_s=59.0)
    """
    window_s = of_level(scenario, Role.FIXED, 0.0, None).window_s
    assert window_s is not None, "harness.spec.shard refuses levels without a length"
    begin_s = 3 * window_s * index
    ready_s = min(_READY_S, _READY_SHARE * window_s)
    return Moments(begin_s, begin_s + window_s, begin_s + 2 * window_s, begin_s + 3 * window_s - ready_s)
