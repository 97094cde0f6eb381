"""Intervals with the coverage that they state: Student's t, Wilson, percentiles by sample count, batch means.

Written out because numpy has none of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np

from harness.analysis.table import Counts, Floats, Ints, pieces
from harness.data.views import NO_SPREAD, Estimate, Spread

Z95 = 1.959964  # two-sided 95 % of the normal distribution
BY_CHANCE = 3  # standard errors of a difference, up to which it is no sign of anything

# Samples that a percentile q needs: P(Bin(n, 1-q) <= 1) <= 0.01, so at least two lie beyond it.
SAMPLES = {50: 11, 75: 24, 90: 64, 95: 130, 99: 662, 99.9: 6636}

_BATCHES, _REQUEST_TIMES = 10, 2  # an interval: at least 10 batches of at least 2 mean request times
_MOST_BATCHES = 40  # more add little (Schmeiser 1982), and short ones are dominated by their edges
_FEW_BATCHES = 4  # the fit's own error: at least 4 batches of at least 1
_CORRELATED = 0.2  # lag-1 correlation above which batches are doubled
_EVEN = 0.01  # batches that lie within this share of their mean carry an interval even if they are correlated
_CLOSE_TO_1 = 0.9  # a correlation beyond which its estimate does not determine the interval's width
FLOOR = 0.005  # no throughput is known better than this, relative
_NEWTON = 50  # steps at most; far from the answer one doubles the variance, near it they converge at once
ASSUMED = 0.02  # relative error of a level too short to have measured its own


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta I_x(a, b), by Lentz's continued fraction (Numerical Recipes §6.4).

    >>> round(incomplete_beta(2.0, 3.0, 0.5), 6)    # 1 - P(Bin(4, 1/2) < 2) = 11/16
    0.6875
    """
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only on this side
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    total = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1 / (1 + even * d), 1 + even / c
        total *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / (1 + odd * d), 1 + odd / c
        total *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return front * total / a


@lru_cache(maxsize=1024)
def t_quantile(p: float, nu: float) -> float:
    """Return the quantile p of Student's t with nu degrees of freedom, by bisection on its distribution.

    >>> round(t_quantile(0.975, 9), 4)
    2.2622
    """
    if p < 0.5:
        return -t_quantile(1 - p, nu)
    low, high = 0.0, 1.0
    while _t_above(high, nu) > 1 - p:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_above(middle, nu) > 1 - p else (low, middle)
    return (low + high) / 2


def _t_above(t: float, nu: float) -> float:
    return incomplete_beta(nu / 2, 0.5, nu / (nu + t * t)) / 2


def wilson(hits: float, n: int, z: float = Z95) -> tuple[float, float] | None:
    """Return Wilson's score interval of a proportion (Wilson 1927); None without trials.

    >>> [round(end, 4) for end in wilson(8, 10)]
    [0.4902, 0.9433]
    """
    if n == 0:
        return None
    p, w = hits / n, z * z / n
    half = z * math.sqrt(p * (1 - p) / n + w / (4 * n))
    return max(0.0, (p + w / 2 - half) / (1 + w)), min(1.0, (p + w / 2 + half) / (1 + w))


def known_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def percentiles(
    values: Floats, qs: Sequence[float], n: int | None = None, *, reorder: bool = False
) -> list[float | None]:
    """Return percentiles, linearly interpolated; None if n samples do not carry one (`SAMPLES`).

    `reorder`: the values may be put into another order, instead of a copy of them.
    """
    n = len(values) if n is None else n
    carried = [q for q in qs if len(values) and n >= SAMPLES[q]]
    if not carried:
        return [None for _ in qs]
    found = dict(zip(carried, np.percentile(values, carried, overwrite_input=reorder).tolist(), strict=True))
    return [found.get(q) for q in qs]


def spread(values: Floats, n: int | None = None, mean: float | None = None, *, reorder: bool = False) -> Spread:
    """Return mean, percentiles and maximum of `values` without nans; n: the number of independent ones, if fewer.

    `mean`: computed from the values in their first order, if they have another by now; rounding depends on it.
    `reorder`: the values may be put into another order, instead of a copy of them.

    >>> spread(np.arange(11.0))
    Spread(mean=5.0, p50=5.0, p90=None, p95=None, p99=None, max=10.0, n=11)
    """
    known = ~np.isnan(values)
    values = values if known.all() else values[known]
    n = len(values) if n is None else min(n, len(values))
    if not len(values):
        return NO_SPREAD
    mean = float(values.mean()) if mean is None else mean
    p50, p90, p95, p99 = percentiles(values, (50, 90, 95, 99), n, reorder=reorder)
    return Spread(mean, p50, p90, p95, p99, float(values.max()), n)


