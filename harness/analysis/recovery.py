"""How long a server needs after a spike of requests until it is itself again, from one level's requests. Pure.

Before a spike requests wait for their first token up to some time. After it, the last request that waits half as long
again ends the recovery. Waits count from when a request was due. Left out: waves, and series of more than two rates,
which have no calm.
"""

from __future__ import annotations

import numpy as np

from harness.analysis.table import Floats, Table
from harness.record import Level
from harness.traffic import Series, Traffic

WAITS = 1.5  # times the longest wait before the spike, above which a request still feels it


def of_level(table: Table, level: Level, traffic: Traffic) -> list[float | None]:
    """Seconds from the end of each spike in the window to the recovery; None: there was none before the next spike."""
    profile = traffic.profile
    if level.rate is None or not isinstance(profile, Series) or len(set(profile.rates)) != 2:
        return []
    own = (table.level == level.index) & ~np.isnan(table.first)
    due, wait = table.scheduled[own] - level.begin_s, (table.first - table.scheduled)[own]
    window = level.window[0] - level.begin_s, level.window[1] - level.begin_s
    begins, ends = spikes(profile, window[1])
    found: list[float | None] = []
    for i, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        calm_from = (ends[i - 1] + begin) / 2 if i else window[0]
        until = begins[i + 1] if i + 1 < len(begins) else end + profile.period_s - (end - begin)
        before = wait[(due >= calm_from) & (due < begin)]
        if calm_from < window[0] or until > window[1] or not len(before):
            continue
        late = due[(due >= end) & (due < until) & (wait > WAITS * before.max())]
        last = float(late.max()) if len(late) else end
        back = due[(due > last) & (due < until)]
        found.append(last - end if len(back) else None)
    return found


def spikes(profile: Series, until_s: float) -> tuple[Floats, Floats]:
    """When each spike begins and ends, seconds since the level began, shape [spikes], those that end before `until_s`.

    >>> spikes(Series((0.0, 55.0, 65.0), (5.0, 50.0, 5.0), 120.0), 200.0)
    (array([ 55., 175.]), array([ 65., 185.]))
    """
    at = profile.rates.index(profile.peak)
    over = (*profile.starts, profile.period_s)[at + 1]
    periods = np.arange(until_s // profile.period_s + 1, dtype=np.float64) * profile.period_s
    begins, ends = np.asarray(periods + profile.starts[at]), np.asarray(periods + over)
    return begins[ends <= until_s], ends[ends <= until_s]
