"""Each request has its deadline, though one timer watches over all of them."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from harness.load.loop import HotSelector, new_loop, now
from harness.load.sockets import SocketTransport
from harness.load.transport import Deadlines, Exchange, Target

pytestmark = pytest.mark.usefixtures("receive_path")


@pytest.mark.alone  # it asks for times within 0.1 s
def test_each_exchange_expires_at_its_own_time_and_one_that_is_over_does_not() -> None:
    expired: list[tuple[str, int]] = []

    async def go() -> dict[str, int]:
        deadlines = Deadlines(0.1, lambda exchange: expired.append((exchange.request_id, now())))
        due = {}
        for name in "abcd":
            exchange = Exchange(name)
            due[name] = deadlines.add(exchange)
            if name in "ac":  # also the one whose deadline the timer is set to
                deadlines.remove(exchange)
            await asyncio.sleep(0.03)
        await asyncio.sleep(0.3)
        due["e"] = deadlines.add(Exchange("e"))  # after nothing was left to watch
        await asyncio.sleep(0.3)
        deadlines.add(Exchange("f"))
        deadlines.close()
        await asyncio.sleep(0.3)
        return due

    due = asyncio.run(go())
    assert [name for name, _ in expired] == ["b", "d", "e"]
    assert all(0 <= at - due[name] < 100e6 for name, at in expired)


def test_all_exchanges_share_one_timer_that_none_of_them_leaves_behind() -> None:
    async def go() -> int:
        loop = asyncio.get_running_loop()
        deadlines = Deadlines(60.0, lambda exchange: None)
        for i in range(1000):
            exchange = Exchange(str(i))
            deadlines.add(exchange)
            deadlines.remove(exchange)
        kept = len(loop._scheduled)  # type: ignore[attr-defined]
        deadlines.close()
        return kept

    assert asyncio.run(go()) == 1


@pytest.mark.parametrize("reused", [False, True])
def test_a_deadline_comes_while_a_connection_is_opened(tmp_path: Path, reused: bool) -> None:
    """A listener that accepts nobody, with its queue full: connecting never ends."""
    path = str(tmp_path / "full")
    selector = HotSelector(250_000)
    target = Target(scheme="http", host="localhost", port=80, path="/v1/x", headers={}, uds=path)

    async def go() -> tuple[list[Exchange], int]:
        transport = SocketTransport(target, selector)
        exchanges = [Exchange("a"), Exchange("b")]
        data = transport.request("a", b"{}")
        await asyncio.gather(*(transport.send(each, data, 0.2) for each in exchanges))
        busy = selector.busy
        if reused:  # the listener takes connections by now
            server.listen(8)
            exchanges.append(Exchange("c"))
            await transport.send(exchanges[-1], data, 0.2)
        await transport.aclose()
        selector.decode_all()
        return exchanges, busy

    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(path)
        server.listen(0)
        first.connect(path)
        with asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
            found, busy = runner.run(go())
    assert [(each.error, each.message, each.sent_ns) for each in found[:2]] == [
        ("client_deadline", "no end within 0.2 s", 0)
    ] * 2
    assert busy == 0
    assert all(each.complete for each in found)
    if reused:
        assert found[2].error == "client_deadline"
        assert found[2].sent_ns > 0
