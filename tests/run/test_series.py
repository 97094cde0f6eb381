"""Runs one after the other: what is complete is not measured again, a failure is handed on, a signal ends all."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.base import files
from harness.base.errors import HarnessError
from harness.data.manifest import Manifest
from harness.data.progress import View
from harness.results.folder import MANIFEST
from harness.run import series
from harness.run.experiment import Outcome
from harness.run.launch.consent import Agreed
from harness.run.series import Planned
from harness.spec.scenario import Scenario
from tests.builders.summaries import full
from tests.run.test_sweep import Silent


class Runs:
    """Runs in a given order, and what they came to."""

    slo_fail = False
    hidden = ()

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder, self._waiting = folder, list(names)
        self.found: dict[str, Outcome | HarnessError] = {}

    def due(self) -> Planned | None:
        return Planned(self._waiting[0], "next", self._serving) if self._waiting else None

    def ended(self, run: Planned, result: Outcome | HarnessError, seconds: float) -> None:
        self.found[self._waiting.pop(0)] = result

    def has_measured(self) -> bool:
        return bool(self.found)

    def _serving(self, _: View) -> series.Serving:
        return contextlib.nullcontext((Scenario(), None))


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each run that is begun comes to, by the name of its folder: an exit status, or what is raised."""
    made: dict[str, Any] = {}

    def run(scenario: Scenario, out: str, *_: Any, **__: Any) -> Outcome:
        what = made[Path(out).name]
        if isinstance(what, BaseException):
            raise what
        return Outcome(Path(out), full(), Manifest(), what)

    monkeypatch.setattr(series.experiment, "run", run)
    return made


def test_a_failure_is_handed_on_and_the_next_run_begins(tmp_path: Path, begun: dict[str, Any]) -> None:
    begun |= {"a": 0, "b": HarnessError("gone"), "c": 3}
    runs = Runs(tmp_path, "a", "b", "c")
    assert series.measure(runs, Silent(), "test", Agreed()) == 0
    assert [getattr(each, "status", None) for each in runs.found.values()] == [0, None, 3]


def test_a_signal_ends_all_and_what_came_before_it_stays(tmp_path: Path, begun: dict[str, Any]) -> None:
    begun |= {"a": 0, "b": SystemExit(128 + signal.SIGTERM), "c": 0}
    runs = Runs(tmp_path, "a", "b", "c")
    assert series.measure(runs, Silent(), "test", Agreed()) == 143
    assert list(runs.found) == ["a"]
    begun["b"] = 130  # it came while the run was measured, which is in its folder
    runs = Runs(tmp_path, "a", "b", "c")
    assert series.measure(runs, Silent(), "test", Agreed()) == 130
    assert list(runs.found) == ["a", "b"]


def test_a_signal_before_anything_was_measured_is_the_program_s_end(tmp_path: Path, begun: dict[str, Any]) -> None:
    begun["a"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        series.measure(Runs(tmp_path, "a"), Silent(), "test", Agreed())


def test_what_a_kill_left_before_the_load_is_removed(tmp_path: Path, begun: dict[str, Any]) -> None:
    begun["a"] = 0
    (tmp_path / "a").mkdir()
    files.write(tmp_path / "a" / MANIFEST, "{}\n")
    series.measure(Runs(tmp_path, "a"), Silent(), "test", Agreed())
    assert not (tmp_path / "a").exists()
