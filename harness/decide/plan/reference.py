"""Where the figures lie in two widely quoted tables, of benchmarks and of tiers.

The tables name no source, and nothing rests on them. Their rows are among the claims (predict.claims).
"""

from __future__ import annotations

import msgspec

from harness.decide.plan.capacity import Capacity, MeasuredLoad
from harness.decide.plan.costs import Costs
from harness.predict.claims import Claim, claims, facts_of_run, holding
from harness.spec.work import Unit


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a figure lies in a table."""

    table: str
    value: float
    lies: str  # like "between P50 and P95"


def places(capacity: Capacity, at: MeasuredLoad, costs: Costs | None) -> list[Place]:
    """Return the places in the rows whose setup this is; none where model or card is not known."""
    if capacity.prediction is None or capacity.counts is not Unit.OUTPUT_TOKENS:
        return []
    facts = facts_of_run(capacity.prediction) | {"plan": "yes"}
    X = at.work_per_s.value
    values = {
        "throughput": X,
        "usd_per_million": costs.usd_per_million_at_point.value if costs else None,
        "batch_utilization": at.batch_utilization,
    }
    found = [
        Place(table=row.name, value=value, lies=lies(row, value))
        for row in holding(facts)
        if row.name and (value := values[row.figure]) is not None
    ]
    size = facts.get("size", "")
    if X and size:
        found.append(Place(table=f"tiers of a {size.upper()}, tok/s", value=X, lies=tier(size, X)))
    return found


def lies(row: Claim, value: float) -> str:
    """Return between which percentiles a figure lies; of a price less is better.

    >>> known = {each.id: each for each in claims()}
    >>> lies(known["benchmark-7b-h100"], 4300.0)
    'between P50 and P95'
    >>> lies(known["benchmark-7b-cost"], 0.40), lies(known["benchmark-7b-cost"], 0.04)
    ('not as good as P50', 'world class')
    """
    sign = -1 if row.figure == "usd_per_million" else 1
    worse, best = (row.low, row.high)[::sign]
    marks = (("P50", worse), ("P95", row.p95), ("P99", row.p99), ("world class", best))
    reached = [mark is not None and sign * value >= sign * mark for _, mark in marks].count(True)
    if reached in (0, len(marks)):
        return "world class" if reached else "not as good as P50"
    return f"between {marks[reached - 1][0]} and {marks[reached][0]}"


def tier(size: str, value: float) -> str:
    """Return the tier of a throughput; between two where the table has a gap.

    >>> tier("7b", 2500.0), tier("7b", 1800.0), tier("7b", 100.0)
    ('optimized', 'between basic and optimized', 'below basic')
    """
    rows = [each for each in claims() if each.id.startswith("tier-") and each.id.endswith(f"-{size}")]
    names = [each.quote.partition(":")[0].lower() for each in rows]
    at = [value >= (each.low or 0.0) for each in rows].count(True)  # tiers that begin at or below it
    if not at:
        return f"below {names[0]}"
    high = rows[at - 1].high
    if high is not None and value > high:
        return f"between {names[at - 1]} and {names[at]}"
    # Where one tier ends as the next begins, the value is still of the first.
    return names[at - 2] if at > 1 and rows[at - 2].high == value else names[at - 1]
