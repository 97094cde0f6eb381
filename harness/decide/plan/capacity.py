"""What one replica was measured to do at each load, which is all that a plan knows of a server.

Throughput at a load is the curve's (`analysis.answer`), latencies are those of its level. Invalid levels are left out.
A run on several replicas is divided by their number. Where a folder has no requests, its levels say of the limits that
it was measured with whether they meet them, and of no others.

Each replica is to run at one of the measured loads, the operating point:

    slo    the highest load that meets the limits
    cost   the lowest load with 99 % of the highest throughput, of those that meet the limits where there are any
    knee   the same with 95 %

A level that had luck is not chosen for it, since throughput is the curve's. Offline work has no limits and runs by
cost. `knee` needs no limits: at a higher load more requests only wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from harness.analysis import answer, slo
from harness.analysis.rules.requests import errors_above_1_percent
from harness.base.errors import HarnessError
from harness.data.judgement import Gravity, Outcome
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.summary import BEYOND, Summary, is_decided
from harness.data.views import Spread, Value
from harness.decide.levels import opened, valid, weighted, within_reason
from harness.decide.plan.question import By
from harness.spec.work import Unit

MOST_OF_IT = 0.95  # see `knees.plateau95`
_ALL_OF_IT = 0.99  # a plateau is not known better, and more load on it only waits

ClassLimit: TypeAlias = tuple[str | UnsetType, slo.SloLimit]  # UNSET: of all requests without limits of their own


class MeasuredLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One load of one replica. Work is counted in the run's unit: output tokens, input tokens or documents."""

    load: float  # requests in flight, or in open loop requests per second
    work_per_s: Value  # has a 95 % interval if there is a curve, or the level has its own
    requests_per_s: float  # requests that make up this work
    in_flight: float | None
    ttft_s: Spread  # a request that decodes nothing has its whole time here
    itl_s: Spread
    e2e_s: Spread
    slo: str | None  # met | missed | unresolved; None without an SLO
    doubts: list[str]  # codes of the level's doubts

    @property
    def throughput(self) -> float:
        """Return the work per second; 0 if it is not known."""
        return self.work_per_s.value or 0.0

    @property
    def throughput_ends(self) -> tuple[float, float]:
        """Return the ends of its interval, each the throughput itself if it is not known."""
        low, high = self.work_per_s.ci95 or (None, None)
        return low or self.throughput, high or self.throughput


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """One replica."""

    source: str  # the folder
    simulated: bool
    open_loop: bool
    unit: str  # a Unit
    slo: list[str]  # limits, as they are written; those of a class with its name
    limits_s: dict[str, float] = {}  # those of them that all requests have, by name
    slo_load: float | None  # the highest load that meets the SLO
    slo_missed: float | None  # the lowest that misses it
    rises: bool  # throughput still rises at the last load
    fails_at: float | None = None  # the lowest load at which more than 1 % of the requests failed
    seats: float | None = None  # requests that are served at once, if the records show it; more wait
    measured_replicas: int  # replicas that the run loaded as one
    gpu: str | None
    gpus: float | None
    usd_per_gpu_hour: float | None
    work_per_request: float
    documents_per_request: float | None
    input_tokens: float | None
    output_tokens: float | None
    cold_start_s: float | None  # from its start to its first answer
    engine: str  # engine that the manifest names; "": not known
    loads: list[MeasuredLoad]  # rising
    load_unit: str = "requests in flight"  # what a load counts in a closed loop

    @property
    def counts(self) -> Unit:
        return Unit(self.unit)


class OperatingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A measured load, or why none will do."""

    by: str
    at: MeasuredLoad | None
    outcome: str  # met | missed | unresolved: of the SLO; "": there is none, or it does not count
    missed_at: float | None = None  # the lowest load that misses the SLO


def choose(capacity: Capacity, by: By | None = None, *, offline: bool = False) -> OperatingPoint:
    """Return the load to run a replica at, by SLO, knee or cost.

    The default is cost if `offline`, else the SLO if there is one, else the knee. With an SLO only loads within it
    count, and there is no load where none meets it. Raise HarnessError for "slo" where the run has none or is offline.
    """
    limited = bool(capacity.slo) and not offline
    by = by or ("cost" if offline else "slo" if limited else "knee")
    if by == "slo" and not limited:
        fact = "offline work has no limits" if offline else "the run has no SLO"
        raise HarnessError(fact, place="--by slo", way_out="leave it out" if offline else "add --slo ttft_p99=2s")
    if not limited:
        return OperatingPoint(by=by, at=_best(capacity.loads, by), outcome="")
    if capacity.slo_load is None:
        missed = Outcome.MISSED if capacity.loads[0].slo == Outcome.MISSED else Outcome.UNRESOLVED
        return OperatingPoint(by=by, at=None, outcome=missed.value, missed_at=capacity.slo_missed)
    within = [load for load in capacity.loads if load.load <= capacity.slo_load]
    at = within[-1] if by == "slo" else _best(within, by)
    return OperatingPoint(by=by, at=at, outcome=Outcome.MET.value, missed_at=capacity.slo_missed)


def _best(loads: list[MeasuredLoad], by: str) -> MeasuredLoad:
    enough = max(load.throughput for load in loads) * (_ALL_OF_IT if by == "cost" else MOST_OF_IT)
    return next(load for load in loads if load.throughput >= enough)


def read(place: str, limits: Mapping[str, float] | None = None) -> Capacity:
    """Return what a result folder says of a replica; `limits`, seconds by name, replace the SLOs of run and classes."""
    manifest, summary, _ = opened(place, limits)
    return of_summary(place, manifest, summary, limits)


def of_summary(place: str, manifest: Manifest, summary: Summary, limits: Mapping[str, float] | None) -> Capacity:
    """Return the capacity of one replica from a run's summary: loads, which meet the limits (default: the run's)."""
    levels = planned(summary)
    if not levels:
        raise HarnessError("no level of it is valid", place=place, way_out="measure it anew")
    wanted = _limits(manifest, limits)
    _must_say(levels, wanted, place)
    replicas = len(manifest.urls or ()) or 1
    if summary.unit not in list(Unit):
        raise HarnessError("it counts what this version does not know", place=place, way_out="use a newer version")
    unit = Unit(summary.unit)
    work = _work_per_request(levels, unit)
    if not work:
        raise HarnessError("the work of a request is not known", place=place, way_out="measure it anew")
    curve = summary.curve
    same = {load: [s for s in levels if s.load == load] for load in sorted({float(s.load or 0) for s in levels})}
    outcomes = {
        load: slo.judged([level.slo for level in of_load], 0).outcome.value if wanted else None
        for load, of_load in same.items()
    }
    loads = [
        _load(of_load, answer.throughput(curve, of_load), work, replicas, outcomes[load])
        for load, of_load in same.items()
    ]
    met, missed = _boundary(summary, outcomes) if wanted else (None, None)
    start, seats = manifest.stack or None, summary.knees.seats
    fails_at = min((level.load or 0 for level in summary.levels if errors_above_1_percent.voids(level)), default=None)
    return Capacity(
        source=place,
        simulated=summary.simulated,
        open_loop=any(level.rate is not None for level in levels),
        unit=unit.value,
        load_unit=summary.load_unit,
        slo=[_words(of_class, limit) for of_class, limit in wanted],
        limits_s={limit.name: limit.seconds for of_class, limit in wanted if not of_class},
        slo_load=met and met / replicas,
        slo_missed=missed and missed / replicas,
        rises=curve is not None and curve.state == BEYOND,
        fails_at=fails_at and fails_at / replicas,
        seats=seats.value / replicas if seats and seats.value else None,
        measured_replicas=replicas,
        gpu=manifest.gpu.lower() if manifest.gpu else None,
        gpus=manifest.gpus / replicas if manifest.gpus else None,
        usd_per_gpu_hour=manifest.price,
        work_per_request=work,
        documents_per_request=_ratio(levels, "documents_per_s"),
        input_tokens=_mean(levels, "input_tokens_mean"),
        output_tokens=_mean(levels, "output_tokens_mean"),
        cold_start_s=start and start.start_to_ready_s + (start.first_answer_s or 0.0),
        engine=str(manifest.server.get("name") or ""),
        loads=loads,
    )


def planned(summary: Summary) -> list[LevelSummary]:
    """Return the levels that a plan may rest on."""
    found = [level for level in valid(summary.levels) if level.load and level.throughput.mean]
    return [level for level in found if within_reason(answer.point(level))]


def _load(
    levels: Sequence[LevelSummary], work_per_s: Value, work: float, replicas: int, outcome: str | None
) -> MeasuredLoad:
    """Return a load of one replica from its repeats; latencies are those of the repeat with the most requests."""
    level = max(levels, key=lambda each: each.requests)
    return MeasuredLoad(
        load=float(level.load or 0) / replicas,
        work_per_s=work_per_s.times(1 / replicas),
        requests_per_s=(work_per_s.value or 0.0) / replicas / work,
        in_flight=level.in_flight and level.in_flight / replicas,
        ttft_s=level.first_s,
        itl_s=level.itl_s,
        e2e_s=level.e2e_s,
        slo=outcome,
        doubts=sorted({v.code for v in level.verdicts if v.level == Gravity.DOUBT}),
    )


def _limits(manifest: Manifest, limits: Mapping[str, float] | None) -> list[ClassLimit]:
    """Return (class, limit) for every limit of the run and its classes; the run's only if a class lacks own limits."""
    if limits is not None:
        return [(UNSET, limit) for limit in slo.limits(limits)]
    spec = manifest.scenario
    classes = spec.class_ or ()
    of_run = [] if classes and all(each.slo for each in classes) else slo.limits(spec.slo)
    of_classes = [(each.name, limit) for each in classes for limit in slo.limits(each.slo)]
    return [*((UNSET, limit) for limit in of_run), *of_classes]


