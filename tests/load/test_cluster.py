"""Workers behind Ray's actors: the links by actors in this process; a cluster itself stands in test_ray."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from harness.base.errors import HarnessError
from harness.load import cluster
from harness.load.cluster import Node, RayWorker, Relay, spread
from harness.load.link import Link
from harness.load.messages import Prepare, Stop, encode

MS = 1_000_000  # ns
NODES = [Node("a", "10.0.0.1", 2), Node("b", "10.0.0.2", 1), Node("c", "10.0.0.3", 0), Node("d", "10.0.0.4", 3)]


@pytest.mark.parametrize(
    ("count", "servers", "places"),
    [
        (1, set(), "a"),
        (3, set(), "abd"),
        (6, set(), "abdadd"),
        (3, {"10.0.0.1"}, "bdd"),
        (None, {"10.0.0.3"}, "abd"),
    ],
)
def test_workers_take_turns_over_the_nodes_and_leave_the_server_s_out(
    count: int | None, servers: set[str], places: str
) -> None:
    assert "".join(node.id for node in spread(NODES, count, servers)) == places


def test_workers_without_a_processor_of_their_own_are_refused() -> None:
    with pytest.raises(HarnessError, match="--workers: 7 workers need a processor each, and the nodes have 6; give"):
        spread(NODES, 7, set())
    with pytest.raises(HarnessError, match="--workers: 1 workers need a processor each, and the nodes have 0; add"):
        spread(NODES[2:3], None, set())
    with pytest.raises(HarnessError, match="--ray: no node of the cluster is apart from the server"):
        spread(NODES[:1], 1, {"10.0.0.1"})


def refused(address: str) -> str:
    with pytest.raises(HarnessError) as error, cluster.joined(address):
        pass
    return str(error.value)


def test_no_ray_and_no_cluster_are_each_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refused("auto") == "--ray: Ray is not installed; pip install '.[ray]' in knee's folder"
    monkeypatch.setitem(sys.modules, "ray", object())  # never come to
    for address in ("", "local", "ray://head:10001", "head:", ":6379", "head:٦"):
        assert refused(address).startswith(f"--ray {address}".rstrip() + ": not the address of a cluster; write auto")
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert refused(address).startswith(f"--ray {address}: no cluster there: ")


class GoneError(Exception):
    """What a call raises where the actor is gone."""


class FakeWorker:
    """A worker process, as its relay sees it."""

    def __init__(self) -> None:
        self.forwarded: list[bytes] = []
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.closed = False

    async def start(self) -> None: ...

    def forward(self, payload: bytes) -> None:
        self.forwarded.append(payload)

    async def frames(self) -> AsyncIterator[bytes]:
        while (payload := await self.messages.get()) is not None:
            yield payload

    async def exit_reason(self) -> str:
        return "was killed by SIGKILL"

    async def close(self) -> None:
        self.closed = True


class Handle:
    """An actor's handle: its methods' `remote` begins a call. A killed actor fails every call, those under way too."""

    def __init__(self, worker: FakeWorker, ahead_ns: int = 0) -> None:
        self.relay: Any = Relay()
        self.relay._worker = worker
        self.killed = asyncio.Event()

        async def clock_ns() -> int:
            return time.monotonic_ns() + ahead_ns

        self.relay.clock_ns = clock_ns

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> asyncio.Task[Any]:
            return asyncio.ensure_future(self._called(getattr(self.relay, name), *arguments))

        return type("Method", (), {"remote": staticmethod(remote)})

    async def _called(self, method: Callable[..., Any], *arguments: Any) -> Any:
        call, killed = asyncio.ensure_future(method(*arguments)), asyncio.ensure_future(self.killed.wait())
        await asyncio.wait((call, killed), return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        if self.killed.is_set():
            call.cancel()
            raise GoneError
        return call.result()


def linked(worker: FakeWorker, ahead_ns: int = 0, servers: tuple[tuple[str, int], ...] = ()) -> RayWorker:
    return RayWorker("n", servers, Handle(worker, ahead_ns), lost=GoneError, end=lambda handle: handle.killed.set())


def test_other_versions_on_a_node_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    link = linked(FakeWorker())
    monkeypatch.setattr(cluster, "OURS", ("0.1.0", "3.11.2"))

    async def main() -> None:
        starting = asyncio.create_task(link.start())
        monkeypatch.setattr(link._actor.relay, "versions", versions)
        await starting

    async def versions() -> tuple[str, str]:
        return "0.0.9", "3.12.1"

    with pytest.raises(HarnessError, match=r"node n: it has Knee 0\.0\.9 and Python 3\.12\.1, and this machine"):
        asyncio.run(main())


def test_commands_arrive_in_order_and_messages_come_until_the_end() -> None:
    worker = FakeWorker()
    orders = [Prepare(number, 1) for number in range(20)]

    async def main() -> list[bytes]:
        link: Link = linked(worker)
        await link.start()
        for order in (*orders, Stop()):
            link.send(order)
        for i in range(100):  # more than a relay keeps
            worker.messages.put_nowait(b"%d" % i)
        while len(worker.forwarded) <= len(orders):
            await asyncio.sleep(0)
        worker.messages.put_nowait(None)
        found = [payload async for payload in link.frames()]
        assert await link.exit_reason() == "was killed by SIGKILL on node n"
        await link.close()
        return found

    assert asyncio.run(main()) == [b"%d" % i for i in range(100)]
    assert worker.forwarded == [encode(order) for order in (*orders, Stop())]
    assert worker.closed


def test_messages_that_are_not_taken_stay_with_the_worker() -> None:
    worker = FakeWorker()

    async def main() -> int:
        link = linked(worker)
        await link.start()
        for _ in range(200):
            worker.messages.put_nowait(b"")
        for _ in range(500):
            await asyncio.sleep(0)
        left = worker.messages.qsize()
        link._actor.relay._reading.cancel()
        return left

    assert asyncio.run(main()) == 200 - cluster._UNTAKEN - 1  # one waits for its place


def test_a_planted_offset_is_estimated_over_the_link() -> None:
    async def main() -> None:
        link = linked(FakeWorker(), ahead_ns=50 * MS)
        await link.start()
        found = await link.estimate_clock()
        assert found is not None
        assert link.clock_offset_ns == found.ns
        assert abs(found.ns - 50 * MS) <= found.error_ns

    asyncio.run(main())


def test_a_lost_node_ends_the_messages_and_is_named() -> None:
    async def main() -> None:
        link = linked(FakeWorker())
        await link.start()
        reading = asyncio.create_task(anext(link.frames(), None))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        link.kill()
        assert await reading is None
        assert await link.exit_reason() == "was lost with node n"
        assert await link.estimate_clock() is None
        link.send(Stop())
        await link.close()

    asyncio.run(main())


def test_a_node_that_cannot_reach_the_server_is_named() -> None:
    async def main(port: int) -> None:
        await linked(FakeWorker(), servers=(("127.0.0.1", port),)).start()

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        with pytest.raises(HarnessError, match=rf"node n: it cannot connect to 127\.0\.0\.1:{port}: .*; give a --url"):
            asyncio.run(main(port))
        server.listen()
        asyncio.run(main(port))
