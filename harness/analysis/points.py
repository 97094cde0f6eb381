"""Measured levels as the points of a curve: repeats are pooled, and every point has an error.

A measured error counts as it is. An error that was assumed from the number of requests says little, since short windows
scatter by 3 to 8 % anyway: it is clipped to that range. Left out: the curve itself (`posterior`), and which level comes
next (`ramp`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis.posterior import Data
from harness.analysis.rules import Purpose, usable
from harness.analysis.rules.requests import in_flight_low
from harness.analysis.stats import ASSUMED, FLOOR, scatter_within
from harness.analysis.table import Bools, Floats, Ints
from harness.data.levels import LevelSummary
from harness.results.readers.level import ForeignLevel

FALLEN = 0.55  # share of the second highest throughput: last levels below it have collapsed

SHORT = 0.03, 0.08  # relative error of a level whose window was too short to measure it
HARDLY = 0.25  # requests of a window for each in flight, below which it is no measurement
_APART = math.sqrt(3)  # no level's error counts as more than 3 times another's: each is itself uncertain


class Point(msgspec.Struct, frozen=True):
    """A measured level; `in_flight` counts sessions if slots hold these, and is None if only C is known."""

    concurrency: float
    in_flight: float | None
    throughput: float  # in the run's unit, per second
    se: float | None = None  # one standard error of the throughput; None: unknown, and assumed to be 2 %
    valid: bool = True
    in_flight_ok: bool = True
    assumed: bool = False  # `se` is a weight, not a measurement: the fit finds the scale of all such errors
    chance: float = 0.0  # least relative error, since resting slots send at random times


class PooledLevels(msgspec.Struct, frozen=True):
    """Distinct levels in order of C, repeats pooled; arrays of shape [n]."""

    N: Floats
    C: Floats
    X: Floats
    sigma: Floats  # relative error
    in_flight_ok: Bools  # whether as many were in flight as were requested
    times: Ints  # how often each was measured
    data: Data  # the same as a posterior takes them
    drift: float  # relative σ between repeats of one level, beyond their own errors

    @property
    def upright(self) -> int:
        """Return how many levels come before a lasting collapse of throughput; all of them if there is none."""
        standing = np.flatnonzero(FALLEN * np.sort(self.X)[-2] <= self.X)  # one slip is no measure
        return int(standing[-1]) + 1

    def lowest(self, count: int) -> PooledLevels:
        """Return the first `count` levels alone."""
        columns = ("N", "C", "X", "sigma", "in_flight_ok", "times")
        of_data = {name: getattr(self.data, name)[:count] for name in ("u", "y", "g")}
        cut = {name: getattr(self, name)[:count] for name in columns}
        return msgspec.structs.replace(self, **cut, data=msgspec.structs.replace(self.data, **of_data))

    def concurrency_at(self, N: float) -> float:
        """Return the concurrency that keeps N requests in flight: interpolated, in proportion beyond the levels."""
        first, last = self.N[0], self.N[-1]
        if first < N < last:
            return float(np.interp(N, self.N, self.C))
        edge = -1 if first < N else 0
        return float(N * self.C[edge] / self.N[edge])


def points_of(levels: Sequence[LevelSummary]) -> list[Point]:
    """Return the measured levels as points, each valid where the level may be used as one.

    Levels of an open loop are left out: their requests in flight follow from the rate and vary. So are those that a
    probe measures before its ramp, whose prompts have lengths of their own.
    """
    out = []
    for level in levels:
        if level.concurrency is None or level.input_tokens_asked is not None:
            continue
        out.append(
            Point(
                level.concurrency,
                level.in_slots,
                level.throughput.mean or math.nan,
                level.output_tokens_per_s_se,
                valid=usable(level, Purpose.POINT),
                in_flight_ok=not in_flight_low.voids(level),
                assumed=level.output_tokens_per_s_se_assumed,
                chance=chance(level),
            )
        )
    return out


def chance(level: LevelSummary) -> float:
    """Return the relative error that chance pauses of the slots give a level's throughput; 0 if slots never pause.

    A slot that thinks, or waits for its agent's tools, is in flight for the share u of the time. C of them, each in
    flight and at rest for exponential times, hold C·u on average; over a window of n requests that mean has the
    relative error (1 - u)·√(2/n).
    """
    if level.concurrency is None or level.in_flight is None:
        return 0.0
    return max(0.0, 1 - level.in_flight / level.concurrency) * math.sqrt(2 / max(level.requests, 1))


def foreign_point(concurrency: float, level: ForeignLevel) -> Point:
    """Return a level that was read from another tool's file, or an exported table, as a point of a curve."""
    return Point(
        concurrency,
        level.in_flight,
        level.output_tokens_per_s or math.nan,
        level.se,
        valid=level.valid,
        in_flight_ok=level.in_flight_ok,
        assumed=level.se_assumed,
    )


