"""A plan, put together: from what one replica was measured to do, and what is asked, to a fleet and its figures.

Its thresholds say when to scale and when to wake somebody, as figures and as Prometheus rules. Throughput far below
what was measured means little while nobody asks for more. So the alerts fire only while requests wait: then the
replicas are asked for all they have. 70 % for five minutes and 50 % are widely quoted levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from harness.base import ExitStatus
from harness.base.errors import HarnessError
from harness.base.units import LIMITS, duration
from harness.data.judgement import Outcome
from harness.data.server_metrics import ENGINES, Engine, Figure, Kind, Metric
from harness.decide.plan import replicas
from harness.decide.plan.capacity import Capacity, MeasuredLoad, OperatingPoint, choose
from harness.decide.plan.question import Prices, Question
from harness.decide.plan.replicas import request_s, work_of
from harness.spec.traffic import Traffic

FORMAT = 1
_ALIKE = 0.1  # relative: lengths that still count as those measured
_WAITS = 1.05  # in flight over the seats, from where on requests wait


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """plan.json. Seconds, tokens, USD; None and [] if it was not asked or is not known."""

    format: int = FORMAT
    question: Question
    capacity: Capacity
    operating_point: OperatingPoint
    fleet: replicas.Fleet | None = None  # None: a batch, or no load meets the SLO
    users: float | None = None  # at the peak, if a think time is given
    day: replicas.TrafficFleet | None = None
    costs: replicas.Costs | None = None
    batch: replicas.Batch | None = None
    thresholds: Thresholds | None = None
    notes: list[str] = []  # what the figures rest on, a sentence each without its period

    @property
    def exit_status(self) -> ExitStatus:
        """Return MISSED if no measured load meets the SLO, UNSETTLED if that cannot be decided, else DONE."""
        if self.operating_point.at is not None:
            return ExitStatus.DONE
        missed = self.operating_point.outcome == Outcome.MISSED
        return ExitStatus.MISSED if missed else ExitStatus.UNSETTLED


def make(capacity: Capacity, question: Question, shape: Traffic | None = None) -> Plan:
    """Return how many replicas a demand needs and what they cost; `shape`: a day's traffic, if it varies.

    A plan whose operating point has no load, since none meets the SLO, has no replicas and no cost.
    """
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
    fleet = replicas.fleet(capacity, at, peak, work, reserve, prices)
    paid = replicas.costs(capacity, at, demand, prices, fleet.replicas, traffic.mean if traffic else peak, traffic)
    users, R = demand.users, request_s(capacity, at, work)
    if users is None and demand.think_s is not None and R is not None:
        users = peak * (R + demand.think_s)  # Little's law over response and pause
    return msgspec.structs.replace(
        begun,
        fleet=fleet,
        users=users,
        day=traffic,
        costs=paid,
        thresholds=thresholds(at, reserve.utilization, engine, capacity.limits_s),
    )


def _traffic(
    begun: Plan, at: MeasuredLoad, shape: Traffic | None, count: Callable[[float], int]
) -> tuple[replicas.TrafficFleet | None, float]:
    """Return (the fleet that follows a day's traffic, None at a constant rate; the peak, requests per second)."""
    question, rate = begun.question, _demanded(begun, at)
    if shape is None:
        assert rate is not None
        return None, rate
    cells, peak = replicas.rates(shape, rate)
    return replicas.follow(cells, peak, shape.period_s or 0.0, count, question.prices.cold_start_s), peak


def _demanded(begun: Plan, at: MeasuredLoad) -> float | None:
    """Return the demanded requests per second at the peak; None if no demand is given.

    Users are divided by response time + think time, documents by those of a request; raise HarnessError if the run does
    not tell these.
    """
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
    last, notes = capacity.loads[-1].load == at.load, []
    if last and capacity.rises and not capacity.open_loop and point.missed_at is None:
        notes.append(
            "throughput still rises at the last measured load: a higher one may carry more and is not planned on"
        )
    if capacity.fails_at is not None:
        notes.append(f"more than 1 % of the requests failed at a load of {capacity.fails_at:g}: find out why first")
    if capacity.seats is not None and at.in_flight is not None and at.in_flight > _WAITS * capacity.seats:
        notes.append(f"a replica serves {capacity.seats:.3g} requests at once: at the operating point more wait")
    if point.outcome == Outcome.MET and point.missed_at is None:
        notes.append("no measured load misses the SLO: a higher one may meet it too")
    if at.doubts:
        notes.append(f"the level of the operating point has doubts: {', '.join(at.doubts)}")
    if capacity.measured_replicas > 1:
        notes.append(
            f"a replica is one of the {capacity.measured_replicas} that were loaded together, taken to be alike"
        )
    if plan.fleet:
        if (most := plan.fleet.ci95[1]) > plan.fleet.replicas:
            notes.append(f"by the low end of the measured throughput {most} replicas are needed")
        if not plan.fleet.may_fail:
            notes.append(
                "no replica may fail at the peak: the others would pass their operating point; --spare 1 adds one"
            )
        if point.outcome and not capacity.open_loop:
            notes.append(
                "the SLO was met in closed loop; requests that come in bursts wait longer, "
                "which `knee run --rate` on the planned fleet would show"
            )
    means = (("in", demand.input_tokens, capacity.input_tokens), ("out", demand.output_tokens, capacity.output_tokens))
    for name, own, was in means:
        if own is not None and was and abs(own / was - 1) > _ALIKE:
            notes.append(
                f"measured with {was:,.0f} tokens {name}, planned for {own:,.0f}: the throughput is taken to stay, "
                "which was not measured"
            )
    if prices.gpu_hour is None:
        notes.append("no price is known: add --price USD, per GPU and hour")
    elif not prices.gpus:
        notes.append("the GPUs of a replica are not recorded: add --gpus N")
    if plan.day and prices.cold_start_s is None:
        notes.append("the cold start of a replica is not known: add --cold-start TIME")
    return notes


# ---- thresholds and alerts

LOW, CRITICAL, LOW_FOR = 0.7, 0.5, "5m"
KV_FULL = 0.95  # share of the KV cache's blocks
_GENERATED = (Figure.GENERATION_TOKENS, Figure.ENDED_GENERATION_TOKENS)


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Per replica, in the run's unit of work per second."""

    scale_out_above: float  # the target utilisation of the operating point
    low_below: float  # for five minutes while requests wait: a warning
    critical_below: float  # while requests wait: critical
    in_flight_above: float | None  # more pass the operating point
    rules: str  # a Prometheus rule file; "": the engine's names are not known


def thresholds(at: MeasuredLoad, utilization: float, engine: str, limits: Mapping[str, float]) -> Thresholds:
    """Return throughput and in-flight thresholds for alerts on a replica, with a rule file if its engine is known."""
    X = at.throughput
    of_fleet = Thresholds(
        scale_out_above=utilization * X,
        low_below=LOW * X,
        critical_below=CRITICAL * X,
        in_flight_above=at.in_flight,
        rules="",
    )
    known = next((each for each in ENGINES if each.name == engine), None)
    return msgspec.structs.replace(of_fleet, rules=_rules(of_fleet, known, limits) if known else "")


def _rules(bounds: Thresholds, engine: Engine, limits: Mapping[str, float]) -> str:
    """Return a file of Prometheus alert rules for an engine; "" if it does not publish tokens and waiting requests."""
    tokens, waiting = _series(engine, *_GENERATED), _series(engine, Figure.WAITING)
    if not tokens or not waiting:
        return ""
    running = _series(engine, Figure.RUNNING)
    replicas = f"count(count by (instance) ({tokens}))"
    each = f"sum(rate({tokens}[5m])) / {replicas}"
    queue = f"sum({waiting}) > 0"
    less = f"sum(rate({tokens}[15m])) / ({replicas} - 1)"
    rules = [
        _rule("KneeScaleOut", f"{each} > {bounds.scale_out_above:.6g}", "1m", "info",
              "Output tokens/s of a replica are above the planned utilisation: start one more."),
        _rule("KneeScaleIn", f"{less} < {bounds.scale_out_above:.6g} and {replicas} > 1", "15m", "info",
              "One replica fewer would stay within the planned utilisation."),
        _rule("KneeThroughputLow", f"{each} < {bounds.low_below:.6g} and {queue}", LOW_FOR, "warning",
              "Requests wait, and a replica makes less than 70 % of what was measured."),
        _rule("KneeThroughputCritical", f"{each} < {bounds.critical_below:.6g} and {queue}", "1m", "critical",
              "Requests wait, and a replica makes less than 50 % of what was measured."),
    ]  # fmt: skip
    if running and bounds.in_flight_above is not None:
        in_flight = f"(sum({running}) + sum({waiting})) / {replicas}"
        rules.append(
            _rule("KneeInFlightHigh", f"{in_flight} > {bounds.in_flight_above:.6g}", "1m", "warning",
                  "More requests are in flight on a replica than at its operating point.")
        )  # fmt: skip
    rules += _of_limits(engine, limits)
    kv = _series(engine, Figure.KV_USAGE)
    if kv:
        rules.append(
            _rule("KneeKvCacheFull", f"max({kv}) > {KV_FULL}", LOW_FOR, "warning",
                  "The KV cache is nearly full: requests will wait or be preempted.")
        )  # fmt: skip
    return "groups:\n  - name: knee-plan\n    rules:\n" + "".join(rules)


def _of_limits(engine: Engine, limits: Mapping[str, float]) -> list[str]:
    """Return an alert rule for each limit on TTFT, if the engine publishes a histogram of it."""
    known = next(_metrics(engine, [Figure.TTFT], histogram=True), None)
    parts = []
    for name, seconds in limits.items():
        figure, share = LIMITS[name]
        if known is None or figure != "ttft":
            continue
        series, limit = _labelled(f"{known[0]}_bucket", known[1]), seconds / known[1].scale
        quantile = f"histogram_quantile({0.99 if share is None else share:g}, sum by (le) (rate({series}[5m])))"
        summary = f"The limit {name}={duration(seconds)} is missed."
        suffix = name.removeprefix("ttft").strip("_").upper()
        parts.append(_rule(f"KneeTtft{suffix}High", f"{quantile} > {limit:.6g}", LOW_FOR, "warning", summary))
    return parts


def _rule(name: str, expression: str, lasts: str, severity: str, summary: str) -> str:
    """Return one alert of a rule file; the texts are ours and have no quotes."""
    lines = (
        f"      - alert: {name}",
        f"        expr: '{expression}'",
        f"        for: {lasts}",
        "        labels:",
        f"          severity: {severity}",
        "        annotations:",
        f"          summary: '{summary}'",
    )
    return "\n".join(lines) + "\n"


def _series(engine: Engine, *figures: Figure) -> str:
    """Return the engine's name of the first of these figures that it has, with its labels; "" for none."""
    return next((_labelled(name, metric) for name, metric in _metrics(engine, figures, histogram=False)), "")


def _metrics(engine: Engine, figures: Sequence[Figure], *, histogram: bool) -> Iterator[tuple[str, Metric]]:
    """Yield the engine's metrics of these figures by their names, in the order of the figures."""
    for figure in figures:
        for name, metrics in engine.metrics.items():
            for metric in metrics:
                if metric.figure is figure and (metric.kind is Kind.HISTOGRAM) == histogram:
                    yield name, metric


def _labelled(name: str, metric: Metric) -> str:
    labels = ",".join(f'{label}="{value}"' for label, value in metric.where)
    return f"{name}{{{labels}}}" if labels else name
