"""How long a level lasts, by its role.

Where the ramp chooses its levels, the first pass has windows of one or two request times, so that there is an answer
early, and the refinement has longer ones. A level next to where the SLO stops being met has as many requests as decide
it. One whose own figures are wanted lasts until its throughput is precise
(`precision`). Left out: when its window then begins and ends (`timing`).
"""

from __future__ import annotations

import math

import msgspec

from harness.analysis import slo
from harness.data.roles import Role
from harness.spec import traffic
from harness.spec.load import Search
from harness.spec.scenario import Scenario

FIRST_PASS, REFINEMENT = 1.5, 6.0  # request times of a window
SHORTEST_S = 1.0  # of a window, whatever a request takes
LEAST_REQUEST_TIMES = 1.8  # of a whole level: new slots spread over a third, half of one measured, one to end
RATE_S = 60.0  # of a window at a rate that is searched, at least where time is not short
LONGEST_DECISION_S = 600.0  # of a window that decides whether a load meets the SLO
SHORT = 4.0  # request times of a window, below which its level warms up once, not twice

_LONG_REQUEST_S = 10.0  # requests this long get windows of fewer request times
_SPARE = 1.1  # of the requests that decide an SLO which all of them meet
_CLUMPS = 22.0  # request times of a window that shows whether misses come together (docs/method.md, section 7)
_TIGHT = 10.0  # request times left, below which new slots begin twice as fast and a level does not warm up
_WHOLE, _ROOM = 1.05, 4.0  # request times that a window has at least, where so many are left of the run
_ROUNDING = 1e-9  # of a number of periods
_FIRST_SHARE, _SHARE = 0.1, 0.2  # of the time left that one window of the first pass, or a later one, may take


class Pace(msgspec.Struct, frozen=True):
    """How long a level lasts: seconds that its new slots begin over, requests a slot before its window, the window."""

    spread_s: float
    warm_up: int
    window_s: float | None  # None: until it is precise


def pace(request_times: float, request_s: float, seconds_left: float | None, *, share: float) -> Pace:
    """The pace of a level whose window shall last so many request times.

    It takes at most its `share` of the time left, but a whole request time: where slots are in step, less is no
    measurement of them (`window.whole_requests`). Where little is left, its new slots begin twice as fast, nothing
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
        return Pace(request_s, 1, window)
    least = whole if seconds_left >= _ROOM * request_s else 0.5 * request_s
    window = max(SHORTEST_S, min(window, max(least, share * seconds_left)))
    if seconds_left < _TIGHT * request_s:
        return Pace(0.5 * request_s, 0, window)
    return Pace(request_s, 1, window)


def first_pass(request_s: float, seconds_left: float | None) -> Pace:
    """The pace of a level of the first pass, which finds where the bend is."""
    return pace(FIRST_PASS, request_s, seconds_left, share=_FIRST_SHARE)


def refinement(request_s: float, seconds_left: float | None) -> Pace:
    """The pace of a level that narrows the answer."""
    return pace(REFINEMENT, request_s, seconds_left, share=_SHARE)


def fixed(window_s: float, request_s: float) -> Pace:
    """The pace of a level with a window of a fixed length; a short one gets a short warm-up.

    Its slots begin over a whole request time all the same: else a window shorter than that would fall on the moment
    when all of them wait for their first token, or when none does.
    """
    return Pace(request_s, 1 if window_s < SHORT * request_s else 2, window_s)


def until_precise(request_s: float) -> Pace:
    """The pace of a level whose window ends when it is precise."""
    return Pace(request_s, 2, None)


def paced(scenario: Scenario) -> bool:
    """Whether the ramp decides how long its levels last: it chooses them, and nobody says how long or how precise."""
    spec = scenario.ramp
    return isinstance(spec.load, Search) and spec.level_seconds is None and spec.precision is None


def decision(scenario: Scenario, request_s: float, requests_per_s: float, seconds_left: float | None) -> Pace:
    """The pace of a level that decides whether its load meets the SLO: a window of as many requests as that takes.

    A few more, since one of them may miss, and for as long as shows whether misses come together. It takes at most
    half of the time left.
    """
    wanted = _SPARE * _samples(scenario) / requests_per_s if requests_per_s else math.inf
    most = LONGEST_DECISION_S if seconds_left is None else min(LONGEST_DECISION_S, seconds_left / 2)
    least = max(_CLUMPS * request_s, RATE_S if scenario.ramp.search_rate else 0.0)
    return fixed(min(max(wanted, least), most), request_s)


def _samples(scenario: Scenario) -> float:
    """Requests that decide the strictest limit, of a class among all requests."""
    own = [each for each in scenario.class_ or () if each.slo]
    weights = sum(each.share for each in scenario.class_ or ())
    of_classes = [slo.samples_needed(slo.limits(each.slo)) * weights / each.share for each in own if each.share]
    return max([float(slo.samples_needed(slo.limits(scenario.slo))), *of_classes])


def soaks(scenario: Scenario, role: Role) -> bool:
    """Whether a level is that of a soak: its window has a fixed length, and what changes in it is its answer."""
    return bool(scenario.ramp.duration) and role in (Role.FIXED, Role.SOAK)


def of_level(
    scenario: Scenario, role: Role, request_s: float, seconds_left: float | None, requests_per_s: float = 0.0
) -> Pace:
    """How long a level lasts, by the ramp's options, the level's role, the time of a request and how many are sent.

    0 requests per second: how many is not known, and a level that decides an SLO lasts as long as it can.

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
        return decision(scenario, request_s, requests_per_s, seconds_left)
    if paced(scenario) and role in (Role.REFINEMENT, Role.REPEAT, Role.SLO):
        return refinement(request_s, seconds_left)
    return until_precise(request_s)