def pool(points: Sequence[Point]) -> PooledLevels:
    """Return the valid points as distinct levels; repeats of one concurrency are averaged, weighted by their errors.

    A machine that drifts moves a level as a whole, which its own error cannot show but repeats do. What lies between
    them beyond their errors is counted at every level, at one that was measured once too.
    """
    valid = sorted(filter(_counts, points), key=lambda p: p.concurrency)
    C, at, times = np.unique([p.concurrency for p in valid], return_inverse=True, return_counts=True)
    N = np.array([p.in_flight or p.concurrency for p in valid])
    X = np.array([p.throughput for p in valid])
    guessed = np.array([p.assumed or p.se is None for p in valid], dtype=np.bool_)
    sigma = np.maximum(np.array([ASSUMED * p.throughput if p.se is None else p.se for p in valid]) / X, FLOOR)
    by_chance = np.array([p.chance for p in valid])
    sigma = np.maximum(np.where(guessed, np.clip(sigma, *SHORT), sigma), by_chance)
    drift = scatter_within(np.log(X), sigma, at)
    w = 1 / (sigma**2 + drift**2)
    total = np.bincount(at, w, len(C))
    mean_N = np.bincount(at, w * N, len(C)) / total
    return PooledLevels(
        N=mean_N,
        C=C,
        X=np.bincount(at, w * X, len(C)) / total,
        sigma=np.asarray(total**-0.5, dtype=np.float64),
        in_flight_ok=np.bincount(at, [not p.in_flight_ok for p in valid], len(C)) == 0,
        times=times,
        data=data_of(
            np.log(mean_N) if (np.diff(mean_N) > 0).all() else np.log(C),
            np.log(X),
            weights(sigma, by_chance),
            at,
            None if guessed.all() else float(np.median(sigma[~guessed])),
        ),
        drift=drift,
    )


def _counts(point: Point) -> bool:
    """Return whether the fit uses a point: it is valid, and its window saw enough requests for those in flight.

    An assumed error is 1/√requests, and says how many there were.
    """
    if not (point.valid and point.throughput > 0 and point.concurrency > 0):
        return False
    return not point.assumed or not point.se or (point.throughput / point.se) ** 2 >= HARDLY * point.concurrency


def weights(sigma: Floats, by_chance: Floats) -> Floats:
    """Return each error over the median one, clipped to 1/√3 … √3, but at least its error by chance; shape [n]."""
    usual = float(np.median(sigma)) if len(sigma) else 1.0
    return np.maximum(np.clip(sigma / usual, 1 / _APART, _APART), by_chance / usual)


def data_of(load: Floats, y: Floats, weight: Floats, at: Ints, own: float | None) -> Data:
    """Return the data of the fit: for each level its load and weighted mean of y = ln X, and the scatter of repeats.

    `y` and `weight` have one value for each measurement; at[i] is the level of measurement i. `own` is the relative
    error that measurements have of themselves.
    """
    precision = np.asarray(np.bincount(at, weight**-2.0, len(load)), dtype=np.float64)
    mean = np.bincount(at, weight**-2.0 * y, len(load)) / precision
    scatter = float((((y - mean[at]) / weight) ** 2).sum())
    return Data(load, mean, precision**-0.5, scatter, len(y) - len(load), own)
