"""How much ln X of one server differs from run to run: one variance, pooled over stacks and loads.

Two or three runs of a stack hardly know how runs differ; all runs of all stacks together know it better (Smyth 2004).
Where they have fewer than three degrees of freedom, the spread that is usual on shared machines fills these up, and
loses its weight where the runs show that they differ more.

A run that was starved for a while moves its stack's mean, and widens the interval of all. `odd_runs` names it.

For a ratio a run is the unit of repetition: its levels share what the machine did that day, so their errors do not
average away. A stack whose runs differ from another's by an F test at 1 % has its own variance. Runs of two stacks that
alternate in time are pairs, which take a common drift out; below 4 rounds their few degrees of freedom cost more than
the drift. No variance counts as less than the windows' own errors and `stats.FLOOR` allow: three repeats that agree by
luck are no evidence. A window whose error was assumed says nothing of it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np

from harness.analysis.stats import FLOOR, Z95, incomplete_beta, t_quantile

RunRates: TypeAlias = Mapping[float, tuple[float, float]]  # ln X and its own error, by load
Rates: TypeAlias = Sequence[RunRates]  # a run each
# Standard deviation of ln X between runs of one server: of a run's mean over its loads, and of a level. Of the five
# sets of repeats in `results/` (vLLM by ramp and by sweep, vLLM, llama-server and transformers in turn) the means have
# 1.2 to 5.6 %, median 3.4 %, and the levels 2.5 to 10 %, root mean square 6 %.
USUAL_RUN, USUAL_LEVEL = 0.034, 0.06
# A hyperbola is at most 1.5 % above the straight line between levels a factor of 2 apart, 5.9 % at a factor of 4.
BEND = 0.03
_ENOUGH = 3.0  # degrees of freedom, up to which the usual spread counts
_MOST_FREEDOM = 1e6
_ODD_P = 0.01  # chance of naming a run among equal ones
_ODD_LEAST = math.log(1.1)  # a run that is less off is no odd one


class Variance(msgspec.Struct, frozen=True):
    """A variance of ln X with its degrees of freedom; 0 of them if nothing is known of it."""

    value: float
    freedom: float

    def filled(self, usual: float) -> Variance:
        """Return the variance pooled with a usual standard deviation, for the degrees of freedom that it lacks.

        >>> Variance(0.0, 0.0).filled(0.5), Variance(4e-4, 4.0).filled(0.5)
        (Variance(value=0.25, freedom=3.0), Variance(value=0.0004, freedom=4.0))
        """
        lacking = max(0.0, _ENOUGH - self.freedom)
        if self.freedom and self.value > usual**2:
            lacking *= usual**2 / self.value
        if not lacking:
            return self
        total = lacking + self.freedom
        return Variance((lacking * usual**2 + self.freedom * self.value) / total, total)


class Spread(msgspec.Struct, frozen=True):
    """How ln X differs between runs of a stack: the mean over loads of a run, and each level."""

    run: Variance
    levels: Mapping[float, Variance]
    level: Variance  # variance of a level, over all loads together
    known: bool  # repeats of a stack show it; otherwise it is what is usual

    def at(self, load: float) -> Variance:
        """Return the variance at a load; that of all loads where no repeats were measured at it."""
        return self.levels.get(load, self.level)


def common(*stacks: Rates) -> list[float]:
    """Return the loads that every run of every stack has, rising."""
    sets = [set(run) for runs in stacks for run in runs]
    return sorted(set.intersection(*sets)) if sets else []


def aligned(*stacks: Rates) -> list[Rates]:
    """Return each run's throughput at the loads of all runs, interpolated in logarithms between its own levels.

    Only loads count that lie within the levels of every run. An interpolated value has an error of BEND or more. Of a
    run with a single level nothing is known elsewhere.

    >>> one, other = {1.0: (0.0, 0.0), 4.0: (1.0, 0.0)}, {2.0: (0.4, 0.0), 8.0: (2.0, 0.0)}
    >>> [[{C: round(x, 2) for C, (x, _) in run.items()} for run in runs] for runs in aligned([one], [other])]
    [[{2.0: 0.5, 4.0: 1.0}], [{2.0: 0.4, 4.0: 1.2}]]
    """
    runs = [run for stack in stacks for run in stack]
    if not all(runs):
        return [[{} for _ in stack] for stack in stacks]
    low, high = max(map(min, runs)), min(map(max, runs))
    loads = sorted({load for run in runs for load in run if low <= load <= high})
    return [[{load: _interpolated(run, load) for load in loads} for run in stack] for stack in stacks]


def _interpolated(run: RunRates, load: float) -> tuple[float, float]:
    """Return (ln throughput, its error) at a load within a run's levels, interpolated if it is no level."""
    if load in run:
        return run[load]
    before, after = max(C for C in run if load > C), min(C for C in run if load < C)
    share = math.log(load / before) / math.log(after / before)
    x = run[before][0] * (1 - share) + run[after][0] * share
    return x, math.hypot(max(run[before][1], run[after][1]), BEND)


