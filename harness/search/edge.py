"""Where an SLO stops being met: the largest load that met it and the smallest above it that did not.

From what every level said, each as often as it was held; in concurrency or in requests per second. Left out: what
"met" is (`slo`), and which load is tried next (`slo_search`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

HOLDINGS = 3  # of a level whose SLO stays unresolved; then that is the answer
CLOSE = 1.05  # largest met and smallest missed this near to each other: the edge is found


class Edge(msgspec.Struct, frozen=True):
    """Where the SLO stops being met: in concurrency or in requests per second."""

    met: float | None  # the largest
    missed: float | None  # the smallest above it that did not meet it, be it unresolved
    unresolved: bool  # that one is
    again: float | None  # to be held once more before that is settled


def edge_of(outcomes: Mapping[float, Sequence[str]]) -> Edge:
    """The edge from what every level said, each as often as it was held.

    >>> edge_of({1: ["met"], 2: ["met"], 4: ["missed"]})
    Edge(met=2, missed=4, unresolved=False, again=None)
    >>> edge_of({1: ["met"], 2: ["unresolved"], 4: ["missed"]}).again
    2
    """
    said = {x: majority(outcomes[x]) for x in sorted(outcomes)}
    misses = [x for x in said if said[x] == "missed"]
    # More load that meets what less has missed: one of the two is chance.
    odd = [x for x in misses if len(outcomes[x]) == 1 and any(y > x and said[y] == "met" for y in said)]
    lowest = misses[0] if misses else math.inf
    met = max((x for x in said if said[x] == "met" and x < lowest), default=None)
    missed = min((x for x in said if said[x] != "met" and x > (met or 0)), default=None)
    unresolved = missed is not None and said[missed] == "unresolved"
    again = missed if missed is not None and unresolved and len(outcomes[missed]) < HOLDINGS else None
    return Edge(met, missed, unresolved, odd[0] if odd else again)


def majority(said: Sequence[str]) -> str:
    """What most of the holdings that said anything did.

    >>> majority(["unresolved", "met"]), majority(["met", "missed"])
    ('met', 'unresolved')
    """
    met, missed = said.count("met"), said.count("missed")
    return "unresolved" if met == missed else "met" if met > missed else "missed"


def told(edge: Edge, what: str) -> str:
    """The edge in words; `what` is the load's unit."""
    how = "unresolved" if edge.unresolved else "missed"
    if edge.met is None:
        return f"the SLO is {how} even at {edge.missed:g} {what}"
    if edge.missed is None:
        return f"the SLO is met up to {edge.met:g} {what}"
    return f"the SLO is met up to {edge.met:g} {what} and {how} at {edge.missed:g}"
