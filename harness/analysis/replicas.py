"""The replicas of a level: the figures of each, by a level's formulas, from its own requests in the window. Pure.

Left out: when one of them is lost (`node_loss`).
"""

from __future__ import annotations

import numpy as np

from harness.analysis.conditions import Conditions
from harness.analysis.figures import part_summary
from harness.analysis.table import Bools, Table
from harness.data.judgement import Code, Verdict, doubt
from harness.data.record import Level
from harness.data.summary import LevelSummary, ReplicaSummary, ServerView
from harness.spec.fleet import LEAST_IN_FLIGHT

UNEVEN = 0.25  # of an equal share, by which the share of the busiest replica may be above it
_BY_CHANCE = 3  # standard deviations of a share, up to which it is no sign of anything
_FIGURES = [name for name in ReplicaSummary.__struct_fields__ if name in LevelSummary.__struct_fields__]


def rows(table: Table, url: str) -> Bools:
    """Which requests went to a replica, shape [requests]."""
    return np.fromiter((each == url for each in table.url), np.bool_, len(table.url))


def of_level(
    whole: LevelSummary,
    table: Table,
    level: Level,
    conditions: Conditions,
    servers: dict[str, ServerView | None],
) -> dict[str, ReplicaSummary]:
    """The figures of each replica, by its url; `servers` are what each publishes of itself."""
    made = {url: part_summary(table.only(rows(table, url)), level, conditions, whole) for url in servers}
    in_flight = sum(each.in_flight or 0.0 for each in made.values())
    found = {}
    for url, each in made.items():
        figures = {name: getattr(each, name) for name in _FIGURES} | {"server": servers[url]}
        share = (each.in_flight or 0.0) / in_flight if in_flight else None
        found[url] = ReplicaSummary(in_flight_share=share, **figures)
    return found


def uneven(s: LevelSummary, balance: str) -> Verdict | None:
    """Replicas of which one has more than its share, by what the policy balances, and by more than chance explains."""
    if not s.replicas or len(s.replicas) < 2 or not s.requests:
        return None
    requests = sum(each.requests for each in s.replicas.values())
    shares = {url: each.requests / requests for url, each in s.replicas.items()} if requests else {}
    what = "the requests"
    if balance == LEAST_IN_FLIGHT:
        shares, what = {url: each.in_flight_share or 0.0 for url, each in s.replicas.items()}, "what was in flight"
    equal = 1 / len(s.replicas)
    url = max(shares, key=lambda url: shares[url], default="")
    chance = _BY_CHANCE * (equal * (1 - equal) / max(1, requests)) ** 0.5
    if not url or shares[url] <= equal + max(UNEVEN * equal, chance):
        return None
    return doubt(
        Code.REPLICAS_UNEVEN,
        f"{url} had {shares[url]:.0%} of {what}; an equal share is {equal:.0%}, and {balance} balances them",
        "see whether a replica was lost, and the replicas' own figures",
        s.load,
    )
