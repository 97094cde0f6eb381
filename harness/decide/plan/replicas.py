"""How many replicas carry a demand, and what they cost: for a peak, over a day's traffic, and for a batch.

    n = max(ceil(λ·w / (X·u)), ceil(λ·w / X) + k)

λ requests per second at the peak, w work of a request, X work per second of a replica at the operating point, u target
utilisation, k spares; the headroom is 1/u - 1. Work is counted in the run's unit.

Over a day a replica that is wanted at t is started one cold start before, and paid from then on. Costs are USD; a month
has 720 hours. All cost is counted once: on the output tokens, or on input and output together (blended).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from harness.base import decoding
from harness.base.errors import HarnessError
from harness.data.views import Value
from harness.decide.plan.capacity import Capacity, MeasuredLoad
from harness.decide.plan.question import MONTH_H, Demand, Prices, Reserve, rounded_up, with_spares
from harness.spec import traffic
from harness.spec.work import usd_per_million

_MOST = 100_000  # replicas: more is a mistake in the demand
_CELLS = 1440  # cells of a period: minutes of a day
_HEADER = "time,requests_per_s"


class FleetOption(msgspec.Struct, frozen=True, kw_only=True):
    """One size of the fleet."""

    replicas: int
    utilization: float  # share of the operating point's throughput at the peak
    one_lost: float | None  # the same with one replica fewer; None: there is none left
    usd_per_month: float | None = None


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas for a demand; throughput over the operating point's is utilisation."""

    requests_per_s: float  # at the peak
    work_per_request: float
    replicas: int
    ci95: tuple[int, int]  # over the interval of the measured throughput
    exact: float  # replicas before rounding up, headroom in it, spares not
    needed: int  # replicas that carry the peak without any reserve
    may_fail: int  # replicas that may be down at the peak before the operating point is passed
    in_flight: float | None  # at the peak, on all: λ·R by Little's law
    options: list[FleetOption]  # one fewer, this, one more


def request_s(capacity: Capacity, at: MeasuredLoad, work: float) -> float | None:
    """Return the seconds that a request of `work` takes at a measured load; None if that is not known.

    The throughput X is taken to stay, so by Little's law R = N·w/X is in proportion to the work w.
    """
    return None if at.e2e_s.mean is None else at.e2e_s.mean * (work / capacity.work_per_request)


def fleet(
    capacity: Capacity, at: MeasuredLoad, requests_per_s: float, work: float, reserve: Reserve, prices: Prices
) -> Fleet:
    """Return the replicas for a peak rate of requests, with interval, and use and cost with one more or fewer."""
    low, high = at.throughput_ends
    n, fewer, more = (count(requests_per_s * work / rate, reserve) for rate in (at.throughput, high, low))
    alone = requests_per_s * work / at.throughput
    needed, R = rounded_up(alone), request_s(capacity, at, work)
    sizes = [size for size in (n - 1, n, n + 1) if size > 0]
    return Fleet(
        requests_per_s=requests_per_s,
        work_per_request=work,
        replicas=n,
        ci95=(fewer, more),
        exact=alone / reserve.utilization,
        needed=needed,
        may_fail=max(0, n - needed),
        in_flight=None if R is None else requests_per_s * R,
        options=[
            FleetOption(
                replicas=size,
                utilization=alone / size,
                one_lost=alone / (size - 1) if size > 1 else None,
                usd_per_month=usd_per_month(size, prices),
            )
            for size in sizes
        ],
    )


def count(busy: float, reserve: Reserve) -> int:
    """Return the whole replicas, at least 1, for work of `busy` fully busy ones, with the reserve's headroom or spares.

    >>> count(100 * 200 / 6000, Reserve(utilization=0.7))
    5
    """
    return _sensible(max(1, with_spares(busy, reserve.utilization, reserve.spare or 0)))


def _sensible(replicas: int) -> int:
    if replicas > _MOST:
        fact = f"more than {_MOST:,} replicas"
        raise HarnessError(fact, place="knee plan", way_out="is the demand the right one?")
    return replicas


# ---- a day's traffic ------------------------------------------------------------------------------------------------


