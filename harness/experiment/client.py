"""The load generator's own cost and delays, as telemetry; `analysis.telemetry` reads it."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Sequence

import msgspec

from harness.load.loop import LATE_SHIFT
from harness.load.messages import Progress
from harness.record import Sample

MOST_REPORTS = 256  # of a worker that are kept of a level: all of 13 s, of a longer one each is of an equal span


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


class Reports:
    """The workers' reports of a level: of a long one added up over spans of equal length, so that memory is bounded.

    What `read_delay` makes of them is kept, but that a window begins and ends with a span.
    """

    def __init__(self) -> None:
        self._workers: collections.defaultdict[int, _Spans] = collections.defaultdict(_Spans)

    def add(self, report: Progress) -> None:
        """Take a worker's next report."""
        self._workers[report.worker].add(msgspec.structs.replace(report, late=_trimmed(report.late)))

    def since(self, time_s: float) -> list[Progress]:
        """Those of a time and later, in each worker's order."""
        return [each for spans in self._workers.values() for each in spans.kept if each.time_s >= time_s]


class _Spans:
    """One worker's reports; of a long level each stands for as many as it is the sum of."""

    def __init__(self) -> None:
        self.kept: list[Progress] = []
        self._most = 1  # reports that one is the sum of
        self._in_last = 1  # and the last one so far

    def add(self, report: Progress) -> None:
        if self._in_last < self._most:
            self.kept[-1], self._in_last = _together(self.kept[-1], report), self._in_last + 1
            return
        self.kept.append(report)
        self._in_last = 1
        if len(self.kept) == MOST_REPORTS:
            self.kept = [
                _together(first, second) for first, second in zip(self.kept[::2], self.kept[1::2], strict=True)
            ]
            self._in_last, self._most = self._most + 1, 2 * self._most


def _trimmed(late: tuple[int, ...]) -> tuple[int, ...]:
    """A histogram without its last bins, which are empty: most are."""
    length = len(late)
    while length and not late[length - 1]:
        length -= 1
    return late[:length]


def _together(first: Progress, second: Progress) -> Progress:
    """Two reports of a worker as one, with the read delays of both."""
    kept = first if second.waited_s is None and first.waited_s is not None else second
    return msgspec.structs.replace(kept, late=_added((first.late, second.late)))


def _added(histograms: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Histograms added up, of which some lack their last bins."""
    return tuple(map(sum, itertools.zip_longest(*histograms, fillvalue=0)))


def read_delay(reports: Sequence[Progress], time_s: float, tick_s: float) -> list[Sample]:
    """What each worker lacked of processor time over these reports: how late its reads were, and how long it waited.

    The delay is beyond the planned wait. Its mean is given where arrivals have no kernel stamps: there it is an error
    of their times.
    """
    out = []
    for worker in sorted({p.worker for p in reports}):
        mine = [p for p in reports if p.worker == worker]
        whole = _added(p.late for p in mine)
        found = {}
        if any(whole):
            found["read_delay_p99_s"] = max(0.0, _p99(whole) - tick_s)
        reads, unstamped = mine[-1].reads - mine[0].reads, mine[-1].unstamped - mine[0].unstamped
        if reads > 0:
            found["unstamped_fraction"] = unstamped / reads
            if 2 * unstamped > reads and any(whole):
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
