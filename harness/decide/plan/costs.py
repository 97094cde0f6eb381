"""What a fleet costs: an hour, a month, and that over the work it does. USD.

A month has 720 hours. All cost is counted once: on the output tokens, or on input and output together (blended).
"""

from __future__ import annotations

import msgspec

from harness.data.views import Value
from harness.decide.plan.capacity import Capacity, MeasuredLoad
from harness.decide.plan.question import MONTH_H, Demand, Prices
from harness.decide.plan.replicas import TrafficFleet
from harness.spec.work import usd_per_million


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of the fleet, or of one that follows the traffic where that is known; None is not known."""

    usd_per_hour: float  # at the peak
    usd_per_month_at_peak: float  # of a fleet for the peak all the time
    usd_per_month: float  # of one that follows the traffic, where that is known
    usd_per_million_at_point: Value  # of the run's unit, each replica at its operating point
    usd_per_million: float  # of the run's unit, as the fleet is used
    usd_per_million_blended: float | None  # of input and output tokens together
    usd_per_request: float


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
    at_peak = usd_per_month(replicas, prices)
    if at_peak is None or prices.gpu_hour is None or not prices.gpus:
        return None
    month = at_peak
    if traffic and traffic.hours_following is not None:
        month *= traffic.hours_following / traffic.hours_at_peak
    per_request = month / MONTH_H / 3600 / mean_rate
    tokens_in = demand.input_tokens or capacity.input_tokens
    tokens_out = demand.output_tokens or capacity.output_tokens
    blended = None
    if capacity.counts.decodes and tokens_in and tokens_out:
        blended = per_request / (tokens_in + tokens_out) * 1e6
    return Costs(
        usd_per_hour=replicas * prices.gpu_hour * prices.gpus,
        usd_per_month_at_peak=at_peak,
        usd_per_month=month,
        usd_per_million_at_point=_per_million(prices.gpu_hour * prices.gpus, at.work_per_s),
        usd_per_million=per_request / work_of(capacity, demand) * 1e6,
        usd_per_million_blended=blended,
        usd_per_request=per_request,
    )


def _per_million(usd_per_hour: float, per_s: Value) -> Value:
    """Return what a million of the run's unit costs at a throughput, USD, with the interval that the throughput has."""
    low, high = per_s.ci95 or (None, None)
    ends = [rate and usd_per_million(usd_per_hour, rate) for rate in (high, low)]
    middle = usd_per_million(usd_per_hour, per_s.value or 0.0)
    return Value(middle, (ends[0], ends[1]) if per_s.ci95 else None)


def work_of(capacity: Capacity, demand: Demand) -> float:
    """Return the work of a request, with the demand's own lengths where it has them."""
    own = demand.output_tokens if capacity.counts.decodes else demand.input_tokens
    tokens = capacity.output_tokens if capacity.counts.decodes else capacity.input_tokens
    return capacity.work_per_request if own is None or not tokens else own


def usd_per_month(replicas: int, prices: Prices) -> float | None:
    """Return what replicas cost all month; None where price or GPUs are not known."""
    if prices.gpu_hour is None or not prices.gpus:
        return None
    return replicas * prices.gpus * prices.gpu_hour * MONTH_H
