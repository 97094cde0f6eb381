"""A driver over several replicas on virtual time: where requests go, what a loss costs, when a replica is back."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from harness.analysis import patterns
from harness.analysis.table import Table
from harness.data.record import Record
from harness.load.fleet import FleetTransport
from harness.load.loop import HotSelector
from harness.load.messages import Replica, Stop
from harness.load.schedule import Balancer
from harness.load.sockets import SocketTransport
from harness.load.transport import Exchange
from harness.spec.choices import Balance
from tests.load.test_driver import TARGET, FakeServer, begin_level, drive

REPLICAS = [Replica(f"http://{name}:1", msgspec.structs.replace(TARGET, host=name), "/v1/models") for name in "ab"]


class Mortal(FakeServer):
    """A replica that refuses all requests, and breaks off those it has, in its outage."""

    def __init__(self, takes: float, outage: tuple[float, float] = (1e9, 1e9)) -> None:
        super().__init__(takes)
        self.outage = outage

    @property
    def down(self) -> bool:
        return self.outage[0] <= asyncio.get_running_loop().time() < self.outage[1]

    async def send(self, exchange: Exchange, request: bytes, timeout_s: float) -> None:
        if self.down:
            self.fails = True
        sending = asyncio.ensure_future(super().send(exchange, request, timeout_s))
        while not sending.done():
            await asyncio.sleep(0.02)
            if self.down and not sending.done():
                exchange.fail("reset", "gone")
        self.fails = False
        await sending


def fleet(*servers: FakeServer, policy: Balance = "round-robin", worker: int = 0) -> FleetTransport:
    async def answers(replica: Replica) -> bool:
        server = servers[[each.url for each in REPLICAS].index(replica.url)]
        return not (isinstance(server, Mortal) and server.down)

    return FleetTransport(REPLICAS[: len(servers)], servers, Balancer(policy, len(servers), worker), 60.0, answers)


def run(transport: FleetTransport, seconds: float, slots: int, **changes: Any) -> list[Record]:
    records, _ = drive([(0.0, begin_level(0, slots)), (seconds, Stop())], transport, **changes)
    return records


def test_round_robin_deals_requests_out_evenly_and_every_record_has_its_replica() -> None:
    a, b = FakeServer(1.0), FakeServer(1.0)
    records = run(fleet(a, b), 10.0, 4)
    of = Counter(record.url for record in records)
    assert set(of) == {"http://a:1", "http://b:1"}
    assert abs(of["http://a:1"] - of["http://b:1"]) <= 1
    assert {len(server.bodies) for server in (a, b)} == set(of.values())


def test_least_in_flight_sends_a_slow_replica_what_it_can_take() -> None:
    fast, slow = FakeServer(0.5), FakeServer(2.0)
    run(fleet(fast, slow, policy="least-in-flight"), 12.0, 8)
    assert 3.0 < len(fast.bodies) / len(slow.bodies) < 5.0  # 4 by their times
    assert (fast.most, slow.most) == (4, 4)


def test_a_replica_that_is_lost_costs_the_requests_it_has_and_is_back_after_its_outage() -> None:
    records = run(fleet(FakeServer(0.4), Mortal(0.4, outage=(3.0, 5.0))), 7.0, 8)
    failed = [record for record in records if record.error not in ("", "cancelled")]
    assert {record.url for record in failed} == {"http://b:1"}
    assert 3 <= len(failed) <= 8  # what was in flight there, and what was sent before it was out
    done = [record for record in records if record.url == "http://b:1" and not record.error]
    between = [record for record in done if record.sent_s is not None and 3.0 <= record.sent_s < 5.0]
    assert between == []
    (loss,) = patterns.stops(Table.of(records), "http://b:1")
    assert loss.start_s == pytest.approx(3.0, abs=0.05)
    assert loss.end_s == pytest.approx(5.0, abs=0.2)


def test_a_session_is_sent_in_a_header_of_its_own_where_one_is_wanted() -> None:
    wanted = msgspec.structs.replace(TARGET, session_header="X-Session")
    plain, own = (SocketTransport(target, HotSelector(1_000_000)) for target in (TARGET, wanted))
    lines, usual = (each.request("run-0-1", b"{}", "7").split(b"\r\n") for each in (own, plain))
    assert {b"X-Session: 7", b"X-Request-Id: run-0-1"} <= set(lines)
    assert set(lines) - set(usual) == {b"X-Session: 7"}
    assert b"X-Session: a%20b%0D%0AX%3A%20y" in own.request("run-0-1", b"{}", "a b\r\nX: y").split(b"\r\n")
