"""The workers' processes, seen from inside (`main`) and from their parent (`Workers`).

Parent and worker talk over one socket pair in the spool's own frames: commands in, batches and progress out, no
traffic per request. A batch is appended to the spool exactly as it came. A level is split evenly over the workers,
made ready in all of them, and begun by all at one moment. A worker whose parent is gone, or has stood still for so
long that its messages pile up, ends: nothing goes on loading a server that nobody measures. A worker that dies or
falls silent ends the run, since the load is no longer what was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from harness import interpreter
from harness.errors import HarnessError
from harness.load.driver import Command, Done, Driver, Hold, Message, Plan, Prepare, Progress, Stop
from harness.load.loop import HotSelector, Stamping, new_loop, sharpen_timers
from harness.load.schedule import shares
from harness.load.transports import transport_for
from harness.results import frames
from harness.terminal import guard

_AHEAD_NS = 5_000_000  # a level is announced so long before it begins: enough to reach every worker
_MOST_WORKERS = 8
_SILENT_S = 30  # news comes twenty times a second: a worker without any for so long is lost
_UNHEARD_S = 30.0  # a worker whose messages nobody takes for so long stops its load

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
    gc.disable()  # records and stories hold no cycles; collected before a level begins
    with asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
        runner.run(_work(plan, link, selector, stamping.source))
    stamping.close()


async def _work(plan: Plan, link: socket.socket, selector: HotSelector, source: str) -> None:
    loop = asyncio.get_running_loop()
    link.setblocking(False)
    transport = transport_for(plan.target, selector)
    commands: asyncio.Queue[Command] = asyncio.Queue()

    async def listen() -> None:
        reader, writer = await asyncio.open_connection(sock=link.dup())
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            async for payload in _frames(reader):
                command = _decode_command(payload)
                if isinstance(command, Prepare):
                    gc.collect()
                commands.put_nowait(command)
        commands.put_nowait(Stop())  # the parent is gone

    lock = asyncio.Lock()

    async def send(payload: bytes) -> None:  # whoever is cut while the parent is slow leaves no half of a frame
        await asyncio.shield(loop.create_task(whole(payload)))

    async def whole(payload: bytes) -> None:
        async with lock:  # two tasks must not interleave their bytes
            unheard = loop.call_later(_UNHEARD_S, commands.put_nowait, Stop())
            try:
                await loop.sock_sendall(link, frames.frame(payload))
            finally:
                unheard.cancel()

    listener = loop.create_task(listen())
    try:
        await Driver(plan, transport, send, selector=selector).run(commands)
        await send(_encode(Done(source if transport.stamped else "user", transport.resent)))
    except* ConnectionError:
        pass  # the parent is gone: there is nobody left to tell
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)
        await transport.aclose()


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
    return next(frames.payloads(data))


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        head = await reader.readexactly(8)
        length = int.from_bytes(head[:4], "little")
        data = head + await reader.readexactly(length)
        payload = next(frames.payloads(data), None)
        if payload is None:
            raise HarnessError("a message from the worker is damaged", place="worker", way_out="run again")
        yield payload


def auto(free_cpus: int, streams: int) -> int:
    """How many workers a load needs: one for each 256 streams, as far as there are processors to have.

    One process follows some 70,000 events a second before reads begin to merge (its ceiling here: `knee calibrate
    client`); 256 streams reach that only beyond 270 tokens a second each.

    >>> auto(15, 1024), auto(1, 1024), auto(15, 64)
    (4, 1, 1)
    """
    return max(1, min(free_cpus, _MOST_WORKERS, -(-streams // 256)))


class _Process:
    """The parent's handle of one worker process."""

    def __init__(self, number: int, tell: Callable[[], None]) -> None:
        self.number = number
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self.progress: Progress | None = None
        self.done: Done | None = None
        self.failure: HarnessError | None = None
        self.lost = False  # the process went away without its last message
        self.fate = "is gone"  # how it went away, where it did
        self.silent_s = 0  # since its last message

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        # A session of its own: Ctrl-C is the parent's to decide about, it tells the worker to stop.
        self._process = subprocess.Popen(
            interpreter.module("harness.load.workers", str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._link = ours

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def begin(
        self, plan: Plan, on_batch: Callable[[bytes], None], on_progress: Callable[[Progress], None]
    ) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._link)
        self.tell(plan)
        self._reading = asyncio.create_task(self._read(reader, on_batch, on_progress))

    def tell(self, message: Plan | Command) -> None:
        assert self._writer is not None
        self._writer.write(frames.frame(_encode(message)))

    async def _read(
        self,
        reader: asyncio.StreamReader,
        on_batch: Callable[[bytes], None],
        on_progress: Callable[[Progress], None],
    ) -> None:
        try:
            async for payload in _frames(reader):
                self.silent_s = 0
                if frames.is_batch(payload):
                    on_batch(payload)
                    continue
                message = _decode_message(payload)
                if isinstance(message, Done):
                    self.done = message
                    return
                self.progress = message
                on_progress(message)
                self._tell()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except HarnessError as error:  # a damaged message, or a batch that could not be written
            self.failure = error
        finally:
            if self.done is None and self.failure is None:
                self.fate = await asyncio.to_thread(self._fate)
            self.lost = self.done is None
            self._tell()

    def _fate(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "closed its link"
        if self.silent_s >= _SILENT_S:
            return f"had told nothing for {_SILENT_S} s"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()

    async def end(self) -> None:
        """Stop it, take its last records, and see it end; one that never had a plan has nothing to tell."""
        assert self._process is not None
        assert self._link is not None
        try:
            if self._reading is None:
                self._process.kill()
            else:
                with contextlib.suppress(ConnectionError):
                    self.tell(Stop())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._reading, timeout=10.0)
        finally:
            self._link.close() if self._writer is None else self._writer.close()
            try:
                await asyncio.to_thread(self._process.wait, 5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class Workers:
    """The parent's handle of all worker processes: one level for all, one account of what is going on.

    As a context it starts the processes, which takes a moment that other preparations can use; `begin` gives them
    their plans. `news()` waits until each has told something new and returns the sum.
    """

    def __init__(self, count: int) -> None:
        self._heard = asyncio.Event()
        self._processes = [_Process(i, self._heard.set) for i in range(count)]
        self._told: list[Progress | None] = [None] * count  # the news that the last sum was made of
        self._running: list[_Process] = []
        self._prepared = 0
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Workers:
        for process in self._processes:
            process.start()
            self._running.append(process)
        return self

    def __len__(self) -> int:
        return len(self._processes)

    async def begin(
        self,
        plans: Sequence[Plan],
        on_batch: Callable[[bytes], None],
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        """Give each process its plan.

        `on_batch` gets every batch payload from now on, verbatim, `on_progress` each worker's own news as they come.
        """
        for process, plan in zip(self._processes, plans, strict=True):
            await process.begin(plan, on_batch, on_progress)
        self._listening = asyncio.create_task(self._listen_for_silence())

    @property
    def pids(self) -> list[int]:
        """Of the processes."""
        return [process.pid for process in self._processes]

    @property
    def done(self) -> list[Done]:
        """The last messages of those that ended in order."""
        return [process.done for process in self._processes if process.done is not None]

    async def hold(self, hold: Hold, connections: int) -> None:
        """Go to a level: ready in every worker first, then begun by all of them at one moment.

        `hold.slots` and `hold.at_ns` are filled in here.
        """
        self._prepared += 1
        count = len(self._processes)
        for process, share in zip(self._processes, shares(connections, count), strict=True):
            process.tell(Prepare(self._prepared, share))
        while any(p.progress is None or p.progress.prepared < self._prepared for p in self._processes):
            await self._wait()
        at_ns = time.monotonic_ns() + _AHEAD_NS
        for process, slots in zip(self._processes, shares(hold.concurrency or 0, count), strict=True):
            process.tell(msgspec.structs.replace(hold, slots=slots, at_ns=at_ns))

    async def news(self) -> Progress:
        """The next account of all workers together; HarnessError when one of them is gone."""
        while any(p.progress is None or p.progress is old for p, old in zip(self._processes, self._told, strict=True)):
            await self._wait()
        latest = [p.progress for p in self._processes if p.progress is not None]
        self._told = list(latest)
        return together(latest)

    async def _wait(self) -> None:
        self._check()
        self._heard.clear()
        await self._heard.wait()
        self._check()

    async def _listen_for_silence(self) -> None:
        """Kill a worker that is silent too long: it hangs, or something stopped it. A pause of our own is one step."""
        while True:
            await asyncio.sleep(1.0)
            for process in self._processes:
                process.silent_s += 1
                if process.silent_s == _SILENT_S and process.done is None:
                    process.kill()

    def _check(self) -> None:
        for process in self._processes:
            if process.failure is not None:
                raise process.failure
            if process.lost or process.done is not None:
                fate = process.fate if process.lost else f"stopped: nobody took its messages for {_UNHEARD_S:g} s"
                raise HarnessError(
                    f"a load-generating process ended in the middle of the run: it {fate}",
                    place=f"worker {process.number}",
                    way_out="the level that it was in is void; go on with `knee run --resume`",
                )

    async def end(self) -> None:
        """Stop the workers, take their last records, and see them end."""
        running, self._running = self._running, []
        if self._listening is not None:
            self._listening.cancel()
        await asyncio.gather(*(process.end() for process in running))

    async def __aexit__(self, *_: Any) -> None:
        await self.end()


def together(reports: Sequence[Progress]) -> Progress:
    """The workers' latest news as one: counts added up, as of the earliest of them.

    A level is that of the worker that is furthest behind. Without the read delays, which are each one's own.
    """
    if len(reports) == 1:
        return reports[0]
    sent = [p.oldest_sent_s for p in reports if p.oldest_sent_s is not None]
    return Progress(
        time_s=min(p.time_s for p in reports),
        level=min(p.level for p in reports),
        in_flight=sum(p.in_flight for p in reports),
        ended=sum(p.ended for p in reports),
        failed=sum(p.failed for p in reports),
        waiting=sum(p.waiting for p in reports),
        tokens=sum(p.tokens for p in reports),
        oldest_sent_s=min(sent, default=None),
        begun_in_run=sum(p.begun_in_run for p in reports),
        cpu_s=sum(p.cpu_s for p in reports),
        reads=sum(p.reads for p in reports),
        unstamped=sum(p.unstamped for p in reports),
        prepared=min(p.prepared for p in reports),
        took_s=max(p.took_s for p in reports),
    )


if __name__ == "__main__":
    guard()  # a bug's traceback may quote the server
    main(int(sys.argv[1]))
