"""The level map: which runs it is made of, what ends it, and that nothing measured is measured twice."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.base import files
from harness.base.errors import HarnessError
from harness.data.manifest import Manifest
from harness.data.progress import LevelProgress
from harness.data.summary import FOUND, Headline
from harness.data.views import Value
from harness.results import folder as folders
from harness.results import levelmap
from harness.results.levelmap import INPUT, OUTPUT, SEQS, SERVER, Axis, MeasuredCell
from harness.results.result import Result, read_manifest
from harness.run import campaign, resume
from harness.run.campaign import Cell, Swept
from harness.run.experiment import Outcome
from harness.sim.process import running
from harness.sim.profile import profile
from harness.spec import reading, scenario
from harness.spec.scenario import Ramp, Scenario
from tests.builders.summaries import full, hollow, simulated


class Silent:
    """A person who reads nothing; notes are kept, and a level's beginning can be acted on."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.started = 0
        self.at: dict[int, int] = {}  # a signal to send when that many levels have begun

    def measuring(self, *_: Any) -> None: ...

    def level_started(self, *which: Any, **more: Any) -> None:
        self.started += 1
        if self.started in self.at:
            os.kill(os.getpid(), self.at[self.started])

    def update(self, now: LevelProgress) -> None: ...

    def level_finished(self, *figures: Any, **more: Any) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


def swept(**sections: Any) -> Scenario:
    tree: dict[str, Any] = {
        "name": "map",
        "target": {"url": "sim:"},
        "workload": {"input_tokens": 32, "output_tokens": 16, "seed": 5},
        "sim": {"speed": 20.0, "max_num_seqs": 4},
        "ramp": {"levels": [1, 2], "level_seconds": 0.3, "workers": 1},
    }
    return reading.build(tree | sections, place="test")


# Which runs


def test_every_combination_is_a_cell_the_last_axis_changing_fastest() -> None:
    found = campaign.planned(swept(sweep={"input_tokens": [128, 512], "output_tokens": [64], "max_num_seqs": [8, 16]}))
    assert [cell.name for cell in found] == [
        "in128-out64-seqs8", "in128-out64-seqs16", "in512-out64-seqs8", "in512-out64-seqs16",
    ]  # fmt: skip
    assert found[2].at == {INPUT: 512, OUTPUT: 64, SEQS: 8}
    own = found[2].scenario
    assert (own.workload.input_tokens, own.workload.output_tokens, own.sim.max_num_seqs) == (512, 64, 8)
    assert own.sweep == scenario.Sweep()
    assert own.name == "map-in512-out64-seqs8"


def test_what_is_not_swept_stays_as_the_scenario_has_it() -> None:
    (only,) = campaign.planned(swept(sweep={"input_tokens": [128]}))
    assert (only.name, only.scenario.workload.output_tokens, only.scenario.sim.max_num_seqs) == ("in128-out16", 16, 4)


def test_a_server_for_each_setting_is_an_axis_by_its_name() -> None:
    urls = {"plain": "http://127.0.0.1:1", "eager": "http://127.0.0.1:2"}
    found = campaign.planned(swept(target={}, sweep={"urls": urls}))
    assert [cell.name for cell in found] == ["in32-out16-plain", "in32-out16-eager"]
    assert [cell.scenario.target.url for cell in found] == list(urls.values())
    assert found[1].at[SERVER] == "eager"


def test_no_two_cells_have_the_same_prompts() -> None:
    found = campaign.planned(swept(sweep={"output_tokens": [8, 16, 32]}))
    assert len({cell.scenario.workload.seed for cell in found}) == 3


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({}, "nothing is swept"),
        ({"urls": {"../up": "http://127.0.0.1:1"}}, "cannot name a server"),
        ({"urls": {".hidden": "http://127.0.0.1:1"}}, "cannot name a server"),
    ],
)
def test_a_map_that_cannot_be_is_refused_before_anything_is_measured(wanted: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=message):
        campaign.run(swept(sweep=wanted), str(tmp_path / "map"), Silent(), "test")
    assert list(tmp_path.iterdir()) == []


# What a cell says


def outcome(summary: Any, status: int = 0) -> Outcome:
    return Outcome(Path("nowhere"), summary, Manifest(), status)


CELL = Cell("in1000-out200", {INPUT: 1000, OUTPUT: 200}, Scenario())


def test_a_cell_has_its_run_s_knee_hinge_and_plateau_with_their_intervals() -> None:
    found = campaign.measured(CELL, outcome(full(), 3))
    assert found.knee == found.hinge == Value(16.2, (15.4, 17.1))
    assert found.plateau_tokens_per_s == Value(1853.4, (1839.0, 1868.0))
    assert (found.plateau_reached, found.status) == (True, 3)
    assert found.verdicts == ["client_limited", "window_short", "server_version_unknown"]  # gravest first, each once
    assert found.prediction is not None
    assert (found.prediction.hinge_concurrency, found.prediction.levels) == (16.0, [])


