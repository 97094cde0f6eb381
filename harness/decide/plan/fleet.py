"""How many replicas carry a demand, what they keep in reserve, and what is left when one is lost.

    n = max(ceil(λ·w / (X·u)), ceil(λ·w / X) + k)        with k spares
    n = ceil(λ·w / (X·u) · r)                            with a redundancy factor r

λ requests per second at the peak, w work of a request, X work per second of a replica at the operating point, u target
utilisation; the headroom is 1/u - 1. Both count the same work (`cost`). By an availability A of a fleet whose replicas
are up a share a of the time, independently, k is the smallest for which P(Binomial(n + k, a) >= n) >= A.
"""

from __future__ import annotations

import math

import msgspec

from harness.base.errors import HarnessError
from harness.decide import cost
from harness.decide.cost import Tokens
from harness.decide.plan.capacity import Capacity, MeasuredLoad, request_s
from harness.decide.plan.question import Reserve

MOST = 100_000  # replicas: more is a mistake in the demand


class FleetOption(msgspec.Struct, frozen=True, kw_only=True):
    """One size of the fleet."""

    replicas: int
    utilization: float  # of the operating point's throughput, at the peak
    one_lost: float | None  # likewise with one replica fewer; None: there is none left
    usd_per_month: float | None = None


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas for a demand."""

    requests_per_s: float  # at the peak
    work_per_request: float
    replicas: int
    ci95: tuple[int, int]  # over the interval of the measured throughput
    exact: float  # replicas before rounding up, headroom and redundancy in it, spares not
    needed: int  # that carry the peak without any reserve
    may_fail: int  # replicas that may be down at the peak before the operating point is passed
    in_flight: float | None  # at the peak, on all: λ·R by Little's law
    options: list[FleetOption]  # one fewer, this, one more


def fleet(capacity: Capacity, at: MeasuredLoad, requests_per_s: float, work: float, reserve: Reserve) -> Fleet:
    """The replicas for a peak of so many requests per second."""
    low, X, high = _ends(at)
    n, fewer, more = (count(requests_per_s, work, rate, capacity.unit, reserve) for rate in (X, high, low))
    alone = cost.replicas_with_factor(requests_per_s, *_both(work, X, capacity.unit), 1.0, 1.0)
    needed, R = cost.rounded_up(alone), request_s(capacity, at, work)
    sizes = [size for size in (n - 1, n, n + 1) if size > 0]
    return Fleet(
        requests_per_s=requests_per_s,
        work_per_request=work,
        replicas=n,
        ci95=(fewer, more),
        exact=alone / reserve.utilization * (reserve.redundancy or 1.0),
        needed=needed,
        may_fail=max(0, n - needed),
        in_flight=None if R is None else requests_per_s * R,
        options=[
            FleetOption(replicas=size, utilization=alone / size, one_lost=alone / (size - 1) if size > 1 else None)
            for size in sizes
        ],
    )


def count(requests_per_s: float, work: float, work_per_s: float, unit: str, reserve: Reserve) -> int:
    """Replicas of that throughput for a rate of requests; 1 at least.

    >>> count(100, 200, 6000, "output tokens", Reserve(utilization=0.7))
    5
    >>> count(100, 200, 6000, "output tokens", Reserve(utilization=0.7, redundancy=1.25))
    6
    """
    request, rate = _both(work, work_per_s, unit)
    if reserve.redundancy is not None:
        exact = cost.replicas_with_factor(requests_per_s, request, rate, reserve.utilization, reserve.redundancy)
        return _sensible(max(1, cost.rounded_up(exact)))
    spare = reserve.spare or 0
    if reserve.availability is not None and reserve.replica_availability is not None:
        needed = _sensible(max(1, cost.replicas(requests_per_s, request, rate, 1.0, rate, 0)))
        spare = spares(needed, reserve.availability, reserve.replica_availability)
    return _sensible(max(1, cost.replicas(requests_per_s, request, rate, reserve.utilization, rate, spare)))


def spares(needed: int, availability: float, replica_availability: float) -> int:
    """Replicas beyond `needed`, so that enough of them are up for that share of the time.

    Of three at 99 %, all are up 0.99³ = 97.0 % of the time, and three of four 99.94 %.

    >>> spares(3, 0.97, 0.99), spares(3, 0.999, 0.99), spares(3, 0.9999, 0.99)
    (0, 1, 2)
    """
    least, most = 0, 1
    while up(needed, most, replica_availability) < availability:
        least, most = most + 1, 2 * most + 1
        _sensible(needed + most)
    while least < most:
        middle = (least + most) // 2
        least, most = (
            (least, middle) if up(needed, middle, replica_availability) >= availability else (middle + 1, most)
        )
    return least


def up(needed: int, spare: int, replica_availability: float) -> float:
    """Share of the time that `needed` of `needed + spare` replicas are up, each on its own: a binomial's tail."""
    n, down = needed + spare, 1 - replica_availability

    def share(failed: int) -> float:
        ways = math.lgamma(n + 1) - math.lgamma(failed + 1) - math.lgamma(n - failed + 1)
        return math.exp(ways + failed * math.log(down) + (n - failed) * math.log(replica_availability))

    return math.fsum(map(share, range(spare + 1)))


def _ends(at: MeasuredLoad) -> tuple[float, float, float]:
    """The measured work per second with the ends of its interval."""
    X = at.work_per_s.value or 0.0
    low, high = at.work_per_s.ci95 or (None, None)
    return low or X, X, high or X


def _both(work: float, work_per_s: float, unit: str) -> tuple[Tokens, Tokens]:
    return Tokens(work, unit), Tokens(work_per_s, unit)


def _sensible(replicas: int) -> int:
    if replicas > MOST:
        fact = f"more than {MOST:,} replicas"
        raise HarnessError(fact, place="knee plan", way_out="is the demand per second, and the replica the right one?")
    return replicas
