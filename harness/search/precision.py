"""When a window is precise enough to end.

The 95 % interval is checked only at a few lengths, each 1.5 times the one before. A check at every moment would stop
when the batches agree by chance, and the interval would then cover the truth in less than 95 % of the windows. The
first check is at the shortest length that carries an interval; the last one ends the window, precise or not. Left out:
where the window begins (`analysis.window.truncation`), and what else may end it (`timing`).
"""

from __future__ import annotations

import math

import msgspec

from harness.analysis.stats import half_width, running_means
from harness.analysis.table import Floats
from harness.data.summary import Estimate
from harness.spec.scenario import PRECISION

REQUEST_TIMES = 22  # of the first check: an interval needs 20 mean ones, and requests in flight move the mean
APART = 1.5  # from one check to the next (docs/method.md, The window)
CHECKS = 6  # so the last one comes at 1.5⁵ = 7.6 times the first


class Window(msgspec.Struct, frozen=True):
    """A window at a check: its length, the throughput in it, and whether it may end there."""

    seconds: float
    estimate: Estimate
    precise: bool


def lengths(request_s: float, *, least: float = 0.0, most: float = math.inf) -> list[float]:
    """Seconds from the window's start at which precision is checked, rising; the last one ends it.

    >>> [round(length, 1) for length in lengths(1.0)]
    [22.0, 33.0, 49.5, 74.2, 111.4, 167.1]
    >>> lengths(0.01, least=3.0, most=5.0)
    [3.0, 4.5, 5.0]
    """
    first = max(least, REQUEST_TIMES * request_s)
    out = [first * APART**i for i in range(CHECKS)]
    short = [length for length in out if length < most]
    return short if len(short) == len(out) else [*short, most]


def check(times: Floats, counts: Floats, start: float, end: float, request_s: float, precision: float) -> Window:
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
    precision: float = PRECISION,
    least: float = 0.0,
    most: float = math.inf,
) -> Window:
    """The window of a whole series: from check to check until it is precise or the last check has come.

    The series has to reach as far as the last check may. `times` rise, `counts` are shape of `times`.
    """
    for length in lengths(request_s, least=least, most=most):
        found = check(times, counts, start, start + length, request_s, precision)
        if found.precise:
            break
    return found
