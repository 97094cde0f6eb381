"""Where the figures lie in two widely quoted tables, of benchmarks and of tiers.

The tables name no source, and nothing rests on them.
"""

from __future__ import annotations

import msgspec

from harness.decide.plan.capacity import Capacity, MeasuredLoad
from harness.decide.plan.costs import Costs
from harness.predict import claims
from harness.spec.work import Unit


class Benchmark(msgspec.Struct, frozen=True):
    """One row: a figure at percentiles of the industry, as the table has it, and for which setups."""

    name: str
    figure: str  # throughput | usd_per_million | batch_utilization
    where: dict[str, str]  # of `claims.facts_of_run`
    p50: float
    p95: float
    p99: float
    best: float


_7B, _70B, _H100, _A100 = {"size": "7b"}, {"size": "70b"}, {"card": "h100"}, {"card": "a100-80"}
_ONE, _TP8 = {"gpus": "1"}, {"tp": "8"}
_DECODE = "decode throughput, tok/s: "
BENCHMARKS = (
    Benchmark(f"{_DECODE}7B on one A100 80GB", "throughput", _7B | _A100 | _ONE, 2500, 3500, 4000, 5000),
    Benchmark(f"{_DECODE}70B on 8 A100 80GB", "throughput", _70B | _A100 | _TP8, 800, 1200, 1500, 2000),
    Benchmark(f"{_DECODE}7B on one H100 80GB", "throughput", _7B | _H100 | _ONE, 4000, 5500, 6500, 8000),
    Benchmark("cost of a 7B, $ per million tokens", "usd_per_million", _7B, 0.30, 0.15, 0.10, 0.05),
    Benchmark("batch utilisation", "batch_utilization", {}, 0.70, 0.85, 0.92, 0.95),
)
TIERS: dict[str, tuple[tuple[str, float, float | None], ...]] = {  # output tok/s from and to, by size
    "7b": (
        ("basic", 500, 1500), ("optimized", 2000, 3500), ("advanced", 4000, 6000), ("expert", 6000, 10_000),
        ("world-class", 10_000, None),
    ),
    "70b": (
        ("basic", 50, 150), ("optimized", 300, 600), ("advanced", 600, 1000), ("expert", 1000, 2000),
        ("world-class", 2000, None),
    ),
}  # fmt: skip


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a figure lies in a table."""

    table: str
    value: float
    lies: str  # like "between P50 and P95"


def places(capacity: Capacity, at: MeasuredLoad, costs: Costs | None) -> list[Place]:
    """Return where the run lies in the rows whose setup it has; none where model or card is not known."""
    if capacity.prediction is None or capacity.counts is not Unit.OUTPUT_TOKENS:
        return []
    facts = claims.facts_of_run(capacity.prediction)
    X = at.work_per_s.value
    values = {
        "throughput": X,
        "usd_per_million": costs.usd_per_million_at_point.value if costs else None,
        "batch_utilization": at.batch_utilization,
    }
    found = []
    for row in BENCHMARKS:
        value = values[row.figure]
        if value is not None and row.where.items() <= facts.items():
            found.append(Place(table=row.name, value=value, lies=lies(row, value)))
    size = facts.get("size", "")
    if X and size in TIERS:
        found.append(Place(table=f"tiers of a {size.upper()}, tok/s", value=X, lies=tier(size, X)))
    return found


def lies(row: Benchmark, value: float) -> str:
    """Return between which percentiles a figure lies, where the best is the last.

    >>> lies(BENCHMARKS[2], 4300.0), lies(BENCHMARKS[3], 0.40), lies(BENCHMARKS[3], 0.04)
    ('between P50 and P95', 'not as good as P50', 'world class')
    """
    sign = -1 if row.best < row.p50 else 1
    marks = (("P50", row.p50), ("P95", row.p95), ("P99", row.p99), ("world class", row.best))
    reached = [name for name, mark in marks if sign * value >= sign * mark]
    if not reached:
        return "not as good as P50"
    return "world class" if len(reached) == len(marks) else f"between {reached[-1]} and {marks[len(reached)][0]}"


def tier(size: str, value: float) -> str:
    """Return the tier of a throughput; between two where the table has a gap.

    >>> tier("7b", 2500.0), tier("7b", 1800.0), tier("7b", 100.0)
    ('optimized', 'between basic and optimized', 'below basic')
    """
    tiers, reached = TIERS[size], "below basic"
    for i, (name, low, high) in enumerate(tiers):
        if value < low:
            return reached
        if high is None or value <= high:
            return name
        reached = f"between {name} and {tiers[min(i + 1, len(tiers) - 1)][0]}"
    return reached
