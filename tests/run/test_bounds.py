"""What a run's bounds leave to its repeats, and what is sent once one is reached: on the virtual clock."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.run.resume import Earlier
from harness.sim.profile import profile
from tests.builders.virtual_run import asked, run

SEATS = profile(max_num_seqs=4, speed=0.3)


def test_the_repeats_of_a_ramp_share_its_seconds(tmp_path: Path) -> None:
    spec = asked("demo", ramp={"levels": None, "repeat": 3, "max_seconds": 90.0})
    found = run(spec, SEATS, tmp_path).result
    begins = [[level.begin_s for level in found.levels if level.repeat == repeat] for repeat in range(3)]
    assert [min(each) for each in begins] == pytest.approx([0.0, 30.0, 60.0], abs=3.0)
    assert min(map(len, begins)) >= 3
    ends = [step.reason for step in found.manifest.ramp or [] if step.concurrency is None]
    assert len(ends) == 3


def test_a_repeat_that_another_one_followed_stays_over_when_the_run_is_resumed(tmp_path: Path) -> None:
    spec = asked("demo", ramp={"levels": None, "repeat": 2, "max_seconds": 60.0})
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    first = run(spec, SEATS, before).result
    earlier = Earlier.of(first, 40.0)
    over = sum(level.repeat == 0 for level, _ in earlier.levels)
    earlier = msgspec.structs.replace(earlier, levels=earlier.levels[: over + 2])  # interrupted in its third level
    found = run(spec, SEATS, after, earlier=earlier, began_s=400.0).result
    new = [level for level in found.levels if level.begin_s >= 400.0]
    assert {level.repeat for level in new} == {1}
    assert max(level.end_s or level.begin_s for level in new) == pytest.approx(420.0, abs=5.0), "20 s were left"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "ramp",
    [
        {"levels": [8], "level_seconds": 100.0},
        {"levels": None},
        {"levels": None, "rates": [2.0]},
        {"levels": None, "rates": [50.0], "max_concurrency": 16},  # more are due than it can serve
    ],
)
def test_once_the_allowed_requests_are_sent_no_more_are_and_all_are_answered(
    ramp: dict[str, object], workers: int, tmp_path: Path
) -> None:
    spec = asked("demo", ramp=ramp | {"max_requests": 100})
    found = run(spec, SEATS, tmp_path, workers=workers).result
    assert 100 <= len(found.records) <= 104, "what is sent until the workers hear of it"
    assert not any(record.error for record in found.records)
