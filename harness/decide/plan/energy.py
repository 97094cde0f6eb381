"""Energy of a fleet, where the power of its GPUs was measured: GPUs alone, without the rest of the machine."""

from __future__ import annotations

import msgspec

from harness.decide.plan.capacity import MeasuredLoad
from harness.decide.plan.question import MONTH_H, Prices


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """Each replica at its operating point all month, which is the most that the plan asks of it.

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
    """None where no power was measured; without what a month takes where the fleet does not run for one."""
    X = at.work_per_s.value
    if at.power_w is None or not X:
        return None
    each = at.power_w / X
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
