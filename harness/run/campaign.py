"""Many runs of one scenario: a level map, one knee a cell, or a comparison of stacks, which is one too (`stacked`).

A cell is an ordinary run in a result folder of its own. The bounds of the scenario (seconds, requests, dollars) are of
the whole map: a cell may use an equal part of what the cells before it left. `map.json` is written again after every
cell, so an interruption costs at most the running cell, and `resume` continues with that one.

An operator's mistake in the first cell ends the campaign, for it would end every cell. Once a cell is measured, another
one that cannot be is recorded with its reason, and the campaign goes on. In a comparison each cell has a server of its
own, the same bounds, and fails alone.
Left out: choosing cells by the results of others; all are measured, in the order of the axes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from harness.analysis.summarise import exit_status, summarise
from harness.base import __version__, files
from harness.base.errors import HarnessError
from harness.data.judgement import rank
from harness.data.manifest import MapManifest, Session, StackStart
from harness.data.progress import View
from harness.data.summary import Summary
from harness.data.views import Value
from harness.results import folder as folders
from harness.results import levelmap, result
from harness.results.levelmap import INPUT, INPUTS, OUTPUT, SEQS, SERVER, Axis, Map, MeasuredCell
from harness.results.result import Result
from harness.run import experiment
from harness.run.ending import Signals, reason_of, status_of
from harness.run.experiment import Outcome
from harness.run.launch.consent import Agreed
from harness.search.budget import Budget, Spent, Usage, dollars
from harness.spec import reading
from harness.spec import scenario as scenarios
from harness.spec.recipe import Claim
from harness.spec.scenario import Ramp, Scenario, Sweep
from harness.spec.work import Unit

_FAILED = 1  # exit status of an operator's mistake, and so of a cell that could not be measured
_GRAVITY = (0, 99, _FAILED, 3)  # of exit statuses, rising; a signal's is above them all
_SHORT = {INPUT: "in", OUTPUT: "out", INPUTS: "texts", SEQS: "seqs", SERVER: ""}  # in a cell's name

# ---- what is to be measured --------------------------------------------------------------------------------


class Cell(msgspec.Struct, frozen=True):
    """One combination of the axes: its name, its place on the axes, and the scenario of its run."""

    name: str
    at: dict[str, int | str]
    scenario: Scenario


Serving = contextlib.AbstractContextManager[tuple[Scenario, StackStart | None]]
Report = Callable[[Outcome], object]


def _as_it_is(cell: Cell, scenario: Scenario, view: View) -> Serving:
    """Return the endpoint that the scenario names."""
    return contextlib.nullcontext((scenario, None))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a campaign, their axes, and where each of them finds its endpoint."""

    axes: list[Axis]
    cells: list[Cell]
    serving: Callable[[Cell, Scenario, View], Serving] = _as_it_is  # there as long as the cell is measured
    each_alone: bool = False  # each cell has the scenario's bounds for itself, and ends no other by its failure
    claims: list[Claim] = []
    described: dict[str, Any] = {}  # of it in the manifest


Planner = Callable[[Scenario], Plan]


def plan(scenario: Scenario) -> Plan:
    """Return the level map of a scenario."""
    return Plan(cells=planned(scenario), axes=axes(scenario))


def axes(scenario: Scenario) -> list[Axis]:
    """Return the axes that are swept: input, output, texts, server's setting, server; none for a single run."""
    spec = scenario.sweep
    swept: list[tuple[str, Sequence[int | str]]] = [
        (INPUT, spec.input_tokens), (OUTPUT, spec.output_tokens), (INPUTS, spec.inputs or []),
        (SEQS, spec.max_num_seqs), (SERVER, list(spec.urls)),
    ]  # fmt: skip
    return [Axis(name, list(values)) for name, values in swept if values]


def planned(scenario: Scenario, place: str = "[sweep]") -> list[Cell]:
    """Return a run for each combination, in the order of the axes; the last axis changes fastest.

    Each cell has prompts of its own: a server that is still warm must not know them from the cell before.

    >>> [cell.name for cell in planned(Scenario(sweep=Sweep(input_tokens=[128, 256], output_tokens=[64])))]
    ['in128-out64', 'in256-out64']
    """
    swept = axes(scenario)
    _check(scenario, swept, place)
    workload = scenario.workload
    made = []
    for index, values in enumerate(itertools.product(*(axis.values for axis in swept))):
        answers = {OUTPUT: workload.output_tokens} if scenario.decodes else {INPUTS: workload.inputs or 1}
        at: dict[str, int | str] = {INPUT: workload.input_tokens, **answers}
        at |= zip((axis.name for axis in swept), values, strict=True)
        name = "-".join(f"{_SHORT[axis]}{value}" for axis, value in at.items())
        own = msgspec.structs.replace(_placed(scenario, at, index), name=f"{scenario.name}-{name}", sweep=Sweep())
        reading.check(own, place=f"{place} {name}")
        made.append(Cell(name, at, own))
    return made


