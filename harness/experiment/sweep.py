"""The level map: the ramp over axes of a scenario, one knee a cell.

A cell is an ordinary run, in a result folder of its own. The bounds of the scenario (seconds, requests, dollars) are
of the whole map: each cell may use what those before it have left. After every cell `map.json` is written anew, so
whatever ends the map costs no more than the cell that was being measured, and `resume` goes on with that one.

A mistake of the operator in the first cell ends the map, for it will be the same in all. When something has been
measured, a cell that cannot be is written down with its reason, and the others go on.
Left out: choosing cells by what others have shown; they are all measured, in the order of the axes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

import harness
from harness import files, secrecy
from harness import manifest as manifests
from harness import scenario as scenarios
from harness.analysis.summarise import exit_status, summarise
from harness.errors import HarnessError
from harness.experiment import run as experiment
from harness.experiment.consent import Agreed
from harness.experiment.levels import View
from harness.experiment.run import Outcome
from harness.judgement import rank
from harness.manifest import MapManifest, Session
from harness.results import folder as folders
from harness.results import levelmap, result
from harness.results.levelmap import INPUT, OUTPUT, SEQS, SERVER, Axis, Map, MeasuredCell
from harness.results.result import Result
from harness.scenario import Ramp, Scenario, Sweep
from harness.search.budget import Budget, Spent, Usage, dollars
from harness.summary import Summary, Value

_FAILED = 1  # exit status of an operator's mistake, and so of a cell that could not be measured
_GRAVITY = (0, 99, _FAILED, 3)  # of exit statuses, rising; a signal's is above them all
_SHORT = {INPUT: "in", OUTPUT: "out", SEQS: "seqs", SERVER: ""}  # in a cell's name

Report = Callable[[Outcome], object]


class Cell(msgspec.Struct, frozen=True):
    """One combination of the axes: its name, where it lies, and the scenario of its run."""

    name: str
    at: dict[str, int | str]
    scenario: Scenario


class Swept(msgspec.Struct, frozen=True):
    """A map as it was left, and the exit status of the whole."""

    folder: Path
    map: Map
    status: int


def axes(scenario: Scenario) -> list[Axis]:
    """What the scenario sweeps, in the order input, output, setting of the server; empty: it is one run."""
    spec = scenario.sweep
    given: list[tuple[str, Sequence[int | str]]] = [
        (INPUT, spec.input_tokens), (OUTPUT, spec.output_tokens), (SEQS, spec.max_num_seqs), (SERVER, list(spec.urls)),
    ]  # fmt: skip
    return [Axis(name, list(values)) for name, values in given if values]


def cells(scenario: Scenario, place: str = "[sweep]") -> list[Cell]:
    """A run for every combination, in the order of the axes, the last one changing fastest.

    Each has prompts of its own: a server that is still warm must not know them from the cell before.

    >>> [cell.name for cell in cells(Scenario(sweep=Sweep(input_tokens=[128, 256], output_tokens=[64])))]
    ['in128-out64', 'in256-out64']
    """
    swept = axes(scenario)
    _check(scenario, swept, place)
    workload = scenario.workload
    made = []
    for index, values in enumerate(itertools.product(*(axis.values for axis in swept))):
        at: dict[str, int | str] = {INPUT: workload.input_tokens, OUTPUT: workload.output_tokens}
        at |= zip((axis.name for axis in swept), values, strict=True)
        name = "-".join(f"{_SHORT[axis]}{value}" for axis, value in at.items())
        own = msgspec.structs.replace(_placed(scenario, at, index), name=f"{scenario.name}-{name}", sweep=Sweep())
        scenarios.check(own, place=f"{place} {name}")
        made.append(Cell(name, at, own))
    return made


def _placed(scenario: Scenario, at: dict[str, Any], index: int) -> Scenario:
    """The scenario at one place of the map."""
    workload, target, sim = scenario.workload, scenario.target, scenario.sim
    seed = None if workload.seed is None else workload.seed + index
    workload = msgspec.structs.replace(workload, input_tokens=at[INPUT], output_tokens=at[OUTPUT], seed=seed)
    if SEQS in at:
        sim = msgspec.structs.replace(sim, max_num_seqs=at[SEQS])
    if SERVER in at:
        target = msgspec.structs.replace(target, url=scenario.sweep.urls[at[SERVER]])
    return msgspec.structs.replace(scenario, workload=workload, target=target, sim=sim)


def _check(scenario: Scenario, swept: Sequence[Axis], place: str) -> None:
    if not swept:
        raise HarnessError("nothing is swept", place=place, way_out="write it like input_tokens = [128, 512, 2048]")
    for name in scenario.sweep.urls:
        if not levelmap.FOLDER.fullmatch(name):
            way_out = "letters, digits, '.', '_' and '-', for it names folders"
            raise HarnessError(f"{name!r} cannot name a server", place=f"{place} urls", way_out=way_out)


def sweep(
    scenario: Scenario,
    out: str | None,
    view: View,
    command: str,
    *,
    agreed: Agreed = Agreed(),
    report: Report = lambda _: None,
) -> Swept:
    """Measure every cell of the map; HarnessError when nothing could be.

    `report` is given each cell's outcome as soon as there is one, to write what people read into its folder. A cell
    on a public host is confirmed like any run, unless that is `agreed`.
    """
    if scenario.workload.seed is None:
        seed = secrets.randbelow(2**31)
        scenario = msgspec.structs.replace(scenario, workload=msgspec.structs.replace(scenario.workload, seed=seed))
    planned = cells(scenario)
    hidden = scenarios.secrets(scenario, os.environ)
    created = _now()
    folder = folders.create(out or folders.default(f"{scenario.name}-{created:%Y%m%d-%H%M%S}"))
    said = created.isoformat(timespec="seconds")
    shown = scenarios.shown(scenario, hidden)
    manifest = MapManifest(
        name=scenario.name,
        created=said,
        command=command,
        harness_version=harness.__version__,
        scenario=manifests.Scenario.of(shown),
        scenario_digest=scenarios.digest(shown),
        sessions=[Session(created=said, command=command)],
    )
    try:
        with folders.claimed(folder):
            files.write_json(folder / folders.MANIFEST, manifest)
            going = _Going(scenario, folder, view, command, agreed, report, manifest, planned, hidden)
            return going.measure()
    except BaseException:
        if not any(path.is_dir() for path in folder.iterdir()):  # nothing was measured: leave nothing behind
            with contextlib.suppress(HarnessError):
                files.remove(folder, (folders.MANIFEST,))
            files.remove_folder(folder)
        raise


def resume(
    path: str,
    scenario: Scenario,
    view: View,
    command: str,
    *,
    agreed: Agreed = Agreed(),
    report: Report = lambda _: None,
) -> Swept:
    """Go on with a map that ended early, by the scenario that it was begun with (`run.begun_with` reads it).

    Cells that are complete are kept; one that was broken off goes on where it stood, with the bounds that it had.
    """
    folder = Path(path)
    with folders.claimed(folder):
        files.must_be_files(folder, (folders.MANIFEST, levelmap.MAP, *levelmap.FOR_PEOPLE))  # said before the load
        for cell in cells(scenario):
            if os.path.lexists(folder / cell.name):
                files.must_be_files(folder / cell.name, folders.WRITTEN)
        manifest = result.read_manifest(folder)
        assert isinstance(manifest, MapManifest)  # its scenario sweeps
        session = Session(created=_now().isoformat(timespec="seconds"), command=command)
        manifest = msgspec.structs.replace(manifest, sessions=[*manifest.sessions, session])
        files.write_json(folder / folders.MANIFEST, manifest)
        hidden = scenarios.secrets(scenario, os.environ)
        going = _Going(scenario, folder, view, command, agreed, report, manifest, cells(scenario), hidden)
        if levelmap.is_map(folder):
            going.known = {cell.name: cell for cell in levelmap.read(folder).cells}
        return going.measure()


class _Going(msgspec.Struct):
    """One go at a map: what it is given, and what it has so far."""

    scenario: Scenario
    folder: Path
    view: View
    command: str
    agreed: Agreed
    report: Report
    manifest: MapManifest
    planned: list[Cell]
    hidden: tuple[str, ...]
    known: dict[str, MeasuredCell] = {}  # by name, of this go and the ones before

    def measure(self) -> Swept:
        """Cell by cell, until the last one or a signal."""
        signalled = 0
        for number, cell in enumerate(self.planned, 1):
            if self._kept(cell):
                continue
            begun, so_far = _begun(self.folder / cell.name), spent(self._cells())
            over = Budget(self.scenario.ramp, so_far).over()
            if over is not None and not begun:
                self._put(MeasuredCell(name=cell.name, at=cell.at, left_out=f"{over} by the cells before"))
                continue
            self.view.note(f"cell {number} of {len(self.planned)}: {cell.name}")
            try:
                outcome = self._go_on(cell) if begun else self._run(cell, so_far)
            except HarnessError as error:
                if not self._any():
                    raise
                said = secrecy.redact(" ".join(str(error).split()), self.hidden)
                self.view.note(f"{cell.name} could not be measured: {said}")
                self._put(_costed(MeasuredCell(name=cell.name, at=cell.at, error=said), self.folder / cell.name, cell))
                continue
            except (SystemExit, KeyboardInterrupt) as end:  # a signal, before anything was measured in this cell
                if not self._any():
                    raise
                signalled = end.code if isinstance(end, SystemExit) and isinstance(end.code, int) else 130
                break
            self._take(cell, outcome)
            if outcome.status >= 128:
                signalled = outcome.status
                break
        found = self._map(ended=not signalled)
        self.manifest = msgspec.structs.replace(self.manifest, complete=found.complete)
        files.write_json(self.folder / levelmap.MAP, found)
        files.write_json(self.folder / folders.MANIFEST, self.manifest)
        return Swept(self.folder, found, gravest([signalled, *map(_status, found.cells)]))

    def _kept(self, cell: Cell) -> bool:
        """Whether the cell is measured already; one whose run was whole but not yet in the map is taken into it."""
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

    def _run(self, cell: Cell, so_far: Spent) -> Outcome:
        scenario = msgspec.structs.replace(cell.scenario, ramp=left_to(cell.scenario.ramp, so_far))
        return experiment.run(scenario, str(self.folder / cell.name), self.view, self.command, agreed=self.agreed)

    def _go_on(self, cell: Cell) -> Outcome:
        """A cell that was broken off, with the bounds that it was begun with."""
        place = self.folder / cell.name
        about = result.read_manifest(place)
        result.must_go_on(place, about)
        scenario = msgspec.structs.replace(cell.scenario, ramp=about.scenario.ramp)
        return experiment.resume(str(place), scenario, self.view, self.command, agreed=self.agreed)

    def _take(self, cell: Cell, outcome: Outcome) -> None:
        self.report(outcome)
        self.manifest = msgspec.structs.replace(
            self.manifest,
            model=outcome.manifest.model,
            gpu=outcome.manifest.gpu,
            simulated=outcome.summary.simulated,
        )
        self._put(_costed(measured(cell, outcome), outcome.folder, cell))

    def _put(self, cell: MeasuredCell) -> None:
        self.known[cell.name] = cell
        files.write_json(self.folder / levelmap.MAP, self._map(ended=False))

    def _any(self) -> bool:
        """Whether some cell of the map has been measured."""
        return any(cell.status is not None for cell in self.known.values())

    def _cells(self) -> list[MeasuredCell]:
        """What there is of the map, in its order."""
        return [self.known[cell.name] for cell in self.planned if cell.name in self.known]

    def _map(self, *, ended: bool) -> Map:
        found = self._cells()
        return Map(
            name=self.manifest.name or "",
            created=self.manifest.created,
            model=self.manifest.model or None,
            gpu=self.manifest.gpu or None,
            simulated=self.manifest.simulated or False,
            complete=ended and not any(cell.error for cell in found),
            axes=axes(self.scenario),
            cells=found,
        )


def spent(cells: Sequence[MeasuredCell]) -> Spent:
    """What so many cells have cost."""
    cost = sum(cell.dollars or 0.0 for cell in cells)
    return Spent(sum(cell.seconds for cell in cells), sum(cell.requests for cell in cells), cost)


def left_to(ramp: Ramp, so_far: Spent) -> Ramp:
    """The ramp of the next cell: of every bound of the map what is left.

    >>> left_to(Ramp(max_seconds=60.0, max_requests=250), Spent(40.0, 100)).max_requests
    150
    """
    left: dict[str, Any] = {}
    if ramp.max_seconds is not None:
        left["max_seconds"] = ramp.max_seconds - so_far.seconds
    if ramp.max_requests is not None:
        left["max_requests"] = ramp.max_requests - so_far.requests
    if ramp.max_dollars is not None:
        left["max_dollars"] = ramp.max_dollars - so_far.dollars
    return msgspec.structs.replace(ramp, **left)


def measured(cell: Cell, outcome: Outcome) -> MeasuredCell:
    """A cell's run as the map has it; what it cost is not in it yet."""
    summary = outcome.summary
    curve, prediction = summary.curve, summary.prediction
    return MeasuredCell(
        name=cell.name,
        at=cell.at,
        status=outcome.status,
        knee=_knee(summary),
        hinge=curve.hinge_concurrency if curve else None,
        plateau_tokens_per_s=curve.plateau_tokens_per_s if curve else None,
        plateau_reached=curve.plateau_reached if curve else None,
        verdicts=_codes(summary),
        prediction=msgspec.structs.replace(prediction, levels=[]) if prediction else None,
    )


