"""Telemetry during the load: what server, exporters and GPUs publish, read off the measured path until cancelled."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator, Sequence

from harness.base.secrecy import plain, redact
from harness.data.record import SERVER, Sample
from harness.load import control
from harness.load.client import client
from harness.load.transport import Target
from harness.observe import exporters, server
from harness.observe.cards import Cards
from harness.observe.gpu import EVERY_S
from harness.run.launch.endpoint import Endpoint
from harness.run.live_state import LiveState
from harness.spec.scenario import Scenario

_SCRAPE_S = 5.0  # for one page of the server's figures
_LONGEST_WAIT_S = 30.0  # between two scrapes, after some that failed
_LONGEST_REASON = 120  # characters of why there was none


def scrape_every_s(level_seconds: float | None) -> float:
    """Seconds between two scrapes, by `--level-seconds`.

    >>> scrape_every_s(None), scrape_every_s(4.0), scrape_every_s(60.0)
    (1.0, 0.5, 2.0)
    """
    return min(2.0, max(0.25, level_seconds / 8)) if level_seconds else 1.0


def scrapes(
    endpoint: Endpoint, live: LiveState, scenario: Scenario, note: Callable[[str], None]
) -> Iterator[Coroutine[None, None, None]]:
    """The pages of the server, or of each replica, and those of the exporters, each read over and over."""
    ramp = scenario.ramp
    lasts = ramp.duration if ramp.load.is_given else None  # of a soak's one level
    every_s = scrape_every_s(ramp.level_seconds or lasts or None)
    pages: list[tuple[str, Target, Callable[[float, str], list[Sample]]]] = []
    for replica in endpoint.replicas or (endpoint,):
        if replica.wire.figures is not None:
            source = f"{SERVER} {replica.address.place}" if endpoint.replicas else SERVER
            pages.append((f"the {source}'s own", replica.wire.figures, server.Pages(source).samples))
    for number, where in enumerate(endpoint.wire.exporters):
        pages.append(("an exporter's", where, functools.partial(exporters.samples, number)))
    for whose, where, read in pages:
        yield scrape(whose, where, read, live, every_s, note, endpoint.wire.secrets)


async def scrape(
    whose: str,
    where: Target,
    read: Callable[[float, str], list[Sample]],
    live: LiveState,
    every_s: float,
    note: Callable[[str], None],
    secrets: Sequence[str],
) -> None:
    """Take the figures that `read` finds on a page; a scrape that fails is a gap, noted once, and is tried again."""
    wait, noted = every_s, False
    async with client(where, connect_s=_SCRAPE_S) as http:
        while True:
            try:
                page = await control.page(http, where.path, _SCRAPE_S)
                why = "" if page.status == 200 else f"it answers {page.status}"
                if not why:
                    live.add_samples(read(live.now(), page.text))
            except control.TransportError as error:
                why = plain(str(error)[:_LONGEST_REASON]) or type(error).__name__
            # A failing scrape is tried less and less often, for it may cost the server much.
            wait = min(_LONGEST_WAIT_S, 2 * wait) if why else every_s
            if why and not noted:
                noted = True
                note(f"a gap in {whose} figures: {redact(why, secrets)}; load goes on without them")
            await asyncio.sleep(wait)


async def watch_gpus(gpus: Cards, live: LiveState) -> None:
    """Take the GPUs' figures in a thread: a driver may be slow."""
    while samples := await asyncio.to_thread(gpus.samples, live.now()):
        live.add_samples(samples)
        await asyncio.sleep(EVERY_S)
