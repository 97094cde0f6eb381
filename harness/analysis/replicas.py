"""The replicas of a level: the figures of each, by a level's formulas, from its own requests in the window. Pure.

Left out: when one of them is lost (`patterns`).
"""

from __future__ import annotations

import numpy as np

from harness.analysis.conditions import Conditions
from harness.analysis.figures import part_summary
from harness.analysis.table import Bools, Table
from harness.data.levels import LevelSummary, ReplicaSummary
from harness.data.record import Level
from harness.data.views import ServerView

_FIGURES = [name for name in ReplicaSummary.__struct_fields__ if name in LevelSummary.__struct_fields__]


def rows(table: Table, url: str) -> Bools:
    """Return which requests went to a replica, shape [requests]."""
    return np.fromiter((each == url for each in table.url), np.bool_, len(table.url))


def of_level(
    whole: LevelSummary,
    table: Table,
    level: Level,
    conditions: Conditions,
    servers: dict[str, ServerView | None],
) -> dict[str, ReplicaSummary]:
    """Return the figures of each replica, by its url; `servers` are what each publishes of itself."""
    made = {url: part_summary(table.only(rows(table, url)), level, conditions, whole) for url in servers}
    in_flight = sum(each.in_flight or 0.0 for each in made.values())
    found = {}
    for url, each in made.items():
        figures = {name: getattr(each, name) for name in _FIGURES} | {"server": servers[url]}
        share = (each.in_flight or 0.0) / in_flight if in_flight else None
        found[url] = ReplicaSummary(in_flight_share=share, **figures)
    return found
