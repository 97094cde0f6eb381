"""The link to a worker: commands out, its messages in, and its clock. `local` links to a process of this machine.

`workers` uses nothing else of a worker. A worker on another machine is another kind of link, which also knows how far
that machine's clock is from ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from harness.load.clock import Offset
from harness.load.messages import Command, Plan


class Link(Protocol):
    """One worker, wherever it is."""

    node: str  # the machine that it runs on; "": this one
    clock_offset_ns: int  # the worker's CLOCK_MONOTONIC minus ours, by the latest estimate

    async def start(self) -> None:
        """Begin to start the worker; what is sent before it is ready is queued."""
        ...

    async def estimate_clock(self) -> Offset | None:
        """Estimate the offset anew, once it is started; None: it shares our clock."""
        ...

    def send(self, order: Plan | Command) -> None:
        """Send the plan, first and once, or a command, in times of the worker's clock; never waits."""
        ...

    def frames(self) -> AsyncIterator[bytes]:
        """Its messages as they arrive, until it is gone; HarnessError where one is damaged."""
        ...

    async def exit_reason(self) -> str:
        """How a worker ended whose messages did, as what follows "it" in a sentence."""
        ...

    def kill(self) -> None:
        """End the worker at once."""
        ...

    async def close(self) -> None:
        """Close the link, and wait until the worker has ended, by itself or killed."""
        ...
