"""The level map: the ramp over axes of a scenario, one knee a cell; and the comparison of stacks, which is one too.

A cell is an ordinary run in a result folder of its own (`cells`). The bounds of the scenario (seconds, requests,
dollars) are of the whole map: a cell may use an equal part of what the cells before it left. `map.json` is written
again after every cell, so an interruption costs at most the running cell, and `resume` continues with that one.

An operator's mistake in the first cell ends the map, for it would end every cell. Once a cell is measured, another one
that cannot be is recorded with its reason, and the map goes on. In a comparison each cell has a server of its own, the
same bounds, and fails alone.
Left out: choosing cells by the results of others; all are measured, in the order of the axes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from harness.analysis.summarise import exit_status, summarise
from harness.base import files, secrecy
from harness.base.errors import HarnessError
from harness.base.version import __version__
from harness.data import manifest as manifests
from harness.data.manifest import MapManifest, Session
from harness.results import folder as folders
from harness.results import levelmap, result
from harness.results.levelmap import Map, MeasuredCell
from harness.results.result import Result
from harness.run import cells, experiment
from harness.run.cells import Cell, Plan
from harness.run.experiment import Outcome
from harness.run.launch.consent import Agreed
from harness.run.signals import Signals
from harness.run.view import View
from harness.search.budget import Budget, Spent
from harness.spec import scenario as scenarios
from harness.spec.scenario import Scenario
from harness.spec.work import Unit

_FAILED = 1  # exit status of an operator's mistake, and so of a cell that could not be measured
_GRAVITY = (0, 99, _FAILED, 3)  # of exit statuses, rising; a signal's is above them all

Report = Callable[[Outcome], object]
Planner = Callable[[Scenario], Plan]


class Swept(msgspec.Struct, frozen=True):
    """A map, and the exit status of the whole."""

    folder: Path
    map: Map
    status: int


def sweep(
    scenario: Scenario,
    out: str | None,
    view: View,
    command: str,
    *,
    plan: Planner = cells.plan,
    agreed: Agreed = Agreed(),
    report: Report = lambda _: None,
) -> Swept:
    """Measure every cell of the plan that is made of the scenario; HarnessError if none could be measured.

    `report` is called with each cell's outcome when it ends, to write the files for people. A cell on a public host is
    confirmed like any run, unless that is `agreed`.
    """
    if scenario.workload.seed is None:
        seed = secrets.randbelow(2**31)
        scenario = msgspec.structs.replace(scenario, workload=msgspec.structs.replace(scenario.workload, seed=seed))
    planned = plan(scenario)
    hidden = scenarios.secrets(scenario, os.environ)
    created = _now()
    folder = folders.create(out or folders.default(f"{scenario.name}-{created:%Y%m%d-%H%M%S}"))
    created_iso = created.isoformat(timespec="seconds")
    shown = scenarios.shown(scenario, hidden)
    manifest = MapManifest(
        name=scenario.name,
        created=created_iso,
        command=command,
        harness_version=__version__,
        scenario=manifests.Scenario.of(shown),
        scenario_digest=scenarios.digest(shown),
        sessions=[Session(created=created_iso, command=command)],
        **planned.described,
    )
    try:
        with folders.claimed(folder):
            files.write_json(folder / folders.MANIFEST, manifest)
            session = _MapSession(planned, folder, view, command, agreed, report, manifest, hidden)
            return session.measure()
    except BaseException:
        if not any(path.is_dir() for path in folder.iterdir()):  # nothing was measured: leave nothing behind
            with contextlib.suppress(HarnessError):
                files.remove(folder, (folders.MANIFEST, levelmap.MAP))
            files.remove_folder(folder)
        raise


def resume(
    path: str,
    scenario: Scenario,
    view: View,
    command: str,
    *,
    plan: Planner = cells.plan,
    agreed: Agreed = Agreed(),
    report: Report = lambda _: None,
) -> Swept:
    """Continue a map that ended early, with the scenario that it was begun with (`resume.begun_with`).

    Complete cells stay; one that was interrupted is resumed with the bounds that it had.
    """
    folder = Path(path)
    with folders.claimed(folder):
        files.must_be_files(folder, (folders.MANIFEST, levelmap.MAP, *levelmap.FOR_PEOPLE))  # before the load
        planned = plan(scenario)
        for cell in planned.cells:
            if os.path.lexists(folder / cell.name):
                files.must_be_files(folder / cell.name, folders.WRITTEN)
        manifest = result.read_manifest(folder)
        assert isinstance(manifest, MapManifest)  # its scenario sweeps
        this = Session(created=_now().isoformat(timespec="seconds"), command=command)
        manifest = msgspec.structs.replace(manifest, sessions=[*manifest.sessions, this])
        files.write_json(folder / folders.MANIFEST, manifest)
        hidden = scenarios.secrets(scenario, os.environ)
        session = _MapSession(planned, folder, view, command, agreed, report, manifest, hidden)
        if levelmap.is_map(folder):
            session.known = {cell.name: cell for cell in levelmap.read(folder).cells}
        return session.measure()


class _MapSession(msgspec.Struct):
    """One session of a map: what it is to do, and what it has measured so far."""

    plan: Plan
    folder: Path
    view: View
    command: str
    agreed: Agreed
    report: Report
    manifest: MapManifest
    hidden: tuple[str, ...]
    known: dict[str, MeasuredCell] = {}  # by name, of all sessions

    def measure(self) -> Swept:
        """Measure cell by cell, until the last one or a signal."""
        with Signals().outside():
            signalled = self._measured()
        found = self._map(ended=not signalled)
        self.manifest = msgspec.structs.replace(self.manifest, complete=found.complete)
        files.write_json(self.folder / levelmap.MAP, found)
        files.write_json(self.folder / folders.MANIFEST, self.manifest)
        return Swept(self.folder, found, gravest([signalled, *map(_status, found.cells)]))

    def _measured(self) -> int:
        """Measure what is not yet measured; the exit status of the signal that ended it, else 0."""
        planned, alone = self.plan.cells, self.plan.each_alone
        if alone:
            files.write_json(self.folder / levelmap.MAP, self._map(ended=False))
        for number, cell in enumerate(planned, 1):
            if self._is_measured(cell):
                continue
            is_begun, so_far = cells.begun(self.folder / cell.name), Spent() if alone else cells.spent(self._cells())
            over = Budget(cell.scenario.ramp, so_far).over()
            if over is not None and not is_begun:
                self._put(MeasuredCell(name=cell.name, at=cell.at, left_out=f"{over} by the cells before"))
                continue
            self.view.note(f"cell {number} of {len(planned)}: {cell.name}")
            try:
                outcome = self._resume(cell) if is_begun else self._run(cell, so_far, self._among(number))
            except HarnessError as error:
                if not (alone or self._any()):
                    raise
                reason = secrecy.redact(" ".join(str(error).split()), self.hidden)
                self.view.note(f"{cell.name} could not be measured: {reason}")
                failed = MeasuredCell(name=cell.name, at=cell.at, error=reason)
                self._put(cells.costed(failed, self.folder / cell.name, cell))
                continue
            except (SystemExit, KeyboardInterrupt) as end:  # a signal, before anything was measured in this cell
                if not self._any():
                    raise
                return end.code if isinstance(end, SystemExit) and isinstance(end.code, int) else 130
            self._take(cell, outcome)
            if outcome.status >= 128:
                return outcome.status
        return 0

    def _is_measured(self, cell: Cell) -> bool:
        """Whether the cell is measured already; a complete run that the map lacks is put into it."""
        place = self.folder / cell.name
        if not place.is_dir() or not result.read_manifest(place).complete:
            return False
        known = self.known.get(cell.name)
        if known is None or known.status is None or known.status >= 128:
            run = Result.open(place)
            summary = summarise(run)
            self._take(
                cell, Outcome(place, summary, run.manifest, exit_status(summary, slo_fail=cell.scenario.ramp.slo_fail))
            )
        return True

    def _among(self, number: int) -> int:
        """How many cells, of this one and those behind it, share what is left of the map's bounds."""
        if self.plan.each_alone:
            return 1
        behind = (self.known.get(cell.name) for cell in self.plan.cells[number:])
        return 1 + sum(cell is None or cell.status is None for cell in behind)

    def _run(self, cell: Cell, so_far: Spent, among: int) -> Outcome:
        """Measure a cell, with its part of what is left of the map's bounds."""
        scenario = msgspec.structs.replace(cell.scenario, ramp=cells.left_to(cell.scenario.ramp, so_far, among))
        place = str(self.folder / cell.name)
        with self.plan.serving(cell, scenario, self.view) as (served, start):
            return experiment.run(served, place, self.view, self.command, agreed=self.agreed, stack=start)

    def _resume(self, cell: Cell) -> Outcome:
        """Resume a cell that was interrupted, with the bounds that it had."""
        place = self.folder / cell.name
        about = result.read_manifest(place)
        result.must_go_on(place, about)
        scenario = msgspec.structs.replace(cell.scenario, ramp=about.scenario.ramp)
        with self.plan.serving(cell, scenario, self.view) as (served, _):
            return experiment.resume(str(place), served, self.view, self.command, agreed=self.agreed)

    def _take(self, cell: Cell, outcome: Outcome) -> None:
        """Report a cell's outcome and put it into the map."""
        self.report(outcome)
        self.manifest = msgspec.structs.replace(
            self.manifest,
            model=outcome.manifest.model,
            gpu=outcome.manifest.gpu,
            simulated=outcome.summary.simulated,
            unit=outcome.manifest.unit,
        )
        self._put(cells.costed(cells.measured(cell, outcome), outcome.folder, cell))

    def _put(self, cell: MeasuredCell) -> None:
        """Put a cell into the map and write map.json."""
        self.known[cell.name] = cell
        files.write_json(self.folder / levelmap.MAP, self._map(ended=False))

    def _any(self) -> bool:
        """Whether some cell of the map has been measured."""
        return any(cell.status is not None for cell in self.known.values())

    def _cells(self) -> list[MeasuredCell]:
        """The cells so far, in the order of the map."""
        return [self.known[cell.name] for cell in self.plan.cells if cell.name in self.known]

    def _map(self, *, ended: bool) -> Map:
        found = self._cells()
        return Map(
            name=self.manifest.name or "",
            created=self.manifest.created,
            model=self.manifest.model or None,
            gpu=self.manifest.gpu or None,
            simulated=self.manifest.simulated or False,
            unit=self.manifest.unit or Unit.OUTPUT_TOKENS.value,
            complete=ended and not any(cell.error for cell in found),
            axes=self.plan.axes,
            cells=found,
            claims=self.plan.claims,
        )


def _status(cell: MeasuredCell) -> int:
    """A cell's part in the exit status of the map; 0 for one that the bounds left out."""
    return _FAILED if cell.error else cell.status or 0


def gravest(statuses: Sequence[int]) -> int:
    """The exit status of the map: a signal's above all, then 3 (rests on an invalid level), 1, 99 and 0.

    >>> gravest([0, 99, 3, 0]), gravest([0, 1, 99]), gravest([130, 3]), gravest([])
    (3, 1, 130, 0)
    """
    return max(statuses, key=lambda each: each if each >= 128 else _GRAVITY.index(each), default=0)


def _now() -> datetime:
    return datetime.now(UTC)
