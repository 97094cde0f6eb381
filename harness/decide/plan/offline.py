"""A batch of work with a deadline: no limits, no headroom, the load with the highest throughput."""

from __future__ import annotations

import msgspec

from harness.base.errors import HarnessError
from harness.decide import cost
from harness.decide.plan.capacity import MeasuredLoad
from harness.decide.plan.fleet import MOST
from harness.decide.plan.question import Prices


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas for a batch; over the interval of the measured throughput."""

    work: float  # in the run's unit
    deadline_s: float
    replicas: int
    ci95: tuple[int, int]
    seconds: float  # that they take
    seconds_ci95: tuple[float, float]
    replica_hours: float  # that are paid, starts included where the cold start is known
    usd: float | None
    usd_per_million: float | None


def batch(at: MeasuredLoad, work: float, deadline_s: float, prices: Prices) -> Batch:
    """n = ceil(work / (X·(deadline - cold start))), and what they cost; `prices.gpus` are those of one replica."""
    start_s = prices.cold_start_s or 0.0
    left = deadline_s - start_s
    if left <= 0:
        fact = f"the deadline is not after a cold start of {start_s:g} s"
        raise HarnessError(fact, place="--deadline", way_out="give more time")
    X = at.work_per_s.value or 0.0
    low, high = at.work_per_s.ci95 or (X, X)
    n, fewer, more = (max(1, cost.rounded_up(work / (rate * left))) for rate in (X, high or X, low or X))
    if n > MOST:
        raise HarnessError(f"more than {MOST:,} replicas", place="--deadline", way_out="give more time, or less work")
    seconds, least, most = (work / (n * rate) + start_s for rate in (X, high or X, low or X))
    hours = n * seconds / 3600
    usd = hours * prices.gpus * prices.gpu_hour if prices.gpu_hour is not None and prices.gpus else None
    return Batch(
        work=work,
        deadline_s=deadline_s,
        replicas=n,
        ci95=(fewer, more),
        seconds=seconds,
        seconds_ci95=(least, most),
        replica_hours=hours,
        usd=usd,
        usd_per_million=usd / work * 1e6 if usd is not None else None,
    )
