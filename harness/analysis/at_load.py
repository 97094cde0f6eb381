"""What a run says of one load: which load "at the knee" means, and what is served there.

Everything that reads a run takes its operating points from here: its screen, its checks, thresholds and plans.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from harness.analysis.curve import operating_point
from harness.analysis.points import Point, pool
from harness.analysis.stats import Z95
from harness.data.summary import Curve, LevelSummary, Value

_AT = 1.05  # of a knee: a load up to there counts as at the knee


def knee_load(knee: float | None, loads: Iterable[float]) -> float | None:
    """Return the highest of the loads up to the knee, in their unit; None without a knee or such a load.

    A load past the knee shows how long requests wait, not what a server does that has no more than it serves.

    >>> knee_load(16.2, [8, 11, 17, 24]), knee_load(16.2, [24]), knee_load(None, [8])
    (17, None, None)
    """
    return max((load for load in loads if knee is not None and load <= _AT * knee), default=None)


def throughput(curve: Curve | None, levels: Sequence[LevelSummary]) -> Value:
    """Return what is served at the load of these levels, in work per second: the curve's there, else what they gave.

    The curve knows all levels: one that had luck is no better than its neighbours. Levels alone have an interval where
    each of them measured its own.
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
