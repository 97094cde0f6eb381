"""One throughput over another, with the interval that the data carry.

Work in ln X. A run is the unit of repetition: its levels share what the machine did that day, so their errors do not
average away. Runs of two stacks that alternate in time are pairs, which take a common drift out. Below 4 rounds the
pairs' few degrees of freedom cost more than the drift, and two samples are compared (Welch 1947). No variance counts as
less than the windows' own errors and `stats.FLOOR` allow: three repeats that agree by luck are no evidence.

With a single run of either there are only the windows' errors, which do not know how runs differ: an interval, but no
ranking.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from harness.analysis.stats import FLOOR, Z95, incomplete_beta, t_quantile

PAIRS = 4  # rounds from which on pairs are used
ALPHA = 0.05
Rates: TypeAlias = Sequence[Mapping[float, tuple[float, float]]]  # a run each: ln X and its own error, by load


class Sample(msgspec.Struct, frozen=True):
    """ln X of a stack's runs at one load, or their means over loads; `errors`: what each must at least be wrong by."""

    values: Sequence[float]
    errors: Sequence[float]

    @property
    def mean(self) -> float:
        """The geometric mean of X."""
        return math.exp(math.fsum(self.values) / len(self.values))


class Difference(msgspec.Struct, frozen=True):
    """ln of a ratio with one standard error; `freedom` inf where it is by the windows' errors alone."""

    value: float
    se: float
    freedom: float
    repeated: bool  # both sides have repeats, so it covers how runs differ

    @property
    def p(self) -> float:
        """Return the two-sided probability of a difference this large between equal stacks.

        >>> round(Difference(2.776, 1.0, 4.0, True).p, 3), round(Difference(1.96, 1.0, math.inf, True).p, 3)
        (0.05, 0.05)
        """
        t = self.value / self.se if self.se > 0 else math.inf * (self.value or 1.0)
        if math.isinf(self.freedom):
            return math.erfc(abs(t) / math.sqrt(2))
        return incomplete_beta(self.freedom / 2, 0.5, self.freedom / (self.freedom + t * t))

    def half(self, alpha: float = ALPHA) -> float:
        """Return half the width of the interval of 1 - alpha."""
        return self.se * (Z95 if math.isinf(self.freedom) else t_quantile(1 - alpha / 2, self.freedom))

    def ratio(self, alpha: float = ALPHA) -> tuple[float, float, float]:
        """Return the ratio and the ends of its interval."""
        half = self.half(alpha)
        return math.exp(self.value), math.exp(self.value - half), math.exp(self.value + half)


def difference(a: Sample, b: Sample, *, rounds: bool = False) -> Difference:
    """Return ln of b over a; `rounds`: the runs alternate in time, the first of each with the first of the other.

    >>> exact = Sample([0.0, 0.01, -0.01], [0.001] * 3)
    >>> found = difference(exact, Sample([0.05, 0.06, 0.04], [0.001] * 3))
    >>> round(found.value, 3), round(found.se, 5), round(found.freedom, 1)      # √(2 · 0.01²/3)
    (0.05, 0.00816, 4.0)
    """
    x, y = np.array(a.values), np.array(b.values)
    own_x, own_y = (float(np.mean(np.square(each.errors))) for each in (a, b))
    value = float(y.mean() - x.mean())
    if min(len(x), len(y)) < 2:
        return Difference(value, math.sqrt(own_x / len(x) + own_y / len(y)), math.inf, repeated=False)
    if rounds and len(x) == len(y) >= PAIRS:
        variance = max(float((y - x).var(ddof=1)), own_x + own_y)
        return Difference(value, math.sqrt(variance / len(x)), len(x) - 1.0, repeated=True)
    v_x, v_y = max(float(x.var(ddof=1)), own_x) / len(x), max(float(y.var(ddof=1)), own_y) / len(y)
    freedom = (v_x + v_y) ** 2 / (v_x**2 / (len(x) - 1) + v_y**2 / (len(y) - 1))
    return Difference(value, math.sqrt(v_x + v_y), freedom, repeated=True)


def at_load(runs: Rates, load: float) -> Sample:
    """Return the runs' throughput at a load that all of them have."""
    found = [run[load] for run in runs]
    return Sample([value for value, _ in found], [max(error, FLOOR) for _, error in found])


def over_loads(runs: Rates, loads: Sequence[float]) -> Sample:
    """Return each run's mean over the loads; its windows' errors average, what they share is at least FLOOR."""
    values, errors = [], []
    for run in runs:
        values.append(math.fsum(run[load][0] for load in loads) / len(loads))
        own = math.fsum(run[load][1] ** 2 for load in loads) / len(loads) ** 2
        errors.append(math.hypot(math.sqrt(own), FLOOR))
    return Sample(values, errors)


def common(*stacks: Rates) -> list[float]:
    """Return the loads that every run of every stack has, rising."""
    sets = [set(run) for runs in stacks for run in runs]
    return sorted(set.intersection(*sets)) if sets else []


def holm(p: Sequence[float]) -> list[tuple[float, bool]]:
    """Return for each test the level at which Holm (1979) judges it, and whether it is rejected.

    >>> holm([0.01, 0.04, 0.03])
    [(0.016666666666666666, True), (0.05, False), (0.025, False)]
    """
    out = [(ALPHA, False)] * len(p)
    open_ = True
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        level = ALPHA / (len(p) - rank)
        open_ = open_ and p[i] < level
        out[i] = (level, open_)
    return out