def pooled(stacks: Sequence[Rates], *, usual: bool = True) -> Spread:
    """Return by how much runs of one stack differ, pooled over all stacks; `usual` completes it by the usual spread.

    >>> runs = [{1.0: (0.01, 0.0), 2.0: (0.01, 0.0)}, {1.0: (-0.01, 0.0), 2.0: (-0.01, 0.0)}]
    >>> found = pooled([runs, runs, runs])
    >>> found.run, found.level.freedom      # both levels of a run are off by the same, so they count as one
    (Variance(value=0.0002, freedom=3.0), 3.0)
    """
    freedom, between, within = 0, 0.0, []
    squares: dict[float, list[float]] = {}
    for runs in stacks:
        loads = common(runs)
        if len(runs) < 2 or not loads:
            continue
        off = np.array([[run[load][0] for load in loads] for run in runs])
        off -= off.mean(0)
        means = off.mean(1)
        freedom += len(runs) - 1
        between += float(means @ means)
        within.append((float(((off - means[:, None]) ** 2).sum()), (len(runs) - 1) * (len(loads) - 1)))
        for load, column in zip(loads, off.T, strict=True):
            known = squares.setdefault(load, [0.0, 0.0])
            known[0] += float(column @ column)
            known[1] += len(runs) - 1

    def filled(each: Variance, by: float) -> Variance:
        return each.filled(by) if usual else each

    if not freedom:
        none = Variance(0.0, 0.0)
        return Spread(filled(none, USUAL_RUN), {}, filled(none, USUAL_LEVEL), known=False)
    run = between / freedom
    own = sum(each for each, _ in within) / max(1, sum(n for _, n in within))
    shared = run / (run + own) if run + own else 1.0  # share of a level's variance that its run's levels share
    total = sum(n for _, n in squares.values())
    level = Variance(sum(each for each, _ in squares.values()) / total, total / (1 + (len(squares) - 1) * shared**2))
    levels = _shrunk({load: Variance(each / n, n) for load, (each, n) in squares.items()}, level)
    return Spread(
        filled(Variance(run, float(freedom)), USUAL_RUN),
        {load: filled(each, USUAL_LEVEL) for load, each in levels.items()},
        filled(level, USUAL_LEVEL),
        known=True,
    )


def _shrunk(levels: Mapping[float, Variance], of_all: Variance) -> dict[float, Variance]:
    """Return each load's variance shrunk towards that of all loads, unless the loads surely differ (Smyth 2004, §6).

    ln s² of n degrees of freedom scatters by trigamma(n/2) where all have one variance. What lies between the loads
    beyond that is trigamma(m/2) of the m degrees of freedom with which the variance of all counts at each.
    """
    known = {load: each for load, each in levels.items() if each.value > 0}
    if len(known) < 3:
        return dict.fromkeys(levels, of_all)
    logs = [math.log(each.value) for each in known.values()]
    more = statistics.variance(logs) - statistics.fmean(_trigamma(each.freedom / 2) for each in known.values())
    if more <= _trigamma(_MOST_FREEDOM / 2):
        return dict.fromkeys(levels, of_all)
    low, high = 1e-3, _MOST_FREEDOM
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _trigamma(middle / 2) > more else (low, middle)
    out = {}
    for load, each in levels.items():
        total = low + each.freedom
        out[load] = Variance(
            (low * of_all.value + each.freedom * each.value) / total,
            min(total, max(of_all.freedom, each.freedom)),
        )
    return out


