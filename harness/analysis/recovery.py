"""How long a server needs after a spike of requests until it is itself again, from one level's requests. Pure.

Before a spike requests wait for their first token up to some time. After it, the last request that waits half as long
again ends the recovery; one that fails without a first token waits forever. Waits count from when a request was due.
Left out: waves, and series that have not one spike and one rate without it, which have no calm.
"""

from __future__ import annotations

import numpy as np

from harness.analysis.table import Floats, Table
from harness.data.record import Level
from harness.spec.traffic import Series, Traffic

WAITS = 1.5  # times the longest wait before the spike, above which a request still feels it


def of_level(table: Table, level: Level, traffic: Traffic) -> list[float | None]:
    """Seconds from the end of each spike in the window to the recovery; None: there was none before the next spike."""
    profile = traffic.profile
    if level.rate is None or not isinstance(profile, Series) or not _spike_and_calm(profile):
        return []
    own = (table.level == level.index) & (table.failed | ~np.isnan(table.first))
    due, wait = table.scheduled[own] - level.begin_s, (table.first - table.scheduled)[own]
    longest = np.inf  # of the waits in the calmest time so far: a server that never recovers is not calm
    window = level.window[0] - level.begin_s, level.window[1] - level.begin_s
    begins, ends = spikes(profile, window[1])
    found: list[float | None] = []
    for i, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        calm_from = (ends[i - 1] + begin) / 2 if i else window[0]
        until = begin + profile.period_s
        before = wait[(due >= calm_from) & (due < begin) & ~np.isnan(wait)]
        if calm_from < window[0] or until > window[1] or not len(before):
            continue
        longest = min(longest, before.max())
        late = due[(due >= end) & (due < until) & ~(wait <= WAITS * longest)]
        last = float(late.max()) if len(late) else end
        back = due[(due > last) & (due < until)]
        found.append(last - end if len(back) else None)
    return found


def _spike_and_calm(profile: Series) -> bool:
    """Whether the rate is the same but for one spike in a period."""
    return len(set(profile.rates)) == 2 and profile.rates.count(profile.peak) == 1


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
