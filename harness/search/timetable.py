"""When the levels of a shard lie, by the scenario alone: the same on every machine, whatever one of them sees.

A level takes three times the length of its window: a third to warm up, the window, a third for the requests that
began in it. The next level is made ready in the last moments of that.
"""

from __future__ import annotations

import msgspec

from harness.data.roles import Role
from harness.search import pace
from harness.spec.scenario import Scenario

_READY_S, _READY_SHARE = 1.0, 0.25  # to make the next level ready: so long, or such a share of a short window


class Moments(msgspec.Struct, frozen=True):
    """Of a level, seconds since the run's start."""

    begin_s: float
    window_start_s: float
    window_end_s: float
    end_s: float


def moments(scenario: Scenario, index: int) -> Moments:
    """The moments of the level with this index, in a scenario whose levels have a length.

    >>> from harness.spec.scenario import Ramp
    >>> moments(Scenario(ramp=Ramp(levels=[1, 2], level_seconds=10.0)), 1)
    Moments(begin_s=30.0, window_start_s=40.0, window_end_s=50.0, end_s=59.0)
    """
    window_s = pace.of_level(scenario, Role.FIXED, 0.0, None).window_s
    assert window_s is not None, "harness.spec.shard refuses levels without a length"
    begin_s = 3 * window_s * index
    ready_s = min(_READY_S, _READY_SHARE * window_s)
    return Moments(begin_s, begin_s + window_s, begin_s + 2 * window_s, begin_s + 3 * window_s - ready_s)
