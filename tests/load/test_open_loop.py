"""What the open loop sends with: times that come, and places."""

import asyncio
import contextlib

from harness.load.requests import Room, each
from tests.builders import virtual


def test_each_time_comes_when_the_clock_has_reached_it_and_those_that_are_late_at_once() -> None:
    came: list[tuple[int, float]] = []

    def come(due: int) -> bool:
        came.append((due, virtual.clock_ns()))
        return len(came) < 5

    async def main() -> None:
        await asyncio.sleep(1.0)
        await each((s * 500_000_000 for s in range(1, 100)), virtual.clock_ns, come)

    virtual.run(main())
    seconds = [(due * 1e-9, now * 1e-9) for due, now in came]
    assert seconds == [(0.5, 1.0), (1.0, 1.0), (1.5, 1.5), (2.0, 2.0), (2.5, 2.5)]


def test_no_time_comes_after_a_schedule_is_cut() -> None:
    came: list[int] = []

    async def main() -> None:
        task = asyncio.ensure_future(
            each([500_000_000, 2_000_000_000], virtual.clock_ns, lambda due: not came.append(due))
        )
        await asyncio.sleep(1.0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await asyncio.sleep(5.0)

    virtual.run(main())
    assert came == [500_000_000]


def test_a_schedule_that_is_cut_in_the_turn_in_which_a_time_comes_is_over() -> None:
    came: list[int] = []
    errors: list[dict[str, object]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        task = asyncio.ensure_future(each([1_000_000_000], virtual.clock_ns, lambda due: not came.append(due)))
        loop.call_later(1.0, task.cancel)
        await asyncio.sleep(5.0)
        assert task.cancelled()

    virtual.run(main())
    assert (came, errors) == ([], [])


def test_places_go_to_those_that_wait_in_their_order_and_none_is_lost_by_one_that_leaves() -> None:
    order: list[int] = []

    async def wait(room: Room, who: int) -> None:
        await room.wait()
        order.append(who)

    async def main() -> None:
        room = Room(2)
        assert room.enter()
        assert room.enter()
        assert not room.enter()
        waiting = [asyncio.ensure_future(wait(room, i)) for i in range(4)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # before it has a place
        room.leave()
        waiting[1].cancel()  # just given one, which goes on to the next
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == [2]
        assert not room.enter()
        room.leave()
        await asyncio.sleep(0)
        assert order == [2, 3]
        room.leave()
        assert room.enter()

    asyncio.run(main())
