"""A day's traffic: a fleet for its peak against one that follows it.

A replica that is wanted at t is started one cold start before, and paid from then on. Without a forecast the fleet can
follow only where the traffic grows by no more than the headroom, 1/u, within one cold start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from harness.base import decoding
from harness.base.errors import HarnessError
from harness.spec import traffic

_CELLS = 1440  # of a period: minutes of a day
_HEADER = "time,requests_per_s"


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """One period of the traffic; requests per second, and replica-hours of one period."""

    period_s: float
    peak: float
    mean: float
    replicas_peak: int
    replicas_least: int
    hours_at_peak: float  # of a fleet for the peak all the time
    hours_following: float | None  # of one that follows the traffic; None: the cold start is not known
    hours_above_least: float | None  # of these, beyond the least that always run
    cold_start_s: float | None
    growth: float | None  # the most within one cold start, as a factor; None: not known, or from nothing
    follows: bool | None  # whether the headroom lasts for a cold start, without a forecast


def read(text: str) -> traffic.Traffic:
    """A shape like wave(period=24h,low=5,high=50), or a CSV file of times and requests per second.

    The file's rates each last until the next time, the last one as long as the one before it; then the first again.
    """
    place = "--traffic"
    if "(" in text and not Path(text).exists():
        found = traffic.parse(text, place)
    else:
        with decoding.reading(f"{place} {text}", "a traffic file", f"give a CSV with the header {_HEADER}, or a shape"):
            lines = decoding.content(Path(text)).decode("utf-8-sig").splitlines()
            header, *rows = ["".join(line.split()) for line in lines if line.strip()] or [""]
            if header != _HEADER:
                raise ValueError(f"its header is not {_HEADER}")
            series = ",".join(row.replace(",", ":") for row in rows)
        found = traffic.parse(f"series({series})", f"{place} {text}")
    if found.profile is None or found.profile.mean <= 0:
        way_out = "write it like wave(period=24h,low=5,high=50)"
        raise HarnessError("these arrivals have no rate of their own", place=place, way_out=way_out)
    return found


def rates(shape: traffic.Traffic, peak: float | None) -> tuple[list[float], float]:
    """Mean requests per second of each cell of a period, and the peak; scaled to that peak where there is one."""
    profile = shape.profile
    assert profile is not None
    times = 1.0 if peak is None else peak / profile.peak
    cell = profile.period_s / _CELLS
    until = [profile.until(i * cell) for i in range(_CELLS)] + [profile.mean * profile.period_s]
    cells = [times * (after - before) / cell for before, after in pairwise(until)]
    return cells, times * profile.peak


def of_rates(
    cells: Sequence[float],
    peak: float,
    period_s: float,
    count: Callable[[float], int],
    utilization: float,
    cold_start_s: float | None,
) -> Day:
    """The fleet over a period of equal cells; `count` gives the replicas for a rate."""
    wanted = [count(rate) for rate in cells]
    cell_h = period_s / len(cells) / 3600
    growth = follows = following = above = None
    if cold_start_s is not None:
        ahead = min(len(cells) - 1, math.ceil(cold_start_s / (period_s / len(cells))))
        started = _soon(wanted, ahead)
        following, above = sum(started) * cell_h, sum(n - min(started) for n in started) * cell_h
        pairs = list(zip(_soon(cells, ahead), cells, strict=True))
        growth = None if any(soon > now == 0 for soon, now in pairs) else max(soon / now for soon, now in pairs if now)
        follows = growth is not None and growth <= 1 / utilization + 1e-9
    return Day(
        period_s=period_s,
        peak=peak,
        mean=math.fsum(cells) / len(cells),
        replicas_peak=count(peak),
        replicas_least=min(wanted),
        hours_at_peak=count(peak) * period_s / 3600,
        hours_following=following,
        hours_above_least=above,
        cold_start_s=cold_start_s,
        growth=growth,
        follows=follows,
    )


def _soon(values: Sequence[float], ahead: int) -> list[float]:
    """The largest of each value and the `ahead` after it, around the period.

    >>> _soon([1, 2, 3, 1], 1)
    [2, 3, 3, 1]
    """
    around = [*values, *values[:ahead]]
    return [max(around[i : i + ahead + 1]) for i in range(len(values))]
