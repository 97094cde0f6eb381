"""Levels past the knee at which throughput has collapsed, as that of a server that thrashes or drops work.

No family of curves falls so steeply. Fitted with such levels, the knee comes out far below the highest throughput and
the plateau below most of the levels. So the curve is that of the levels below the fall, and the fall bounds its knee
from above. Left out: a fall that the dip follows (`hyperbolas`), and one level far off among others (`odd_level`).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from harness.analysis import conclusion, odd_level
from harness.analysis.hyperbolas import DIP, HYPERBOLA, Curves, Solved
from harness.analysis.points import FEWEST, PooledLevels, scatter_of_neighbours
from harness.summary import BEYOND, FOUND, PROVISIONAL, Curve, Settle, Value

FALLEN = 0.7  # of the highest throughput, below which a level has collapsed
_UPRIGHT = 0.9  # of the highest throughput, below which the levels before it have begun to fall
_FOLLOWS = 0.1  # error of the levels about a dip that follows them, at most
_STEEP = -0.6  # dlnX/dlnN between two neighbours: a doubling loses a third
_TIMES = 2.0  # the scatter of the levels below the fall, that it exceeds


class Collapse(msgspec.Struct, frozen=True):
    """The levels below the fall, and all of them."""

    below: PooledLevels
    levels: PooledLevels

    @property
    def at(self) -> float:
        """Concurrency of the first level that has collapsed."""
        return float(self.levels.C[len(self.below.C)])

    @property
    def in_flight(self) -> float:
        """Requests in flight there."""
        return float(self.levels.N[len(self.below.N)])


def find(levels: PooledLevels, best: Solved) -> Collapse | None:
    """The collapse at the end of the levels; None without one, or with too few levels below it for a curve.

    `best` is the fit of all levels. A dip that follows them is none.
    """
    if best.chosen.family[0] == DIP and float(np.median(best.sigma[0])) < _FOLLOWS:
        return None
    X, most = levels.X, float(levels.X.max())
    count = int(np.flatnonzero(most * _UPRIGHT <= X)[-1]) + 1
    if X[-1] >= FALLEN * most or count < FEWEST[HYPERBOLA] or odd_level.find(levels):
        return None
    slopes = np.diff(np.log(X)) / np.diff(levels.log_load)
    if slopes[count - 1 :].min() > _STEEP:
        return None
    below = levels.lowest(count)
    if math.log(most / X[count:].min()) < _TIMES * float(scatter_of_neighbours(below).max()):
        return None
    return Collapse(below, levels)


def bounded(curve: Curve, draws: Curves | None, fall: Collapse) -> Curve:
    """The curve through the levels below the fall, with its knee and its plateau bounded by the fall.

    Where throughput rises up to the fall, the knee lies about the last level below it: somewhere between its
    neighbours, and the plateau is at least what that level gave.
    """
    below, end, rises = fall.below, fall.at, curve.state == BEYOND
    knee, plateau, reasons = curve.hinge_concurrency, curve.plateau_tokens_per_s, curve.reasons
    if rises:
        last, most = float(below.C[-1]), float(below.X[-1])
        knee = Value(last, (float(below.C[-2]), end))
        least = min(float(np.quantile(draws.throughput(below.N[-1:]), 0.025)), most) if draws else None
        plateau = Value(most, (least, None))
        reasons = [f"throughput rises up to {last:g} in flight and has collapsed at {end:g}"]
    if curve.state != FOUND and draws is not None:
        plateau = up_to(plateau, max(_highest_plateau(draws, fall, rises=rises), plateau.value or 0.0))
    return msgspec.structs.replace(
        curve,
        state=PROVISIONAL if rises else curve.state,
        reasons=reasons,
        settle=_settle(curve.settle, fall),
        at_least_concurrency=None,
        expected_concurrency=None,
        expected_by=None,
        hinge_concurrency=up_to(knee, end),
        plateau_tokens_per_s=plateau,
        parameters=curve.parameters | {"collapse": end},
    )


def up_to(figure: Value, most: float) -> Value:
    """The figure with its interval, neither beyond `most`.

    >>> up_to(Value(21.0, (18.0, None)), 64.0)
    Value(value=21.0, ci95=(18.0, 64.0))
    """
    if figure.value is None or figure.ci95 is None:
        return figure
    low, high = figure.ci95
    return Value(min(figure.value, most), (low, most if high is None else min(high, most)))


def _highest_plateau(draws: Curves, fall: Collapse, *, rises: bool) -> float:
    """Upper end of the plateau's interval, no draw of which rises beyond the fall; tok/s.

    A hyperbola that is as good as flat below the fall has its asymptote.
    """
    plateau = bounded_draws(draws, fall, rises=rises).plateau
    flat = np.isinf(draws.hinge) & (conclusion.HALF_POINTS * draws.a <= draws.b * fall.in_flight)
    return float(np.quantile(np.where(flat, 1 / np.maximum(draws.b, 1e-300), plateau), 0.975))


def bounded_draws(draws: Curves, fall: Collapse, *, rises: bool) -> Curves:
    """The draws of the bootstrap, none of whose hinges lies beyond the fall.

    Where throughput `rises` up to it, they lie evenly between the neighbours of the last level below it.
    """
    anywhere = np.geomspace(fall.below.N[-2], fall.in_flight, len(draws.hinge))
    return msgspec.structs.replace(draws, hinge=np.minimum(draws.hinge, anywhere if rises else fall.in_flight))


def _settle(settle: Settle | None, fall: Collapse) -> Settle | None:
    """Levels below the fall that settle the knee: those that settle the curve, else the middle of the gap."""
    if settle is None:
        return None
    middle = round(math.sqrt(fall.below.C[-1] * fall.at))
    fitting = [C for C in settle.levels if fall.at > C]
    between = [middle] if fall.below.C[-1] < middle < fall.at else [round(fall.below.C[-1])]
    return Settle(fitting or between)