def _placed(scenario: Scenario, at: dict[str, Any], index: int) -> Scenario:
    """Return the scenario of one cell."""
    workload, target, sim = scenario.workload, scenario.target, scenario.sim
    seed = None if workload.seed is None else workload.seed + index
    lengths = {INPUT: at[INPUT], **({OUTPUT: at[OUTPUT]} if OUTPUT in at else {INPUTS: at[INPUTS]})}
    workload = msgspec.structs.replace(workload, **lengths, seed=seed)
    if SEQS in at:
        sim = msgspec.structs.replace(sim, max_num_seqs=at[SEQS])
    if SERVER in at:
        target = msgspec.structs.replace(target, url=scenario.sweep.urls[at[SERVER]])
    return msgspec.structs.replace(scenario, workload=workload, target=target, sim=sim)


def _check(scenario: Scenario, swept: Sequence[Axis], place: str) -> None:
    """Raise HarnessError where nothing is swept, or a server's name cannot name a folder."""
    if not swept:
        raise HarnessError("nothing is swept", place=place, way_out="write it like input_tokens = [128, 512, 2048]")
    for name in scenario.sweep.urls:
        levelmap.must_name_a_folder(name, "server", f"{place} urls")


# ---- the campaign ------------------------------------------------------------------------------------------


class Swept(msgspec.Struct, frozen=True):
    """A map, and the exit status of the whole."""

    folder: Path
    map: Map
    status: int


def run(
    scenario: Scenario,
    out: str | None,
    view: View,
    command: str,
    *,
    plan: Planner = plan,
    agreed: Agreed = Agreed(),
    report: Report = lambda _: None,
) -> Swept:
    """Measure every cell of the plan that is made of the scenario; HarnessError if none could be measured.

    `report` is called with each cell's outcome when it ends, to write the files for people. A cell on a public host is
    confirmed like any run, unless that is `agreed`.
    """
    scenario = experiment.seeded(scenario)
    planned = plan(scenario)
    hidden = scenarios.secrets(scenario, os.environ)
    shown, created = scenarios.shown(scenario, hidden), datetime.now(UTC)
    created_iso = created.isoformat(timespec="seconds")
    manifest = MapManifest(
        name=scenario.name,
        created=created_iso,
        command=command,
        harness_version=__version__,
        scenario=shown,
        scenario_digest=scenarios.digest(shown),
        sessions=[Session(created=created_iso, command=command)],
        **planned.described,
    )
    with folders.new(out, scenario.name, created, _is_begun, (folders.MANIFEST, levelmap.MAP)) as folder:
        files.write_json(folder / folders.MANIFEST, manifest)
        return _Campaign(planned, folder, view, command, agreed, report, manifest, hidden).measure()


def _is_begun(folder: Path) -> bool:
    """Return whether any cell has a folder."""
    return any(path.is_dir() for path in folder.iterdir())