def lag1(x: Floats) -> float:
    """Return the correlation of a series with itself one step later; 0 if it does not vary."""
    d = x - x.mean()
    total = float(d @ d)
    return float(d[1:] @ d[:-1]) / total if total > 0 else 0.0


def correlation(residual: Floats, fitted: int) -> float:
    """Return lag-1 correlation of residuals about a fit of k coefficients, 0 to 0.9, less its bias -(k + 4ρ)/n.

    Kendall 1954.
    """
    n = len(residual)
    return min(_CLOSE_TO_1, max(0.0, (lag1(residual) + fitted / n) / (1 - 4 / n)))


def batches(times: Floats, amounts: Floats | Counts, start: float, end: float, n: int) -> Floats:
    """Return rates (amount per second) in n equal parts of [start, end), shape [n]."""
    sums = np.zeros(n)
    for part in pieces(len(times)):
        inside = (times[part] >= start) & (times[part] < end)
        index = ((times[part][inside] - start) * (n / (end - start))).astype(np.int64)
        sums += np.bincount(np.minimum(index, n - 1), weights=amounts[part][inside], minlength=n)
    return sums * (n / (end - start))


def uncorrelated(batched: Callable[[int], Floats], n: int, fewest: int) -> Floats:
    """Return batched(n), with n halved while neighbours are correlated and there are at least `fewest` batches."""
    x = batched(n)
    while lag1(x) > _CORRELATED and n >= fewest:
        n //= 2
        x = batched(n)
    return x


def batch_means(times: Floats, amounts: Floats | Counts, start: float, end: float, request_s: float | None) -> Estimate:
    """Return the mean rate over [start, end) with its 95 % interval (docs/method.md, Throughput and its error).

    10 to 40 batches of at least 2 mean request times, doubled in length while the lag-1 correlation is
    above 0.2; where that leaves fewer than 10, the interval is None, unless none of 10 batches is off the mean by more
    than 1 %: then it spans them all. Correlation that is left widens it.

    >>> t = np.arange(0.0, 40.0, 0.5)
    >>> batch_means(t, np.ones(80), 0.0, 40.0, 2.0)     # perfectly even: no width
    Estimate(mean=2.0, ci95=(2.0, 2.0))
    """
    return _estimate(lambda n: batches(times, amounts, start, end, n), end - start, request_s)


def running_means(times: Floats, counts: Floats, start: float, end: float, request_s: float | None) -> Estimate:
    """Return the mean rate over [start, end) with its 95 % interval, from a running count that is interpolated.

    >>> running_means(np.array([0.0, 50.0]), np.array([7.0, 107.0]), 0.0, 40.0, 2.0)
    Estimate(mean=2.0, ci95=(2.0, 2.0))
    """

    def batched(n: int) -> Floats:
        return np.diff(np.interp(np.linspace(start, end, n + 1), times, counts)) * (n / (end - start))

    return _estimate(batched, end - start, request_s)


def _estimate(batched: Callable[[int], Floats], span: float, request_s: float | None) -> Estimate:
    """Return the mean rate with its 95 % interval by batch means; batched(n) is the rates in n equal parts of the span.

    Correlation up to 0.2 cannot be distinguished from none in 10 batches, and would cost an interval a fifth of its
    width: it is widened by √((1 + ρ)/(1 - ρ)), ρ the lag-1 correlation. No interval where fewer than 10 batches of two
    request times fit. Batches that stay correlated give one only where all lie within 1 % of the mean: up to the
    furthest.
    """
    mean = float(batched(1)[0])
    n = min(_MOST_BATCHES, _fitting(span, _REQUEST_TIMES, request_s))
    if n < _BATCHES:
        return Estimate(mean)
    x = uncorrelated(batched, n, _BATCHES)
    n = len(x)
    if n >= _BATCHES:
        rho = correlation(x, fitted=1)
        half = t_quantile(0.975, n - 1) * float(x.std(ddof=1)) / math.sqrt(n) * math.sqrt((1 + rho) / (1 - rho))
        return Estimate(mean, (mean - half, mean + half))
    # Batches of any length are correlated where slots of equal requests drift slowly; then batches hardly differ.
    furthest = float(np.abs(batched(_BATCHES) - mean).max())
    return Estimate(mean, (mean - furthest, mean + furthest) if furthest <= _EVEN * mean else None)


