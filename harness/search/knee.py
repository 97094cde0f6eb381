"""What is known of the knee from the curve through the levels so far, as a search needs it.

Left out: which level comes next (`refinement`), and what a level would add (`information_gain`).
"""

from __future__ import annotations

import math

import numpy as np

from harness.analysis import curve
from harness.analysis.conclusion import BELOW_LAST, HALF_POINTS
from harness.analysis.table import Floats
from harness.search.decision import Part, interval_width
from harness.search.state import State

PAST = 1.15  # a level that shall count as past the hinge (`hyperbolas.PAST`: 1.1) is chosen with some margin
FAR = 4.0  # a hinge at infinity counts as so many times the last level

_DRAWS = 100  # enough to choose a level by; the report makes its own


def fit(state: State) -> curve.Fit:
    """The curve through the levels so far; it has draws where there are enough of them."""
    points = [
        curve.Point(m.users, m.in_flight, m.throughput, m.se, m.counts, m.in_flight_ok, m.assumed)
        for m in state.measured
    ]
    return curve.fit(points, seed=state.search.seed, draws=_DRAWS)


def hinges(draws: curve.Draws) -> Floats:
    """Where each draw bends: its hinge, of one without a corner where it has 95 % of what it tends to."""
    with np.errstate(divide="ignore"):
        return np.where(np.isinf(draws.hinge), HALF_POINTS * draws.a / draws.b, draws.hinge)


def plateaus(draws: curve.Draws) -> Floats:
    """What each draw tends to: its plateau, of one without a corner its asymptote."""
    with np.errstate(divide="ignore"):
        return np.where(np.isinf(draws.plateau), 1 / draws.b, draws.plateau)


def below_last(state: State, draws: curve.Draws) -> float:
    """The chance that the hinge lies below the highest level, and clearly so."""
    return float(np.mean(hinges(draws) < BELOW_LAST * state.N[-1]))


def settled(found: curve.Fit) -> bool:
    """Whether it is known what throughput does past the hinge: stay, or fall."""
    return found.curve.plateau_reached or found.curve.dip is not None


def width(draws: Floats) -> float:
    """Full width of the 95 % interval relative to the median."""
    lo, hi = curve.interval(draws)
    return (hi - lo) / float(np.median(draws)) if math.isfinite(hi) else math.inf


def so_far(state: State, found: curve.Fit, draws: curve.Draws) -> str:
    """The answer so far in words."""
    if not math.isfinite(np.median(draws.hinge)):
        return Part.RISES.words(concurrency=max(state.times))
    falls = ", and throughput falls past it" if found.curve.dip is not None else ", and the plateau is not reached"
    past = "" if found.curve.plateau_reached else falls
    return Part.KNEE.words(
        hinge=interval_width(width(hinges(draws))), plateau=interval_width(width(plateaus(draws))), past=past
    )
