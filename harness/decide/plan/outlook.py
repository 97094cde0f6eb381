"""What may change: a demand that grows, and an optimisation that has a price."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from harness.decide import cost
from harness.decide.plan.question import MONTH_H, Prices

_SHOWN = (0, 1, 3, 6, 12, 24, 36)  # months of a table


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
    """The fleet as the demand grows by a share each month: λ·(1 + g)^m; `share` of its hours are paid."""
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
    """Of an optimisation after which `faster` replicas do what `replicas` did; None without a price.

    `share` of their hours are paid.
    """
    before, after = usd_per_month(replicas, prices, share), usd_per_month(faster, prices, share)
    if before is None or after is None:
        return None
    months = cost.break_even(effort_usd, before - after)
    return BreakEven(
        speedup=speedup,
        effort_usd=effort_usd,
        replicas=faster,
        usd_saved_per_month=before - after,
        months=months if before > after else None,
    )


def usd_per_month(replicas: int, prices: Prices, share: float = 1.0) -> float | None:
    """On demand, for a share of the time; None where price or GPUs are not known."""
    if prices.gpu_hour is None or not prices.gpus:
        return None
    return share * cost.tco(1, prices.gpu_hour, MONTH_H * replicas * prices.gpus)
