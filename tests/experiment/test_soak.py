"""Soaks on the virtual clock: a planted decay and a planted step are found, a calm server is not accused."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.judgement import Code
from harness.roles import Role, role_of
from harness.sim.profile import profile
from harness.summary import Drift, LevelSummary
from tests.builders.virtual_run import Server, asked
from tests.builders.virtual_run import run as measured

pytestmark = pytest.mark.slow

WHAT = {"input_tokens": 64, "output_tokens": 32}
MOVES = {Code.THROUGHPUT_DECAYS, Code.LATENCY_CREEPS, Code.MEMORY_GROWS, Code.CHANGEPOINT}


def soak(folder: Path, seed: int, server: Server) -> tuple[LevelSummary, Drift, set[str]]:
    """Six minutes at two requests in flight: the level, its drift, and what it is accused of."""
    spec = asked("soak", workload=WHAT | {"seed": seed}, ramp={"levels": [2], "duration": 360.0, "quick": None})
    (level,) = measured(spec, server.profile, folder, server=server).summary.levels
    assert level.drift
    return level, level.drift, MOVES & {verdict.code for verdict in level.verdicts}


def test_a_calm_server_keeps_its_window_and_is_not_accused(tmp_path: Path) -> None:
    level, drift, accused = soak(tmp_path, 1, Server(profile(max_num_seqs=4, speed=0.1)))
    assert level.window_s == pytest.approx(360.0, abs=1.0)
    assert drift.throughput is not None
    assert accused == set()


def test_a_planted_decay_of_1_percent_a_minute_is_found(tmp_path: Path) -> None:
    server = Server(profile(max_num_seqs=4, speed=0.1), slowdown=lambda s: 1 / (1 - 0.01 * s / 60))
    level, drift, accused = soak(tmp_path, 2, server)
    assert level.window_s == pytest.approx(360.0, abs=1.0), "a trend does not extend a soak"
    assert Code.THROUGHPUT_DECAYS in accused
    assert drift.throughput is not None
    assert drift.throughput.share_per_hour is not None
    assert drift.throughput.share_per_hour.ci95 is not None
    low, high = drift.throughput.share_per_hour.ci95
    assert low is not None
    assert high is not None
    assert low <= -0.6 <= high


def test_a_planted_step_is_found_with_its_time(tmp_path: Path) -> None:
    server = Server(profile(max_num_seqs=4, speed=0.1), slowdown=lambda s: 1.25 if s > 200 else 1.0)
    _, drift, accused = soak(tmp_path, 3, server)
    assert Code.CHANGEPOINT in accused
    assert Code.THROUGHPUT_DECAYS not in accused
    assert drift.throughput is not None
    change = drift.throughput.change
    assert change is not None
    assert change.at_s.ci95 is not None
    assert (change.at_s.ci95[0] or 0.0) <= 200.0 <= (change.at_s.ci95[1] or 0.0)
    assert change.share is not None
    assert change.share.value == pytest.approx(-0.2, abs=0.02)


def test_without_a_load_a_soak_is_at_a_share_of_the_knee_that_it_finds(tmp_path: Path) -> None:
    spec = asked("soak", workload=WHAT | {"seed": 4}, ramp={"duration": 60.0, "knee_share": 0.5})
    served = profile(max_num_seqs=8)
    run = measured(spec, served, tmp_path, server=Server(served))
    *search, soaked = run.summary.levels
    assert role_of(soaked.reason) is Role.SOAK
    assert soaked.window_s == pytest.approx(60.0, abs=1.0)
    assert 3 <= (soaked.concurrency or 0) <= 5, "half of a knee near eight"
    assert all(level.window_s < 30.0 for level in search)
    assert run.summary.ramp[-1].reason == "the soak is over"
