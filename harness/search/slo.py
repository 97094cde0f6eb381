"""Bisecting for the largest load that meets an SLO, in concurrency or in rate.

The edge is found by short levels first, by where they lean; then the loads on both sides of it are measured for as
long as decides them. Left out: what "met" is (`analysis.slo`), and where the edge lies by all levels (`edge`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.data.roles import Role
from harness.search.decision import Decision, End, Part, Reason, end, measure, measure_rate, not_enough
from harness.search.edge import CLOSE, Edge, edge_of, judged
from harness.search.measured import MeasuredLevel
from harness.search.state import Search, State

_ALONE = 0.1  # requests in flight: a rate below it that misses the SLO shows that a request alone does


def by_concurrency(state: State, at_most: int) -> Decision:
    """Bisect in log C between the largest concurrency that met the SLO and the smallest that did not.

    It ends, found or not, `at_most` levels after the first pass.
    """
    edge = edge_so_far(state.measured)
    if edge.met is None and edge.missed is None:
        return end(End.SLO, edge=Part.NO_SLO.words())
    found = _in_words(edge, state.search.counted)
    if state.refined >= at_most:
        return end(End.SLO, edge=found)
    if edge.again is not None and edge.again <= state.top:
        C, why = int(edge.again), Reason.SLO_UNRESOLVED
    elif edge.missed is None:
        assert edge.met is not None
        C, why = min(2 * int(edge.met), state.top), Reason.SLO_MET
        if edge.met >= C:
            return _decide(state, edge) or end(End.SLO_STOPPED, edge=found, why=state.bar)
    else:
        met = edge.met or 0.0
        if edge.missed <= max(met + 1, met * CLOSE):
            return _decide(state, edge) or end(End.SLO, edge=found)
        C = min(max(round(math.sqrt(met * edge.missed)), int(met) + 1), math.ceil(edge.missed) - 1)
        why = Reason.SLO_BETWEEN
    if not state.affordable(C):
        return end(End.SLO_STOPPED, edge=found, why=state.no_more)
    return measure(C, why, Role.SLO, met=edge.met or 0.0, missed=edge.missed)


def _decide(state: State, edge: Edge) -> Decision | None:
    """A load next to the edge, for as long as decides it; None where none is open, or the first answer is enough."""
    if edge.undecided is None or state.search.quick:
        return None
    C = int(edge.undecided)
    return measure(C, Reason.SLO_UNDECIDED, Role.SLO_DECISION) if state.top >= C and state.affordable(C) else None


def edge_so_far(measured: Sequence[MeasuredLevel]) -> Edge:
    """The edge by the levels that say something of the SLO."""
    loads: dict[float, list[MeasuredLevel]] = {}
    for m in measured:
        if m.slo is not None or not m.counts:
            loads.setdefault(m.users if m.rate is None else m.rate, []).append(m)
    return edge_of({load: judged(same) for load, same in loads.items()})


def by_rate(measured: Sequence[MeasuredLevel], search: Search, at_most: int) -> Decision:
    """Double the rate until it misses the SLO or is unstable, then bisect; halve it where even the first misses."""
    if not measured:
        first = _round(search.first_rate or 1.0)
        return measure_rate(first, Reason.ONE_IN_FLIGHT if search.first_rate else Reason.FIRST_RATE)
    edge = edge_so_far(measured)
    if edge.met is None and edge.missed is None:
        return end(End.SLO, edge=Part.NO_SLO.words())
    found = _in_words(edge, "requests per second")
    role = Role.SLO
    if edge.again is not None:
        rate, why = edge.again, Reason.SLO_UNRESOLVED
    elif edge.missed is None:
        assert edge.met is not None
        rate, why = _round(2 * edge.met), Reason.RATE_MET
    elif edge.met is None:
        if search.first_rate and edge.missed < _ALONE * search.first_rate:
            return end(End.FOUND, found=found)
        rate, why = _round(edge.missed / 2), Reason.RATE_MISSED
    elif edge.missed <= CLOSE * edge.met:
        if edge.undecided is None or search.quick:
            return end(End.FOUND, found=found)
        rate, why, role = edge.undecided, Reason.SLO_UNDECIDED, Role.SLO_DECISION
    else:
        rate, why = _round(math.sqrt(edge.met * edge.missed)), Reason.SLO_BETWEEN
    last = measured[-1]
    assert last.rate is not None
    if len(measured) >= at_most:
        return end(End.NOTHING_HELPS, found=found, why=Part.LEVELS.words(levels=len(measured)))
    if search.seconds_left is not None and last.seconds > search.seconds_left:
        left = not_enough(search.seconds_left, None, "another level")
        return end(End.NOTHING_HELPS, found=found, why=left)
    if search.requests_left is not None and last.requests / last.rate * rate > search.requests_left:
        left = not_enough(None, search.requests_left, "another level")
        return end(End.NOTHING_HELPS, found=found, why=left)
    return measure_rate(rate, why, role, met=edge.met, missed=edge.missed)


def _in_words(edge: Edge, unit: str) -> str:
    part = Part.SLO_NEVER if edge.met is None else Part.SLO_MET if edge.missed is None else Part.SLO_BETWEEN
    meets, how = "likely met" if edge.likely else "met", "unresolved" if edge.unresolved else "missed"
    return part.words(met=edge.met, missed=edge.missed, unit=unit, meets=meets, how=how)


def _round(rate: float) -> float:
    """Three digits are enough for a rate.

    >>> _round(22.6274)
    22.6
    """
    return float(f"{rate:.3g}")
