"""What a fleet costs: a month by each way to pay, that over the work it does, energy, and what may change. USD.

A month has 720 hours. All cost is counted once: on the output tokens, or on input and output together (blended), or
split between the two by the share of the engine's time that the server spent on prefill.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from harness.data.views import Value
from harness.decide.plan.capacity import Capacity, MeasuredLoad
from harness.decide.plan.question import MONTH_H, Demand, Prices, months_to_pay, rounded_up, tco
from harness.decide.plan.replicas import TrafficFleet
from harness.spec.work import usd_per_million

ON_DEMAND = "on demand"
FOLLOWING = "on demand, following the traffic"
RESERVED = "reserved what always runs, the rest on demand"
SPOT = "spot, with replicas for its interruptions"
_SHOWN = (0, 1, 3, 6, 12, 24, 36)  # months of a table of growth


class MonthlyCost(msgspec.Struct, frozen=True, kw_only=True):
    """A month by one way to pay."""

    name: str
    replicas: int  # at the peak
    replica_hours: float
    usd_per_month: float


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of the fleet on demand, or of one that follows the traffic where that is known; None is not known."""

    usd_per_hour: float  # at the peak
    usd_per_month: float
    usd_per_million_at_point: Value  # of the run's unit, each replica at its operating point
    usd_per_million: float  # of the run's unit, as the fleet is used
    usd_per_million_blended: float | None  # of input and output tokens together
    usd_per_million_split: tuple[float, float] | None  # of input, of output tokens: by the server's time
    usd_per_request: float
    usd_per_user_month: float | None
    bills: list[MonthlyCost]
    egress_gb_per_month: float | None
    egress_usd_per_month: float | None
    tco_usd_per_month: float | None  # with the other costs; None: none are given


def costs(
    capacity: Capacity,
    at: MeasuredLoad,
    demand: Demand,
    prices: Prices,
    replicas: int,
    mean_rate: float,
    traffic: TrafficFleet | None,
) -> Costs | None:
    """Return what so many replicas cost at a mean rate of requests; None where price or GPUs are not known."""
    if prices.gpu_hour is None or not prices.gpus:
        return None
    hourly = prices.gpu_hour * prices.gpus
    paid = ways_to_pay(prices, replicas, traffic)
    month = next((each for each in paid if each.name == FOLLOWING), paid[0]).usd_per_month
    per_s = month / MONTH_H / 3600
    tokens_in = demand.input_tokens or capacity.input_tokens
    tokens_out = demand.output_tokens or capacity.output_tokens
    split = blended = None
    if capacity.counts.decodes and tokens_in and tokens_out:
        blended, share = per_s / (mean_rate * (tokens_in + tokens_out)) * 1e6, at.prefill_time_fraction
        if share is not None:
            split = (
                share * per_s / (mean_rate * tokens_in) * 1e6,
                (1 - share) * per_s / (mean_rate * tokens_out) * 1e6,
            )
    sent = _bytes(capacity, demand)
    egress = sent * mean_rate * 3600 * MONTH_H / 1e9 if sent is not None else None
    egress_usd = egress * prices.egress_gb if egress is not None and prices.egress_gb is not None else None
    others = [*prices.monthly.values(), *([] if egress_usd is None else [egress_usd])]
    return Costs(
        usd_per_hour=replicas * hourly,
        usd_per_month=month,
        usd_per_million_at_point=_per_million(hourly, at.work_per_s),
        usd_per_million=per_s / (mean_rate * work_of(capacity, demand)) * 1e6,
        usd_per_million_blended=blended,
        usd_per_million_split=split,
        usd_per_request=per_s / mean_rate,
        usd_per_user_month=month / demand.users if demand.users else None,
        bills=paid,
        egress_gb_per_month=egress,
        egress_usd_per_month=egress_usd,
        tco_usd_per_month=month + math.fsum(others) if others else None,
    )


def _per_million(usd_per_hour: float, per_s: Value) -> Value:
    """Return what a million of the run's unit costs at a throughput, USD, with the interval that the throughput has."""
    low, high = per_s.ci95 or (None, None)
    ends = [rate and usd_per_million(usd_per_hour, rate) for rate in (high, low)]
    middle = usd_per_million(usd_per_hour, per_s.value or 0.0)
    return Value(middle, (ends[0], ends[1]) if per_s.ci95 else None)


def ways_to_pay(prices: Prices, replicas: int, traffic: TrafficFleet | None) -> list[MonthlyCost]:
    """Return a month by each way to pay that has a price; on demand for the peak comes first."""
    usd, gpus = prices.gpu_hour or 0.0, prices.gpus or 0.0

    def month(name: str, hours: float, per_gpu_hour: float, more_usd: float = 0.0, peak: int = replicas) -> MonthlyCost:
        paid = hours * gpus * per_gpu_hour + more_usd
        return MonthlyCost(name=name, replicas=peak, replica_hours=hours, usd_per_month=paid)

    found = [month(ON_DEMAND, replicas * MONTH_H, usd)]
    always, above = replicas * MONTH_H, 0.0
    if traffic and traffic.hours_following is not None and traffic.hours_above_least is not None:
        periods = MONTH_H * 3600 / traffic.period_s
        always = (traffic.hours_following - traffic.hours_above_least) * periods
        above = traffic.hours_above_least * periods
        found.append(month(FOLLOWING, always + above, usd))
    if prices.reserved_gpu_hour is not None:
        rest = month(ON_DEMAND, above, usd)
        reserved = month(RESERVED, always, prices.reserved_gpu_hour, rest.usd_per_month)
        found.append(msgspec.structs.replace(reserved, replica_hours=always + above))
    spot, interruptions, cold = prices.spot_gpu_hour, prices.spot_interruptions_per_h, prices.cold_start_s
    if spot is not None and interruptions is not None and cold is not None:
        n = rounded_up(replicas / spot_share(interruptions, cold))
        found.append(month(SPOT, n * MONTH_H, spot, peak=n))
    return found