def test_the_unqualified_knee_of_a_cell_is_the_slo_s_where_one_was_given() -> None:
    summary = full()
    knee = Headline("slo", FOUND, 12.0, (12.0, 14.0))
    found = campaign.measured(CELL, outcome(msgspec.structs.replace(summary, knee=knee, knee_concurrency=12.0)))
    assert found.knee == Value(12.0, (12.0, 14.0))
    assert found.hinge == Value(16.2, (15.4, 17.1))


def test_a_plateau_that_was_not_reached_leaves_no_knee() -> None:
    found = campaign.measured(CELL, outcome(simulated()))
    assert (found.knee, found.plateau_reached) == (None, False)
    assert found.hinge == Value(None, (9.4, None))
    assert campaign.measured(CELL, outcome(hollow())).knee is None


# What it may cost


def test_a_cell_may_use_its_part_of_what_those_before_it_have_left_of_every_bound() -> None:
    before = [
        MeasuredCell(name="a", at={}, status=0, seconds=40.0, requests=100, dollars=0.5),
        MeasuredCell(name="b", at={}, error="gone", seconds=5.0, requests=10, dollars=0.25),
        MeasuredCell(name="c", at={}, left_out="used up"),
    ]
    so_far = campaign.spent(before)
    bounds = Ramp(max_seconds=60.0, max_requests=151, max_dollars=1.0, repeat=2)
    assert campaign.left_to(bounds, so_far, 1) == Ramp(max_seconds=15.0, max_requests=41, max_dollars=0.25, repeat=2)
    assert campaign.left_to(bounds, so_far, 2) == Ramp(max_seconds=7.5, max_requests=21, max_dollars=0.125, repeat=2)
    assert campaign.left_to(Ramp(), so_far, 2) == Ramp()


# map.json


def test_a_map_reads_as_it_was_written(tmp_path: Path) -> None:
    cell = campaign.measured(CELL, outcome(full()))
    made = levelmap.Map(name="map", axes=[Axis(INPUT, [1000]), Axis(SERVER, ["a"])], cells=[cell])
    files.write_json(tmp_path / levelmap.MAP, made)
    assert levelmap.read(tmp_path) == made
    assert made.cell({INPUT: 1000}) == cell
    assert made.cell({INPUT: 1001}) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "No such file"), ("{}", "not a map.json"), ('{"format":9,"name":"","axes":[],"cells":[]}', "format 9")],
)
def test_what_is_no_map_is_said(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / levelmap.MAP).write_text(text)
    with pytest.raises(HarnessError, match=message):
        levelmap.read(tmp_path)


# Measured, through real sockets


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


TWO_BY_TWO = swept(
    ramp={"levels": [1, 2, 4, 6, 9, 12], "level_seconds": 0.4, "workers": 1},
    workload={"input_tokens": 32, "output_tokens": 32, "seed": 5},
    sweep={"input_tokens": [16, 64], "max_num_seqs": [3, 5]},
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Swept, list[Outcome]]:
    outcomes: list[Outcome] = []
    folder = tmp_path_factory.mktemp("map") / "out"
    return campaign.run(TWO_BY_TWO, str(folder), Silent(), "test", report=outcomes.append), outcomes


@pytest.mark.slow
def test_a_map_has_a_knee_a_cell_and_each_is_a_result_folder(measured: tuple[Swept, list[Outcome]]) -> None:
    found, outcomes = measured
    assert found.map == levelmap.read(found.folder)
    assert found.map.complete
    assert found.map.simulated
    assert [cell.name for cell in found.map.cells] == [
        "in16-out32-seqs3", "in16-out32-seqs5", "in64-out32-seqs3", "in64-out32-seqs5",
    ]  # fmt: skip
    assert [each.folder for each in outcomes] == [found.folder / cell.name for cell in found.map.cells]
    for cell, each in zip(found.map.cells, outcomes, strict=True):
        run = Result.open(each.folder)
        assert run.complete
        assert run.manifest.scenario.sim.max_num_seqs == cell.at[SEQS]
        assert cell.requests == len(run.records) > 100
        assert cell.seconds > 6 * 0.4
        assert cell.hinge == each.summary.curve.hinge_concurrency  # type: ignore[union-attr]
        assert cell.prediction is not None
        assert cell.prediction.hinge_concurrency == cell.at[SEQS]
    assert found.status == campaign.gravest([cell.status or 0 for cell in found.map.cells])
    best = [max(level.output_tokens_per_s.mean or 0.0 for level in each.summary.levels) for each in outcomes]
    assert best[1] > 1.2 * best[0]  # five seats against three
    assert best[3] > 1.2 * best[2]


