"""Where an SLO stops being met: the largest load that met it and the smallest above it that did not.

From the outcomes of every level, each as often as it was measured; in concurrency or in requests per second. Left out:
what "met" is (`analysis.slo`), and which load is tried next (`search.slo`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

REPEATS = 3  # of a level whose SLO stays unresolved; then that is the answer
CLOSE = 1.05  # largest met and smallest missed this near to each other: the edge is found


class Edge(msgspec.Struct, frozen=True):
    """Where the SLO stops being met: in concurrency or in requests per second."""

    met: float | None  # the largest
    missed: float | None  # the smallest above it that did not meet it, be it unresolved
    unresolved: bool  # that one is
    again: float | None  # to be measured once more before that is settled


def edge_of(outcomes: Mapping[float, Sequence[str]]) -> Edge:
    """The edge from the outcomes of every level, each as often as it was measured.

    >>> edge_of({1: ["met"], 2: ["met"], 4: ["missed"]})
    Edge(met=2, missed=4, unresolved=False, again=None)
    >>> edge_of({1: ["met"], 2: ["unresolved"], 4: ["missed"]}).again
    2
    """
    outcome = {x: majority(outcomes[x]) for x in sorted(outcomes)}
    misses = [x for x in outcome if outcome[x] == "missed"]
    # More load that meets what less has missed: one of the two is chance.
    odd = [x for x in misses if len(outcomes[x]) == 1 and any(y > x and outcome[y] == "met" for y in outcome)]
    lowest = misses[0] if misses else math.inf
    met = max((x for x in outcome if outcome[x] == "met" and x < lowest), default=None)
    missed = min((x for x in outcome if outcome[x] != "met" and x > (met or 0)), default=None)
    unresolved = missed is not None and outcome[missed] == "unresolved"
    again = missed if missed is not None and unresolved and len(outcomes[missed]) < REPEATS else None
    return Edge(met, missed, unresolved, odd[0] if odd else again)


def majority(outcomes: Sequence[str]) -> str:
    """What most of the repeats that came to anything did.

    >>> majority(["unresolved", "met"]), majority(["met", "missed"])
    ('met', 'unresolved')
    """
    met, missed = outcomes.count("met"), outcomes.count("missed")
    return "unresolved" if met == missed else "met" if met > missed else "missed"
