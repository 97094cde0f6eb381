"""A server that stops answering, on the virtual clock: what the run does with the rest of its levels."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.analysis.rules import Purpose, usable
from harness.run.resume import Earlier
from harness.sim.profile import profile
from tests.builders.virtual_run import Server, asked
from tests.builders.virtual_run import run as measured


def test_a_server_that_stalls_ends_the_repeats_that_are_left(tmp_path: Path) -> None:
    """It answers for 60 s, and nothing from then on: each repeat would wait for it again."""
    server = Server(profile(max_num_seqs=4, speed=0.1), slowdown=lambda s: 1.0 if s < 60 else 1e9)
    spec = asked("demo", ramp={"levels": None, "repeat": 3})
    steps = measured(spec, server.profile, tmp_path, server=server).result.manifest.ramp or []
    assert {step.repeat for step in steps} == {0}
    assert steps[-1].reason == "stopped: nobody has answered since 60.1 s into the run"


@pytest.mark.slow
def test_users_who_think_longer_than_a_stall_takes_get_an_answer(tmp_path: Path) -> None:
    """Between two requests of a slot nobody waits for a token."""
    spec = asked("demo", ramp={"levels": None, "think": "45s", "max_seconds": 900.0})
    found = measured(spec, profile(max_num_seqs=4, speed=0.1), tmp_path)
    assert not any("stalled" in step.reason for step in found.result.manifest.ramp or [])
    assert sum(usable(level, Purpose.ANSWER) for level in found.summary.levels) >= 4


@pytest.mark.slow
def test_a_run_whose_first_session_measured_nothing_has_its_time_when_it_is_resumed(tmp_path: Path) -> None:
    """The hour between the two sessions is not spent."""
    spec = asked("demo", ramp={"max_seconds": 900.0})
    found = measured(spec, profile(max_num_seqs=4, speed=0.1), tmp_path, earlier=Earlier(resumed=True), began_s=3600.0)
    assert len(found.summary.levels) == len(spec.ramp.levels or ())