def _must_say(levels: Sequence[LevelSummary], wanted: Sequence[ClassLimit], place: str) -> None:
    """Raise HarnessError if a stored level does not say for each wanted limit whether it is met."""
    for level in levels:
        known = {(each.class_, each.limit) for each in level.slo if each.outcome in list(Outcome)}
        for of_class, limit in wanted:
            if (of_class, str(limit)) not in known:
                fact = f"the level at {level.load:g} does not say whether it meets {_words(of_class, limit)}"
                raise HarnessError(fact, place=place, way_out="bring its requests back")


def _words(of_class: str | UnsetType, limit: slo.SloLimit) -> str:
    return f"{limit} of {of_class}" if of_class else str(limit)


def _boundary(summary: Summary, outcomes: Mapping[float, str | None]) -> tuple[float | None, float | None]:
    """Return the highest load that meets the SLO, and the lowest that misses it."""
    knee = summary.knees.slo or summary.knees.slo_rate
    if knee is None:
        return None, min((load for load, outcome in outcomes.items() if outcome == Outcome.MISSED), default=None)
    return knee.value if is_decided(knee) else None, knee.ci95[1] if knee.ci95 else None


def _work_per_request(levels: Sequence[LevelSummary], unit: Unit) -> float | None:
    """Return the mean work of a request, in the run's unit."""
    if unit is Unit.DOCUMENTS:
        return _ratio(levels, "documents_per_s")
    return _mean(levels, "output_tokens_mean" if unit.decodes else "input_tokens_mean")


def _ratio(levels: Sequence[LevelSummary], name: str) -> float | None:
    """Return a rate over that of requests, of all levels."""
    pairs = [(getattr(level, name) or None, level.requests_per_s.mean) for level in levels]
    known = [(rate.mean, requests) for rate, requests in pairs if rate is not None and rate.mean and requests]
    return sum(rate for rate, _ in known) / sum(requests for _, requests in known) if known else None


def _mean(levels: Sequence[LevelSummary], name: str) -> float | None:
    """Return the mean tokens of a request, over the requests of all levels."""
    known = [(getattr(level, name), level.requests) for level in levels]
    return weighted((tokens, n) for tokens, n in known if (tokens or 0) > 0)
