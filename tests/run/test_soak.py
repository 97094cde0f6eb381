"""Soaks on the virtual clock: a planted decay and a planted step are found, a calm server is not accused."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.data.levels import Drift, LevelSummary
from harness.data.record import Role
from harness.data.views import Value
from harness.sim.profile import profile
from tests.builders.virtual_run import Server, asked
from tests.builders.virtual_run import run as measured

pytestmark = pytest.mark.slow

VARIED = {"input_tokens": "lognormal(64,32) in 8..256", "output_tokens": "lognormal(32,16) in 8..128"}
WHAT = {"input_tokens": 64, "output_tokens": 32}
RUNS, FOUND = 8, 7
MOVES = {"throughput_decays", "latency_creeps", "memory_grows"}


def soak(folder: Path, seed: int, server: Server) -> tuple[LevelSummary, Drift, set[str]]:
    """Six minutes at two requests in flight: the level, its drift, and what it is accused of."""
    folder.mkdir()
    spec = asked("soak", workload=VARIED | {"seed": seed}, ramp={"levels": [2], "duration": 360.0, "quick": None})
    (level,) = measured(spec, server.profile, folder, server=server).summary.levels
    assert level.drift
    return level, level.drift, MOVES & {verdict.code for verdict in level.verdicts}


def calm() -> Server:
    return Server(profile(max_num_seqs=4, speed=0.1))


def decaying() -> Server:
    """Slower by 1 % of its first throughput a minute."""
    return Server(profile(max_num_seqs=4, speed=0.1), slowdown=lambda s: 1 / (1 - 0.01 * s / 60))


def stepping() -> Server:
    """A fifth slower from 200 s on."""
    return Server(profile(max_num_seqs=4, speed=0.1), slowdown=lambda s: 1.25 if s > 200 else 1.0)


def inside(value: Value | None, truth: float) -> bool:
    """Whether a figure has an interval, and that has the truth in it."""
    low, high = (value.ci95 if value is not None else None) or (None, None)
    return low is not None and high is not None and low <= truth <= high


def test_a_calm_server_is_never_accused(tmp_path: Path) -> None:
    for seed in range(RUNS):
        level, drift, accused = soak(tmp_path / str(seed), seed, calm())
        assert level.window_s == pytest.approx(360.0, abs=1.0)
        assert drift.throughput is not None
        assert accused == set(), seed


def test_a_planted_decay_of_1_percent_a_minute_is_found_with_its_interval(tmp_path: Path) -> None:
    found = 0
    for seed in range(RUNS):
        level, drift, accused = soak(tmp_path / str(seed), seed, decaying())
        assert level.window_s == pytest.approx(360.0, abs=1.0), "a trend does not extend a soak"
        assert drift.throughput is not None
        found += "throughput_decays" in accused and inside(drift.throughput.share_per_hour, -0.6)
    assert found >= FOUND


def test_a_planted_step_is_a_decay_too(tmp_path: Path) -> None:
    found = sum("throughput_decays" in soak(tmp_path / str(seed), seed, stepping())[2] for seed in range(RUNS))
    assert found >= FOUND


def test_without_a_load_a_soak_is_at_a_share_of_the_knee_that_it_finds(tmp_path: Path) -> None:
    spec = asked("soak", workload=WHAT | {"seed": 4}, ramp={"duration": 60.0, "knee_share": 0.5})
    served = profile(max_num_seqs=8)
    run = measured(spec, served, tmp_path, server=Server(served))
    *search, soaked = run.summary.levels
    assert soaked.role is Role.SOAK
    assert soaked.window_s == pytest.approx(60.0, abs=1.0)
    assert 3 <= (soaked.concurrency or 0) <= 5, "half of a knee near eight"
    assert all(level.window_s < 30.0 for level in search)
    assert run.summary.ramp[-1].reason == "the soak is over"
