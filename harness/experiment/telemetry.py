"""Telemetry during the load: the server's and the GPUs' own figures, read off the measured path until cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from harness.experiment.live_state import LiveState
from harness.load import control
from harness.load.client import client
from harness.load.transport import Target
from harness.observe import server
from harness.observe.gpu import EVERY_S, Gpus
from harness.record import SERVER
from harness.secrecy import plain, redact

_SCRAPE_S = 5.0  # for one page of the server's figures
_LONGEST_WAIT_S = 30.0  # between two scrapes, after some that failed
_LONGEST_REASON = 120  # characters of why there was none


def scrape_every_s(level_seconds: float | None) -> float:
    """Seconds between two scrapes, by `--level-seconds`.

    >>> scrape_every_s(None), scrape_every_s(4.0), scrape_every_s(60.0)
    (1.0, 0.5, 2.0)
    """
    return min(2.0, max(0.25, level_seconds / 8)) if level_seconds else 1.0


async def scrape(
    where: Target,
    live: LiveState,
    every_s: float,
    note: Callable[[str], None],
    secrets: Sequence[str],
    source: str = SERVER,
) -> None:
    """Take a server's figures; a scrape that fails is a gap, noted once, and is tried again.

    `source` is what its samples name as theirs: of several replicas each has its own.
    """
    wait, noted = every_s, False
    async with client(where, connect_s=_SCRAPE_S) as http:
        while True:
            try:
                page = await control.page(http, where.path, _SCRAPE_S)
                why = "" if page.status == 200 else f"it answers {page.status}"
                if not why:
                    live.add_samples(server.samples(live.now(), server.parse(page.text), source))
            except control.TransportError as error:
                why = plain(str(error)[:_LONGEST_REASON]) or type(error).__name__
            # A failing scrape is tried less and less often, for it may cost the server much.
            wait = min(_LONGEST_WAIT_S, 2 * wait) if why else every_s
            if why and not noted:
                noted = True
                note(f"a gap in the {source}'s own figures: {redact(why, secrets)}; load goes on without them")
            await asyncio.sleep(wait)


async def watch_gpus(gpus: Gpus, live: LiveState) -> None:
    """Take the GPUs' figures in a thread: a driver may be slow."""
    while samples := await asyncio.to_thread(gpus.samples, live.now()):
        live.add_samples(samples)
        await asyncio.sleep(EVERY_S)
