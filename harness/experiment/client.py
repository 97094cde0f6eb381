"""The load generator's own cost and delays, as telemetry; `analysis.telemetry` reads it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from harness.load.loop import LATE_SHIFT
from harness.load.messages import Progress
from harness.record import Sample


def samples(before: Progress, now: Progress) -> list[Sample]:
    """The figures of one worker between two of its reports."""
    span = now.time_s - before.time_s
    out = {
        "cpu_fraction": (now.cpu_s - before.cpu_s) / span if span > 0 else 0.0,
        "reads": now.reads - before.reads,
        "unstamped": now.unstamped - before.unstamped,
        "tokens": now.tokens - before.tokens,
        "in_flight": now.in_flight,
    }
    return [Sample(now.time_s, "client", f"{now.worker}/{name}", float(value)) for name, value in out.items()]


def thinned(reports: Sequence[Progress]) -> list[Progress]:
    """Half as many reports, each with the read delays of two of its worker's: what `read_delay` adds up is kept."""
    out = []
    for worker in sorted({p.worker for p in reports}):
        mine = [p for p in reports if p.worker == worker]
        for first, second in itertools.zip_longest(mine[::2], mine[1::2]):
            if second is None:
                out.append(first)
                continue
            late = tuple(map(sum, zip(first.late, second.late, strict=True))) if first.late and second.late else ()
            kept = first if second.waited_s is None and first.waited_s is not None else second
            out.append(msgspec.structs.replace(kept, late=late or first.late or second.late))
    return out


def read_delay(reports: Sequence[Progress], time_s: float, tick_s: float) -> list[Sample]:
    """What each worker lacked of processor time over these reports: how late its reads were, and how long it waited.

    The delay is beyond the planned wait. Its mean is given where arrivals have no kernel stamps: there it is an error
    of their times.
    """
    out = []
    for worker in sorted({p.worker for p in reports}):
        mine = [p for p in reports if p.worker == worker]
        whole = [sum(bins) for bins in zip(*(p.late for p in mine if p.late), strict=True)]
        found = {}
        if sum(whole):
            found["read_delay_p99_s"] = max(0.0, _p99(whole) - tick_s)
        reads, unstamped = mine[-1].reads - mine[0].reads, mine[-1].unstamped - mine[0].unstamped
        if reads > 0:
            found["unstamped_fraction"] = unstamped / reads
            if 2 * unstamped > reads and sum(whole):
                found["read_delay_mean_s"] = _mean_beyond(whole, tick_s)
        waited = [(p.time_s, p.waited_s) for p in mine if p.waited_s is not None]
        if len(waited) > 1:
            (began, before), (ended, after) = waited[0], waited[-1]
            found["waited_fraction"] = (after - before) / (ended - began)
        out += [Sample(time_s, "client", f"{worker}/{name}", value) for name, value in found.items()]
    return out


def _mean_beyond(histogram: Sequence[int], tick_s: float) -> float:
    """Mean delay beyond the planned wait, seconds."""
    late = ((index + 0.5) * (1 << LATE_SHIFT) * 1e-9 - tick_s for index in range(len(histogram)))
    return sum(n * max(0.0, each) for n, each in zip(histogram, late, strict=True)) / sum(histogram)


def _p99(histogram: Sequence[int]) -> float:
    """Upper edge of the bin that holds the 99th percentile, seconds."""
    wanted, seen = 0.99 * sum(histogram), 0
    for index, count in enumerate(histogram):
        seen += count
        if seen >= wanted:
            return ((index + 1) << LATE_SHIFT) * 1e-9
    return (len(histogram) << LATE_SHIFT) * 1e-9