def _knee(summary: Summary) -> Value | None:
    """The unqualified knee, with the interval of the one that it is."""
    knee = summary.knee_concurrency
    if knee is None:
        return None
    named = (each for each in (summary.knees.slo, summary.knees.hinge) if each is not None and each.value == knee)
    return next(named, Value(knee))


def _codes(summary: Summary) -> list[str]:
    """Codes of all verdicts, the gravest first, each once."""
    found = [*summary.verdicts, *(verdict for level in summary.levels for verdict in level.verdicts)]
    return list(dict.fromkeys(verdict.code for verdict in sorted(found, key=rank)))


def _costed(cell: MeasuredCell, folder: Path, planned: Cell) -> MeasuredCell:
    """The cell with what its folder says that it cost; a run that never came to load anything cost nothing."""
    if not _begun(folder):
        return cell
    run = Result.open(folder)
    usage = sum(map(Usage.of, run.records), Usage())
    loaded = run.manifest.loaded
    seconds = sum((run.last_s if each.ended_s is UNSET else each.ended_s) - (each.began_s or 0.0) for each in loaded)
    cost = dollars(planned.scenario.hardware, seconds, usage)
    return msgspec.structs.replace(cell, seconds=seconds, requests=len(run.records), dollars=cost)


def _begun(folder: Path) -> bool:
    """Whether a run came to load anything into a folder; what one leaves that was killed before is taken away."""
    if not folder.is_dir():
        return False
    if result.read_manifest(folder).sessions:
        return True
    files.remove(folder, (folders.MANIFEST, folders.SPOOL))
    files.remove_folder(folder)  # where something else lies in it, `run` says so
    return False


def _status(cell: MeasuredCell) -> int:
    """What a cell does to the status of the whole: one that the bounds left out does nothing."""
    return _FAILED if cell.error else cell.status or 0


def gravest(statuses: Sequence[int]) -> int:
    """The exit status of the whole: a signal's above all, then 3 (rests on an invalid level), 1, 99 and 0.

    >>> gravest([0, 99, 3, 0]), gravest([0, 1, 99]), gravest([130, 3]), gravest([])
    (3, 1, 130, 0)
    """
    return max(statuses, key=lambda each: each if each >= 128 else _GRAVITY.index(each), default=0)


def _now() -> datetime:
    return datetime.now(UTC)