def _trigamma(x: float) -> float:
    """Return the second derivative of ln Γ, by its recurrence and its asymptotic series.

    >>> round(_trigamma(1.0), 6)    # π²/6
    1.644934
    """
    total = 0.0
    while x < 8:
        total += 1 / x**2
        x += 1
    return total + 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3) - 1 / (30 * x**5) + 1 / (42 * x**7)


def two_sided(t: float, freedom: float) -> float:
    """Return the two-sided probability of Student's t; of the normal distribution where the freedom is infinite.

    >>> round(two_sided(2.776, 4.0), 3), round(two_sided(-1.96, math.inf), 3)
    (0.05, 0.05)
    """
    if math.isinf(freedom):
        return math.erfc(abs(t) / math.sqrt(2))
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


# ---- runs that are off ----------------------------------------------------------------------------------------------


class Odd(msgspec.Struct, frozen=True):
    """A run that is off from some load on, by more than runs of these stacks differ."""

    stack: int
    run: int
    since: float  # the lowest load at which it is off
    times: float  # its throughput over that of its stack's other runs, from there on
    left_out: bool  # the others, two or more, agree without it


T = TypeVar("T")


def kept(stacks: Sequence[Sequence[T]], odd: Sequence[Odd]) -> list[list[T]]:
    """Return the runs of each stack, in any form, without those that are left out."""
    out = {(each.stack, each.run) for each in odd if each.left_out}
    return [[run for i, run in enumerate(runs) if (s, i) not in out] for s, runs in enumerate(stacks)]


def odd_runs(stacks: Sequence[Rates]) -> list[Odd]:
    """Return the runs whose throughput surely differs from the others of their stack; of 3 or more they are left out.

    Of two runs that disagree the slower one is named, since what goes wrong with a machine slows a server down, but
    none is left out: it could be the other.

    >>> fine = {1.0: (0.0, 0.0), 2.0: (0.7, 0.0), 4.0: (1.4, 0.0), 8.0: (2.1, 0.0)}
    >>> (odd,) = odd_runs([[fine, {**fine, 4.0: (0.9, 0.0), 8.0: (1.6, 0.0)}]])
    >>> odd.run, odd.since, round(odd.times, 2), odd.left_out
    (1, 4.0, 0.61, False)
    """
    found: list[Odd] = []
    while (worst := _worst(stacks, found)) is not None:
        found.append(worst)
    return sorted(found, key=lambda odd: (odd.stack, odd.run))


def _worst(stacks: Sequence[Rates], known: Sequence[Odd]) -> Odd | None:
    """Return the run that differs most surely from the others of its stack, besides the `known` ones; else None."""
    out = {(odd.stack, odd.run) for odd in known}
    kept = [[i for i in range(len(runs)) if (s, i) not in out] for s, runs in enumerate(stacks)]
    tests = sum(len(runs) for runs in stacks)
    best: tuple[float, Odd] | None = None
    for s, runs in enumerate(stacks):
        loads = common(runs)
        others_left_out = len(runs) - len(kept[s])
        if len(kept[s]) < 2 or not loads or 2 * (others_left_out + 1) > max(len(runs), 2):
            continue
        for i in kept[s]:
            rest = [runs[j] for j in kept[s] if j != i]
            since, off = _step([runs[i][C][0] - statistics.fmean(other[C][0] for other in rest) for C in loads])
            if abs(off) < _ODD_LEAST or (len(runs) == 2 and off > 0):
                continue
            scale = _scale(stacks, kept, (s, i), loads[since])
            p = two_sided(off / math.sqrt(scale.value * (1 + 1 / len(rest))), scale.freedom)
            if p * tests < _ODD_P and (best is None or p < best[0]):
                best = p, Odd(s, i, loads[since], math.exp(off), left_out=len(rest) > 1)
    return best[1] if best else None


