"""Stacks at the same throughput, and at the same latency: what one request in flight more or less hides.

Requests in flight are no measure of demand: a faster stack answers more requests with the same number of them. So
latencies are compared where stacks deliver the same tokens, and throughputs where they keep the same limit. Between
two levels both are straight lines in logarithms; beyond the levels nothing is said.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from harness.decide.compare.runs import Load

Points: TypeAlias = Sequence[tuple[float, float]]  # throughput and latency of each level, by rising load
FIGURES = ("ttft_p50_s", "itl_mean_s")
_SHARES = (0.25, 0.5, 0.75, 0.9)  # of the throughput that every stack reaches
_GRID = (1.0, 2.0, 5.0)  # of limits, in each power of ten
_LIMITS = 3  # of each figure


class AtThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies where each stack delivers so many tokens a second; seconds, in the order of the stacks."""

    tokens_per_s: float
    ttft_p50_s: list[float | None]
    itl_mean_s: list[float | None]


class AtLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The most tokens a second that each stack delivers within a limit; `open`: no level of it misses the limit."""

    figure: str
    limit_s: float
    tokens_per_s: list[float | None]
    open: list[bool]


def at_throughput(stacks: Sequence[Sequence[Load]]) -> list[AtThroughput]:
    """Return the latencies at shares of the throughput that all stacks reach; none where one has no levels."""
    points = {name: [_points(loads, name) for loads in stacks] for name in FIGURES}
    tops = [max((X for name in FIGURES for X, _ in points[name][i]), default=0.0) for i in range(len(stacks))]
    reached = min(tops, default=0.0)
    rows = [
        AtThroughput(
            tokens_per_s=share * reached,
            **{name: [latency_at(each, share * reached) for each in points[name]] for name in FIGURES},
        )
        for share in _SHARES
        if reached
    ]
    return [row for row in rows if any(_known(getattr(row, name)) for name in FIGURES)]


def at_limits(stacks: Sequence[Sequence[Load]]) -> list[AtLimit]:
    """Return the throughput within a few limits that tell the stacks apart: each is kept and missed by levels."""
    out = []
    for name in FIGURES:
        points = [_points(loads, name) for loads in stacks]
        if not all(points):
            continue
        low, high = max(each[0][1] for each in points), max(latency for each in points for _, latency in each)
        for limit in _between(low, high)[:_LIMITS]:
            found = [throughput_within(each, limit) for each in points]
            tokens, unbounded = [each[0] for each in found], [each[1] for each in found]
            if _known(tokens):
                out.append(AtLimit(figure=name, limit_s=limit, tokens_per_s=tokens, open=unbounded))
    return out


def _known(values: Sequence[float | None]) -> bool:
    return sum(value is not None for value in values) > 1


def _between(low: float, high: float) -> list[float]:
    """Return round limits between two latencies, rising.

    >>> _between(0.013, 0.21)
    [0.02, 0.05, 0.1, 0.2]
    """
    if not 0 < low < high:
        return []
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [limit for power in powers for each in _GRID if low <= (limit := round(each * 10.0**power, 9)) < high]


def _points(loads: Sequence[Load], name: str) -> Points:
    """Return each load's throughput and latency, geometric means of its runs."""
    found: dict[float, list[tuple[float, float]]] = {}
    for each in loads:
        latency = getattr(each, name)
        if not each.open_loop and each.tokens_per_s and latency:
            found.setdefault(each.load, []).append((each.tokens_per_s, latency))
    return [(_middle([X for X, _ in own]), _middle([s for _, s in own])) for _, own in sorted(found.items())]


def _middle(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def latency_at(points: Points, X: float) -> float | None:
    """Return the latency at the lowest load that delivers a throughput; None where no two levels hold it.

    >>> latency_at([(100.0, 0.01), (200.0, 0.02), (200.0, 0.5)], 150.0)
    0.015
    """
    for (low, before), (high, after) in itertools.pairwise(points):
        if low <= X <= high and low < high:
            share = math.log(X / low) / math.log(high / low)
            return round(math.exp(math.log(before) + share * math.log(after / before)), 12)
    return None


def throughput_within(points: Points, limit: float) -> tuple[float | None, bool]:
    """Return the throughput up to which a latency keeps a limit, and whether no level misses it.

    >>> throughput_within([(100.0, 0.01), (400.0, 0.04)], 0.02), throughput_within([(100.0, 0.01)], 0.02)
    ((200.0, False), (100.0, True))
    """
    best: float | None = None
    for i, (X, latency) in enumerate(points):
        if latency > limit:
            if i == 0:
                return None, False
            low, before = points[i - 1]
            share = math.log(limit / before) / math.log(latency / before)
            between = math.exp(math.log(low) + share * math.log(X / low))
            return round(max(best or 0.0, between), 9), False
        best = max(best or 0.0, X)
    return best, True