def resume(
    path: str,
    scenario: Scenario,
    view: View,
    command: str,
    *,
    plan: Planner = plan,
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
        this = Session(created=datetime.now(UTC).isoformat(timespec="seconds"), command=command)
        manifest = msgspec.structs.replace(manifest, sessions=[*manifest.sessions, this])
        files.write_json(folder / folders.MANIFEST, manifest)
        hidden = scenarios.secrets(scenario, os.environ)
        campaign = _Campaign(planned, folder, view, command, agreed, report, manifest, hidden)
        if levelmap.is_map(folder):
            campaign.known = {cell.name: cell for cell in levelmap.read(folder).cells}
        return campaign.measure()


class _Campaign(msgspec.Struct):
    """One session of a campaign: what it is to do, and what it has measured so far."""

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
            place = self.folder / cell.name
            is_begun = has_begun(place)
            so_far = Spent() if alone else spent(self._cells())
            over = Budget(cell.scenario.ramp, so_far).over()
            if not is_begun:
                _clear(place)
            if over is not None and not is_begun:
                self._put(MeasuredCell(name=cell.name, at=cell.at, left_out=f"{over} by the cells before"))
                continue
            self.view.note(f"cell {number} of {len(planned)}: {cell.name}")
            try:
                outcome = self._resume(cell) if is_begun else self._run(cell, so_far, self._among(number))
            except HarnessError as error:
                if not (alone or self._any()):
                    raise
                reason = reason_of(error, self.hidden)
                self.view.note(f"{cell.name} could not be measured: {reason}")
                failed = MeasuredCell(name=cell.name, at=cell.at, error=reason)
                self._put(costed(failed, place, cell))
                continue
            except (SystemExit, KeyboardInterrupt) as end:  # a signal, before anything was measured in this cell
                if not self._any():
                    raise
                return status_of(end)
            self._take(cell, outcome)
            if outcome.status >= 128:
                return outcome.status
        return 0

    def _is_measured(self, cell: Cell) -> bool:
        """Return whether the cell is measured already; a complete run that the map lacks is put into it."""
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
        """Return how many cells, of this one and those behind it, share what is left of the map's bounds."""
        if self.plan.each_alone:
            return 1
        behind = (self.known.get(cell.name) for cell in self.plan.cells[number:])
        return 1 + sum(cell is None or cell.status is None for cell in behind)

    def _run(self, cell: Cell, so_far: Spent, among: int) -> Outcome:
        """Measure a cell, with its part of what is left of the map's bounds."""
        scenario = msgspec.structs.replace(cell.scenario, ramp=left_to(cell.scenario.ramp, so_far, among))
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
        self._put(costed(measured(cell, outcome), outcome.folder, cell))

    def _put(self, cell: MeasuredCell) -> None:
        """Put a cell into the map and write map.json."""
        self.known[cell.name] = cell
        files.write_json(self.folder / levelmap.MAP, self._map(ended=False))

    def _any(self) -> bool:
        """Return whether some cell of the map has been measured."""
        return any(cell.status is not None for cell in self.known.values())

    def _cells(self) -> list[MeasuredCell]:
        """Return the cells so far, in the order of the map."""
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
    """Return a cell's part in the exit status of the map; 0 for one that the bounds left out."""
    return _FAILED if cell.error else cell.status or 0


def gravest(statuses: Sequence[int]) -> int:
    """Return the exit status of the map: a signal's above all, then 3 (rests on an invalid level), 1, 99 and 0.

    >>> gravest([0, 99, 3, 0]), gravest([0, 1, 99]), gravest([130, 3]), gravest([])
    (3, 1, 130, 0)
    """
    return max(statuses, key=lambda each: each if each >= 128 else _GRAVITY.index(each), default=0)


# ---- the entries of the map --------------------------------------------------------------------------------


def spent(cells: Sequence[MeasuredCell]) -> Spent:
    """Return what these cells used of the map's bounds."""
    cost = sum(cell.dollars or 0.0 for cell in cells)
    return Spent(sum(cell.seconds for cell in cells), sum(cell.requests for cell in cells), cost)


def left_to(ramp: Ramp, so_far: Spent, cells: int) -> Ramp:
    """Return the ramp of the next of so many cells, bounded by an equal part of what is left of the map's bounds.

    >>> left_to(Ramp(max_seconds=60.0, max_requests=250), Spent(40.0, 100), cells=2).max_requests
    75
    """
    part = Budget(ramp, before=so_far, repeats=cells)
    requests = None if part.requests is None else math.ceil(part.requests)
    return msgspec.structs.replace(ramp, max_seconds=part.seconds, max_requests=requests, max_dollars=part.dollars)


def measured(cell: Cell, outcome: Outcome) -> MeasuredCell:
    """Return the map's entry of a cell, still without its cost (`costed`)."""
    summary, start = outcome.summary, outcome.manifest.stack or None
    curve, prediction = summary.curve, summary.prediction
    return MeasuredCell(
        name=cell.name,
        at=cell.at,
        status=outcome.status,
        knee=None if summary.knee.value is None else Value(summary.knee.value, summary.knee.ci95),
        hinge=curve.hinge_concurrency if curve else None,
        plateau_tokens_per_s=curve.plateau_tokens_per_s if curve else None,
        plateau_reached=curve.plateau_reached if curve else None,
        verdicts=_codes(summary),
        prediction=msgspec.structs.replace(prediction, levels=[]) if prediction else None,
        start_to_ready_s=start.start_to_ready_s if start else None,
        first_answer_s=start.first_answer_s if start else None,
    )


def _codes(summary: Summary) -> list[str]:
    """Return the codes of all verdicts, the gravest first, each once."""
    found = [*summary.verdicts, *(verdict for level in summary.levels for verdict in level.verdicts)]
    return list(dict.fromkeys(verdict.code for verdict in sorted(found, key=rank)))


def costed(cell: MeasuredCell, folder: Path, of: Cell) -> MeasuredCell:
    """Return the cell with its cost, read from its folder; a run that loaded nothing cost nothing."""
    if not has_begun(folder):
        return cell
    run = Result.open(folder)
    usage = sum(map(Usage.of, run.records), Usage())
    loaded = run.manifest.loaded
    seconds = sum((run.last_s if each.ended_s is UNSET else each.ended_s) - (each.began_s or 0.0) for each in loaded)
    cost = dollars(of.scenario.hardware, seconds, usage)
    return msgspec.structs.replace(cell, seconds=seconds, requests=len(run.records), dollars=cost)


def has_begun(folder: Path) -> bool:
    """Return whether a run has begun to load in a folder."""
    return folder.is_dir() and bool(result.read_manifest(folder).sessions)


def _clear(folder: Path) -> None:
    """Remove what a run left that was killed before it began to load."""
    if folder.is_dir():
        files.remove(folder, (folders.MANIFEST, *folders.segments(folder).values()))
        files.remove_folder(folder)  # where something else lies in it, `run` says so
