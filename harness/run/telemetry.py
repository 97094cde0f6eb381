"""Telemetry during the load: the load generator's own cost and delays, and what server, exporters and GPUs publish.

The latter are read off the measured path until cancelled. `analysis.telemetry` reads all of it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator, Sequence

import msgspec
import numpy as np

from harness.analysis.table import Floats, Ints
from harness.base.secrecy import plain, redact
from harness.data.record import SERVER, Sample
from harness.load import control
from harness.load.client import client
from harness.load.loop import LATE_BINS, LATE_SHIFT
from harness.load.messages import Progress
from harness.load.transport import Target
from harness.observe import server
from harness.observe.gpu import EVERY_S, Gpus
from harness.run.launch.endpoint import Endpoint
from harness.search.level import Thinned
from harness.spec.scenario import Scenario

Take = Callable[[Sequence[Sample]], None]
MOST_REPORTS = 64  # reports of a worker's read delays in a level, which come five times a second
_BIN_S = (1 << LATE_SHIFT) * 1e-9
_READS, _UNSTAMPED, _WAITED_NS = range(LATE_BINS, LATE_BINS + 3)  # columns behind the histogram's
_SCRAPE_S = 5.0  # for one page of the server's figures
_LONGEST_WAIT_S = 30.0  # between two scrapes, after some that failed
_LONGEST_REASON = 120  # characters of why there was none


def scrape_every_s(level_seconds: float | None) -> float:
    """Return the seconds between two scrapes, by `--level-seconds`.

    >>> scrape_every_s(None), scrape_every_s(4.0), scrape_every_s(60.0)
    (1.0, 0.5, 2.0)
    """
    return min(2.0, max(0.25, level_seconds / 8)) if level_seconds else 1.0


def scrapes(
    endpoint: Endpoint, scenario: Scenario, now: Callable[[], float], take: Take, note: Callable[[str], None]
) -> Iterator[Coroutine[None, None, None]]:
    """Yield for each metrics page (of servers, pools, exporters) a coroutine that scrapes it again and again."""
    ramp = scenario.ramp
    lasts = ramp.duration if ramp.load.is_given else None  # length of a soak's one level
    every_s = scrape_every_s(ramp.level_seconds or lasts or None)
    pages: list[tuple[str, Target, Callable[[float, str], list[Sample]]]] = []
    for replica in endpoint.replicas or (endpoint,):
        if replica.wire.figures is not None:
            source = f"{SERVER} {replica.address.place}" if endpoint.replicas else SERVER
            pages.append((f"the {source}'s own", replica.wire.figures, server.Pages(source).samples))
    for name, where in endpoint.wire.pools:
        pages.append((f"the {name} server's own", where, server.Pages(f"{SERVER} {name}").samples))
    for number, where in enumerate(endpoint.wire.exporters):
        pages.append(("an exporter's", where, functools.partial(server.exporter_samples, number)))
    for whose, where, read in pages:
        scraping = _Scraping(whose=whose, where=where, read=read, every_s=every_s, secrets=endpoint.wire.secrets)
        yield scraping.run(now, take, note)


class _Scraping(msgspec.Struct, frozen=True, kw_only=True):
    """One page that is read over and over."""

    whose: str
    where: Target
    read: Callable[[float, str], list[Sample]]  # the figures on it
    every_s: float
    secrets: Sequence[str]

    async def run(self, now: Callable[[], float], take: Take, note: Callable[[str], None]) -> None:
        """Take the page's figures; a scrape that fails is a gap, noted once, and is tried again."""
        wait, noted = self.every_s, False
        async with client(self.where, connect_s=_SCRAPE_S) as http:
            while True:
                try:
                    page = await control.page(http, self.where.path, _SCRAPE_S)
                    why = "" if page.status == 200 else f"it answers {page.status}"
                    if not why:
                        take(self.read(now(), page.text))
                except control.TransportError as error:
                    why = plain(str(error)[:_LONGEST_REASON]) or type(error).__name__
                # A failing scrape is tried less and less often, for it may cost the server much.
                wait = min(_LONGEST_WAIT_S, 2 * wait) if why else self.every_s
                if why and not noted:
                    noted = True
                    note(f"a gap in {self.whose} figures: {redact(why, self.secrets)}; load goes on without them")
                await asyncio.sleep(wait)


