"""The load generator's own cost and delays, as telemetry; `analysis.telemetry` reads it."""

from __future__ import annotations

import numpy as np

from harness.analysis.table import Floats, Ints
from harness.data.record import Sample
from harness.load.loop import LATE_BINS, LATE_SHIFT
from harness.load.messages import Progress
from harness.search.history import Thinned

MOST_REPORTS = 64  # of a worker's read delays in a level, which come five times a second
_BIN_S = (1 << LATE_SHIFT) * 1e-9
_READS, _UNSTAMPED, _WAITED_NS = range(LATE_BINS, LATE_BINS + 3)  # columns behind the histogram's


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


class ReadDelays:
    """What each worker lacked of processor time in a level: how late its reads were, and how long it waited.

    Kept as running counts, of a long level at fewer points, so that memory is the same after hours as at first.
    """

    def __init__(self) -> None:
        self._workers: dict[int, _Worker] = {}

    def add(self, report: Progress) -> None:
        """Take a worker's next report."""
        if report.late or report.waited_s is not None:
            self._workers.setdefault(report.worker, _Worker()).add(report)

    def between(self, start_s: float, end_s: float, tick_s: float) -> list[Sample]:
        """The figures from a time until the last report, as samples of the time `end_s`.

        A delay is what exceeds `tick_s`, the planned wait. Its mean is given where arrivals have no kernel stamps:
        there it is an error of their times.
        """
        return [
            Sample(end_s, "client", f"{number}/{name}", value)
            for number, worker in sorted(self._workers.items())
            for name, value in worker.since(start_s, tick_s).items()
        ]


class _Worker:
    """One worker's read delays."""

    def __init__(self) -> None:
        self._kept = Thinned(MOST_REPORTS, LATE_BINS + 3)
        self._late = np.zeros(LATE_BINS, dtype=np.int64)  # of the level so far

    def add(self, report: Progress) -> None:
        for bin_, reads in enumerate(report.late):  # an array of each length that comes would stay in numpy's cache
            self._late[bin_] += reads
        waited_ns = -1 if report.waited_s is None else round(report.waited_s * 1e9)
        self._kept.add(report.time_s, np.append(self._late, (report.reads, report.unstamped, waited_ns)))

    def since(self, start_s: float, tick_s: float) -> dict[str, float]:
        """By name: from the last point before a time, or else from the level's first, to the latest."""
        times, counts = self._kept.times, self._kept.counts
        first = int(np.searchsorted(times, start_s)) - 1
        before, last = counts[max(first, 0)], counts[-1]
        late = last[:LATE_BINS] - (before[:LATE_BINS] if first >= 0 else 0)
        reads, unstamped = (int(last[column] - before[column]) for column in (_READS, _UNSTAMPED))
        found = {}
        if late.any():
            found["read_delay_p99_s"] = max(0.0, _p99(late) - tick_s)
        if reads > 0:
            found["unstamped_fraction"] = unstamped / reads
            if 2 * unstamped > reads and late.any():
                found["read_delay_mean_s"] = _mean_beyond(late, tick_s)
        span_s = times[-1] - times[max(first, 0)]
        if span_s > 0 and before[_WAITED_NS] >= 0:
            found["waited_fraction"] = float((last[_WAITED_NS] - before[_WAITED_NS]) * 1e-9 / span_s)
        return found


def _mean_beyond(histogram: Ints, tick_s: float) -> float:
    """Mean delay beyond the planned wait, seconds."""
    late: Floats = np.maximum(0.0, (np.arange(len(histogram)) + 0.5) * _BIN_S - tick_s)
    return float(histogram @ late / histogram.sum())


def _p99(histogram: Ints) -> float:
    """Upper edge of the bin that holds the 99th percentile, seconds."""
    upto = histogram.cumsum()
    return float((np.searchsorted(upto, 0.99 * upto[-1]) + 1) * _BIN_S)
