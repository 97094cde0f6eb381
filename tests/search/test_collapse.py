"""The default ramp against servers that collapse past their knee, on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.data.summary import Summary
from harness.sim import profile as profiles
from harness.spec import reading
from tests.builders import virtual_run


def ramp(folder: Path, slowdown: Callable[[int], float]) -> Summary:
    """What four minutes give of a server whose steps take so many times as long, by the requests that run."""
    tree = {
        "workload": {"input_tokens": 128, "output_tokens": 64, "seed": 3},
        "ramp": {"max_seconds": 240},
        "sim": {"max_num_seqs": 10_000},
    }
    spec = reading.build(tree, place="test")
    server = virtual_run.Server(profiles.embedded(spec.sim), lambda _: slowdown(server.machine.running))
    return virtual_run.run(spec, server.profile, folder, server=server).summary


@pytest.mark.slow
def test_a_server_that_thrashes_has_its_knee_where_it_begins_to(tmp_path: Path) -> None:
    summary = ramp(tmp_path, lambda running: max(1.0, running / 24) ** 3)
    low, high = summary.knees.hinge.ci95 if summary.knees.hinge and summary.knees.hinge.ci95 else (None, None)
    assert summary.knee_concurrency == pytest.approx(24, rel=0.1)
    assert low is not None
    assert high is not None
    assert 20 < low < high < 30


@pytest.mark.slow
def test_a_server_that_stops_all_but_dead_has_its_knee_in_the_gap_before(tmp_path: Path) -> None:
    summary = ramp(tmp_path, lambda running: 1.0 if running <= 10 else 20.0)
    assert summary.curve is not None
    assert summary.curve.state == "provisional"
    assert summary.curve.hinge_concurrency.ci95 is not None
    low, high = summary.curve.hinge_concurrency.ci95
    assert low is not None
    assert high is not None
    gap = min(level.concurrency for level in summary.levels if level.concurrency and level.concurrency > 10)
    assert gap < 16, "between the levels of the climb"
    assert 8 <= low <= 10 <= high <= 1.001 * gap
    assert "throughput_collapses" in [v.code for v in summary.curve.verdicts]
