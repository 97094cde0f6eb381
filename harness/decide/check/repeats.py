"""Repeats of a figure: pooled within a run, a sample over runs, or one side of a ratio.

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
    the figure of a run is only known to lie between two ends, or beyond one, so is that of all.

    >>> [round(end, 2) for end in over_runs([Quantity(99.0), Quantity(100.0), Quantity(101.0)]).ci95 or ()]
    [97.52, 102.48]
    >>> over_runs([Quantity(16.0, (16.0, 32.0)), Quantity(24.0, (24.0, 32.0))])
    Quantity(value=20.0, ci95=(16.0, 32.0), why='', way_out='')
    """
    if len(found) == 1:
        return found[0]
    values = [each.value for each in found if each.value is not None]
    if len(values) < len(found) or any(each.why for each in found):
        return _incomplete(found)
    middle = math.fsum(values) / len(values)
    if any(is_bracket(each) for each in found):
        return Quantity(middle, hull(found), "", found[0].way_out)
    own = math.fsum(max(error(each), FLOOR * abs(middle)) ** 2 for each in found) / len(found)
    variance = max(float(np.var(values, ddof=1)), own)
    half = t_quantile(0.975, len(found) - 1) * math.sqrt(variance / len(found))
    return Quantity(middle, (middle - half, middle + half))


def is_bracket(found: Quantity) -> bool:
    """Whether an interval says where a figure lies and not how it scatters: repeats make it no narrower.

    It is open, or the figure is its lower end: a knee by limits is the highest load that met them, and lies between it
    and the lowest that missed them. A share of 0 is a lower end too, and scatters.

    >>> is_bracket(Quantity(16.0, (16.0, 32.0))), is_bracket(Quantity(16.2, (15.4, 17.1)))
    (True, False)
    """
    if found.ci95 is None:
        return False
    low, high = found.ci95
    return low is None or high is None or (found.value == low and 0 < low < high)


def hull(found: Sequence[Quantity]) -> tuple[float | None, float | None] | None:
    """From the lowest end of all intervals to the highest, open where one is; None where one is missing, or both are.

    >>> hull([Quantity(16.0, (16.0, 32.0)), Quantity(24.0, (24.0, None))]), hull([Quantity(16.0)])
    ((16.0, None), None)
    """
    intervals = [each.ci95 for each in found if each.ci95 is not None]
    lows = [low for low, _ in intervals if low is not None]
    highs = [high for _, high in intervals if high is not None]
    low = min(lows) if lows and len(lows) == len(found) else None
    high = max(highs) if highs and len(highs) == len(found) else None
    return None if low is None and high is None else (low, high)


def _incomplete(found: Sequence[Quantity]) -> Quantity:
    """Where one lacks its figure, or is not sure of it: why, and what all are at least and at most."""
    lacking = next(each for each in found if each.why or each.value is None)
    return Quantity(mean(found), hull(found), lacking.why or "it was not measured", lacking.way_out)


def mean(found: Sequence[Quantity]) -> float | None:
    """Of those that have a value; None where none has."""
    values = [each.value for each in found if each.value is not None]
    return math.fsum(values) / len(values) if values else None


def error(found: Quantity) -> float:
    """One standard error by the figure's own interval; 0 where that has none."""
    low, high = found.ci95 or (None, None)
    return (high - low) / 2 / Z95 if low is not None and high is not None else 0.0


# ---- of a ratio -----------------------------------------------------------------------------------------------------


def no_ratio(found: Quantity) -> str:
    """Why a figure makes no ratio, "" where it does: one with a reason is a best estimate, which has no end above."""
    if found.why:
        return found.why
    if found.value == 0:
        return "there is no ratio to 0"
    if found.value is None or found.value < 0:
        return "it was not measured"
    return "its interval is open" if found.ci95 is not None and None in found.ci95 else ""


def in_logarithms(found: Quantity) -> tuple[float, float]:
    """ln of a figure above 0, and its own relative error."""
    value = found.value or math.nan
    return math.log(value), error(found) / value


def no_nearer(ends: tuple[float, float], baseline: Sequence[Quantity], runs: Sequence[Quantity]) -> tuple[float, float]:
    """The ends of a ratio of runs over a baseline, at least as far apart as brackets leave it.

    >>> met = Quantity(16.0, (16.0, 32.0))
    >>> no_nearer((0.9, 1.1), [met, met], [met, met]), no_nearer((0.9, 1.1), [Quantity(16.0)], [Quantity(16.0)])
    ((0.5, 2.0), (0.9, 1.1))
    """
    old, new = hull(baseline), hull(runs)
    if old is None or new is None or not any(is_bracket(each) for each in (*baseline, *runs)):
        return ends
    (old_low, old_high), (new_low, new_high) = old, new
    if not (old_low and old_high and new_low and new_high):
        return ends
    return min(ends[0], new_low / old_high), max(ends[1], new_high / old_low)
