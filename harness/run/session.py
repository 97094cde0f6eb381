"""The load of one session of a run, and why it ended."""

from __future__ import annotations

import asyncio
import enum
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from harness.base.errors import HarnessError

if TYPE_CHECKING:
    from harness.load.messages import Done
    from harness.load.workers import Workers
    from harness.observe.cards import Cards
    from harness.run.levels import Levels
    from harness.run.signals import Signals


class RunEnd(enum.Enum):
    """Why the load of a run ended."""

    COMPLETE = "complete"  # what was asked for is measured, or a bound ended the search for it
    SHORT = "short"  # it is not: the server was gone, or levels that were given were not measured
    SIGNAL = "signal"
    FAILURE = "failure"  # a worker was lost, or nothing could be written any more


class Ended(msgspec.Struct, frozen=True):
    """Why the load ended, with the signal, the failure or what is missing; its text is in the manifest."""

    why: RunEnd
    signal: int = 0
    failure: HarnessError | None = None
    missing: str = ""

    @classmethod
    def by_itself(cls, missing: str) -> Ended:
        """The end that no signal and no failure made; `missing` of what was asked for, "" where nothing is."""
        return cls(RunEnd.SHORT, missing=missing) if missing else cls(RunEnd.COMPLETE)

    def __str__(self) -> str:
        if self.why is RunEnd.SIGNAL:
            return signal.Signals(self.signal).name
        if self.why is RunEnd.SHORT:
            return self.missing
        return RunEnd.COMPLETE.value if self.failure is None else str(self.failure)


async def load(
    levels: Levels, workers: Workers, placed: Sequence[tuple[int, ...]], gpus: Cards | None, signals: Signals
) -> Ended:
    """Measure level after level until the ramp, a signal or a failure ends it."""
    task = asyncio.current_task()
    assert task is not None
    try:
        await levels.run(workers, placed, gpus)
    except asyncio.CancelledError:
        if signals.number is None:
            raise
        task.uncancel()
        return Ended(RunEnd.SIGNAL, signals.number)
    except HarnessError as failure:
        return Ended(RunEnd.FAILURE, failure=failure)
    return Ended.by_itself(levels.missing)


def timestamp_source(done: list[Done]) -> str | None:
    """Who stamped the arrivals: "kernel" if it did for every worker, else "user"; None without workers."""
    sources = {each.timestamp_source for each in done}
    return None if not sources else "kernel" if sources == {"kernel"} else "user"
