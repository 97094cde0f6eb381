"""How long a level lasts.

Where the ramp chooses its levels, as long as what it is measured for needs (`pace`): the first pass has windows of one
or two request times, so that there is an answer early, and what narrows it longer ones. A level that is the answer
itself lasts until its throughput is known precisely enough.

The 95 % interval is looked at only at lengths 1.5 apart. Whoever looks all the time stops at the first moment that
chance makes the batches agree, and the interval then covers the truth too seldom; so few looks, each with half as
much again as the one before, leave it its 95 %. The first look is at the shortest length that carries an interval,
the last one ends the window precise or not. Pure: the caller brings a running count, and waits. Left out: where the
window begins (`window.truncation`), and what the budget allows.
"""

from __future__ import annotations

import math

import msgspec

from harness.analysis.stats import half_width, running_means
from harness.analysis.table import Floats
from harness.summary import Estimate

REQUEST_TIMES = 22  # of the first look: an interval needs 20 mean ones, and what is in flight moves the mean
APART = 1.5  # from one look to the next (docs/method.md, The window)
LOOKS = 6  # so the last one comes at 1.5⁵ = 7.6 times the first


DEFAULT = 0.02  # half-width of a level's 95 % interval at which its window may end
FIRST_PASS, REFINEMENT = 1.5, 6.0  # request times of a window
SHORTEST_S = 1.0  # of a window, whatever a request takes
LEAST_REQUEST_TIMES = 1.8  # of a whole level: new slots spread over a third, half of one measured, one to end
SHORT = 4.0  # request times of a window, below which its level warms up once, not twice

_LONG_REQUEST_S = 10.0  # requests this long get windows of fewer request times
_TIGHT = 10.0  # request times left, below which new slots begin twice as fast and a level does not warm up
_WHOLE, _ROOM = 1.05, 4.0  # request times that a window has at least, where so many are left of the run
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
    """The pace of a level that tells where the bend lies at all."""
    return pace(FIRST_PASS, request_s, seconds_left, share=_FIRST_SHARE)


def refinement(request_s: float, seconds_left: float | None) -> Pace:
    """The pace of a level that narrows the answer."""
    return pace(REFINEMENT, request_s, seconds_left, share=_SHARE)


def given(window_s: float, request_s: float) -> Pace:
    """The pace of a level with a window of its own length; a short one gets a short warm-up.

    Its slots begin over a whole request time all the same: a window shorter than that would else fall on the moment
    when they all wait for their first token, or when none does.
    """
    return Pace(request_s, 1 if window_s < SHORT * request_s else 2, window_s)


def until_precise(request_s: float) -> Pace:
    """The pace of a level whose window ends when it is precise."""
    return Pace(request_s, 2, None)


class Window(msgspec.Struct, frozen=True):
    """A window that was looked at: its length, the throughput in it, and whether it may end there."""

    seconds: float
    estimate: Estimate
    precise: bool


def lengths(request_s: float, *, least: float = 0.0, most: float = math.inf) -> list[float]:
    """Seconds from the window's start at which it is looked at, rising; the last one ends it.

    >>> [round(length, 1) for length in lengths(1.0)]
    [22.0, 33.0, 49.5, 74.2, 111.4, 167.1]
    >>> lengths(0.01, least=3.0, most=5.0)
    [3.0, 4.5, 5.0]
    """
    first = max(least, REQUEST_TIMES * request_s)
    out = [first * APART**i for i in range(LOOKS)]
    short = [length for length in out if length < most]
    return short if len(short) == len(out) else [*short, most]


def look(times: Floats, counts: Floats, start: float, end: float, request_s: float, precision: float) -> Window:
    """The window [start, end) by a running count of tokens (or chunks of them) over time.

    Precise: the half-width of the 95 % interval is at most `precision` of the mean.
    """
    estimate = running_means(times, counts, start, end, request_s)
    half = half_width(estimate)
    return Window(end - start, estimate, half is not None and half <= precision)


def window(
    times: Floats,
    counts: Floats,
    start: float,
    request_s: float,
    *,
    precision: float = 0.02,
    least: float = 0.0,
    most: float = math.inf,
) -> Window:
    """The window that a whole series gives: from look to look until it is precise or the last look has come.

    The series has to reach as far as the last look may. `times` rise, `counts` are shape of `times`.
    """
    for length in lengths(request_s, least=least, most=most):
        found = look(times, counts, start, start + length, request_s, precision)
        if found.precise:
            break
    return found
