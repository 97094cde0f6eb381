"""The load at which the curves of two stacks cross, with its interval.

Both curves are drawn from the fits' own posteriors (`analysis.curve`). A factor that all levels share, as
uncertain as the runs differ, is added to each draw. The curves cross where nearly all draws have one stack ahead at the
lowest common load and the other at the highest. The interval is of the last change of order in each draw.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis.curve import Fit, interval, throughput
from harness.analysis.points import Point
from harness.analysis.table import Floats
from harness.data.views import Value
from harness.decide.compare.ratio import Difference

SURE = 0.975  # of the draws, at each end
_PLACES = 400  # along the loads


class Crossover(msgspec.Struct, frozen=True, kw_only=True):
    """The order below and above a load, requests in flight."""

    at: Value
    below: str  # the faster stack there
    above: str


def find(
    names: tuple[str, str],
    fits: tuple[Fit, Fit],
    points: tuple[Sequence[Point], Sequence[Point]],
    apart: Difference,
    seed: int = 0,
) -> Crossover | None:
    """Return where the second of two stacks overtakes the first, or falls behind; None where that is not shown.

    `apart`: their overall difference, whose error is what all levels share.
    """
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
    below, above = (names[0], names[1]) if rises else (names[1], names[0])
    return Crossover(at=Value(at, (low_end, high_end)), below=below, above=above)


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
