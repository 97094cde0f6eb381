"""A replica that is stopped on purpose, by a command of the operator's, while a level goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from harness.data.summary import RampStep
from harness.run.launch import cache


def load(steps: Sequence[RampStep]) -> int:
    """Return the concurrency to lose a replica at: the middle one of those that were measured."""
    found = sorted({step.concurrency for step in steps if step.concurrency is not None})
    return found[len(found) // 2] if found else 1


async def during(level: Awaitable[object], command: str, after_s: float) -> None:
    """Measure a level, and run the command after so many seconds of it; HarnessError where the command fails."""

    began = asyncio.Event()

    async def stop() -> None:
        await asyncio.sleep(after_s)
        began.set()
        await cache.command(command, "--stop-replica")

    stopping = asyncio.create_task(stop())
    try:
        await level
    finally:
        if not began.is_set():
            stopping.cancel()
        ended = await asyncio.gather(stopping, return_exceptions=True)
    if isinstance(ended[0], Exception):
        raise ended[0]
