"""A worker's process, seen from inside (`main`) and from its parent (`Worker`).

Parent and worker talk over one socket pair in the spool's own frames: commands in, batches and progress out, no
traffic per request. A batch is appended to the spool exactly as it came. A worker whose parent is gone ends, so
that nothing goes on loading a server that nobody measures. One worker for now.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from harness import store
from harness.errors import HarnessError
from harness.load.driver import Command, Done, Driver, Message, Plan, Progress, Stop
from harness.load.loop import HotSelector, Stamping, new_loop, sharpen_timers
from harness.load.transport import SocketTransport

_encode = msgspec.msgpack.Encoder().encode
_decode_command = msgspec.msgpack.Decoder(Command).decode
_decode_message = msgspec.msgpack.Decoder(Message).decode


def main(fd: int) -> None:
    """The worker: reads its plan from the socket, then obeys it."""
    link = socket.socket(fileno=fd)
    plan = msgspec.msgpack.decode(_receive(link), type=Plan)
    if plan.cpus:
        os.sched_setaffinity(0, plan.cpus)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection is an open file
    sharpen_timers()
    stamping = Stamping()
    selector = HotSelector(plan.tick_ns)
    gc.collect()
    gc.freeze()
    gc.disable()  # records and stories hold no cycles; collected between levels
    with asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
        runner.run(_work(plan, link, selector, stamping.source))
    stamping.close()


async def _work(plan: Plan, link: socket.socket, selector: HotSelector, source: str) -> None:
    loop = asyncio.get_running_loop()
    link.setblocking(False)
    transport = SocketTransport(selector, plan.host, plan.port)
    commands: asyncio.Queue[Command] = asyncio.Queue()

    async def listen() -> None:
        reader, _ = await asyncio.open_connection(sock=link.dup())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            async for payload in _frames(reader):
                gc.collect()
                commands.put_nowait(_decode_command(payload))
        commands.put_nowait(Stop())  # the parent is gone

    lock = asyncio.Lock()

    async def send(payload: bytes) -> None:
        async with lock:  # frames are whole: two tasks must not interleave their bytes
            await loop.sock_sendall(link, store.frame(payload))

    listener = loop.create_task(listen())
    try:
        await Driver(plan, transport, send, selector=selector).run(commands)
        await send(_encode(Done(source, transport.resent)))
    except (ConnectionError, BrokenPipeError):
        pass  # the parent is gone: there is nobody left to tell
    finally:
        listener.cancel()
        transport.close()


def _receive(link: socket.socket) -> bytes:
    """The first frame from a blocking socket, and not a byte more: commands may follow at once."""
    data, wanted = b"", 8
    while len(data) < wanted:
        more = link.recv(wanted - len(data))
        if not more:
            sys.exit(0)  # the parent is gone before it began
        data += more
        if len(data) == 8:
            wanted = 8 + int.from_bytes(data[:4], "little")
    return next(store.payloads(data))


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        head = await reader.readexactly(8)
        length = int.from_bytes(head[:4], "little")
        data = head + await reader.readexactly(length)
        payload = next(store.payloads(data), None)
        if payload is None:
            raise HarnessError("a message from the worker is damaged", place="worker", way_out="run again")
        yield payload


class Worker:
    """The parent's handle of one worker process.

    `on_batch` gets every batch payload, verbatim; `progress` is the latest news and `news()` waits for the next.
    """

    def __init__(self, plan: Plan, on_batch: Callable[[bytes], None]) -> None:
        self._plan = plan
        self._on_batch = on_batch
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self.progress: Progress | None = None
        self.on_progress: Callable[[Progress], None] = lambda progress: None
        self.done: Done | None = None
        self._failure: HarnessError | None = None
        self.lost = False  # the process went away without its last message

    async def __aenter__(self) -> Worker:
        ours, theirs = socket.socketpair()
        # A session of its own: Ctrl-C is the parent's to decide about, it tells the worker to stop.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.load.workers", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._writer.write(store.frame(_encode(self._plan)))
        self._reading = asyncio.create_task(self._read(reader))
        return self

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            async for payload in _frames(reader):
                if store.is_batch(payload):
                    self._on_batch(payload)
                    continue
                message = _decode_message(payload)
                if isinstance(message, Done):
                    self.done = message
                    return
                self.progress = message
                self.on_progress(message)
                self._tell()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except HarnessError as error:  # a damaged message, or a batch that could not be written
            self._failure = error
        finally:
            self.lost = self.done is None
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def news(self) -> Progress:
        """The next progress; HarnessError when the worker is gone."""
        if not self.lost:
            await self._news.wait()
        if self._failure is not None:
            raise self._failure
        if self.lost or self.done is not None or self.progress is None:
            raise HarnessError(
                "the load-generating process ended in the middle of the run",
                place=f"worker {self._plan.worker}",
                way_out="what was measured is in the result folder; see the messages above",
            )
        return self.progress

    def command(self, command: Command) -> None:
        assert self._writer is not None
        self._writer.write(store.frame(_encode(command)))

    async def __aexit__(self, *_: Any) -> None:
        """Stop the worker, take its last records, and see it end."""
        assert self._process is not None
        assert self._writer is not None
        assert self._reading is not None
        try:
            with contextlib.suppress(ConnectionError):
                self.command(Stop())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._reading, timeout=10.0)
        finally:
            self._writer.close()
            try:
                await asyncio.to_thread(self._process.wait, 5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]))
