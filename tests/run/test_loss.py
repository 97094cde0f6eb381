"""A level in which a replica is stopped: where it is, and what happens when the command fails."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from harness.base.errors import HarnessError
from harness.data.summary import RampStep
from harness.run import hooks
from harness.sim.profile import profile
from harness.spec import reading
from tests.builders import virtual, virtual_run


def test_it_is_at_the_middle_one_of_the_loads_that_were_measured() -> None:
    steps = [RampStep(C, "given", None, 0) for C in (1, 16, 32, 64, 16)] + [RampStep(None, "the end", None, 0)]
    assert hooks.load_at_loss(steps) == 32
    assert hooks.load_at_loss(steps[-1:]) == 1


def test_the_command_runs_while_the_level_goes_on(tmp_path: Path) -> None:
    stopped, due = tmp_path / "stopped", asyncio.Event()
    due.set()

    async def level() -> None:
        async with asyncio.timeout(30):
            while not stopped.exists():
                await asyncio.sleep(0.01)

    asyncio.run(hooks.stopping_replica(level(), f'{sys.executable} -c \'open("{stopped}", "w")\'', due))
    assert stopped.exists()


def test_a_command_that_fails_is_named_once_the_level_is_over() -> None:
    due = asyncio.Event()

    async def level() -> None:
        due.set()
        await asyncio.sleep(0.2)

    with pytest.raises(HarnessError, match="No such file") as raised:
        asyncio.run(hooks.stopping_replica(level(), "/no/such/command", due))
    assert raised.value.place == "--stop-replica"


def test_a_lone_server_has_no_replica_to_stop() -> None:
    tree = {"target": {"url": "http://a:1"}, "hooks": {"stop_replica": "kill 1"}}
    with pytest.raises(HarnessError, match="there is no other replica"):
        reading.build(tree, place="test")


def test_the_level_of_a_loss_is_counted_and_the_replica_is_stopped_amid_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its window has 4 s, as those of the two levels before it."""
    places, stopped_s = list[tuple[int, int | None]](), list[float]()

    async def stop(command: str, option: str) -> None:
        assert command == "stop the second"
        stopped_s.append(virtual.clock_ns() / 1e9)

    monkeypatch.setattr(hooks, "command", stop)
    monkeypatch.setattr(
        virtual_run._Quiet, "level_started", lambda self, name, index, total, why: places.append((index + 1, total))
    )
    spec = reading.build(
        {
            "target": {"urls": ["http://a:1", "http://b:1"]}, "workload": {"output_tokens": 16, "seed": 1},
            "ramp": {"levels": [1, 4], "level_seconds": 4.0}, "hooks": {"stop_replica": "stop the second"},
        },
        place="test",
    )  # fmt: skip
    levels = virtual_run.run(spec, profile(), tmp_path).result.levels
    assert [level.concurrency for level in levels] == [1, 4, 4]
    assert places == [(1, 3), (2, 3), (3, 3)]
    start_s = levels[-1].window_start_s
    assert start_s is not None
    assert stopped_s == [pytest.approx(start_s + 2.0, abs=0.2)]


def test_a_search_leaves_time_to_lose_a_replica_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of 40 s; a request takes 0.4 s and more."""
    stopped_s = list[float]()

    async def stop(command: str, option: str) -> None:
        stopped_s.append(virtual.clock_ns() / 1e9)

    monkeypatch.setattr(hooks, "command", stop)
    spec = reading.build(
        {
            "target": {"urls": ["http://a:1", "http://b:1"]}, "workload": {"output_tokens": 64, "seed": 1},
            "ramp": {"max_seconds": 40.0}, "hooks": {"stop_replica": "stop the second"},
        },
        place="test",
    )  # fmt: skip
    last = virtual_run.run(spec, profile(speed=1.0), tmp_path).result.levels[-1]
    assert "while a replica is stopped" in last.reason
    assert last.window_start_s is not None
    assert last.window_end_s is not None
    assert 30.0 < last.begin_s < 34.0
    assert last.window_start_s < stopped_s[0] < last.window_end_s - 1.0
