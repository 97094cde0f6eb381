"""The load at which the curves of two stacks cross, with its interval.

Both curves are drawn from the fits' own posteriors (`analysis.curve`). A factor that all levels share, as
uncertain as the runs differ, is added to each draw. The curves cross where nearly all draws have one stack ahead at the
lowest common load and the other at the highest. The interval is of the last change of order in each draw.

Where the curves do not show it, the levels may: each stack is ahead at loads of its own, all loads judged together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from harness.analysis.curve import Fit, interval, throughput
from harness.analysis.points import Point
from harness.analysis.table import Floats
from harness.data.views import Value
from harness.decide.compare.ratio import ALPHA, Difference

SURE = 0.975  # of the draws, at each end
_PLACES = 400  # along the loads


class Lead(msgspec.Struct, frozen=True):
    """How far a stack is ahead, by the geometric mean over its loads."""

    stack: str
    times: float
    loads: list[float]


class Crossover(msgspec.Struct, frozen=True, kw_only=True):
    """The order below and above a load, requests in flight."""

    at: Value
    below: str  # the faster stack there
    above: str
    leads: list[Lead] = []  # of the stack below and of that above, where levels lie outside the interval


def find(
    names: tuple[str, str],
    fits: tuple[Fit, Fit],
    points: tuple[Sequence[Point], Sequence[Point]],
    apart: Difference,
    by_load: Mapping[float, Difference],
) -> Crossover | None:
    """Return where the second of two stacks overtakes the first, or falls behind; None where that is not shown.

    `apart`: their overall difference, whose error is what all levels share. `by_load`: the difference at each load.
    """
    shown = {load: each.value for load, each in by_load.items() if each.p < ALPHA / len(by_load)}
    between = _between(shown)
    of_curves = _of_curves(fits, points, apart)
    if of_curves is None and between is None:
        return None
    if of_curves is None or (between is not None and not _overlap(of_curves.ends, between.ends)):
        assert between is not None
        of_curves = between
    low, high = of_curves.ends
    before, after = names if of_curves.rises else reversed(names)
    every = {load: each.value for load, each in by_load.items()}
    sign = 1.0 if of_curves.rises else -1.0
    leads = [
        lead
        for name, side, own in ((before, -sign, lambda load: load <= low), (after, sign, lambda load: load >= high))
        if (lead := _lead(name, shown, side, own) or _lead(name, every, side, own)) is not None
    ]
    return Crossover(at=Value(of_curves.at, (low, high)), below=before, above=after, leads=leads)


class _Crossing(NamedTuple):
    at: float
    ends: tuple[float, float]
    rises: bool  # the second stack is ahead above it


def _overlap(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


def _lead(name: str, known: Mapping[float, float], side: float, own: Callable[[float], bool]) -> Lead | None:
    """Return how far a stack is ahead at its loads; None where it is at none of them."""
    ahead = {load: value * side for load, value in known.items() if own(load) and value * side > 0}
    if not ahead:
        return None
    return Lead(name, math.exp(math.fsum(ahead.values()) / len(ahead)), sorted(ahead))


def _between(shown: Mapping[float, float]) -> _Crossing | None:
    """Return the measured loads between which the order changes for the last time, of those where it is shown.

    >>> _between({1.0: -0.5, 4.0: -0.2, 16.0: 0.3, 32.0: 0.4})
    _Crossing(at=8.0, ends=(4.0, 16.0), rises=True)
    """
    loads = sorted(shown)
    if not loads or (shown[loads[0]] > 0) == (shown[loads[-1]] > 0):
        return None
    rises = shown[loads[-1]] > 0
    low = max(load for load in loads if (shown[load] > 0) != rises)
    high = min(load for load in loads if load > low)
    return _Crossing(math.sqrt(low * high), (low, high), rises)


def _of_curves(
    fits: tuple[Fit, Fit], points: tuple[Sequence[Point], Sequence[Point]], apart: Difference, seed: int = 0
) -> _Crossing | None:
    """Return where the curves cross; None where nearly all of their draws do not agree on the order at both ends."""
    a, b = fits
    if a.draws is None or b.draws is None:
        return None
    loads = [[point.in_flight or point.concurrency for point in each] for each in points]
    low, high = max(map(min, loads)), min(map(max, loads))
    if not low < high:
        return None
    N = np.geomspace(low, high, _PLACES)
    n = min(len(a.draws.hinge), len(b.draws.hinge))
    rng = np.random.default_rng(seed)
    error = rng.normal(size=n) if np.isinf(apart.freedom) else rng.standard_t(apart.freedom, n)
    ahead = np.log(b.draws.throughput(N)[:n] / a.draws.throughput(N)[:n]) + (apart.se * error)[:, None]
    first, last = ahead[:, 0] > 0, ahead[:, -1] > 0
    rises = float(np.mean(last)) >= SURE and float(np.mean(~first)) >= SURE
    falls = float(np.mean(~last)) >= SURE and float(np.mean(first)) >= SURE
    if not rises and not falls:
        return None
    turned = ahead[(last if rises else ~last) & (~first if rises else first)]
    low_end, high_end = interval(_last_change(turned, N))
    best = np.log(throughput(b.curve, N) / throughput(a.curve, N))[None]
    middle = _last_change(best, N) if (best[0, 0] > 0) != (best[0, -1] > 0) else np.median(_last_change(turned, N))
    at = float(np.clip(np.ravel(middle)[0], low_end, high_end))
    return _Crossing(at, (low_end, high_end), rises)


def _last_change(ahead: Floats, N: Floats) -> Floats:
    """Return where each row changes its sign for the last time, between two places by straight lines; shape [rows].

    >>> float(_last_change(np.array([[-1.0, 1.0, 3.0]]), np.array([1.0, 4.0, 5.0]))[0])     # half way, in ln N
    2.0
    """
    sign = ahead > 0
    index = ahead.shape[1] - 2 - np.argmax((sign[:, 1:] != sign[:, :-1])[:, ::-1], axis=1)
    rows = np.arange(len(ahead))
    before, after = ahead[rows, index], ahead[rows, index + 1]
    share = before / (before - after)
    return np.asarray(np.exp(np.log(N[index]) * (1 - share) + np.log(N[index + 1]) * share))
