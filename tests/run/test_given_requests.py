"""A level with a given number of requests, and levels that are not measured, on the virtual clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.analysis.summarise import exit_status
from harness.sim.profile import profile
from tests.builders.virtual_run import Server, asked
from tests.builders.virtual_run import run as measured


def test_ten_in_flight_and_twenty_requests_end_with_the_figures_of_all_twenty(tmp_path: Path) -> None:
    spec = asked("demo", ramp={"levels": [10], "level_seconds": None, "max_requests": 20})
    found = measured(spec, profile(max_num_seqs=16, speed=0.2), tmp_path)
    (level,) = found.summary.levels
    assert (level.requests, level.errors, level.cancelled) == (20, 0, 0)
    assert len(found.result.records) == 20
    assert level.output_tokens_per_s.mean
    assert "by_count" in {verdict.code for verdict in level.verdicts}
    assert found.summary.complete
    assert exit_status(found.summary) == 0


def test_given_levels_that_a_bound_leaves_no_time_for_are_named_and_the_run_is_not_complete(tmp_path: Path) -> None:
    spec = asked("demo", ramp={"levels": [1, 2, 4, 8], "level_seconds": 20.0, "max_seconds": 50.0})
    found = measured(spec, profile(max_num_seqs=16, speed=0.2), tmp_path)
    assert not found.summary.complete
    assert exit_status(found.summary) == 3
    (incomplete,) = [v for v in found.summary.verdicts if v.code == "incomplete"]
    assert "4, 8 in flight: not measured, --max-seconds 50 is used up" in incomplete.message


def test_a_server_that_dies_ends_given_levels_with_what_is_missing(tmp_path: Path) -> None:
    server = Server(profile(max_num_seqs=4, speed=0.1), slowdown=lambda s: 1.0 if s < 60 else 1e9)
    spec = asked("demo", ramp={"levels": [1, 2, 4], "level_seconds": 25.0})
    found = measured(spec, server.profile, tmp_path, server=server)
    assert not found.summary.complete
    assert exit_status(found.summary) == 3
    assert any("nobody has answered since" in verdict.message for verdict in found.summary.verdicts)


def test_two_in_flight_over_several_workers_send_all_their_requests(tmp_path: Path) -> None:
    """More workers than slots: those without a slot send nothing, and the others all of it."""
    spec = asked("demo", ramp={"levels": [2], "level_seconds": None, "max_requests": 10})
    found = measured(spec, profile(max_num_seqs=16, speed=0.2), tmp_path, workers=4)
    assert [level.requests for level in found.summary.levels] == [10]


@pytest.mark.parametrize(
    "requests", [20, 160]
)  # the last level has 20 a slot of the 160, which is no reason to warm up
def test_given_requests_are_shared_by_the_given_levels_and_all_count(requests: int, tmp_path: Path) -> None:
    spec = asked("demo", ramp={"levels": [1, 4], "level_seconds": None, "max_requests": requests})
    found = measured(spec, profile(max_num_seqs=16, speed=0.2), tmp_path)
    assert [level.requests for level in found.summary.levels] == [requests / 2] * 2
    assert found.summary.complete
    codes = [{verdict.code for verdict in level.verdicts} for level in found.summary.levels]
    assert all("by_count" in each and "cut_short" not in each for each in codes)
