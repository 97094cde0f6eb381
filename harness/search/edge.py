"""Where an SLO stops being met: the largest load that met it and the smallest above it that did not.

Every load is judged by all of its repeats together. One that has too few requests to be decided still leans: towards
met where the share within each limit is what is needed, else towards missed. That is enough to find the edge by, and
the loads next to it are then measured for long enough to decide them. Where the one below the edge stays open, the next
lower one is, so that there is a load that is known to meet the SLO. In concurrency or in requests per second. Left out:
what "met" is (`analysis.slo`), and which load is tried next (`search.slo`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from harness.analysis import slo
from harness.data.judgement import Outcome
from harness.data.summary import Attainment
from harness.search.measured import MeasuredLevel

REPEATS = 3  # of a load that stays undecided; then that is the answer
CLOSE = 1.05  # largest met and smallest missed this near to each other: the edge is found

_ENDLESS = 5.0  # times the fewest samples: where more would be needed, repeats do not decide a load


class JudgedLoad(msgspec.Struct, frozen=True):
    """One load by all of its repeats."""

    outcome: str  # an Outcome
    leans: str  # the same where it is decided, else where its share lies; unresolved where it says nothing
    times: int  # measured
    decidable: bool  # whether repeats may decide it


class Edge(msgspec.Struct, frozen=True):
    """Where the SLO stops being met: in concurrency or in requests per second."""

    met: float | None  # the largest that leans to it
    missed: float | None  # the smallest above it that does not, be it that nothing is known of it
    likely: bool  # it is not decided that the SLO is met there
    unresolved: bool  # the smallest is not decided
    again: float | None  # to be measured once more before anything else
    undecided: float | None  # to be measured for long enough once the edge is found: next to it, else the next lower


def edge_of(judged: Mapping[float, JudgedLoad]) -> Edge:
    """The edge by what every load comes to.

    >>> met, missed, open = (JudgedLoad(o, o, 1, True) for o in ("met", "missed", "unresolved"))
    >>> edge_of({1: met, 2: met, 4: missed})
    Edge(met=2, missed=4, likely=False, unresolved=False, again=None, undecided=None)
    >>> edge_of({1: met, 2: open, 4: missed}).again
    2
    >>> likely = JudgedLoad("unresolved", "met", 1, True)
    >>> edge_of({1: likely, 2: likely, 4: missed})
    Edge(met=2, missed=4, likely=True, unresolved=False, again=None, undecided=2)
    """
    loads = sorted(judged)
    misses = [x for x in loads if judged[x].leans == Outcome.MISSED]
    # More load that meets what less has missed: one of the two is chance.
    odd = [x for x in misses if judged[x].times == 1 and any(y > x and judged[y].leans == Outcome.MET for y in loads)]
    lowest = misses[0] if misses else math.inf
    met = max((x for x in loads if judged[x].leans == Outcome.MET and x < lowest), default=None)
    missed = min((x for x in loads if judged[x].leans != Outcome.MET and x > (met or 0)), default=None)
    silent = missed is not None and judged[missed].leans == Outcome.UNRESOLVED and judged[missed].times < REPEATS
    surely_met = max((x for x in loads if judged[x].outcome == Outcome.MET and x < lowest), default=0.0)
    lower = [x for x in reversed(loads) if surely_met < x < (met or 0)]
    undecided = [
        x
        for x in (met, missed, *lower)
        if x is not None
        and judged[x].outcome == Outcome.UNRESOLVED != judged[x].leans
        and judged[x].decidable
        and judged[x].times < REPEATS
    ]
    return Edge(
        met,
        missed,
        met is not None and judged[met].outcome == Outcome.UNRESOLVED,
        missed is not None and judged[missed].outcome == Outcome.UNRESOLVED,
        odd[0] if odd else missed if silent else None,
        undecided[0] if undecided else None,
    )


def judged(repeats: Sequence[MeasuredLevel]) -> JudgedLoad:
    """One load by all of its repeats, as the report judges it; one with too many errors missed the SLO too."""
    sound = [m.attainments for m in repeats if m.valid and m.in_flight_ok and not _failed(m)]
    found = slo.judged(sound, sum(map(_failed, repeats)))
    return JudgedLoad(found.outcome, found.leans, len(repeats), _decidable(found.pooled, len(repeats)))


def _failed(m: MeasuredLevel) -> bool:
    low = m.valid and not m.in_flight_ok  # fewer than asked for: they can show a miss, and not that the load meets it
    return m.unstable or m.fails or (low and m.slo == Outcome.MISSED)


def _decidable(pooled: Sequence[Attainment], times: int) -> bool:
    """Whether a few times the fewest samples there can be decide every limit that is open, and come in time."""
    return all(_comes(each, times) for each in pooled if each.outcome == Outcome.UNRESOLVED)


def _comes(open_: Attainment, times: int) -> bool:
    """Whether enough samples come with as many repeats as a load is measured.

    With too few samples to tell how they clump, it is known only of a load that was measured for longer already, and
    still has far too few: it takes so long that it stays open.
    """
    enough, fewest = slo.enough_independent(open_), slo.fewest(open_.needed)
    if enough is None or enough > _ENDLESS * fewest:
        return False
    if open_.n >= fewest:
        return slo.independent(open_) * REPEATS / times >= enough
    return times == 1 or open_.n * REPEATS / times >= fewest