async def watch_gpus(gpus: Gpus, now: Callable[[], float], take: Take) -> None:
    """Take the GPUs' figures in a thread: a driver may be slow."""
    while found := await asyncio.to_thread(gpus.samples, now()):
        take(found)
        await asyncio.sleep(EVERY_S)


def samples(before: Progress, now: Progress) -> list[Sample]:
    """Return samples of a worker's processor share, reads and tokens between two of its reports, and its in flight."""
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
        self._kept: dict[int, Thinned] = {}  # running counts of each worker
        self._late: dict[int, Ints] = {}  # each one's histogram of the level so far

    def add(self, report: Progress) -> None:
        """Add a worker's report to its running counts: read delays by bin, reads, unstamped reads, waiting time."""
        if not report.late and report.waited_s is None:
            return
        late = self._late.setdefault(report.worker, np.zeros(LATE_BINS, dtype=np.int64))
        for bin_, reads in enumerate(report.late):  # an array of each length that comes would stay in numpy's cache
            late[bin_] += reads
        waited_ns = -1 if report.waited_s is None else round(report.waited_s * 1e9)
        kept = self._kept.setdefault(report.worker, Thinned(MOST_REPORTS, LATE_BINS + 3))
        kept.add(report.time_s, np.append(late, (report.reads, report.unstamped, waited_ns)))

    def between(self, start_s: float, end_s: float, tick_s: float) -> list[Sample]:
        """Return each worker's read delays and waiting from `start_s` to its last report, as samples at `end_s`.

        A delay is what exceeds `tick_s`, the planned wait. Its mean is given where arrivals have no kernel stamps:
        there it is an error of their times.
        """
        return [
            Sample(end_s, "client", f"{number}/{name}", value)
            for number, kept in sorted(self._kept.items())
            for name, value in _since(kept, start_s, tick_s).items()
        ]


def _since(kept: Thinned, start_s: float, tick_s: float) -> dict[str, float]:
    """Return a worker's read delays, share of unstamped reads and of waiting, from `start_s` to its latest report."""
    times, counts = kept.times, kept.counts
    first = int(np.searchsorted(times, start_s)) - 1
    before, last = counts[max(first, 0)], counts[-1]
    late = last[:LATE_BINS] - (before[:LATE_BINS] if first >= 0 else 0)
    reads, unstamped = (int(last[column] - before[column]) for column in (_READS, _UNSTAMPED))
    values = {}
    if late.any():
        values["read_delay_p99_s"] = max(0.0, _p99(late) - tick_s)
    if reads > 0:
        values["unstamped_fraction"] = unstamped / reads
        if 2 * unstamped > reads and late.any():
            values["read_delay_mean_s"] = _mean_beyond(late, tick_s)
    span_s = times[-1] - times[max(first, 0)]
    if span_s > 0 and before[_WAITED_NS] >= 0:
        values["waited_fraction"] = float((last[_WAITED_NS] - before[_WAITED_NS]) * 1e-9 / span_s)
    return values


def _mean_beyond(histogram: Ints, tick_s: float) -> float:
    """Return the mean delay beyond the planned wait, seconds."""
    late: Floats = np.maximum(0.0, (np.arange(len(histogram)) + 0.5) * _BIN_S - tick_s)
    return float(histogram @ late / histogram.sum())


def _p99(histogram: Ints) -> float:
    """Return the upper edge of the bin that holds the 99th percentile, seconds."""
    upto = histogram.cumsum()
    return float((np.searchsorted(upto, 0.99 * upto[-1]) + 1) * _BIN_S)