def spot_share(interruptions_per_h: float, cold_start_s: float) -> float:
    """Return the share of the time that a spot replica serves: each interruption costs a cold start.

    >>> spot_share(0.05, 720)  # one in 20 hours, back after 12 minutes: 20 h of 20.2 h
    0.9900990099009901
    """
    return 1 / (1 + interruptions_per_h * cold_start_s / 3600)


def work_of(capacity: Capacity, demand: Demand) -> float:
    """Return the work of a request, with the demand's own lengths where it has them."""
    own = demand.output_tokens if capacity.counts.decodes else demand.input_tokens
    tokens = capacity.output_tokens if capacity.counts.decodes else capacity.input_tokens
    return capacity.work_per_request if own is None or not tokens else own


def share_paid(costs: Costs | None) -> float:
    """Return the hours that are paid over those of a fleet for the peak: below 1 where it follows the traffic."""
    hours = {each.name: each.replica_hours for each in costs.bills} if costs else {}
    return hours[FOLLOWING] / hours[ON_DEMAND] if FOLLOWING in hours else 1.0


def _bytes(capacity: Capacity, demand: Demand) -> float | None:
    """Return the bytes of a response, in proportion to its tokens where the demand has a length of its own."""
    sent, own, was = capacity.bytes_per_request, demand.output_tokens, capacity.output_tokens
    return sent * own / was if sent is not None and own is not None and was else sent


# ---- what may change: a demand that grows, and an optimisation that has a price ------------------------------------


class Month(msgspec.Struct, frozen=True, kw_only=True):
    """One month of a demand that grows."""

    month: int  # from now
    requests_per_s: float
    replicas: int
    usd_per_month: float | None


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """An optimisation: the replicas and dollars of a month with it, and when it has paid for itself."""

    speedup: float
    effort_usd: float
    replicas: int
    usd_saved_per_month: float
    months: float | None  # None: it saves nothing


def grown(
    requests_per_s: float, growth: float, months: int, count: Callable[[float], int], prices: Prices, share: float = 1.0
) -> list[Month]:
    """Return the fleet as the demand grows by a share each month: λ·(1 + g)^m; `share` of its hours are paid."""
    shown = sorted({month for month in (*_SHOWN, months) if month <= months})
    found = []
    for month in shown:
        rate = requests_per_s * (1 + growth) ** month
        n = count(rate)
        found.append(Month(month=month, requests_per_s=rate, replicas=n, usd_per_month=usd_per_month(n, prices, share)))
    return found


def break_even(
    replicas: int, faster: int, speedup: float, effort_usd: float, prices: Prices, share: float = 1.0
) -> BreakEven | None:
    """Return what an optimisation saves after which `faster` replicas do what `replicas` did; None without a price.

    `share` of their hours are paid.
    """
    before, after = usd_per_month(replicas, prices, share), usd_per_month(faster, prices, share)
    if before is None or after is None:
        return None
    return BreakEven(
        speedup=speedup,
        effort_usd=effort_usd,
        replicas=faster,
        usd_saved_per_month=before - after,
        months=months_to_pay(effort_usd, before - after) if before > after else None,
    )


def usd_per_month(replicas: int, prices: Prices, share: float = 1.0) -> float | None:
    """Return what replicas cost on demand, for a share of the time; None where price or GPUs are not known."""
    if prices.gpu_hour is None or not prices.gpus:
        return None
    return share * tco(1, prices.gpu_hour, MONTH_H * replicas * prices.gpus)


# ---- energy, of the GPUs alone -------------------------------------------------------------------------------------


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """Energy of a fleet that is at its operating point all month, the most that the plan asks of it.

    A batch has no month.
    """

    watts: float  # of the fleet
    kwh_per_month: float | None
    joules_per_unit: float  # of the run's unit of work
    kwh_per_million: float
    usd_per_month: float | None
    carbon_kg_per_month: float | None
    carbon_g_per_million: float | None


def energy(at: MeasuredLoad, replicas: int, prices: Prices, *, monthly: bool = True) -> Energy | None:
    """Return the energy where power was measured; without what a month takes where the fleet does not run for one."""
    if at.power_w is None or not at.throughput:
        return None
    each = at.power_w / at.throughput
    kwh = at.power_w * replicas * MONTH_H / 1000 if monthly else None
    per_million = each * 1e6 / 3.6e6
    carbon = prices.carbon_g_kwh
    return Energy(
        watts=at.power_w * replicas,
        kwh_per_month=kwh,
        joules_per_unit=each,
        kwh_per_million=per_million,
        usd_per_month=kwh * prices.kwh if kwh is not None and prices.kwh is not None else None,
        carbon_kg_per_month=kwh * carbon / 1000 if kwh is not None and carbon is not None else None,
        carbon_g_per_million=per_million * carbon if carbon is not None else None,
    )
