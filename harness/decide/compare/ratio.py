"""One throughput over another, with the interval that the data carry.

Work in ln X. A run is the unit of repetition: its levels share what the machine did that day, so their errors do not
average away. How much runs differ is one number for all stacks (`spread`); a stack whose runs differ from another's by
an F test at 1 % has its own. Runs of two stacks that alternate in time are pairs, which take a common drift out. Below
4 rounds the pairs' few degrees of freedom cost more than the drift. No variance counts as less than the windows' own
errors and `stats.FLOOR` allow: three repeats that agree by luck are no evidence. A window whose error was assumed says
nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis.stats import FLOOR, Z95, incomplete_beta, t_quantile
from harness.decide.compare.spread import Rates, Variance, two_sided

PAIRS = 4  # rounds from which on pairs are used
ALPHA = 0.05
UNCERTAIN = 4.0  # upper over lower end, above which an interval says nothing
_MOST_RUNS = 20
_UNLIKE = 0.01  # probability of two variances so far apart


class Sample(msgspec.Struct, frozen=True):
    """ln X of a stack's runs at one load, or their means over loads; `errors`: what each must at least be wrong by."""

    values: Sequence[float]
    errors: Sequence[float]

    @property
    def mean(self) -> float:
        """The geometric mean of X."""
        return math.exp(math.fsum(self.values) / len(self.values))

    @property
    def own(self) -> float:
        """The variance that each value must at least have."""
        return math.fsum(error**2 for error in self.errors) / len(self.errors)

    @property
    def variance(self) -> Variance:
        """That between the values."""
        n = len(self.values)
        return Variance(float(np.var(self.values, ddof=1)) if n > 1 else 0.0, n - 1.0)


class Difference(msgspec.Struct, frozen=True):
    """ln of a ratio with one standard error, by so many degrees of freedom."""

    value: float
    se: float
    freedom: float
    repeated: bool  # both sides have repeats
    known: bool = True  # how runs differ is known by repeats, and not by what is usual alone

    @property
    def p(self) -> float:
        """Return the two-sided probability of a difference this large between equal stacks.

        >>> round(Difference(2.776, 1.0, 4.0, True).p, 3), round(Difference(1.96, 1.0, math.inf, True).p, 3)
        (0.05, 0.05)
        """
        return two_sided(self.value / self.se if self.se > 0 else math.inf * (self.value or 1.0), self.freedom)

    def half(self, alpha: float = ALPHA) -> float:
        """Return half the width of the interval of 1 - alpha."""
        return self.se * (Z95 if math.isinf(self.freedom) else t_quantile(1 - alpha / 2, self.freedom))

    def ratio(self, alpha: float = ALPHA) -> tuple[float, float, float]:
        """Return the ratio and the ends of its interval."""
        half = self.half(alpha)
        return math.exp(self.value), math.exp(self.value - half), math.exp(self.value + half)


def difference(a: Sample, b: Sample, between: Variance, *, known: bool = True, rounds: bool = False) -> Difference:
    """Return ln of b over a, where runs of one stack differ by the variance `between`.

    `rounds`: the runs alternate in time, the first of each with the first of the other.

    >>> exact = Sample([0.0, 0.01, -0.01], [0.001] * 3)
    >>> found = difference(exact, Sample([0.05, 0.06, 0.04], [0.001] * 3), Variance(1e-4, 4.0))
    >>> round(found.value, 3), round(found.se, 5), round(found.freedom, 1)      # √(2 · 0.01²/3)
    (0.05, 0.00816, 4.0)
    """
    value = math.fsum(b.values) / len(b.values) - math.fsum(a.values) / len(a.values)
    repeated = min(len(a.values), len(b.values)) > 1
    if rounds and len(a.values) == len(b.values) >= PAIRS:
        apart = np.subtract(b.values, a.values)
        variance = max(float(apart.var(ddof=1)), a.own + b.own)
        return Difference(value, math.sqrt(variance / len(apart)), len(apart) - 1.0, repeated=True)
    if _unlike(a.variance, b.variance):
        of_a, of_b = (max(each.variance.value, each.own) / len(each.values) for each in (a, b))
        freedom = (of_a + of_b) ** 2 / (of_a**2 / a.variance.freedom + of_b**2 / b.variance.freedom)
        return Difference(value, math.sqrt(of_a + of_b), freedom, repeated=True)
    variance = max(between.value, a.own) / len(a.values) + max(between.value, b.own) / len(b.values)
    return Difference(value, math.sqrt(variance), between.freedom, repeated, known)


def _unlike(a: Variance, b: Variance) -> bool:
    """Return whether two variances differ, by the F test.

    >>> _unlike(Variance(1.0, 4.0), Variance(9.0, 4.0)), _unlike(Variance(1.0, 4.0), Variance(36.0, 4.0))
    (False, True)
    """
    high, low = (a, b) if a.value > b.value else (b, a)
    if min(high.freedom, low.freedom) < 1 or not low.value:
        return False
    share = low.freedom * low.value / (low.freedom * low.value + high.freedom * high.value)
    return 2 * incomplete_beta(low.freedom / 2, high.freedom / 2, share) < _UNLIKE


def of_figure(figure: Variance, shared: Variance, own: float) -> Variance:
    """Return how much a figure of the curve differs between runs, whose levels together show what they share.

    It is what the levels of a run share and the variance `own` of the figure's intervals, which is known better than
    by the repeats (Satterthwaite 1946). Where the repeats show that they differ more, it is theirs.

    >>> [of_figure(Variance(own, 4.0), Variance(1e-4, 4.0), 1e-4).freedom for own in (4e-4, 1e-2)]
    [16.0, 4.0]
    """
    value = shared.value + own
    known = Variance(value, shared.freedom * (value / shared.value) ** 2 if shared.value else figure.freedom)
    return figure if figure.value > known.value and _unlike(figure, known) else known


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


def runs_needed(sigma: float, size: float) -> int | None:
    """Return how many runs a side show a difference of ln X of this size; None where 20 do not.

    >>> runs_needed(0.01, 0.05), runs_needed(0.1, 0.05)     # t of 4: 2.776 · 0.01 · √(2/3) = 0.023; of 2: 0.043
    (2, None)
    """
    for n in range(2, _MOST_RUNS + 1):
        if t_quantile(1 - ALPHA / 2, 2 * n - 2) * sigma * math.sqrt(2 / n) <= abs(size):
            return n
    return None


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
