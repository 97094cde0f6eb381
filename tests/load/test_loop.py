"""How the worker sleeps: what it decodes, how it stamps, and that asyncio still gets its own."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from typing import Any

import pytest

from harness.load.loop import FAR_BEHIND, FAR_BEHIND_BYTES, LATE_SHIFT, HotSelector, Stamping, new_loop, now


class Counter:
    """Something decodable that counts its pieces."""

    def __init__(self) -> None:
        self.pieces: list[bytes | None] = []

    def take(self, stamp: int, piece: bytes | None) -> int:
        self.pieces.append(piece)
        return 1


class Reader:
    """A hot socket that returns what a test puts into it; a pipe says that there is something to read."""

    def __init__(self, ancillary: list[Any]) -> None:
        self.fd, self.other = os.pipe()
        os.write(self.other, b"x")
        self.ancillary = ancillary
        self.stamps: list[int] = []

    def recvmsg_into(self, buffers: list[bytearray], size: int) -> tuple[int, list[Any], int, None]:
        buffers[0][:2] = b"hi"
        return 2, self.ancillary, 0, None

    def received(self, data: bytes, stamp: int) -> None:
        assert data == b"hi"
        self.stamps.append(stamp)

    def lost(self, error: OSError | None, stamp: int) -> None:
        raise AssertionError

    def writable(self) -> None:
        raise AssertionError


def kernel_stamp(realtime_ns: int) -> list[Any]:
    return [(socket.SOL_SOCKET, 35, struct.pack("qq", *divmod(realtime_ns, 1_000_000_000)))]


def read(ancillary: list[Any]) -> tuple[HotSelector, int]:
    selector, reader = HotSelector(pure=True), Reader(ancillary)
    selector.select(0)  # learns the clocks' offset
    selector.add(reader)
    selector.select(0)
    selector.close()
    os.close(reader.fd)
    os.close(reader.other)
    return selector, reader.stamps[0]


def test_a_kernel_stamp_is_moved_to_the_monotonic_clock() -> None:
    ago = 3_000_000
    before = now()
    _, stamp = read(kernel_stamp(time.time_ns() - ago))
    assert before - ago - 1_000_000 < stamp < now() - ago + 1_000_000


def test_without_a_stamp_the_clock_serves_and_is_counted() -> None:
    before = now()
    selector, stamp = read([])
    assert before <= stamp <= now()
    assert (selector.unstamped, selector.reads) == (1, 1)


def test_a_stamp_from_the_future_is_now() -> None:
    _, stamp = read(kernel_stamp(time.time_ns() + 3_600_000_000_000))
    assert stamp <= now()


@pytest.mark.parametrize("step_s", [0.002, -0.002, 3600.0, -3600.0])
def test_a_stamp_of_the_poll_in_which_the_wall_clock_was_set_is_ours(step_s: float) -> None:
    selector = HotSelector(pure=True)
    selector.select(0)
    selector._offset -= round(step_s * 1e9)  # what it was before the step
    reader, before = Reader(kernel_stamp(time.time_ns())), now()
    selector.add(reader)
    selector.select(0)
    assert before <= reader.stamps[0] <= now()
    reader.ancillary = kernel_stamp(time.time_ns() - 3_000_000)
    selector.select(0)
    assert before - 3_000_000 <= reader.stamps[1] <= now() - 2_000_000, "and the next one the kernel's again"
    selector.close()
    os.close(reader.fd)
    os.close(reader.other)


def test_lateness_is_counted_by_its_bin() -> None:
    selector, _ = read(kernel_stamp(time.time_ns() - 10_000_000))
    (bin_,) = [i for i, n in enumerate(selector.late) if n]
    assert 10_000_000 >> LATE_SHIFT <= bin_ <= 30_000_000 >> LATE_SHIFT


def test_without_a_stamp_lateness_is_counted_from_the_previous_poll() -> None:
    selector, reader = HotSelector(pure=True), Reader([])
    selector.select(0)
    selector.add(reader)
    selector._polled -= 10_000_000
    selector.select(0)
    (bin_,) = [i for i, n in enumerate(selector.late) if n]
    assert 10_000_000 >> LATE_SHIFT <= bin_ <= 30_000_000 >> LATE_SHIFT
    selector.unstamped_read(now())
    assert (selector.reads, selector.unstamped, sum(selector.late)) == (2, 2, 2)
    taken = selector.take_late()
    assert (sum(taken), taken[-1] > 0, sum(selector.late)) == (2, True, 0)
    assert selector.take_late() == ()
    selector.close()
    os.close(reader.fd)
    os.close(reader.other)


def test_a_poll_is_late_that_comes_half_an_itl_after_the_one_before() -> None:
    selector = HotSelector(tick_ns=1_000_000, pure=True)  # of an ITL of 8 ms or more
    for apart, late in ((3_000_000, False), (5_000_000, True)):
        selector._polled = now() - apart
        selector.select(0)
        assert selector.late_read is late
    selector.close()


def test_what_is_queued_is_decoded_in_order_until_it_is_time_to_wake() -> None:
    selector, counter = HotSelector(), Counter()
    for i in range(100):
        selector.decode_queue.append((counter, 0, b"%d" % i))
    selector.decode_until(now() + 10_000_000_000)
    assert counter.pieces == [b"%d" % i for i in range(100)]
    assert selector.events == 100


def test_far_behind_an_eighth_is_decoded_though_it_is_time_to_wake_and_no_more() -> None:
    selector, counter = HotSelector(), Counter()
    for _ in range(2 * FAR_BEHIND):
        selector.decode_queue.append((counter, 0, b""))
    selector.decode_until(0)
    assert FAR_BEHIND / 4 <= len(counter.pieces) <= FAR_BEHIND / 4 + 32
    near = HotSelector()
    for _ in range(FAR_BEHIND):
        near.decode_queue.append((counter, 0, b""))
    near.decode_until(0)
    assert len(near.decode_queue) >= FAR_BEHIND - 16


def test_a_queue_of_many_bytes_is_decoded_whole_though_it_is_time_to_wake() -> None:
    selector, counter = HotSelector(), Counter()
    for _ in range(64):
        selector.decode_queue.append((counter, 0, b""))
    selector.undecoded_bytes = FAR_BEHIND_BYTES + 1
    selector.decode_until(0)
    assert len(counter.pieces) == 64
    assert selector.undecoded_bytes == 0


@pytest.mark.parametrize("busy", [0, 1])
def test_asyncio_s_own_sockets_and_timers_work_with_and_without_load(busy: int) -> None:
    selector = HotSelector(250_000)
    selector.busy = busy

    async def main() -> tuple[bytes, float]:
        near, far = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=near)
        far.send(b"ping\n")
        line = await reader.readline()
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(0.01)
        slept = asyncio.get_running_loop().time() - began
        writer.close()
        far.close()
        return line, slept

    with asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
        line, slept = runner.run(main())
    assert line == b"ping\n"
    assert slept >= 0.01


def test_stamping_knows_where_its_stamps_come_from() -> None:
    stamping = Stamping()
    assert stamping.source == "kernel"
    stamping.close()
    hasty = Stamping(patience_s=0.0)
    assert hasty.source == "user"
    hasty.close()