class TrafficFleet(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet over one period of the traffic; requests per second, and replica-hours of one period."""

    period_s: float
    peak: float
    mean: float
    replicas_peak: int
    replicas_least: int
    hours_at_peak: float  # replica-hours of a fleet that keeps its size for the peak
    hours_following: float | None  # the same of one that follows the traffic; None: the cold start is not known
    cold_start_s: float | None


def read_traffic(text: str) -> traffic.Traffic:
    """Read a shape like wave(period=24h,low=5,high=50), or a CSV file of times and requests per second.

    The file's rates each last until the next time, the last one as long as the one before it; then the first again.
    """
    place = "--traffic"
    if "(" in text and not Path(text).exists():
        shape = traffic.parse(text, place)
    else:
        with decoding.reading(f"{place} {text}", "a traffic file", f"give a CSV with the header {_HEADER}, or a shape"):
            lines = decoding.content(Path(text)).decode("utf-8-sig").splitlines()
            header, *rows = ["".join(line.split()) for line in lines if line.strip()] or [""]
            if header != _HEADER:
                raise ValueError(f"its header is not {_HEADER}")
            series = ",".join(row.replace(",", ":") for row in rows)
        shape = traffic.parse(f"series({series})", f"{place} {text}")
    if shape.profile is None or shape.profile.mean <= 0:
        way_out = "write it like wave(period=24h,low=5,high=50)"
        raise HarnessError("these arrivals have no rate of their own", place=place, way_out=way_out)
    return shape


def rates(shape: traffic.Traffic, peak: float | None) -> tuple[list[float], float]:
    """Return the mean requests/s in each of _CELLS parts of the traffic's period, and its peak; scaled to `peak`."""
    profile = shape.profile
    assert profile is not None
    times = 1.0 if peak is None else peak / profile.peak
    cell = profile.period_s / _CELLS
    until = [profile.until(i * cell) for i in range(_CELLS)] + [profile.mean * profile.period_s]
    cells = [times * (after - before) / cell for before, after in pairwise(until)]
    return cells, times * profile.peak


def follow(
    cells: Sequence[float],
    peak: float,
    period_s: float,
    count: Callable[[float], int],
    cold_start_s: float | None,
) -> TrafficFleet:
    """Return the replica-hours of a fleet that follows the rates of equal time cells, starting replicas in time.

    Without a cold start only the hours at the peak's replicas are known.
    """
    wanted = [count(rate) for rate in cells]
    cell_h = period_s / len(cells) / 3600
    following = None
    if cold_start_s is not None:
        ahead = min(len(cells) - 1, math.ceil(cold_start_s / (period_s / len(cells))))
        started = _soon(wanted, ahead)
        following = sum(started) * cell_h
    return TrafficFleet(
        period_s=period_s,
        peak=peak,
        mean=math.fsum(cells) / len(cells),
        replicas_peak=count(peak),
        replicas_least=min(wanted),
        hours_at_peak=count(peak) * period_s / 3600,
        hours_following=following,
        cold_start_s=cold_start_s,
    )


def _soon(values: Sequence[float], ahead: int) -> list[float]:
    """Return for each value the largest of it and the next `ahead` values; after the last come the first again.

    >>> _soon([1, 2, 3, 1], 1)
    [2, 3, 3, 1]
    """
    around = [*values, *values[:ahead]]
    return [max(around[i : i + ahead + 1]) for i in range(len(values))]


# ---- a batch --------------------------------------------------------------------------------------------------------


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas for a batch with a deadline: no limits and no headroom."""

    work: float  # in the run's unit
    deadline_s: float
    replicas: int
    ci95: tuple[int, int]
    seconds: float  # time that they take
    usd: float | None
    usd_per_million: float | None


def batch(at: MeasuredLoad, work: float, deadline_s: float, prices: Prices) -> Batch:
    """Return the replicas that an offline batch needs, ceil(work / (X·(deadline - cold start))), and their cost."""
    start_s = prices.cold_start_s or 0.0
    left = deadline_s - start_s
    if left <= 0:
        fact = f"the deadline is not after a cold start of {start_s:g} s"
        raise HarnessError(fact, place="--deadline", way_out="give more time")
    X, (low, high) = at.throughput, at.throughput_ends
    n, fewer, more = (_sensible(max(1, rounded_up(work / (rate * left)))) for rate in (X, high, low))
    seconds = work / (n * X) + start_s
    usd = n * seconds / 3600 * prices.gpus * prices.gpu_hour if prices.gpu_hour is not None and prices.gpus else None
    return Batch(
        work=work,
        deadline_s=deadline_s,
        replicas=n,
        ci95=(fewer, more),
        seconds=seconds,
        usd=usd,
        usd_per_million=usd / work * 1e6 if usd is not None else None,
    )


# ---- what a fleet costs ---------------------------------------------------------------------------------------------


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of the fleet, or of one that follows the traffic if that is known; None means unknown."""

    usd_per_hour: float  # at the peak
    usd_per_month_at_peak: float  # for a fleet that keeps its size for the peak
    usd_per_month: float  # for a fleet that follows the traffic, if its hours are known
    usd_per_million_at_point: Value  # per million of the run's unit, each replica at its operating point
    usd_per_million: float  # per million of the run's unit, as the fleet is used
    usd_per_million_blended: float | None  # per million input and output tokens together
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
    """Return the cost of `replicas` per hour, month, request and million tokens; None without a price or GPUs."""
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
    """Return USD per million of the run's unit at a throughput `per_s`, with the interval of the throughput."""
    low, high = per_s.ci95 or (None, None)
    ends = [rate and usd_per_million(usd_per_hour, rate) for rate in (high, low)]
    middle = usd_per_million(usd_per_hour, per_s.value or 0.0)
    return Value(middle, (ends[0], ends[1]) if per_s.ci95 else None)


def work_of(capacity: Capacity, demand: Demand) -> float:
    """Return the work of a request, with the demand's own lengths if it has them."""
    own = demand.output_tokens if capacity.counts.decodes else demand.input_tokens
    tokens = capacity.output_tokens if capacity.counts.decodes else capacity.input_tokens
    return capacity.work_per_request if own is None or not tokens else own


def usd_per_month(replicas: int, prices: Prices) -> float | None:
    """Return what replicas cost all month; None if price or GPUs are not known."""
    if prices.gpu_hour is None or not prices.gpus:
        return None
    return replicas * prices.gpus * prices.gpu_hour * MONTH_H
