"""Workers reached through their links: here in memory, on a virtual clock, and each with a clock of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.data.machines import WorkerClock
from harness.data.record import Record, arrivals_of
from harness.load import schedule
from harness.load.driver import Driver
from harness.load.link import Link, LocalWorker, received
from harness.load.messages import (
    PROGRESS_EVERY_S,
    SILENT_S,
    BeginLevel,
    Command,
    Done,
    Origin,
    Plan,
    Prepare,
    Progress,
    Stop,
    decode_command,
    decode_plan,
    encode,
    on_clock,
)  # fmt: skip
from harness.load.schedule import Offset
from harness.load.workers import Workers
from harness.results import frames
from tests.builders import virtual
from tests.load.test_driver import FakeServer, plan

AHEAD = 3_600_000_000_000  # ns that the clock of one worker is ahead of ours
BEHIND = -90_000_000_000
MS = 1_000_000  # ns


def ours() -> int:
    """Our clock: begun long before the loop."""
    return virtual.clock_ns() + 10**15


class MemoryLink:
    """A worker in this loop. It is the real one but for its wire, its server and its clock.

    `ways_ns` are the times of the ways out and back of the round trips, one after the other and again from the first.
    """

    node = "memory"

    def __init__(self, offset_ns: int = 0, ways_ns: Sequence[tuple[int, int]] = [(0, 0)]) -> None:
        self.clock_offset_ns = 0
        self.most_out_s = max(out for out, _ in ways_ns) * 1e-9
        self._ways = itertools.cycle(ways_ns)
        self.clock: Callable[[], int] = lambda: ours() + offset_ns
        self.server = FakeServer(clock=self.clock)
        self.orders: list[Plan | Command] = []
        self.silent = False
        self.closed = False
        self._commands: asyncio.Queue[Command] = asyncio.Queue()
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._work: asyncio.Task[None] | None = None

    async def start(self) -> None:
        pass

    async def estimate_clock(self) -> Offset:
        async def theirs() -> int:
            out_ns, back_ns = next(self._ways)
            await asyncio.sleep(out_ns * 1e-9)
            found = self.clock()
            await asyncio.sleep(back_ns * 1e-9)
            return found

        found = await schedule.estimated(theirs, ours)
        self.clock_offset_ns = found.ns
        return found

    def send(self, order: Plan | Command) -> None:
        self.orders.append(order)
        data = encode(order)
        if self._work is None:
            self._work = asyncio.create_task(self._run(decode_plan(data)))
        else:
            arrive = asyncio.get_running_loop().call_later
            arrive(self.most_out_s, self._commands.put_nowait, decode_command(data))

    async def _run(self, worker_plan: Plan) -> None:
        await Driver(worker_plan, self.server, self._send, clock=self.clock).run(self._commands)
        await self._send(encode(Done("user")))

    async def _send(self, payload: bytes) -> None:
        if not self.silent:
            self._messages.put_nowait(payload)

    async def frames(self) -> AsyncIterator[bytes]:
        while (payload := await self._messages.get()) is not None:
            yield payload

    async def exit_reason(self) -> str:
        return "is out of memory"

    def kill(self) -> None:
        if self._work is not None:
            self._work.cancel()
        self._messages.put_nowait(None)

    async def close(self) -> None:
        self.closed = True
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)

    @property
    def begun_ns(self) -> int:
        """The moment, by our clock, at which it shall begin its level."""
        (begun,) = [order for order in self.orders if isinstance(order, BeginLevel)]
        return begun.at_ns - self.clock_offset_ns


def level(concurrency: int) -> BeginLevel:
    return BeginLevel(index=0, repeat=0, concurrency=concurrency, slots=0, spread_s=0.0, tick_ns=1_000_000, at_ns=0)


Work = Callable[[Workers], Coroutine[Any, Any, None]]


def led(work: Work, *links: MemoryLink) -> tuple[list[Record], list[Progress]]:
    """Lead workers over these links through some work; their records and progress. The origin lies two seconds back."""
    records: list[Record] = []
    reports: list[Progress] = []

    async def main() -> None:
        origin_ns = ours()
        await asyncio.sleep(2.0)
        plans = [plan(worker=i, workers=len(links), start="burst", origin_ns=origin_ns) for i in range(len(links))]
        async with Workers(links, clock=ours) as workers:
            await workers.begin(
                plans,
                lambda payload: records.extend(msgspec.msgpack.decode(payload, type=list[Record])),
                reports.append,
            )
            await asyncio.wait_for(work(workers), 120.0)

    virtual.run(main())
    return records, reports


async def a_level_of_three(workers: Workers) -> None:
    await workers.begin_level(level(3), 3)
    while (now := await workers.next_progress()).time_s < 8.0:
        lag = asyncio.get_running_loop().time() - now.time_s  # the origin is the loop's begin
        assert -1e-6 <= lag <= PROGRESS_EVERY_S + 1e-6
    assert now.in_flight == 3


def test_both_kinds_keep_the_contract() -> None:
    links: list[Link] = [LocalWorker(), MemoryLink()]
    assert [link.clock_offset_ns for link in links] == [0, 0]
    assert asyncio.run(links[0].estimate_clock()) is None, "it shares our clock"


def test_an_offset_lies_where_the_bounds_of_all_round_trips_meet() -> None:
    # Out 3 ms and back 1 ms: 49 to 53 ms. Out 0.4 ms and back 0.9 ms: 49.1 to 50.4 ms.
    slow, quick = (0, 4 * MS, 53 * MS), (10 * MS, 11_300_000, 60_400_000)
    assert schedule.offset([slow]) == Offset(51 * MS, 2 * MS)
    assert schedule.offset([slow, quick]) == Offset(49_750_000, 650_000)
    assert schedule.offset([slow, (0, 0, 54 * MS)]) == Offset(53_500_000, 500_000), "they miss each other by 1 ms"


def test_an_estimate_ends_after_a_second_where_round_trips_are_slow() -> None:
    async def main() -> None:
        begun_s = asyncio.get_running_loop().time()
        assert await MemoryLink(50 * MS, [(100 * MS, 300 * MS)]).estimate_clock() == Offset(-50 * MS, 200 * MS)
        assert asyncio.get_running_loop().time() - begun_s == pytest.approx(1.2), "three trips of 0.4 s"

    virtual.run(main())


def test_a_planted_offset_is_reported_and_moves_no_figure_beyond_its_error() -> None:
    planted_ns = 50 * MS
    links = MemoryLink(), MemoryLink(planted_ns, [(3 * MS, MS), (400_000, 900_000), (2 * MS, 5 * MS)])
    clocks: list[WorkerClock] = []

    async def work(workers: Workers) -> None:
        await a_level_of_three(workers)
        clocks.extend(workers.clocks)

    records, _ = led(work, *links)
    exact, found = clocks
    assert (exact.offset_s, exact.error_s, exact.drift_s) == (0.0, 0.0, 0.0)
    assert (found.worker, found.node, found.estimates) == (1, "memory", 2)
    assert found.offset_s == pytest.approx(0.050, abs=0.001)
    assert found.offset_s == pytest.approx(0.04975, abs=2e-9)
    assert found.error_s == pytest.approx(0.00065, abs=2e-9)
    begun_s = [link.server.sent_at[0] for link in links]
    assert begun_s[0] != begun_s[1]
    assert abs(begun_s[0] - begun_s[1]) <= found.error_s, "a level begins on both within the error"
    for r in (r for r in records if r.worker == 1):
        assert r.sent_s is not None
        assert min(abs(r.sent_s - at) for at in links[1].server.sent_at) <= found.error_s
        if not r.error:
            assert r.first_token_s == pytest.approx(r.sent_s + 0.25), "what one clock alone shows is exact"


def test_a_drift_is_the_furthest_estimate_from_the_first() -> None:
    link = MemoryLink(50 * MS)
    clocks: list[WorkerClock] = []

    async def work(workers: Workers) -> None:
        for ahead_ns in (53 * MS, 49 * MS):
            link.clock = lambda ahead_ns=ahead_ns: ours() + ahead_ns  # type: ignore[misc]
            await workers.begin_level(level(1), 1)
        clocks.extend(workers.clocks)

    led(work, link)
    (found,) = clocks
    assert (found.offset_s, found.drift_s, found.estimates) == (pytest.approx(0.050), pytest.approx(0.003), 3)


class DriftingLink(MemoryLink):
    """A worker whose clock is 50 ms ahead and gains 0.1 ms a second."""

    def __init__(self) -> None:
        super().__init__(50 * MS)
        began = 10**15  # of the loop
        self.clock = lambda: ours() + 50 * MS + (ours() - began) // 10_000
        self.server = FakeServer(clock=self.clock)


def test_a_clock_that_drifts_is_followed_within_a_level() -> None:
    link = DriftingLink()
    clocks: list[WorkerClock] = []

    async def work(workers: Workers) -> None:
        await workers.begin_level(level(1), 1)
        while (await workers.next_progress()).time_s < 100.0:
            pass
        clocks.extend(workers.clocks)

    records, reports = led(work, link)
    off = {r.sent_s: min((r.sent_s - at for at in link.server.sent_at), key=abs) for r in records if r.sent_s}
    before = [each for at, each in off.items() if 50 < at < 60]
    after = [each for at, each in off.items() if 64 < at < 100]
    assert before
    assert after
    assert max(before) == pytest.approx(58e-4, abs=5e-4), "what it gained since the session began"
    assert max(after) < 40e-4, "what it gained since the last minute"
    times = [each.time_s for each in reports]
    assert times == sorted(times)
    (found,) = clocks
    assert (found.offset_s, found.estimates) == (pytest.approx(0.0502, abs=1e-5), 3)
    assert found.drift_s == pytest.approx(60e-4, abs=2e-4)


def test_an_estimate_that_allows_for_the_first_offset_moves_nothing() -> None:
    link = MemoryLink(50 * MS, [(3 * MS, MS), (400_000, 900_000), (2 * MS, 5 * MS)])

    async def work(workers: Workers) -> None:
        await workers.begin_level(level(1), 1)
        link._ways = itertools.cycle([(MS, MS), (100_000, 500_000)])  # known better, within the first error
        while (await workers.next_progress()).time_s < 70.0:
            pass

    led(work, link)
    assert not [order for order in link.orders if isinstance(order, Origin)]


def test_workers_with_other_clocks_begin_at_one_moment() -> None:
    links = MemoryLink(AHEAD), MemoryLink(BEHIND)
    led(a_level_of_three, *links)
    assert links[0].begun_ns == links[1].begun_ns
    at_s = (links[0].begun_ns - 10**15) * 1e-9
    assert links[0].server.sent_at[:2] == pytest.approx([at_s, at_s])
    assert links[1].server.sent_at[:1] == pytest.approx([at_s])
    assert [link.server.most for link in links] == [2, 1]
    assert all(link.closed for link in links)


def test_a_level_begins_at_its_own_time_and_with_the_share_of_workers_that_are_here() -> None:
    links = MemoryLink(), MemoryLink()

    async def main() -> None:
        plans = [plan(worker=i, workers=4, start="burst", origin_ns=ours()) for i in (2, 3)]
        async with Workers(links, clock=ours) as workers:
            await workers.begin(plans, lambda payload: None)
            later = msgspec.structs.replace(level(7), at_ns=ours() + 3 * 10**9)
            await workers.begin_level(later, 7)
            assert [link.begun_ns for link in links] == [later.at_ns] * 2
            assert [order.slots for link in links for order in link.orders if isinstance(order, BeginLevel)] == [2, 1]

    virtual.run(main())


def test_records_of_workers_with_other_clocks_are_in_the_run_s_time() -> None:
    links = MemoryLink(AHEAD), MemoryLink(BEHIND)
    records, reports = led(a_level_of_three, *links)
    assert {p.worker for p in reports} == {0, 1}
    for i, link in enumerate(links):
        own = sorted((r for r in records if r.worker == i), key=lambda r: r.sent_s or 0.0)
        assert [r.sent_s for r in own] == pytest.approx(link.server.sent_at)  # the origin is the loop's begin
        answered = [r for r in own if not r.error]
        assert len(answered) >= 5
        for r in answered:
            assert r.sent_s is not None
            quarters = [(r.sent_s + quarter * 0.25) * 1e9 for quarter in (1, 2, 3, 4)]
            assert list(arrivals_of(r)) == pytest.approx(quarters, abs=10)
            assert [r.first_token_s, r.done_s] == pytest.approx([r.sent_s + 0.25, r.sent_s + 1.0])


def test_a_worker_that_falls_silent_is_killed_and_ends_the_run() -> None:
    links = MemoryLink(AHEAD), MemoryLink(BEHIND)
    quiet_s = 0.0

    async def work(workers: Workers) -> None:
        nonlocal quiet_s
        await workers.begin_level(level(2), 2)
        links[1].silent = True
        quiet_s = asyncio.get_running_loop().time()
        try:
            while True:
                await workers.next_progress()
        finally:
            quiet_s = asyncio.get_running_loop().time() - quiet_s

    with pytest.raises(HarnessError, match=f"worker 1: .*: it sent nothing for {SILENT_S} s"):
        led(work, *links)
    assert SILENT_S - 1 <= quiet_s <= SILENT_S + 1
    assert all(link.closed for link in links)


def test_a_worker_that_goes_away_is_named_with_its_exit_reason() -> None:
    links = MemoryLink(), MemoryLink(AHEAD)

    async def work(workers: Workers) -> None:
        await workers.begin_level(level(2), 2)
        links[0].kill()
        while True:
            await workers.next_progress()

    with pytest.raises(HarnessError, match=r"worker 0: .* ended in the middle of the run: it is out of memory"):
        led(work, *links)


def test_only_what_names_a_moment_is_moved_to_the_worker_s_clock() -> None:
    assert on_clock(plan(origin_ns=5), 7).origin_ns == 12
    assert on_clock(msgspec.structs.replace(level(1), at_ns=5), -7).at_ns == -2
    assert on_clock(Prepare(1, 2), 7) == Prepare(1, 2)
    assert on_clock(Stop(), 7) == Stop()


def of_a_stream(data: bytes) -> list[bytes]:
    """The payloads that come out of a link's stream with these bytes."""

    async def main() -> list[bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return [payload async for payload in received(reader)]

    return asyncio.run(main())


def test_a_stream_that_ends_amid_a_message_loses_that_one_alone() -> None:
    whole = frames.frame(b"one") + frames.frame(b"two")
    assert [len(of_a_stream(whole[:cut])) for cut in range(len(whole) + 1)] == [0] * 11 + [1] * 11 + [2]


def test_a_damaged_message_is_an_error() -> None:
    with pytest.raises(HarnessError, match="damaged"):
        of_a_stream(frames.frame(b"one")[:-1] + b"x")
