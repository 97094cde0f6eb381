"""Workers on the nodes of a Ray cluster: the process of `harness.load.worker`, behind an actor on its node.

The actor passes messages on and decides nothing. It is gone with its node, and with this process: then the worker's
socket is closed, and the worker ends its load. Ray is imported only where a cluster is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from typing import Any

import msgspec

from harness.base import __version__
from harness.base.errors import HarnessError
from harness.load import schedule
from harness.load.link import LocalWorker
from harness.load.messages import Command, Plan, encode
from harness.load.schedule import Offset

_CONNECT_S = 5.0
_START_S = 120.0  # longest start of an actor, whose node may start a Python first
_CLOSE_S = 10.0
_UNTAKEN = 64  # messages that wait on a node; beyond them its worker notices that nobody reads
_FIRST_NODE = "start one by `ray start --head`, and join this machine to it"


class Node(msgspec.Struct, frozen=True):
    """A node of the cluster."""

    id: str
    address: str
    cpus: int


OURS = (__version__, platform.python_version())  # what a node and this process have to have alike


def spread(nodes: Sequence[Node], count: int | None, servers: Collection[str]) -> list[Node]:
    """Return the node of each worker: they take turns, a worker a processor; `count` None: one on each node.

    A node at one of the servers' addresses has none. Raise HarnessError if the workers have no place.
    """
    able = [node for node in nodes if node.address not in servers]
    if not able:
        fact = "no node of the cluster is apart from the server"
        raise HarnessError(fact, place="--ray", way_out="add a node, or leave --ray out")
    turns = sorted((turn, i) for i, node in enumerate(able) for turn in range(node.cpus))
    wanted = len(able) if count is None else count
    if wanted > len(turns):
        fact = f"{wanted} workers need a processor each, and the nodes have {len(turns)}"
        way_out = f"give --workers {len(turns)} or less" if turns else "add a node with processors"
        raise HarnessError(fact, place="--workers", way_out=f"{way_out}; a node that serves has none")
    return [able[i] for _, i in turns[:wanted]]


@contextlib.contextmanager
def joined(address: str) -> Iterator[list[Node]]:
    """Yield the live nodes of the cluster at an address, `auto` or HOST:PORT; leaving ends this process's actors.

    Raise HarnessError if Ray is not installed or no cluster is there.
    """
    try:
        import ray
    except ImportError:
        fact, way_out = "Ray is not installed", "pip install '.[ray]' in knee's folder"
        raise HarnessError(fact, place="--ray", way_out=way_out) from None
    _must_answer(address)
    in_main = threading.current_thread() is threading.main_thread()
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:  # none there, other versions, no node on this machine
        ray.shutdown()
        fact = " ".join(str(error).split()) or "no cluster there"
        raise HarnessError(fact, place=f"--ray {address}", way_out=_FIRST_NODE) from None
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, terminated)  # Ray sets one of its own
    ray._private.worker._worker_logs_enabled = False  # else what nodes report is printed between our own output
    try:
        yield [
            Node(node["NodeID"], node["NodeManagerAddress"], int(node["Resources"].get("CPU", 0)))
            for node in ray.nodes()
            if node["Alive"]
        ]
    finally:
        ray.shutdown()


def _must_answer(address: str) -> None:
    """Raise HarnessError if nothing listens at HOST:PORT: Ray would try for a minute."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not (port.isascii() and port.isdigit()):
        fact, way_out = "not the address of a cluster", "write auto, or the head's HOST:PORT"
        raise HarnessError(fact, place=f"--ray {address}", way_out=way_out)
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        fact = f"no cluster there: {error}"
        raise HarnessError(fact, place=f"--ray {address}", way_out=_FIRST_NODE) from None


def own_address() -> str:
    """Return the address of this machine among the nodes, once it has joined."""
    import ray

    return str(ray.util.get_node_ip_address())


