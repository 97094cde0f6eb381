"""A server that stops answering, on the virtual clock: what the run does with the rest of its levels."""

from __future__ import annotations

from pathlib import Path

from harness.sim.profile import profile
from tests.builders.virtual_run import Server, asked
from tests.builders.virtual_run import run as measured


def test_a_server_that_stalls_ends_the_repeats_that_are_left(tmp_path: Path) -> None:
    """It answers for 60 s, and nothing from then on: each repeat would wait for it again."""
    server = Server(profile(max_num_seqs=4, speed=0.1), slowdown=lambda s: 1.0 if s < 60 else 1e9)
    spec = asked("demo", ramp={"levels": None, "repeat": 3})
    steps = measured(spec, server.profile, tmp_path, server=server).result.manifest.ramp or []
    assert {step.repeat for step in steps} == {0}
    assert steps[-1].reason.startswith("stopped: the server stalled at")
