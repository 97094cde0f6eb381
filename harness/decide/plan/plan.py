"""A plan, put together: from what one replica was measured to do, and what is asked, to a fleet and its figures."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from harness.base.errors import HarnessError
from harness.data.judgement import Outcome
from harness.decide.plan import alerts, replicas
from harness.decide.plan.capacity import Capacity, MeasuredLoad, OperatingPoint, choose
from harness.decide.plan.question import Prices, Question
from harness.decide.plan.replicas import request_s, work_of
from harness.spec.traffic import Traffic

FORMAT = 1
MISSED, UNDECIDED = 99, 3  # exit statuses: the SLO is not reached; too few requests to decide it
_ALIKE = 0.1  # relative: lengths that still count as those measured
_WAITS = 1.05  # in flight over the seats, from where on requests wait


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """plan.json. Seconds, tokens, USD; None and [] where it was not asked or is not known."""

    format: int = FORMAT
    question: Question
    capacity: Capacity
    operating_point: OperatingPoint
    fleet: replicas.Fleet | None = None  # None: a batch, or no load meets the SLO
    users: float | None = None  # at the peak, where a think time is given
    day: replicas.TrafficFleet | None = None
    costs: replicas.Costs | None = None
    batch: replicas.Batch | None = None
    thresholds: alerts.Thresholds | None = None
    notes: list[str] = []  # what the figures rest on, a sentence each without its period

    @property
    def exit_status(self) -> int:
        """0; 99 where no measured load meets the SLO; 3 where that cannot be decided."""
        if self.operating_point.at is not None:
            return 0
        return MISSED if self.operating_point.outcome == Outcome.MISSED else UNDECIDED


def make(capacity: Capacity, question: Question, shape: Traffic | None = None) -> Plan:
    """Return how many replicas a demand needs and what they cost; `shape`: a day's traffic, if it varies."""
    prices = _filled(question.prices, capacity)
    question = msgspec.structs.replace(question, prices=prices)
    point = choose(capacity, question.by, offline=question.demand.offline)
    begun = Plan(question=question, capacity=capacity, operating_point=point)
    if point.at is None:
        return begun
    if question.demand.offline:
        batch = replicas.batch(point.at, _amount(begun), question.demand.deadline_s or 0.0, prices)
        whole = msgspec.structs.replace(begun, batch=batch)
    else:
        whole = _of_traffic(begun, point.at, shape)
    return msgspec.structs.replace(whole, notes=_notes(whole, point.at))


def _amount(begun: Plan) -> float:
    """Return the work of an offline batch, from its tokens or documents, in the run's unit of work."""
    capacity, demand = begun.capacity, begun.question.demand
    tokens = capacity.unit.endswith("tokens")
    if demand.offline_tokens is not None and tokens:
        return demand.offline_tokens
    if demand.offline_documents is not None and capacity.documents_per_request:
        return demand.offline_documents * capacity.work_per_request / capacity.documents_per_request
    flags = ("--offline-documents", "--offline-tokens")
    flag, way_out = flags if tokens else reversed(flags)
    raise HarnessError(f"the run counts {capacity.unit}", place=flag, way_out=f"give {way_out}")


def _of_traffic(begun: Plan, at: MeasuredLoad, shape: Traffic | None) -> Plan:
    """Return the plan for online traffic: the fleet, users, a day's replicas, costs and alert thresholds."""
    capacity, question = begun.capacity, begun.question
    demand, prices, reserve = question.demand, question.prices, question.reserve
    work, engine = work_of(capacity, demand), capacity.engine if capacity.counts.decodes else ""

    def count(rate: float) -> int:
        return replicas.count(rate * work / at.throughput, reserve)

    traffic, peak = _traffic(begun, at, shape, count)
    found = replicas.fleet(capacity, at, peak, work, reserve, prices)
    paid = replicas.costs(capacity, at, demand, prices, found.replicas, traffic.mean if traffic else peak, traffic)
    users, R = demand.users, request_s(capacity, at, work)
    if users is None and demand.think_s is not None and R is not None:
        users = peak * (R + demand.think_s)  # Little's law over response and pause
    return msgspec.structs.replace(
        begun,
        fleet=found,
        users=users,
        day=traffic,
        costs=paid,
        thresholds=alerts.thresholds(at, reserve.utilization, engine, capacity.limits_s),
    )


