"""Repeats of a figure: pooled within a run, a sample over runs.

Repeats of one load within a run share what the machine did that day. They tell better what the run gave there, by their
own errors and by what lies between them, and nothing of how runs differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.analysis.stats import FLOOR, Z95, between, t_quantile
from harness.decide.check.figures import Quantity

_LEAST = 1e-12  # of an error: a figure that is always 0 has none
_MOST_FREEDOM = 1e6  # degrees of freedom, which the normal distribution has


def within_run(found: Sequence[Quantity]) -> Quantity:
    """A figure at one load of a run from every time it was measured there, weighted by the errors of its own intervals.

    None of these is below the 0.5 % that nothing is known better than. What lies between repeats beyond them counts
    (Paule and Mandel), with Student's t for as few degrees of freedom as that is known by (Satterthwaite 1946). Without
    intervals there is a mean alone.

    >>> alike = within_run([Quantity(1000.0, (990.0, 1010.0)), Quantity(1004.0, (994.0, 1014.0))])
    >>> apart = within_run([Quantity(1000.0, (990.0, 1010.0)), Quantity(1040.0, (1030.0, 1050.0))])
    >>> [round(end) for each in (alike, apart) for end in each.ci95 or ()]
    [995, 1009, 802, 1238]
    """
    if any(each.why or each.value is None for each in found):
        return found[0] if len(found) == 1 else _incomplete(found)
    known = [each for each in found if each.ci95]
    if len(known) < 2:
        return known[0] if known else Quantity(mean(found), None, "", found[0].way_out)
    values = np.array([each.value for each in known], dtype=np.float64)
    sigma = np.array([max(error(each), FLOOR * abs(each.value or 0.0), _LEAST) for each in known])
    with np.errstate(all="ignore"):  # a stored summary may hold what no measurement has
        drift = between(values, sigma, np.zeros(len(values), np.int64))
        w = 1 / (sigma**2 + drift**2)
        middle, variance = float(w @ values / w.sum()), float(1 / w.sum())
        of_drift = float(drift**2 * (w @ w) / w.sum() ** 2) / variance  # share of the variance
    if not (math.isfinite(middle) and 0 < variance < math.inf):
        return Quantity(mean(found), None, "", found[0].way_out)
    half = t_quantile(0.975, (len(values) - 1) / max(of_drift**2, 1 / _MOST_FREEDOM)) * math.sqrt(variance)
    return Quantity(middle, (middle - half, middle + half))


def over_runs(found: Sequence[Quantity]) -> Quantity:
    """The mean of a figure over runs, with its interval by Student's t.

    The variance is at least that of the runs' own intervals, and of the 0.5 % that nothing is known better than. Where
    the figure of a run is only known to be at least so much, so is that of all.

    >>> [round(end, 2) for end in over_runs([Quantity(99.0), Quantity(100.0), Quantity(101.0)]).ci95 or ()]
    [97.52, 102.48]
    """
    if len(found) == 1:
        return found[0]
    values = [each.value for each in found if each.value is not None]
    if len(values) < len(found) or any(each.why for each in found):
        return _incomplete(found)
    middle = math.fsum(values) / len(values)
    own = math.fsum(max(error(each), FLOOR * abs(middle)) ** 2 for each in found) / len(found)
    variance = max(float(np.var(values, ddof=1)), own)
    half = t_quantile(0.975, len(found) - 1) * math.sqrt(variance / len(found))
    return Quantity(middle, (middle - half, middle + half))


def _incomplete(found: Sequence[Quantity]) -> Quantity:
    """Where one lacks its figure, or is not sure of it: why, and what all are at least."""
    lacking = next(each for each in found if each.why or each.value is None)
    lows = [each.ci95[0] for each in found if each.ci95 and each.ci95[0] is not None]
    least = (min(lows), None) if len(lows) == len(found) else None
    return Quantity(mean(found), least, lacking.why or "it was not measured", lacking.way_out)


def mean(found: Sequence[Quantity]) -> float | None:
    """Of those that have a value; None where none has."""
    values = [each.value for each in found if each.value is not None]
    return math.fsum(values) / len(values) if values else None


def error(found: Quantity) -> float:
    """One standard error by the figure's own interval; 0 where that has none."""
    low, high = found.ci95 or (None, None)
    return (high - low) / 2 / Z95 if low is not None and high is not None else 0.0
