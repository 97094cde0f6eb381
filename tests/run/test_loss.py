"""A level in which a replica is stopped: where it is, and what happens when the command fails."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from harness.base.errors import HarnessError
from harness.data.summary import RampStep
from harness.run import hooks
from harness.spec import reading


def test_it_is_at_the_middle_one_of_the_loads_that_were_measured() -> None:
    steps = [RampStep(C, "given", None, 0) for C in (1, 16, 32, 64, 16)] + [RampStep(None, "the end", None, 0)]
    assert hooks.load_at_loss(steps) == 32
    assert hooks.load_at_loss(steps[-1:]) == 1


def test_the_command_runs_while_the_level_goes_on(tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"

    async def level() -> None:
        async with asyncio.timeout(30):
            while not stopped.exists():
                await asyncio.sleep(0.01)

    asyncio.run(hooks.stopping_replica(level(), f'{sys.executable} -c \'open("{stopped}", "w")\'', 0.0))
    assert stopped.exists()


def test_a_command_that_fails_is_named_once_the_level_is_over() -> None:
    async def level() -> None:
        await asyncio.sleep(0.2)

    with pytest.raises(HarnessError, match="No such file") as raised:
        asyncio.run(hooks.stopping_replica(level(), "/no/such/command", 0.0))
    assert raised.value.place == "--stop-replica"


def test_a_lone_server_has_no_replica_to_stop() -> None:
    tree = {"target": {"url": "http://a:1"}, "hooks": {"stop_replica": "kill 1"}}
    with pytest.raises(HarnessError, match="there is no other replica"):
        reading.build(tree, place="test")