def half_width(estimate: Estimate) -> float | None:
    """Return half of the 95 % interval as a share of the mean; None if there is none.

    >>> half_width(Estimate(200.0, (197.0, 203.0)))
    0.015
    """
    if estimate.ci95 is None or not estimate.mean:
        return None
    return (estimate.ci95[1] - estimate.ci95[0]) / 2 / estimate.mean


def scatter_within(values: Floats, errors: Floats, group: Ints) -> float:
    """Return the standard deviation of values within groups, beyond what their own errors explain (which may be all).

    It is what brings χ² around the groups' means down to its degrees of freedom (Paule and Mandel 1982), by Newton:
    χ² falls ever more slowly, so that from 0 no step goes too far. Left out: groups of one, and with an error of nan.

    >>> round(scatter_within(np.array([9.0, 11.0]), np.array([1.0, 1.0]), np.array([0, 0])), 9)
    1.0
    """
    counts = np.bincount(group)
    known = ((counts > 1) & ~np.isnan(np.bincount(group, errors)))[group]
    values, errors, group = values[known], errors[known], group[known]
    n, freedom, variance = len(counts), len(values) - len(np.unique(group)), 0.0
    for _ in range(_NEWTON):
        w = 1 / (errors**2 + variance)
        total = np.bincount(group, w, n)
        mean = np.bincount(group, w * values, n) / np.where(total > 0, total, 1.0)
        r2 = (values - mean[group]) ** 2
        surplus = float(w @ r2) - freedom
        if surplus <= 0:
            break
        variance += surplus / float(w**2 @ r2)
    return math.sqrt(variance)


def fit_error(
    times: Floats,
    amounts: Floats | Counts,
    start: float,
    end: float,
    request_s: float | None,
    completions: int,
    answer_s: float | None = None,
) -> tuple[float | None, bool]:
    """Return one standard error of the mean rate, by batch means, and whether it is assumed as too few batches fit.

    docs/method.md, Throughput and its error.

    Batch means over whatever batches fit, at least 4 of at least 1 request time, widened by t over normal so that few
    batches do not look more precise than they are, at least 0.5 %. Past the knee a request time is mostly queueing,
    which delays no token; where 4 of them do not fit, batches of the time from an answer's first token to its last have
    to do, if 4 requests ended. Else max(2 %, 1/sqrt(completions)), assumed; so too where the shorter batches scatter
    more than so many requests of exponential lengths do: they show each request's own prompt and answer.
    """
    mean = float(batches(times, amounts, start, end, 1)[0])
    if mean <= 0:
        return None, True
    assumed = mean * max(ASSUMED, 1 / math.sqrt(max(completions, 1)))
    n = _fitting(end - start, 1, request_s)
    shorter = n < _FEW_BATCHES
    if shorter and completions >= _FEW_BATCHES:
        n = min(_MOST_BATCHES, _fitting(end - start, 1, answer_s))
    if n < _FEW_BATCHES:
        return assumed, True
    x = uncorrelated(lambda n: batches(times, amounts, start, end, n), n, 2 * _FEW_BATCHES)
    se = float(x.std(ddof=1)) / math.sqrt(len(x))
    if shorter and se > mean * math.sqrt(2 / completions):
        return assumed, True
    return max(se * t_quantile(0.975, len(x) - 1) / Z95, FLOOR * mean), False


def _fitting(span: float, request_times: float, request_s: float | None) -> int:
    """Return how many batches of so many request times fit into the span; 0 if the request time is not known."""
    return math.floor(span / (request_times * request_s) + 1e-9) if request_s else 0


def slope(t: Floats, x: Floats) -> tuple[float, float]:
    """Return the slope of the line through x(t) by least squares, and its standard error from the scatter about it.

    >>> slope(np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 3.0, 5.0, 7.0]))
    (2.0, 0.0)
    """
    t = t - t.mean()
    lever = float((t**2).sum())
    b = float((t * x).sum()) / lever
    residual = x - x.mean() - b * t
    return b, math.sqrt(float((residual**2).sum()) / (len(t) - 2) / lever)