@pytest.mark.slow
def test_a_complete_map_cannot_be_resumed(measured: tuple[Swept, list[Outcome]]) -> None:
    with pytest.raises(HarnessError, match="complete"):
        resume.begun_with(str(measured[0].folder), {})


@pytest.mark.slow
def test_a_map_that_was_killed_keeps_its_whole_cells_and_measures_the_rest(
    measured: tuple[Swept, list[Outcome]], tmp_path: Path
) -> None:
    """As a kill leaves it: one cell not in map.json yet, the next one not begun but for its empty manifest."""
    folder = tmp_path / "map"
    shutil.copytree(measured[0].folder, folder)
    names = [cell.name for cell in measured[0].map.cells]
    left = msgspec.structs.replace(measured[0].map, complete=False, cells=measured[0].map.cells[:2])
    files.write_json(folder / levelmap.MAP, left)
    shutil.rmtree(folder / names[3])
    folders.create(folder / names[3])
    left_off = msgspec.structs.replace(read_manifest(folder), complete=False)
    files.write_json(folder / folders.MANIFEST, left_off)
    before = {name: contents(folder / name) for name in names[:3]}
    reported: list[Outcome] = []
    begun = resume.begun_with(str(folder), {})
    assert begun == TWO_BY_TWO
    view = Silent()
    found = campaign.run(begun, str(folder), view, "again", resumed=True, report=reported.append)
    assert {name: contents(folder / name) for name in names[:3]} == before
    assert [each.folder.name for each in reported] == names[2:]
    assert view.started == 6  # the levels of the one cell
    assert found.map.cells[:3] == measured[0].map.cells[:3]
    assert found.map.complete
    assert len(read_manifest(folder).sessions) == 2


@pytest.mark.slow
def test_a_signal_ends_the_map_and_resume_goes_on_with_the_cell_it_broke_off(tmp_path: Path) -> None:
    wanted = swept(sweep={"input_tokens": [16, 32, 64]})
    view = Silent()
    view.at = {4: signal.SIGTERM}  # in the second level of the second cell
    found = campaign.run(wanted, str(tmp_path / "map"), view, "test")
    assert found.status == 143
    assert [cell.status == 143 for cell in found.map.cells] == [False, True]
    assert not found.map.complete
    assert found.map == levelmap.read(found.folder)
    first = contents(found.folder / "in16-out16")
    more = Silent()
    begun = resume.begun_with(str(found.folder), {})
    again = campaign.run(begun, str(found.folder), more, "again", resumed=True)
    assert more.started == 3  # the level that was broken off, and the two of the last cell
    assert again.status in (0, 3)
    assert [cell.name for cell in again.map.cells] == ["in16-out16", "in32-out16", "in64-out16"]
    assert again.map.complete
    assert contents(found.folder / "in16-out16") == first


@pytest.mark.slow
def test_a_mistake_in_the_first_cell_ends_the_map_and_leaves_nothing(tmp_path: Path) -> None:
    wanted = swept(target={}, sweep={"urls": {"gone": "http://127.0.0.1:9", "other": "http://127.0.0.1:10"}})
    with pytest.raises(HarnessError, match=r"127\.0\.0\.1:9"):
        campaign.run(wanted, str(tmp_path / "map"), Silent(), "test")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_later_cell_that_cannot_be_measured_is_in_the_map_with_its_reason(tmp_path: Path) -> None:
    with running(profile(max_num_seqs=4, speed=20.0)) as url:
        gone = "http://127.0.0.1:9"
        wanted = swept(
            target={}, sweep={"urls": {"here": url, "gone": gone, "too": url.replace("127.0.0.1", "localhost")}}
        )
        found = campaign.run(wanted, str(tmp_path / "map"), Silent(), "test")
    assert [cell.error is None for cell in found.map.cells] == [True, False, True]
    assert gone in (found.map.cells[1].error or "")
    assert found.map.cells[1].status is None
    assert not found.map.complete  # that cell can be measured yet, by resume
    assert found.status in (1, 3)
    assert not (found.folder / "in32-out16-gone").exists()


@pytest.mark.slow
def test_the_bounds_are_of_the_whole_map(tmp_path: Path) -> None:
    ramp = {"levels": [1, 2], "level_seconds": 0.3, "workers": 1, "max_requests": 25}
    slow = {"speed": 2.0, "max_num_seqs": 4}  # some 16 requests a second
    wanted = swept(ramp=ramp, sim=slow, sweep={"input_tokens": [16, 32, 64]})
    found = campaign.run(wanted, str(tmp_path / "map"), Silent(), "test")
    assert [cell.left_out for cell in found.map.cells] == [None] * 3, "they share the requests"
    sent = [cell.requests for cell in found.map.cells]
    assert 9 <= sent[0] < 25
    assert sum(sent) >= 25
    assert found.map.complete
