"""The load of a scenario, which is one of five kinds: what decides how many requests are in flight, or when they come.

In a closed loop a slot sends its next request when the one before has ended; in an open loop requests come at times of
their own, whether or not the server keeps up. The loads of a run are given, or a search chooses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from harness.spec import traffic


class _Load(msgspec.Struct, frozen=True):
    """What all kinds have; each of them says where it differs."""

    is_open: ClassVar[bool] = False
    is_given: ClassVar[bool] = True  # else a search chooses the loads
    loads: Sequence[float] = ()  # requests in flight, or a second


class Levels(_Load, frozen=True):
    """A closed loop at given levels of concurrency."""


class Search(_Load, frozen=True):
    """A closed loop whose levels the ramp chooses."""

    is_given = False


class Rates(_Load, frozen=True):
    """An open loop at given requests per second, of the levels or of the arrivals themselves."""

    is_open = True


class RateSearch(_Load, frozen=True):
    """An open loop whose rates are searched for."""

    is_open = True
    is_given = False


class Trace(_Load, frozen=True):
    """An open loop at the times of a dataset's rows; its rate is known once the dataset is read."""

    is_open = True


Load = Levels | Search | Rates | RateSearch | Trace


def of(levels: Sequence[int] | None, rates: Sequence[float] | None, *, searched: bool, arrivals: str) -> Load:
    """Return the load that a scenario asks for; `searched` is whether rates are searched for.

    >>> of([1, 2], None, searched=False, arrivals="poisson")
    Levels(loads=[1, 2])
    >>> of(None, None, searched=False, arrivals="series(0s:10,60s:40)")
    Rates(loads=[25.0])
    """
    if rates is not None:
        return Rates(rates)
    if levels is not None:
        return Levels(levels)
    if searched:
        return RateSearch()
    how = traffic.parse(arrivals)
    if how.speed is not None:
        return Trace()
    return Search() if how.own_rate is None else Rates([how.own_rate])
