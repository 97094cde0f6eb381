"""What a fleet costs: a month by each way to pay, and that over the work it does. USD; a month has 720 hours.

All cost is counted once: on the output tokens, or on input and output together (blended), or split between the two by
the share of the engine's time that the server spent on prefill.
"""

from __future__ import annotations

import math

import msgspec

from harness.data.summary import Value
from harness.decide import cost
from harness.decide.plan.capacity import Capacity, MeasuredLoad
from harness.decide.plan.day import Day
from harness.decide.plan.question import MONTH_H, Demand, Prices

ON_DEMAND = "on demand"
FOLLOWING = "on demand, following the traffic"
RESERVED = "reserved what always runs, the rest on demand"
SPOT = "spot, with replicas for its interruptions"


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """A month by one way to pay."""

    name: str
    replicas: int  # at the peak
    replica_hours: float
    usd_per_month: float


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Of the fleet on demand, or of one that follows the traffic where that is known; None is not known."""

    usd_per_hour: float  # at the peak
    usd_per_month: float
    usd_per_million_at_point: Value  # of the run's unit, each replica at its operating point
    usd_per_million: float  # of the run's unit, as the fleet is used
    usd_per_million_blended: float | None  # of input and output tokens together
    usd_per_million_split: tuple[float, float] | None  # of input, of output tokens: by the server's time
    usd_per_request: float
    usd_per_user_month: float | None
    bills: list[Bill]
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
    day: Day | None,
) -> Costs | None:
    """Of so many replicas for a mean rate of requests; None where price or GPUs are not known."""
    if prices.gpu_hour is None or not prices.gpus:
        return None
    hourly = prices.gpu_hour * prices.gpus
    paid = bills(prices, replicas, day)
    month = next((each for each in paid if each.name == FOLLOWING), paid[0]).usd_per_month
    per_s = month / MONTH_H / 3600
    work = work_of(capacity, demand)
    tokens_in, tokens_out = _tokens(capacity, demand)
    share = at.prefill_time_fraction
    split = blended = None
    if capacity.counts.decodes and tokens_in and tokens_out:
        blended = per_s / (mean_rate * (tokens_in + tokens_out)) * 1e6
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
        usd_per_million=per_s / (mean_rate * work) * 1e6,
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
    ends = [rate and cost.usd_per_million_tokens(usd_per_hour, rate) for rate in (high, low)]
    return Value(
        cost.usd_per_million_tokens(usd_per_hour, per_s.value or 0.0), (ends[0], ends[1]) if per_s.ci95 else None
    )


def bills(prices: Prices, replicas: int, day: Day | None) -> list[Bill]:
    """A month by each way to pay that has a price; on demand for the peak first."""
    usd, gpus = prices.gpu_hour or 0.0, prices.gpus or 0.0

    def bill(name: str, hours: float, per_gpu_hour: float, more_usd: float = 0.0, peak: int = replicas) -> Bill:
        month = hours * gpus * per_gpu_hour + more_usd
        return Bill(name=name, replicas=peak, replica_hours=hours, usd_per_month=month)

    found = [bill(ON_DEMAND, replicas * MONTH_H, usd)]
    always, above = replicas * MONTH_H, 0.0
    if day and day.hours_following is not None and day.hours_above_least is not None:
        months = MONTH_H * 3600 / day.period_s
        always, above = (day.hours_following - day.hours_above_least) * months, day.hours_above_least * months
        found.append(bill(FOLLOWING, always + above, usd))
    if prices.reserved_gpu_hour is not None:
        rest = bill(ON_DEMAND, above, usd)
        reserved = bill(RESERVED, always, prices.reserved_gpu_hour, rest.usd_per_month)
        found.append(msgspec.structs.replace(reserved, replica_hours=always + above))
    spot, interruptions, cold = prices.spot_gpu_hour, prices.spot_interruptions_per_h, prices.cold_start_s
    if spot is not None and interruptions is not None and cold is not None:
        n = cost.rounded_up(replicas / spot_share(interruptions, cold))
        found.append(bill(SPOT, n * MONTH_H, spot, peak=n))
    return found


def spot_share(interruptions_per_h: float, cold_start_s: float) -> float:
    """Share of the time that a spot replica serves: each interruption costs a cold start.

    >>> spot_share(0.05, 720)  # one in 20 hours, back after 12 minutes: 20 h of 20.2 h
    0.9900990099009901
    """
    return 1 / (1 + interruptions_per_h * cold_start_s / 3600)


def work_of(capacity: Capacity, demand: Demand) -> float:
    """Work of a request, with the demand's own lengths where it has them."""
    own = demand.output_tokens if capacity.counts.decodes else demand.input_tokens
    tokens = capacity.output_tokens if capacity.counts.decodes else capacity.input_tokens
    return capacity.work_per_request if own is None or not tokens else own


def share_paid(costs: Costs | None) -> float:
    """Hours that are paid over those of a fleet for the peak at all times: below 1 where it follows the traffic."""
    hours = {each.name: each.replica_hours for each in costs.bills} if costs else {}
    return hours[FOLLOWING] / hours[ON_DEMAND] if FOLLOWING in hours else 1.0


def _bytes(capacity: Capacity, demand: Demand) -> float | None:
    """Bytes of an answer, in proportion to its tokens where the demand has a length of its own."""
    sent, own, was = capacity.bytes_per_request, demand.output_tokens, capacity.output_tokens
    return sent * own / was if sent is not None and own is not None and was else sent


def _tokens(capacity: Capacity, demand: Demand) -> tuple[float | None, float | None]:
    return demand.input_tokens or capacity.input_tokens, demand.output_tokens or capacity.output_tokens
