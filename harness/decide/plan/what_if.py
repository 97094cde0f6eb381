"""What a page needs to plan again while its reader moves limits, price and demand.

The measured loads, with the latency by which each limit is decided, and what goes into `replicas.count` and
`costs.costs`.
Limits are judged by the percentiles that the levels have, as in a folder without its requests: a distribution is too
large for a page. Reserves, a day's traffic and other ways to pay are left to `knee plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from harness.analysis import slo
from harness.base.errors import HarnessError
from harness.data.judgement import Outcome
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.summary import Summary
from harness.data.views import Spread
from harness.decide.levels import outcome, percentile
from harness.decide.plan import capacity
from harness.decide.plan.question import MONTH_H, UTILIZATION

_BELOW = 1 - 1e-9  # of a value: just below it
_STEPS = 60  # of a slider from its low end to its high end
_ROOM = 1.3  # beyond the measured latencies, so that a limit may be met by all loads and by none
_REPLICAS = 10.0  # whose throughput is the demand at first
_DEMANDS = 0.01, 100.0  # of that demand
_PRICES = 0.1, 10.0  # of the price that is known


class PlannedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A measured load of one replica."""

    load: float
    work_per_s: float
    ci95: tuple[float, float]
    latency_s: dict[str, float | None]  # by limit: of the slowest repeat; None meets no limit
    by_largest: list[str]  # limits whose percentile is not known, so that the largest value is shown
    met_from_s: dict[str, float | None]  # by limit: from so many seconds on it is met; None: too few requests
    missed_below_s: dict[str, float]  # by limit: one of fewer seconds is missed


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """A slider over fixed stops, rising."""

    name: str  # of a limit, or price | rps
    stops: list[float | None]  # seconds, USD per GPU and hour, or requests per second; None: no limit
    start: int  # index of the stop that it begins with


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The table, and the formula's other figures."""

    loads: list[PlannedLoad]
    controls: list[Control]
    work_per_request: float
    gpus: float  # of a replica
    unit: str  # a Unit
    per_s: str
    load_unit: str
    own_slo: bool  # the run or a class of it has limits: `knee plan` takes them where it has no others
    utilization: float = UTILIZATION
    month_h: float = MONTH_H
    enough: float = capacity.MOST_OF_IT  # of the highest throughput: the knee, where there are no limits


def of_run(manifest: Manifest, summary: Summary) -> WhatIf | None:
    """Return the table of a run with a curve and a price; None for others, and where `knee plan` would refuse it."""
    if summary.curve is None or not manifest.price:
        return None
    try:
        found = capacity.of_summary("", manifest, summary, {}, by="percentiles")
    except HarnessError:
        return None
    if not found.gpus or found.open_loop:
        return None
    names = ("ttft_p99", "itl_p99") if found.counts.decodes else ("e2e_p99",)
    levels, replicas = capacity.planned(summary), found.measured_replicas
    loads = []
    for each in found.loads:
        same = [level for level in levels if level.load == each.load * replicas]
        loads.append(
            PlannedLoad(
                load=each.load,
                work_per_s=each.throughput,
                ci95=each.throughput_ends,
                latency_s={name: _slowest(same, name) for name in names},
                by_largest=[name for name in names if any(_spread(level, name).p99 is None for level in same)],
                met_from_s={name: _met_from(same, name) for name in names},
                missed_below_s={name: _missed_below(same, name) for name in names},
            )
        )
    limits = [_limit(name, loads, manifest.scenario.slo) for name in names]
    at = capacity.choose(found).at
    demand = float(f"{_REPLICAS * UTILIZATION * (at.requests_per_s if at else 1.0):.2g}")
    return WhatIf(
        loads=loads,
        controls=[
            *(each for each in limits if each is not None),
            _control("rps", demand, _DEMANDS),
            _control("price", float(manifest.price), _PRICES),
        ],
        work_per_request=found.work_per_request,
        gpus=found.gpus,
        unit=found.unit,
        per_s=found.counts.per_s,
        load_unit=summary.load_unit,
        own_slo=manifest.scenario.has_limits,
    )


def _spread(level: LevelSummary, name: str) -> Spread:
    spread: Spread = getattr(level, f"{name.removesuffix('_p99')}_s")
    return spread


def _slowest(levels: Sequence[LevelSummary], name: str) -> float | None:
    """Return what decides a limit of that name at one load: the slowest of its repeats."""
    (limit,) = slo.limits({name: 1.0})
    found = [percentile(level, limit) for level in levels]
    known = [value for value in found if value is not None]
    return max(known) if known and len(known) == len(found) else None


def _stored(levels: Sequence[LevelSummary], name: str) -> list[float]:
    """Return the seconds that are stored of a figure, rising: what a limit decides changes there alone."""
    spreads = [_spread(level, name) for level in levels]
    found = {value for s in spreads for value in (s.p50, s.p90, s.p95, s.p99, s.max) if value is not None}
    return sorted(found)


def _met_from(levels: Sequence[LevelSummary], name: str) -> float | None:
    """Return the shortest limit that the load meets, as `knee plan` decides it; None where no limit is known to be."""
    met = (s for s in _stored(levels, name) if outcome(levels, *slo.limits({name: s})) == Outcome.MET)
    return next(met, None)


def _missed_below(levels: Sequence[LevelSummary], name: str) -> float:
    """Return the seconds below which every limit is missed, as `knee plan` decides it."""
    below = [s for s in _stored(levels, name) if outcome(levels, *slo.limits({name: s * _BELOW})) == Outcome.MISSED]
    return max(below, default=0.0)


def _limit(name: str, loads: Sequence[PlannedLoad], own: Mapping[str, float]) -> Control | None:
    """Return a slider around the measured latencies, the last stop without a limit; None where none was measured."""
    known = [value for each in loads if (value := each.latency_s[name]) and value > 0]
    if not known:
        return None
    begun = own.get(name, own.get(name.removesuffix("_p99")))
    found: list[float | None] = list(stops(min(known) / _ROOM, max(known) * _ROOM, *([begun] if begun else [])))
    return Control(name=name, stops=[*found, None], start=len(found) if begun is None else found.index(begun))


def _control(name: str, start: float, ends: tuple[float, float]) -> Control:
    found = stops(start * ends[0], start * ends[1], start) if start > 0 else [0.0]
    return Control(name=name, stops=list(found), start=found.index(start))


def stops(low: float, high: float, *exact: float) -> list[float]:
    """Return values from low to high in even ratios, of two digits, with those that are to be met exactly.

    >>> stops(1.0, 1.1, 1.05), len(stops(0.01, 100.0))
    ([1.0, 1.05, 1.1], 61)
    """
    rounded = {float(f"{low * (high / low) ** (step / _STEPS):.2g}") for step in range(_STEPS + 1)}
    return sorted(rounded.union(exact))
