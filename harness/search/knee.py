"""What is known of the knee from the levels so far, as a search needs it.

Left out: which level comes next (`refinement`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from harness.analysis import change, curve, seats
from harness.analysis.conclusion import BELOW_LAST, UNSURE
from harness.analysis.seats import Occupancy, Seats
from harness.data.summary import BEYOND
from harness.search.decision import Part, interval_width
from harness.search.measured import MeasuredLevel
from harness.search.state import State

UP_TO = 2.0  # times the load from which on requests wait, that a level goes up to

_DRAWS = 100  # enough to choose a level by; the report makes its own


class Known(msgspec.Struct, frozen=True):
    """The knee so far, in requests in flight."""

    fit: curve.Fit
    low: float  # of the 95 % interval of the curve's corner
    corner: float
    high: float  # inf where it may lie beyond the levels
    below_last: float  # the chance that it lies below the highest level, and clearly so
    plateau_width: float  # of the 95 % interval, relative
    seats: float | None  # requests served at once, where the records show them
    onset: float | None  # the least load at which requests wait; None where they do at none
    shift: change.Shift | None  # a change of the server, if the levels so far look like one

    @property
    def about(self) -> float:
        """Where levels tell most."""
        return self.seats or self.corner

    @property
    def width(self) -> float:
        """Full width of the corner's interval, relative to it; inf without an upper end."""
        return (self.high - self.low) / self.corner

    @property
    def settled(self) -> bool:
        """Whether it is known what throughput does past the knee: stay, or fall."""
        return self.fit.curve.plateau_reached or self.fit.curve.dip is not None

    @property
    def words(self) -> str:
        """The answer so far, as a part of a sentence."""
        if self.seats is not None:
            return Part.SEATS.words(seats=self.seats)
        if self.fit.curve.state == BEYOND:
            return Part.RISES.words(concurrency=self.fit.curve.at_least_concurrency or 0.0)
        past = "" if self.settled else ", and the plateau is not reached"
        return Part.KNEE.words(hinge=interval_width(self.width), plateau=interval_width(self.plateau_width), past=past)


def fit(state: State) -> curve.Fit:
    """Return the curve through the levels of the last steady stretch; it has draws where they are enough."""
    return curve.fit(steady(state.measured).points, seed=state.search.seed, draws=_DRAWS)


def steady(measured: Sequence[MeasuredLevel]) -> change.Steady:
    """Return the last steady stretch of the levels; all are one where their times are not known."""
    points = [
        change.TimedPoint(
            m.users, m.in_flight, m.throughput, m.se, m.counts, m.in_flight_ok, m.assumed,
            time_s=math.nan if m.time_s is None else m.time_s, occupancy=m.occupancy if m.counts else None,
        )
        for m in measured
    ]  # fmt: skip
    if any(m.time_s is None for m in measured):
        return change.Steady(points, [p.occupancy for p in points if p.occupancy], None)
    return change.steady(points, fast=True)


def known(state: State) -> Known | None:
    """Return what the levels so far say of the knee; None where they are too few for a curve."""
    points, crowd, shift = steady(state.measured)
    found = curve.fit(points, seed=state.search.seed, draws=_DRAWS)
    if found.posterior is None:
        return None
    low, corner, high = found.posterior.quantiles(0.025, 0.5, 0.975)
    last = state.N[-1]
    below = found.posterior.chance_below(BELOW_LAST * last)
    above = 1 - found.posterior.chance_below(last)
    plateau = found.curve.plateau_tokens_per_s
    ends = plateau.ci95 or (None, None)
    width = (ends[1] - ends[0]) / plateau.value if plateau.value and None not in ends else math.inf  # type: ignore[operator]
    counted = seats.find(crowd)
    waiting = seats.waiting(crowd)
    return Known(
        found, low, corner, math.inf if above > UNSURE else high, below, width,
        counted.value if isinstance(counted, Seats) else None, waiting[0] if waiting else None, shift,
    )  # fmt: skip


def waits(levels: Sequence[MeasuredLevel]) -> list[Occupancy]:
    """Return the levels at which requests wait for a seat, in order of load."""
    crowd = [m.occupancy for m in levels if m.counts and m.occupancy is not None]
    loads = seats.waiting(crowd)
    return sorted((each for each in crowd if each.load in loads), key=lambda each: each.load)