def _step(off: Sequence[float]) -> tuple[int, float]:
    """Return (index of the load from which on a run is off, mean of `off` from there), by the best fitting step.

    >>> _step([0.0, 0.0, -0.5, -0.5])
    (2, -0.5)
    """
    means = [math.fsum(off[first:]) / (len(off) - first) for first in range(max(1, len(off) - 1))]
    since = max(range(len(means)), key=lambda first: means[first] ** 2 * (len(off) - first))
    return since, means[since]


def _scale(stacks: Sequence[Rates], kept: Sequence[Sequence[int]], without: tuple[int, int], since: float) -> Variance:
    """Return the variance between runs of their mean ln throughput from load `since` on, without the run `without`."""
    total, freedom = 0.0, 0
    for s, runs in enumerate(stacks):
        own = [runs[i] for i in kept[s] if (s, i) != without]
        loads = [load for load in common(own) if load >= since]
        if len(own) < 2 or not loads:
            continue
        means = [math.fsum(run[load][0] for load in loads) / len(loads) for run in own]
        total += statistics.variance(means) * (len(own) - 1)
        freedom += len(own) - 1
    found = Variance(max(total / freedom if freedom else 0.0, FLOOR**2), float(freedom))
    return found.filled(USUAL_RUN)


# ---- One throughput over another -------------------------------------------------------------------------------------


PAIRS = 4  # rounds from which on pairs are used
ALPHA = 0.05
UNCERTAIN = 4.0  # upper over lower end, above which an interval says nothing
_MOST_RUNS = 20
_UNLIKE = 0.01  # probability of two variances so far apart


class Sample(msgspec.Struct, frozen=True):
    """ln X of a stack's runs at one load, or their means over loads; `errors` has the least error of each."""

    values: Sequence[float]
    errors: Sequence[float]

    @property
    def mean(self) -> float:
        """Return the geometric mean of X."""
        return math.exp(math.fsum(self.values) / len(self.values))

    @property
    def own(self) -> float:
        """Return the variance that each value must at least have."""
        return math.fsum(error**2 for error in self.errors) / len(self.errors)

    @property
    def variance(self) -> Variance:
        """Return the variance between the values."""
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
    """Return ln(b / a) of mean throughputs with its error; `between` is the variance between a stack's runs.

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
    """Return the variance between runs of a figure of the curve: what all levels of a run share, plus `own`.

    `own` is the variance by the figure's intervals. The sum is known better than the variance `figure` of the repeats
    (Satterthwaite 1946), which is returned where it is surely larger.

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
    """Return each run's mean ln throughput over the loads, with its error, which is at least FLOOR."""
    values, errors = [], []
    for run in runs:
        values.append(math.fsum(run[load][0] for load in loads) / len(loads))
        own = math.fsum(run[load][1] ** 2 for load in loads) / len(loads) ** 2
        errors.append(math.hypot(math.sqrt(own), FLOOR))
    return Sample(values, errors)


def runs_needed(sigma: float, size: float) -> int | None:
    """Return how many runs a side show a difference of ln X of this size; None if 20 do not.

    >>> runs_needed(0.01, 0.05), runs_needed(0.1, 0.05)     # t of 4: 2.776 · 0.01 · √(2/3) = 0.023; of 2: 0.043
    (2, None)
    """
    for n in range(2, _MOST_RUNS + 1):
        if t_quantile(1 - ALPHA / 2, 2 * n - 2) * sigma * math.sqrt(2 / n) <= abs(size):
            return n
    return None


def holm(p: Sequence[float]) -> list[tuple[float, bool]]:
    """Return for each p value its significance level by Holm's correction (1979), and whether it is significant.

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
