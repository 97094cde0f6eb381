"""The link to a worker: commands out, its messages in, and its clock. The first kind is to a process of this machine.

`workers` uses nothing else of a worker. A worker on another machine is another kind of link, which also knows how far
that machine's clock is from ours (`cluster`).
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from typing import Protocol

from harness.base import interpreter
from harness.base.errors import HarnessError
from harness.load.messages import Command, Plan, encode
from harness.load.schedule import Offset
from harness.results.frames import HEAD, frame, payloads


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
        """Yield its messages as they arrive, until it is gone; raise HarnessError if one is damaged."""
        ...

    async def exit_reason(self) -> str:
        """Return how a worker ended whose messages did, as what follows "it" in a sentence."""
        ...

    def kill(self) -> None:
        """End the worker at once."""
        ...

    async def close(self) -> None:
        """Close the link, and wait until the worker has ended, by itself or killed."""
        ...


class LocalWorker:
    """One worker process of this machine, at the other end of a socket pair; it runs `harness.load.worker`.

    The messages are the spool's frames: commands in, batches and progress out, no traffic per request. Both have one
    clock.
    """

    node = ""
    clock_offset_ns = 0

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        # A session of its own: Ctrl-C reaches the parent alone, which stops its workers.
        self._process = subprocess.Popen(
            interpreter.module("harness.load.worker", str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._reader, self._writer = await asyncio.open_connection(sock=ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def estimate_clock(self) -> None:
        return None

    def send(self, order: Plan | Command) -> None:
        self.forward(encode(order))

    def forward(self, payload: bytes) -> None:
        """Send what is encoded."""
        self._writer.write(frame(payload))

    def frames(self) -> AsyncIterator[bytes]:
        return received(self._reader)

    async def exit_reason(self) -> str:
        try:
            code = await asyncio.to_thread(self._process.wait, 1.0)
        except subprocess.TimeoutExpired:
            return "closed its link"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"

    def kill(self) -> None:
        self._process.kill()

    async def close(self) -> None:
        self._writer.close()
        try:
            await asyncio.to_thread(self._process.wait, 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


async def received(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the payload of every frame that comes, until the stream's end, which may be amid one.

    Raise HarnessError for a frame that is damaged.
    """
    while True:
        try:
            head = await reader.readexactly(HEAD.size)
            data = head + await reader.readexactly(HEAD.unpack(head)[0])
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        payload = next(payloads(data), None)
        if payload is None:
            raise HarnessError("a message from the worker is damaged", place="worker", way_out="run again")
        yield payload
