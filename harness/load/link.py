"""The link to a worker: commands out, its messages in, and its clock. `local` is a process of this machine.

What a level needs of its workers is written against this alone (`workers`). A worker elsewhere is another kind of link;
what it must know beside is how far its clock is from ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from harness.load.messages import Command, Plan


class Link(Protocol):
    """One worker, wherever it is."""

    clock_offset_ns: int  # the worker's CLOCK_MONOTONIC minus ours

    async def start(self) -> None:
        """Begin to start the worker; what is sent to it meanwhile waits."""
        ...

    def send(self, order: Plan | Command) -> None:
        """Send the plan, first and once, or a command, in times of the worker's clock; never waits."""
        ...

    def frames(self) -> AsyncIterator[bytes]:
        """Its messages as they come, until it is gone; HarnessError where one is damaged."""
        ...

    async def exit_reason(self) -> str:
        """How a worker ended whose messages did: `it` would stand before it."""
        ...

    def kill(self) -> None:
        """End the worker at once."""
        ...

    async def close(self) -> None:
        """Let go of a worker that ends by itself, or was killed, and see it end."""
        ...
