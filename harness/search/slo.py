"""Bisecting for the largest load that meets an SLO, in concurrency or in rate.

Left out: what "met" is (`slo`), and where the edge lies by what every level said (`edge`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.search.edge import CLOSE, edge_of, told
from harness.search.measured import ERRORS, Held, Next, Search, Seen


def by_concurrency(seen: Seen, at_most: int) -> Next:
    """Bisect in log C between the largest concurrency that met the SLO and the smallest that did not.

    It ends, found or not, `at_most` levels after the climb.
    """
    outcomes: dict[float, list[str]] = {}
    for h in seen.held:
        if h.slo is not None or not h.counts:
            outcomes.setdefault(h.users, []).append(_outcome(h))
    if not outcomes:
        return Next(None, "no level says anything about the SLO")
    edge = edge_of(outcomes)
    if seen.refined >= at_most:
        return Next(None, told(edge, "in flight"))
    step: Next | None
    if edge.again is not None and edge.again <= seen.top:
        step = seen.hold(int(edge.again), f"{edge.again:g} again: whether it meets the SLO is unresolved")
    elif edge.missed is None:
        assert edge.met is not None
        C = min(2 * int(edge.met), seen.top)
        if edge.met >= C:
            return Next(None, f"{told(edge, 'in flight')}, {seen.bar}")
        step = seen.hold(C, f"the SLO is still met at {edge.met:g}: doubling")
    else:
        met = edge.met or 0.0
        if edge.missed <= max(met + 1, met * CLOSE):
            return Next(None, told(edge, "in flight"))
        C = min(max(round(math.sqrt(met * edge.missed)), int(met) + 1), math.ceil(edge.missed) - 1)
        step = seen.hold(C, f"the SLO is met at {met:g} and not at {edge.missed:g}: {C} lies between")
    return step or Next(None, f"{told(edge, 'in flight')}; {seen.no_more()}")


def by_rate(held: Sequence[Held], search: Search, at_most: int) -> Next:
    """Double the rate until it misses the SLO or is unstable, then bisect; halve it where even the first misses."""
    if not held:
        first = _round(search.first_rate or 1.0)
        return Next(None, "the search begins with about one request in flight" if search.first_rate else "begin", first)
    outcomes: dict[float, list[str]] = {}
    for h in held:
        assert h.rate is not None
        outcomes.setdefault(h.rate, []).append(_outcome(h))
    edge = edge_of(outcomes)
    found = f"stopped: {told(edge, 'requests per second')}"
    if edge.again is not None:
        rate, reason = edge.again, f"{edge.again:g} again: whether it meets the SLO is unresolved"
    elif edge.missed is None:
        assert edge.met is not None
        rate, reason = _round(2 * edge.met), f"{edge.met:g} requests per second are met: doubling"
    elif edge.met is None:
        rate, reason = _round(edge.missed / 2), f"{edge.missed:g} requests per second are not met: half of it"
    elif edge.missed <= CLOSE * edge.met:
        return Next(None, found)
    else:
        rate = _round(math.sqrt(edge.met * edge.missed))
        reason = f"the SLO is met at {edge.met:g} and not at {edge.missed:g}: {rate:g} lies between"
    last = held[-1]
    assert last.rate is not None
    if len(held) >= at_most:
        return Next(None, f"{found}; {len(held)} levels were held")
    if search.seconds_left is not None and last.seconds > search.seconds_left:
        return Next(None, f"{found}; {search.seconds_left:.3g} s left do not suffice for another level")
    if search.requests_left is not None and last.requests / last.rate * rate > search.requests_left:
        return Next(None, f"{found}; {search.requests_left} requests left do not suffice for another level")
    return Next(None, reason, rate)


def _outcome(h: Held) -> str:
    """Met, missed or unresolved; without an SLO, what is stable meets it."""
    if h.unstable or h.error_rate > ERRORS:
        return "missed"
    return (h.slo or "met") if h.valid else "unresolved"


def _round(rate: float) -> float:
    """Three digits are enough for a rate.

    >>> _round(22.6274)
    22.6
    """
    return float(f"{rate:.3g}")
