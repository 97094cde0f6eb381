"""A plan, put together: from what one replica was measured to do, and what is asked, to a fleet and its figures."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from harness.base.errors import HarnessError
from harness.data.judgement import Outcome
from harness.decide.plan import alerts, costs, replicas
from harness.decide.plan.capacity import Capacity, MeasuredLoad, OperatingPoint, choose
from harness.decide.plan.costs import BreakEven, Costs, Energy, Month
from harness.decide.plan.question import Prices, Question
from harness.decide.plan.replicas import request_s
from harness.predict.claims import Claim, claims, facts_of_run, holding
from harness.spec.traffic import Traffic
from harness.spec.work import Unit

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
    costs: Costs | None = None
    batch: replicas.Batch | None = None
    long_requests: list[replicas.LongRequest] = []
    growth: list[Month] = []
    break_even: BreakEven | None = None
    energy: Energy | None = None
    thresholds: alerts.Thresholds | None = None
    reference: list[Place] = []
    notes: list[str] = []  # what the figures rest on, a sentence each without its period

    @property
    def exit_status(self) -> int:
        """0; 99 where no measured load meets the SLO; 3 where that cannot be decided."""
        if self.operating_point.at is not None:
            return 0
        return MISSED if self.operating_point.outcome == Outcome.MISSED else UNDECIDED


def make(capacity: Capacity, question: Question, shape: Traffic | None = None) -> Plan:
    """Return the plan for one replica's capacity; `shape` is that of a day's traffic, where there is one."""
    prices = _filled(question.prices, capacity)
    question = msgspec.structs.replace(question, prices=prices)
    point = choose(capacity, question.by, offline=question.demand.offline)
    shown = msgspec.structs.replace(capacity, prediction=None)
    begun = Plan(question=question, capacity=shown, operating_point=point)
    if point.at is None:
        return begun
    whole = _of_batch(begun, point.at) if question.demand.offline else _of_traffic(begun, point.at, shape)
    found_in = places(capacity, point.at, whole.costs) if question.reference else []
    return msgspec.structs.replace(whole, reference=found_in, notes=_notes(whole, point.at))


def _of_batch(begun: Plan, at: MeasuredLoad) -> Plan:
    """Return the plan with the replicas of a batch."""
    prices, demand = begun.question.prices, begun.question.demand
    found = replicas.batch(at, _amount(begun), demand.deadline_s or 0.0, prices)
    return msgspec.structs.replace(begun, batch=found, energy=costs.energy(at, found.replicas, prices, monthly=False))


def _amount(begun: Plan) -> float:
    """Return the size of a batch in the run's unit of work."""
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
    """Return the plan with a fleet for requests that come all the time, and all that is asked about it."""
    capacity, question = begun.capacity, begun.question
    demand, prices, reserve, future = question.demand, question.prices, question.reserve, question.outlook
    work, engine = costs.work_of(capacity, demand), capacity.engine if capacity.counts.decodes else ""

    def count(rate: float, of: float = work, per_s: float = at.throughput) -> int:
        return replicas.count(rate, of, per_s, capacity.unit, reserve)

    traffic, peak = _traffic(begun, at, shape, count)
    found = _with_prices(replicas.fleet(capacity, at, peak, work, reserve), prices)
    paid = costs.costs(capacity, at, demand, prices, found.replicas, traffic.mean if traffic else peak, traffic)
    share, saves = costs.share_paid(paid), None
    if future.speedup is not None and future.effort_usd is not None:
        faster = count(peak, work, at.throughput * future.speedup)
        saves = costs.break_even(found.replicas, faster, future.speedup, future.effort_usd, prices, share)
    users, R = demand.users, request_s(capacity, at, work)
    if users is None and demand.think_s is not None and R is not None:
        users = peak * (R + demand.think_s)  # Little's law over response and pause
    return msgspec.structs.replace(
        begun,
        fleet=found,
        users=users,
        day=traffic,
        costs=paid,
        long_requests=replicas.long_requests(capacity, at, demand, lambda tokens: count(peak, tokens)),
        growth=[] if future.growth is None else costs.grown(peak, future.growth, future.months, count, prices, share),
        break_even=saves,
        energy=costs.energy(at, found.replicas, prices),
        thresholds=alerts.thresholds(at, reserve.utilization, engine, capacity.limits_s),
    )


