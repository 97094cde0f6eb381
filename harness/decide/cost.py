"""Money and machines: from tokens per second to dollars per token and to replicas.

One rule runs through it: a rate and a demand count the same tokens (output, or input + output), or there
is no answer. Prices of input and output apart, and fleets under an SLO, are not here.
"""

from __future__ import annotations

import math

import msgspec

from harness.base.errors import HarnessError


class Tokens(msgspec.Struct, frozen=True):
    """An amount of tokens, or of tokens per second, with what it counts."""

    amount: float
    counts: str  # output | total (input + output)


def usd_per_request(usd_per_million: float, tokens: float) -> float:
    """Return the price of one request; USD. `tokens` counts what the price per million counts.

    >>> round(usd_per_request(0.17, 500 + 200), 6)
    0.000119
    """
    return usd_per_million * tokens / 1e6


def tco(gpus: int, usd_per_gpu_hour: float, hours: float, *others: float) -> float:
    """Return the total cost of ownership over `hours`: GPUs and all the other costs of that time; USD.

    >>> tco(10, 3, 720, 500, 1000, 500, 5000)  # storage, network, monitoring, engineering
    28600
    """
    return gpus * usd_per_gpu_hour * hours + sum(others)


def break_even(usd: float, usd_saved_per_month: float) -> float:
    """Return months until an effort has paid for itself; infinite when it saves nothing.

    >>> break_even(50_000, 10_000)
    5.0
    """
    return usd / usd_saved_per_month if usd_saved_per_month > 0 else math.inf


def replicas_with_factor(
    peak_requests_per_s: float,
    per_request: Tokens,
    per_s: Tokens,
    target_utilization: float,
    redundancy: float,
) -> float:
    """Return replicas with a redundancy factor, before rounding up. λ tok / (X u) · redundancy.

    >>> replicas_with_factor(10, Tokens(700, "total"), Tokens(5000, "total"), 0.7, 1.25)
    2.5
    """
    return _busy_replicas(peak_requests_per_s, per_request, per_s) / target_utilization * redundancy


def replicas(
    peak_requests_per_s: float,
    per_request: Tokens,
    per_s: Tokens,
    target_utilization: float,
    per_s_within_slo: Tokens,
    spare: int,
) -> int:
    """Return replicas with headroom, that still meet the SLO while `spare` of them are down.

    max(ceil(λ tok / (X u)), ceil(λ tok / X_slo) + k); the headroom is 1/u - 1. Spares take the place of a
    redundancy factor, so there is none.

    >>> output = Tokens(200, "output")
    >>> replicas(100, output, Tokens(6000, "output"), 0.7, Tokens(5000, "output"), spare=1)
    5
    """
    headroom = _busy_replicas(peak_requests_per_s, per_request, per_s) / target_utilization
    survivors = _busy_replicas(peak_requests_per_s, per_request, per_s_within_slo)
    return max(rounded_up(headroom), rounded_up(survivors) + spare)


def _busy_replicas(peak_requests_per_s: float, per_request: Tokens, per_s: Tokens) -> float:
    """Return the replicas that a peak keeps fully busy, λ tok / X, not rounded up; X is of one replica."""
    if per_request.counts != per_s.counts:
        raise HarnessError(
            f"a request of {per_request.amount:g} {per_request.counts} tokens cannot be divided by "
            f"{per_s.amount:g} {per_s.counts} tokens/s",
            place="replicas",
            way_out="count output tokens on both sides, or input + output on both",
        )
    return peak_requests_per_s * per_request.amount / per_s.amount


def rounded_up(x: float) -> int:
    """Return whole machines."""
    # 0.7 · 10 / 0.7 is a hair above 10 in floating point; that hair is not a machine.
    return math.ceil(x - 1e-9)
