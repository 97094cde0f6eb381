"""Runs one after the other, each in a folder of its own: `measure` is the loop, a `Series` says which run is due.

What is complete is skipped, what was interrupted is resumed, and a signal ends all in order. Such a series is a level
map or a comparison of stacks (`campaign`), and a search for settings (`tuned`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from harness.analysis.summarise import exit_status, summarise
from harness.base import ExitStatus, files, secrecy
from harness.base.errors import HarnessError
from harness.data.manifest import Manifest, StackStart
from harness.data.progress import View
from harness.results import folder as folders
from harness.results import result as results
from harness.results.result import Result
from harness.run import experiment
from harness.run.ending import Signals
from harness.run.experiment import Outcome
from harness.run.launch.consent import Agreed
from harness.spec.scenario import Scenario

# A context in which the endpoint is up: the scenario with its address, and how Knee started it, None if it did not.
Serving = contextlib.AbstractContextManager[tuple[Scenario, StackStart | None]]


class Planned(NamedTuple):
    """A run that is due: the name of its folder, what is noted when it begins, and its endpoint."""

    name: str
    note: str
    serving: Callable[[View], Serving]


class Series(Protocol):
    """Runs in an order, and what becomes of them, which it writes to a file after each."""

    folder: Path  # holds the folders of the runs
    slo_fail: bool

    @property
    def hidden(self) -> Sequence[str]:
        """Return the secrets that no file and no note may contain."""
        ...

    def due(self) -> Planned | None:
        """Return the next run, or None at the end."""
        ...

    def ended(self, run: Planned, result: Outcome | HarnessError, seconds: float) -> None:
        """Record the outcome of a run that took `seconds`; raise a failure that ends the whole series."""
        ...

    def has_measured(self) -> bool:
        """Return whether any run came to its end, so that a signal leaves a result."""
        ...


def measure(series: Series, view: View, command: str, agreed: Agreed) -> int:
    """Measure each due run of a series and report its result to it; return a signal's exit status, else 0."""
    with Signals().outside():
        while run := series.due():
            view.note(run.note)
            began = time.monotonic()
            result: Outcome | HarnessError
            try:
                result = _outcome_of(series, run, view, command, agreed)
            except HarnessError as error:
                result = error
            except (SystemExit, KeyboardInterrupt) as end:  # a signal, before anything was measured in this run
                if not series.has_measured():
                    raise
                if isinstance(end, SystemExit) and isinstance(end.code, int):
                    return end.code
                return ExitStatus.INTERRUPTED
            series.ended(run, result, time.monotonic() - began)
            if isinstance(result, HarnessError):
                view.note(f"{run.name} could not be measured: {reason_of(result, series.hidden)}")
            elif result.status >= ExitStatus.SIGNALLED:
                return result.status
    return 0


def _outcome_of(series: Series, run: Planned, view: View, command: str, agreed: Agreed) -> Outcome:
    """Return a run's outcome: read it if its folder is complete, resume it if it was begun, else measure it."""
    place = series.folder / run.name
    about = results.read_manifest(place) if place.is_dir() else Manifest()
    if about.complete:
        result = Result.open(place)
        summary = summarise(result)
        return Outcome(place, summary, result.manifest, exit_status(summary, slo_fail=series.slo_fail))
    if about.sessions:
        results.must_go_on(place, about)
    elif place.is_dir():  # it was killed before it began to load; where something else lies in it, `run` says so
        files.remove(place, (folders.MANIFEST, *folders.segments(place).values()))
        files.remove_folder(place)
    with run.serving(view) as (scenario, start):
        if not about.sessions:
            return experiment.run(scenario, str(place), view, command, agreed=agreed, stack=start)
        scenario = msgspec.structs.replace(scenario, ramp=about.scenario.ramp)
        return experiment.resume(str(place), scenario, view, command, agreed=agreed)


def reason_of(failure: HarnessError, hidden: Sequence[str]) -> str:
    """Return why a run failed, on one line and without the secrets `hidden`, for the file of the runs that it is of."""
    return secrecy.redact(" ".join(str(failure).split()), hidden)


def has_folders(folder: Path) -> bool:
    """Return whether any run has a folder in this one."""
    return any(path.is_dir() for path in folder.iterdir())
