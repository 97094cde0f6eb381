"""A comparison of stacks: which runs it is made of, what fails alone, and that nothing is measured twice."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.base import files
from harness.base.errors import HarnessError
from harness.data.manifest import MapManifest
from harness.report import level_map, markdown
from harness.results import levelmap
from harness.results.levelmap import REPEAT, SERVER, Axis, Map
from harness.results.result import Result, read_manifest
from harness.run import campaign, resume, stacked
from harness.spec import reading
from harness.spec.recipe import Stack
from harness.spec.scenario import Scenario
from tests.builders import recipes
from tests.run.test_sweep import Silent, contents

MEASURED = {0, 3}  # 3: the machine was too busy for the client


def wanted(**sections: Any) -> Scenario:
    tree: dict[str, Any] = {
        "name": "both",
        "target": {"model": "m"},
        "workload": {"input_tokens": 32, "output_tokens": 16, "seed": 5},
        "ramp": {"levels": [1, 2], "level_seconds": 0.3, "workers": 1, "repeat": 2},
    }
    return reading.build(tree | sections, place="test")


def planned(of: Scenario, *stacks: Stack) -> stacked.Plan:
    return stacked.plan(of, stacks)


def test_the_stacks_take_turns_and_have_the_same_requests_in_a_repeat() -> None:
    found = planned(wanted(), recipes.stack("a"), recipes.stack("b"), recipes.stack("c"))
    assert [cell.name for cell in found.cells] == ["a-1", "b-1", "c-1", "a-2", "b-2", "c-2"]
    assert [cell.scenario.workload.seed for cell in found.cells] == [5, 5, 5, 6, 6, 6]
    assert {cell.scenario.ramp.repeat for cell in found.cells} == {1}
    assert found.cells[3].at == {REPEAT: 2, SERVER: "a"}
    assert found.axes == [Axis(REPEAT, [1, 2]), Axis(SERVER, ["a", "b", "c"])]


def test_a_setting_of_the_scenario_is_every_stack_s_and_its_own_comes_first() -> None:
    of = wanted(hardware={"max_num_seqs": 8})
    own = recipes.stack("own", max_num_seqs=4)
    assert stacked.set_alike(recipes.stack("a"), of).spec.max_num_seqs == 8
    assert stacked.set_alike(own, of).spec.max_num_seqs == 4
    found = planned(of, recipes.stack("a"), own)
    assert [cell.scenario.hardware.max_num_seqs for cell in found.cells[:2]] == [8, 4]


def test_a_stack_on_several_gpus_counts_all_of_them() -> None:
    """Its cost and its throughput per GPU are those of the GPUs that its flags start it on."""
    flags = {"tp": ["--tp", "{value}"]}
    plain = msgspec.structs.replace(recipes.stack("a"), recipe=recipes.recipe(flags=flags))

    def gpus(spec: dict[str, int], hardware: dict[str, int]) -> int | None:
        stack = msgspec.structs.replace(plain, spec=msgspec.structs.replace(plain.spec, **spec))
        return planned(wanted(hardware=hardware), stack).cells[0].scenario.hardware.gpus

    assert [gpus({}, {}), gpus({"tp": 2}, {}), gpus({}, {"tp": 4})] == [1, 2, 4]
    assert [gpus({"tp": 2}, {"gpus": 8}), gpus({"tp": 2, "gpus": 4}, {})] == [8, 4]


def test_prefix_caching_is_off_unless_prompts_begin_alike() -> None:
    flags = {"prefix_caching=on": ["--on"], "prefix_caching=off": ["--off"]}
    stack = recipes.stack("a")
    stack = msgspec.structs.replace(stack, recipe=msgspec.structs.replace(stack.recipe, flags=flags))
    alike = wanted(workload={"prefix": {"tokens": 100, "pool": 2}})
    made = [stacked.printed(of, [stack])[0][1].words[-1] for of in (wanted(), alike)]
    assert made == ["--off", "--on"]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"target": {"model": "m", "url": "http://h"}}, "addresses of their own"),
        ({"sweep": {"input_tokens": [1, 2]}}, "one workload"),
        ({"target": {}}, "no model to serve"),
        ({"hardware": {"tp": 2}}, "no flag for tp = 2"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_started(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(HarnessError, match=message):
        stacked.plan(wanted(**sections), [recipes.stack("a"), recipes.stack("b")])


@pytest.mark.slow
def test_a_stack_that_does_not_start_is_in_the_map_with_its_log_and_the_others_go_on(tmp_path: Path) -> None:
    both = [recipes.stack("ends", recipes.ENDS), recipes.stack("a"), recipes.stack("b")]
    of = wanted(ramp={"levels": [1, 2], "level_seconds": 0.3, "workers": 1})
    plan = partial(stacked.plan, stacks=both)
    view = Silent()
    found = campaign.run(of, str(tmp_path / "out"), view, "test", plan=plan)
    assert found.map == levelmap.read(found.folder)
    ends, a, b = found.map.cells
    assert "ended with status 3" in (ends.error or "")
    assert "no \\u001b[31mmemory" in (ends.error or "")
    assert {a.status, b.status} <= MEASURED
    assert (a.start_to_ready_s or 0) > 0
    assert (b.first_answer_s or 0) > 0
    assert not found.map.complete
    assert found.status in (1, 3)
    run = Result.open(found.folder / "a-1")
    assert run.manifest.stack
    assert run.manifest.stack.name == "a"
    assert run.manifest.simulated is not None  # a simulated endpoint is branded, whoever started it
    about = read_manifest(found.folder)
    assert isinstance(about, MapManifest)
    assert msgspec.to_builtins(about.stacks) == msgspec.to_builtins(both)


@pytest.mark.slow
def test_resume_skips_what_is_done_and_goes_on_in_the_run_that_was_broken_off(tmp_path: Path) -> None:
    both = [recipes.stack("a"), recipes.stack("b")]
    of = wanted(ramp={"levels": [1, 2], "level_seconds": 0.3, "workers": 1})
    plan = partial(stacked.plan, stacks=both)
    view = Silent()
    view.at = {4: signal.SIGTERM}  # in the second level of b
    found = campaign.run(of, str(tmp_path / "out"), view, "test", plan=plan)
    assert found.status == 143
    assert not found.map.complete
    first = contents(found.folder / "a-1")
    begun = resume.begun_with(str(found.folder), {})
    assert begun == of
    about = read_manifest(found.folder)
    assert isinstance(about, MapManifest)
    more = Silent()
    stored = list(about.stacks or [])
    plan = partial(stacked.plan, stacks=stored)
    again = campaign.run(begun, str(found.folder), more, "again", resumed=True, plan=plan)
    assert more.started == 1  # the level that was broken off
    assert [note for note in more.notes if note.startswith("starting")] == ["starting b"]
    assert again.map.complete
    assert {cell.status for cell in again.map.cells} <= MEASURED
    assert contents(found.folder / "a-1") == first


def test_a_comparison_that_was_killed_before_its_first_run_reads_as_one_without_runs(tmp_path: Path) -> None:
    empty = Map(name="m", axes=[Axis(REPEAT, [1]), Axis(SERVER, ["a", "b"])], cells=[])
    files.write_json(tmp_path / levelmap.MAP, empty)
    text = markdown.render(level_map.report(levelmap.read(tmp_path)))
    assert "2 cells are missing" in text