def _traffic(
    begun: Plan, at: MeasuredLoad, shape: Traffic | None, count: Callable[[float], int]
) -> tuple[replicas.TrafficFleet | None, float]:
    """Return the fleet over a day's traffic where there is one, and the peak in requests per second."""
    question, asked = begun.question, _asked(begun, at)
    if shape is None:
        assert asked is not None
        return None, asked
    cells, peak = replicas.rates(shape, asked)
    cold, utilization = question.prices.cold_start_s, question.reserve.utilization
    return replicas.follow(cells, peak, shape.period_s or 0.0, count, utilization, cold), peak


def _asked(begun: Plan, at: MeasuredLoad) -> float | None:
    """Return the requests per second at the peak; None where a day's traffic alone says it."""
    demand, capacity = begun.question.demand, begun.capacity
    if demand.users is not None and demand.think_s is not None:
        R = request_s(capacity, at, costs.work_of(capacity, demand))
        if not R or R < 0:
            raise HarnessError("the time of an answer is not known", place="--users", way_out="give --rps")
        return demand.users / (R + demand.think_s)  # λ = N/(R + Z)
    if demand.documents_per_s is not None:
        if not capacity.documents_per_request:
            raise HarnessError("the run counts no documents", place="--documents-per-s", way_out="give --rps")
        return demand.documents_per_s / capacity.documents_per_request
    return demand.requests_per_s


def _filled(prices: Prices, capacity: Capacity) -> Prices:
    """Return the prices, with what the run recorded where nothing else is given."""
    return msgspec.structs.replace(
        prices,
        gpu_hour=capacity.usd_per_gpu_hour if prices.gpu_hour is None else prices.gpu_hour,
        gpus=capacity.gpus if prices.gpus is None else prices.gpus,
        cold_start_s=capacity.cold_start_s if prices.cold_start_s is None else prices.cold_start_s,
    )


def _with_prices(found: replicas.Fleet, prices: Prices) -> replicas.Fleet:
    rows = [
        msgspec.structs.replace(each, usd_per_month=costs.usd_per_month(each.replicas, prices))
        for each in found.options
    ]
    return msgspec.structs.replace(found, options=rows)


def _notes(plan: Plan, at: MeasuredLoad) -> list[str]:
    """Return what the figures rest on but the measured curve, and what would make them better."""
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
    if point.outcome and capacity.slo_by == "percentiles":
        found.append("the SLO is judged by stored percentiles, since the folder has no requests")
    if at.doubts:
        found.append(f"the level of the operating point has doubts: {', '.join(at.doubts)}")
    if capacity.measured_replicas > 1:
        found.append(
            f"a replica is one of the {capacity.measured_replicas} that were loaded together, taken to be alike"
        )
    if plan.fleet:
        found += _of_fleet(plan.fleet)
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
    if prices.egress_gb is not None and capacity.bytes_per_request is None:
        found.append("the bytes of an answer are not recorded: egress is left out")
    if (prices.kwh is not None or prices.carbon_g_kwh is not None) and plan.energy is None:
        found.append("no power was measured: electricity and carbon are left out")
    if (plan.day or prices.spot_interruptions_per_h) and prices.cold_start_s is None:
        found.append("the cold start of a replica is not known: add --cold-start TIME")
    return found


def _of_fleet(found: replicas.Fleet) -> list[str]:
    out = []
    if found.ci95[1] > found.replicas:
        out.append(f"by the low end of the measured throughput {found.ci95[1]} replicas are needed")
    if not found.may_fail:
        out.append("no replica may fail at the peak: the others would pass their operating point; --spare 1 adds one")
    return out


# ---- Where the figures lie in widely quoted tables -------------------------------------------------------------------


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