class Relay:
    """The actor on a node: it passes messages between the parent and the worker, unread and in order."""

    def __init__(self) -> None:
        self._worker = LocalWorker()
        self._arrived: asyncio.Queue[bytes | None] = asyncio.Queue(_UNTAKEN)

    async def versions(self) -> tuple[str, str]:
        return OURS

    async def clock_ns(self) -> int:
        return time.monotonic_ns()

    async def unreachable(self, host: str, port: int) -> str:
        """Try to connect to a server from this node; return why that fails, "" if it works."""
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _CONNECT_S)
        except TimeoutError:
            return f"no answer in {_CONNECT_S:g} s"
        except (OSError, UnicodeError) as error:
            return str(error)
        writer.close()
        return ""

    async def start(self) -> None:
        """Start the worker's process, and a task that reads its messages."""
        await self._worker.start()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for payload in self._worker.frames():
                await self._arrived.put(payload)
        finally:
            await self._arrived.put(None)

    async def forward(self, payload: bytes) -> None:
        self._worker.forward(payload)

    async def take(self) -> list[bytes | None]:
        """Return the messages that arrived since the last call, waiting for one at least; None marks the end of all."""
        frames = [await self._arrived.get()]
        while not self._arrived.empty():
            frames.append(self._arrived.get_nowait())
        return frames

    async def exit_reason(self) -> str:
        return await self._worker.exit_reason()

    async def close(self) -> None:
        await self._worker.close()


class RayWorker:
    """The link to a worker on a node, by a handle of its `Relay`.

    `servers` are the host and port of each server, to which a connection is tried before any load. `lost` is what a
    call raises where the actor is gone, and `end` ends it.
    """

    clock_offset_ns = 0

    def __init__(
        self,
        node: str,
        servers: Sequence[tuple[str, int]],
        actor: Any,
        *,
        lost: type[Exception],
        end: Callable[[Any], object],
    ) -> None:
        self.node = node
        self._servers = servers
        self._actor = actor
        self._lost = lost
        self._end = end
        self._orders: asyncio.Queue[bytes] = asyncio.Queue()
        self._sending: asyncio.Task[None] | None = None

    @classmethod
    def on(cls, node: Node, servers: Sequence[tuple[str, int]]) -> RayWorker:
        """Return the link to a new worker on a node of the cluster that this process has joined."""
        import ray
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node.id, soft=False)
        actor = ray.remote(Relay).options(num_cpus=1, max_restarts=0, scheduling_strategy=there).remote()
        return cls(node.address, servers, actor, lost=RayError, end=ray.kill)

    async def start(self) -> None:
        """Start the worker on its node; raise HarnessError for another version, a server out of reach, or no start."""
        place = f"node {self.node}"
        try:
            versions = await asyncio.wait_for(self._actor.versions.remote(), _START_S)
            if tuple(versions) != OURS:
                fact = "it has Knee {} and Python {}, and this machine has {} and {}".format(*versions, *OURS)
                raise HarnessError(fact, place=place, way_out="install the same on all nodes")
            for host, port in self._servers:
                if why := await self._actor.unreachable.remote(host, port):
                    fact, way_out = f"it cannot connect to {host}:{port}: {why}", "give a --url that all nodes reach"
                    raise HarnessError(fact, place=place, way_out=way_out)
            await self._actor.start.remote()
        except TimeoutError:
            fact = f"it started no worker in {_START_S:g} s: its processors may be taken"
            raise HarnessError(fact, place=place, way_out="see `ray status`, or give fewer --workers") from None
        except self._lost as error:
            if "No module named 'harness'" in str(error):
                fact, way_out = "Knee is not installed there", "install the same version on all nodes"
            else:
                fact, way_out = f"it started no worker: {_last_line(error)}", "see `ray status`"
            raise HarnessError(fact, place=place, way_out=way_out) from None
        self._sending = asyncio.create_task(self._send_all())

    async def estimate_clock(self) -> Offset | None:
        async def theirs() -> int:
            return int(await self._actor.clock_ns.remote())

        try:
            offset = await schedule.estimated(theirs, time.monotonic_ns)
        except self._lost:  # its messages end, which says so
            return None
        self.clock_offset_ns = offset.ns
        return offset

    def send(self, order: Plan | Command) -> None:
        self._orders.put_nowait(encode(order))

    async def _send_all(self) -> None:
        """One after the other: calls of an actor may overtake each other."""
        with contextlib.suppress(self._lost):
            while True:
                await self._actor.forward.remote(await self._orders.get())

    async def frames(self) -> AsyncIterator[bytes]:
        while True:
            try:
                payloads = await self._actor.take.remote()
            except self._lost:
                return
            for payload in payloads:
                if payload is None:
                    return
                yield payload

    async def exit_reason(self) -> str:
        try:
            return f"{await asyncio.wait_for(self._actor.exit_reason.remote(), _CLOSE_S)} on node {self.node}"
        except (self._lost, TimeoutError):
            return f"was lost with node {self.node}"

    def kill(self) -> None:
        self._end(self._actor)

    async def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        with contextlib.suppress(self._lost, TimeoutError):
            await asyncio.wait_for(self._actor.close.remote(), _CLOSE_S)
        self.kill()


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
