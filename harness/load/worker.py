"""The worker: a process that gets a plan and commands over a socket, and sends back progress and records.

It ends when its parent is gone, or has stopped reading its messages: no server is loaded without being measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys

from harness.base import kernel
from harness.base.terminal import guard
from harness.load import receive
from harness.load.driver import Driver
from harness.load.link import received
from harness.load.loop import HotSelector, Stamping, new_loop, sharpen_timers
from harness.load.messages import UNREAD_S, Command, Done, Plan, Prepare, Stop, decode_command, decode_plan, encode
from harness.load.transport import Target, Transport
from harness.results.frames import HEAD, frame, payloads

_TURN_NS = 100_000  # the shortest that the kernel grants; a worker's tick takes less


def main(fd: int) -> None:
    """Read the plan from the socket, then carry it out."""
    sock = socket.socket(fileno=fd)
    plan = decode_plan(_first_frame(sock))
    if plan.cpus:
        kernel.bind(plan.cpus)
    kernel.allow_files()  # a connection is an open file
    sharpen_timers()
    kernel.shorten_turns(_TURN_NS)
    stamping = Stamping()
    selector = HotSelector(plan.tick_ns)
    selector.stamped = stamping.source == "kernel"
    gc.collect()
    gc.freeze()
    gc.disable()  # a request makes no reference cycles; collected before a level begins
    with asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
        runner.run(work(plan, sock, selector, stamping.source))
    stamping.close()


def transport_for(target: Target, selector: HotSelector) -> Transport:
    """Return the transport that the target names: sockets, TLS on them, or httpx; imported only where it is used."""
    if target.transport == "httpx":
        from harness.load.httpclient import HttpxTransport

        return HttpxTransport(target, selector)
    if target.scheme == "https":
        from harness.load.tls import SecureTransport

        return SecureTransport(target, selector)
    from harness.load.sockets import SocketTransport

    return SocketTransport(target, selector)


def _transport(plan: Plan, selector: HotSelector) -> Transport:
    """Return the transport of the plan's server, or of its replicas together."""
    if len(plan.replicas) == 1:
        return transport_for(plan.replicas[0].target, selector)
    from harness.load.fleet import FleetTransport
    from harness.load.schedule import Balancer

    transports = [transport_for(replica.target, selector) for replica in plan.replicas]
    balancer = Balancer(plan.balance, len(transports), plan.worker)
    return FleetTransport(plan.replicas, transports, balancer, plan.request_timeout_s)


async def work(plan: Plan, sock: socket.socket, selector: HotSelector, source: str) -> None:
    """Carry out the commands that come over the socket until Stop, or until the parent is gone."""
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    transport = _transport(plan, selector)
    commands: asyncio.Queue[Command] = asyncio.Queue()

    async def listen() -> None:
        reader, writer = await asyncio.open_connection(sock=sock.dup())
        with contextlib.closing(writer):
            async for payload in received(reader):
                command = decode_command(payload)
                if isinstance(command, Prepare):
                    gc.collect()
                commands.put_nowait(command)
        commands.put_nowait(Stop())  # the parent is gone

    lock = asyncio.Lock()
    waiting = 0  # frames that the socket did not take at once, or that are behind one

    async def send(payload: bytes) -> None:
        """Send a payload to the parent at once, as far as the socket takes it; what is left goes in order."""
        nonlocal waiting
        rest = frame(payload)
        if not waiting:
            with contextlib.suppress(BlockingIOError):
                rest = rest[sock.send(rest) :]  # nearly always all of it
        if rest:
            waiting += 1
            # A task that is cancelled amid a slow send leaves no half frame.
            await asyncio.shield(loop.create_task(whole(rest)))

    async def whole(rest: bytes) -> None:
        """Send the rest of a frame, one at a time; stop the worker if the parent does not read it for long."""
        nonlocal waiting
        async with lock:  # two tasks must not interleave their bytes
            unread = loop.call_later(UNREAD_S, commands.put_nowait, Stop())
            try:
                await loop.sock_sendall(sock, rest)
            finally:
                unread.cancel()
                waiting -= 1

    listener = loop.create_task(listen())
    try:
        await Driver(plan, transport, send, selector=selector).run(commands)
        await send(encode(Done(source if transport.stamped else "user", receive.path(), transport.resent)))
    except* ConnectionError:
        pass  # the parent is gone
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)
        await transport.aclose()


def _first_frame(sock: socket.socket) -> bytes:
    """Return the first payload from a blocking socket, and not a byte more: commands may follow at once.

    The process ends where the parent is gone before it.
    """
    data, wanted = b"", HEAD.size
    while len(data) < wanted:
        more = sock.recv(wanted - len(data))
        if not more:
            sys.exit(0)  # the parent is gone before it began
        data += more
        if len(data) == HEAD.size:
            wanted += HEAD.unpack(data)[0]
    return next(payloads(data))


if __name__ == "__main__":
    guard()  # a bug's traceback may quote the server
    main(int(sys.argv[1]))
