"""Why the load of a run ended, and what the manifest has of it."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import HarnessError
from harness.load.messages import Done
from harness.results.result import read_manifest
from harness.run import campaign, experiment, tuned
from harness.run.ending import Ended, RunEnd, Signals, load, timestamp_source


class Loading:
    """Levels that end as a test wants it."""

    def __init__(self, ends: Any, missing: str = "") -> None:
        self.ends, self.missing = ends, missing

    async def run(self, *_: Any) -> None:
        await self.ends()


async def over() -> None: ...


async def worker_lost() -> None:
    raise HarnessError("a worker is lost", place="worker 1", way_out="see the log")


async def cancelled() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


def ended(ends: Any, number: int | None = None, missing: str = "") -> Ended:
    signals = Signals()
    signals.number = number

    async def main() -> Ended:
        found = await load(Loading(ends, missing), None, [], None, signals)  # type: ignore[arg-type]
        await asyncio.sleep(0)  # the cancellation is over
        return found

    return asyncio.run(main())


def test_a_load_is_complete_where_nothing_cut_it() -> None:
    assert (ended(over).why, ended(over).words) == (RunEnd.COMPLETE, "complete")


def test_a_load_that_did_not_measure_what_was_asked_for_is_not_complete() -> None:
    found = ended(over, missing="8 in flight: not measured")
    assert (found.why, found.words) == (RunEnd.SHORT, "8 in flight: not measured")


def test_a_signal_ends_the_load_and_not_the_run() -> None:
    found = ended(cancelled, signal.SIGTERM)
    assert (found.why, found.words) == (RunEnd.SIGNAL, "SIGTERM")


def test_a_cancellation_without_a_signal_is_a_bug_and_goes_on() -> None:
    with pytest.raises(asyncio.CancelledError):
        ended(cancelled)


def test_a_failure_is_kept_until_what_was_measured_is_written() -> None:
    found = ended(worker_lost)
    assert found.why is RunEnd.FAILURE
    assert found.words == str(found.failure)
    assert "a worker is lost" in found.words


def test_arrivals_are_the_kernel_s_where_every_worker_had_its_stamps() -> None:
    assert timestamp_source([]) is None
    assert timestamp_source([Done("kernel"), Done("kernel")]) == "kernel"
    assert timestamp_source([Done("kernel"), Done("user")]) == "user"


# ---- what another process has ended meanwhile ------------------------------------------------------------------------

RESULTS = Path(__file__).parents[2] / "results"


def test_a_run_that_ended_while_it_was_about_to_go_on_is_left_as_it_is(tmp_path: Path) -> None:
    """Two processes are told to go on with one folder, and the first one is done before the second one has it."""
    folder = shutil.copytree(RESULTS / "live-embeddings", tmp_path / "run")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    scenario = read_manifest(folder).scenario
    with pytest.raises(HarnessError, match="this run is complete"):
        experiment.resume(str(folder), scenario, None, "again")  # type: ignore[arg-type]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_comparison_of_stacks_that_ended_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    folder = shutil.copytree(RESULTS / "live-stacks", tmp_path / "map")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    scenario = read_manifest(folder).scenario
    plan = campaign.Plan(axes=[], cells=[])
    with pytest.raises(HarnessError, match="this run is complete"):
        campaign.run(scenario, str(folder), None, "again", resumed=True, plan=lambda _: plan)  # type: ignore[arg-type]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_search_for_settings_that_ended_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / tuned.FILE
    file.write_text(
        json.dumps(
            {
                "created": "2026-01-01T00:00:00+00:00", "command": "knee tune", "scenario": {}, "scenario_digest": "",
                "stack": {"spec": {"recipe": "a"}, "recipe": {"title": "A", "command": ["a"]}}, "goal": "plateau",
                "settings": [], "complete": True,
            }
        )
    )  # fmt: skip
    begun = tuned.read(tmp_path)
    with pytest.raises(HarnessError, match="this comparison is complete"):
        tuned.run(begun, begun.scenario, str(tmp_path), None, resumed=True)  # type: ignore[arg-type]