def _traffic(
    begun: Plan, at: MeasuredLoad, shape: Traffic | None, count: Callable[[float], int]
) -> tuple[replicas.TrafficFleet | None, float]:
    """Return (the fleet that follows a day's traffic, None at a constant rate; the peak, requests per second)."""
    question, asked = begun.question, _asked(begun, at)
    if shape is None:
        assert asked is not None
        return None, asked
    cells, peak = replicas.rates(shape, asked)
    return replicas.follow(cells, peak, shape.period_s or 0.0, count, question.prices.cold_start_s), peak


def _asked(begun: Plan, at: MeasuredLoad) -> float | None:
    """Return the demanded requests per second at the peak, also from users or documents; None if not given."""
    demand, capacity = begun.question.demand, begun.capacity
    if demand.users is not None and demand.think_s is not None:
        R = request_s(capacity, at, work_of(capacity, demand))
        if not R or R < 0:
            raise HarnessError("the time of an answer is not known", place="--users", way_out="give --rps")
        return demand.users / (R + demand.think_s)  # λ = N/(R + Z)
    if demand.documents_per_s is not None:
        if not capacity.documents_per_request:
            raise HarnessError("the run counts no documents", place="--documents-per-s", way_out="give --rps")
        return demand.documents_per_s / capacity.documents_per_request
    return demand.requests_per_s


def _filled(prices: Prices, capacity: Capacity) -> Prices:
    """Return the prices; GPU price, GPUs and cold start that are not given are taken from the run."""
    return msgspec.structs.replace(
        prices,
        gpu_hour=capacity.usd_per_gpu_hour if prices.gpu_hour is None else prices.gpu_hour,
        gpus=capacity.gpus if prices.gpus is None else prices.gpus,
        cold_start_s=capacity.cold_start_s if prices.cold_start_s is None else prices.cold_start_s,
    )


def _notes(plan: Plan, at: MeasuredLoad) -> list[str]:
    """Return notes on what a plan assumes beyond what was measured, and what would make it better."""
    capacity, prices, demand, point = plan.capacity, plan.question.prices, plan.question.demand, plan.operating_point
    last, found = capacity.loads[-1].load == at.load, []
    if last and capacity.rises and not capacity.open_loop and point.missed_at is None:
        found.append(
            "throughput still rises at the last measured load: a higher one may carry more and is not planned on"
        )
    if capacity.seats is not None and at.in_flight is not None and at.in_flight > _WAITS * capacity.seats:
        found.append(f"a replica serves {capacity.seats:.3g} requests at once: at the operating point more wait")
    if point.outcome == Outcome.MET and point.missed_at is None:
        found.append("no measured load misses the SLO: a higher one may meet it too")
    if at.doubts:
        found.append(f"the level of the operating point has doubts: {', '.join(at.doubts)}")
    if capacity.measured_replicas > 1:
        found.append(
            f"a replica is one of the {capacity.measured_replicas} that were loaded together, taken to be alike"
        )
    if plan.fleet:
        if (most := plan.fleet.ci95[1]) > plan.fleet.replicas:
            found.append(f"by the low end of the measured throughput {most} replicas are needed")
        if not plan.fleet.may_fail:
            found.append(
                "no replica may fail at the peak: the others would pass their operating point; --spare 1 adds one"
            )
        if point.outcome and not capacity.open_loop:
            found.append(
                "the SLO was met in closed loop; requests that come in bursts wait longer, "
                "which `knee run --rate` on the planned fleet would show"
            )
    asked = (("in", demand.input_tokens, capacity.input_tokens), ("out", demand.output_tokens, capacity.output_tokens))
    for name, own, was in asked:
        if own is not None and was and abs(own / was - 1) > _ALIKE:
            found.append(
                f"measured with {was:,.0f} tokens {name}, planned for {own:,.0f}: the throughput is taken to stay, "
                "which was not measured"
            )
    if prices.gpu_hour is None:
        found.append("no price is known: add --price USD, per GPU and hour")
    elif not prices.gpus:
        found.append("the GPUs of a replica are not recorded: add --gpus N")
    if plan.day and prices.cold_start_s is None:
        found.append("the cold start of a replica is not known: add --cold-start TIME")
    return found
