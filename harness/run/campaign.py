"""Many runs of one scenario: a level map, one knee a cell, or a comparison, which is one too: of two ways to balance
replicas, or of stacks (`stacked`).

The bounds of a map's scenario (seconds, requests, dollars) are of the whole: a cell may use an equal part of what the
cells before it left. An operator's mistake in the first cell ends the map, for it would end every cell. Once a cell is
measured, another one that cannot be is recorded with its reason. In a comparison each cell has a server of its own, the
same bounds, and fails alone.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from harness.base import ExitStatus, __version__, files
from harness.base.errors import HarnessError
from harness.data.judgement import rank
from harness.data.manifest import MapManifest, Session
from harness.data.progress import View
from harness.data.summary import Summary
from harness.data.views import Value
from harness.results import folder as folders
from harness.results import levelmap, result
from harness.results.levelmap import BALANCE, INPUT, INPUTS, OUTPUT, REPEAT, SEQS, SERVER, Axis, Map, MeasuredCell
from harness.results.result import Result
from harness.run import experiment, requests, series
from harness.run.experiment import Outcome
from harness.run.launch.consent import Agreed
from harness.run.series import Planned, Serving
from harness.search.budget import Budget, Spent, Usage, dollars
from harness.spec import reading
from harness.spec import scenario as scenarios
from harness.spec.choices import ROUND_ROBIN, Balance
from harness.spec.scenario import Ramp, Scenario, Sweep, WorkloadSpec
from harness.spec.work import Unit

# Exit statuses, rising; a signal's is above them all.
_GRAVITY = (ExitStatus.DONE, ExitStatus.MISSED, ExitStatus.MISTAKE, ExitStatus.UNSETTLED)
_SHORT = {INPUT: "in", OUTPUT: "out", INPUTS: "texts", SEQS: "seqs", SERVER: ""}  # in a cell's name

# ---- what is to be measured --------------------------------------------------------------------------------


class Cell(msgspec.Struct, frozen=True):
    """One combination of the axes: its name, its place on the axes, and the scenario of its run."""

    name: str
    at: dict[str, int | str]
    scenario: Scenario


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
    described: dict[str, Any] = {}  # fields that describe it in the manifest


Planner = Callable[[Scenario], Plan]


def plan(scenario: Scenario) -> Plan:
    """Return the level map of a scenario, or its comparison of two ways to balance replicas."""
    if (other := scenario.target.versus) is not UNSET:
        return _balanced(scenario, [scenario.target.balance or ROUND_ROBIN, other])
    return Plan(cells=planned(scenario), axes=axes(scenario))


def _balanced(scenario: Scenario, ways: Sequence[Balance]) -> Plan:
    """Return the plan of runs that compare ways to balance load, the ways in turn, each run with prompts of its own.

    Raise HarnessError if a dataset's own texts would come again.
    """
    spec, hooks, workload = scenario.workload.dataset, scenario.hooks, scenario.workload
    if spec and not (hooks and (hooks.reset_cache or hooks.before_level)) and requests.has_texts(spec):
        fact = "the texts of the dataset come again, and the caches know them from the first way on"
        raise HarnessError(fact, place="--versus", way_out="add --reset-cache, or --before-level COMMAND")
    repeats = list(range(1, scenario.ramp.repeat + 1))
    cells: list[Cell] = []
    for repeat, way in itertools.product(repeats, ways):
        made = msgspec.structs.replace(
            scenario,
            name=f"{scenario.name}-{way}-{repeat}",
            target=msgspec.structs.replace(scenario.target, balance=way, versus=UNSET),
            workload=_with_own_prompts(workload, len(cells)),
            ramp=msgspec.structs.replace(scenario.ramp, repeat=1),
        )
        cells.append(Cell(f"{way}-{repeat}", {REPEAT: repeat, BALANCE: way}, made))
    return Plan(axes=[Axis(REPEAT, [*repeats]), Axis(BALANCE, [*ways])], cells=cells)


def axes(scenario: Scenario) -> list[Axis]:
    """Return the axes that are swept: input, output, texts, server's setting, server; none for a single run."""
    spec = scenario.sweep
    swept: list[tuple[str, Sequence[int | str]]] = [
        (INPUT, spec.input_tokens), (OUTPUT, spec.output_tokens), (INPUTS, spec.inputs or []),
        (SEQS, spec.max_num_seqs), (SERVER, list(spec.urls)),
    ]  # fmt: skip
    return [Axis(name, list(values)) for name, values in swept if values]


def planned(scenario: Scenario, place: str = "[sweep]") -> list[Cell]:
    """Return a cell for each combination of the swept values, in the order of the axes; the last changes fastest.

    Where the scenario has a seed, as `run` gives it one, each cell has a seed of its own, and so its own prompts: a
    server that is still warm must not know them from the cell before.

    >>> [cell.name for cell in planned(Scenario(sweep=Sweep(input_tokens=[128, 256], output_tokens=[64])))]
    ['in128-out64', 'in256-out64']
    """
    swept = axes(scenario)
    if not swept:
        raise HarnessError("nothing is swept", place=place, way_out="write it like input_tokens = [128, 512, 2048]")
    for name in scenario.sweep.urls:
        levelmap.must_name_a_folder(name, "server", f"{place} urls")
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
    """Return the scenario of one cell: with its lengths, server and setting in `at`, and prompts of its own."""
    workload, target, sim = scenario.workload, scenario.target, scenario.sim
    lengths = {INPUT: at[INPUT], **({OUTPUT: at[OUTPUT]} if OUTPUT in at else {INPUTS: at[INPUTS]})}
    workload = msgspec.structs.replace(_with_own_prompts(workload, index), **lengths)
    if SEQS in at:
        sim = msgspec.structs.replace(sim, max_num_seqs=at[SEQS])
    if SERVER in at:
        target = msgspec.structs.replace(target, url=scenario.sweep.urls[at[SERVER]])
    return msgspec.structs.replace(scenario, workload=workload, target=target, sim=sim)


def _with_own_prompts(workload: WorkloadSpec, index: int) -> WorkloadSpec:
    """Return the workload of one of several runs: its seed, if it has one, is no other run's."""
    return msgspec.structs.replace(workload, seed=None if workload.seed is None else workload.seed + index)


# ---- the map -----------------------------------------------------------------------------------------------


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
    resumed: bool = False,
    plan: Planner = plan,
    agreed: Agreed = Agreed(),
    report: Report = lambda _: None,
) -> Swept:
    """Measure every cell of the plan that is made of the scenario; raise HarnessError if none could be measured.

    `resumed`: the map in the folder `out` goes on, with the scenario that it was begun with (`resume.begun_with`).
    Complete cells stay, one that was interrupted is resumed with the bounds that it had, and one that failed is tried
    again. `report` is called with each cell's outcome when it ends, to write the files for people. A cell on a public
    host is confirmed like any run, unless that is `agreed`.
    """
    scenario = experiment.seeded(scenario)
    planned, created = plan(scenario), datetime.now(UTC)
    created_iso = created.isoformat(timespec="seconds")
    session = Session(created=created_iso, command=command)
    if resumed:
        folder = Path(out or "")
        with folders.claimed(folder):
            campaign = _MapCampaign(planned, scenario, folder, report, _going_on(folder, planned, session))
            if levelmap.is_map(folder):
                cells, signalled = levelmap.read(folder).cells, ExitStatus.SIGNALLED
                campaign.known = {
                    cell.name: cell for cell in cells if cell.status is not None and cell.status < signalled
                }
            return _whole(campaign, view, command, agreed)
    shown = scenarios.shown(scenario, scenarios.secrets(scenario, os.environ))
    manifest = MapManifest(
        name=scenario.name,
        created=created_iso,
        command=command,
        harness_version=__version__,
        scenario=shown,
        scenario_digest=scenarios.digest(shown),
        sessions=[session],
        **planned.described,
    )
    with folders.new(out, scenario.name, created, series.has_folders, (folders.MANIFEST, levelmap.MAP)) as folder:
        return _whole(_MapCampaign(planned, scenario, folder, report, manifest), view, command, agreed)


def _going_on(folder: Path, planned: Plan, session: Session) -> MapManifest:
    """Return the manifest of a map to resume, with one more session; raise HarnessError if it cannot be resumed."""
    files.must_be_files(folder, (folders.MANIFEST, levelmap.MAP, *levelmap.FOR_PEOPLE))  # before the load
    for cell in planned.cells:
        if os.path.lexists(folder / cell.name):
            files.must_be_files(folder / cell.name, folders.WRITTEN)
    manifest = result.read_manifest(folder)
    assert isinstance(manifest, MapManifest)  # its scenario sweeps
    result.must_go_on(folder, manifest)  # another process may have ended it since its scenario was read
    return msgspec.structs.replace(manifest, sessions=[*manifest.sessions, session])


def _whole(campaign: _MapCampaign, view: View, command: str, agreed: Agreed) -> Swept:
    """Measure the cells that a map lacks, write the map and its manifest, and return them with the exit status."""
    folder = campaign.folder
    files.write_json(folder / folders.MANIFEST, campaign.manifest)
    campaign.write()
    signalled = series.measure(campaign, view, command, agreed)
    level_map = campaign.map(ended=not signalled)
    files.write_json(folder / levelmap.MAP, level_map)
    files.write_json(folder / folders.MANIFEST, msgspec.structs.replace(campaign.manifest, complete=level_map.complete))
    statuses = [ExitStatus.MISTAKE if cell.error else cell.status or ExitStatus.DONE for cell in level_map.cells]
    return Swept(folder, level_map, gravest([signalled, *statuses]))


class _MapCampaign:
    """The cells of a map, and what is known of them."""

    def __init__(self, plan: Plan, scenario: Scenario, folder: Path, report: Report, manifest: MapManifest) -> None:
        self.plan, self.folder, self.report, self.manifest = plan, folder, report, manifest
        self.slo_fail = scenario.ramp.slo_fail
        self.hidden = scenarios.secrets(scenario, os.environ)
        self.known: dict[str, MeasuredCell] = {}  # cells that need no further run, by name

    def due(self) -> Planned | None:
        """Return the next cell to measure, with its part of the time, requests and money left; None if none is left.

        A cell that has not begun is recorded as left out once the map's budget is spent.
        """
        while waiting := [cell for cell in self.plan.cells if cell.name not in self.known]:
            cell, ramp = waiting[0], waiting[0].scenario.ramp
            if not self.plan.each_alone:
                so_far = spent(self.known.values())
                over = Budget(ramp, so_far).over()
                if over is not None and not has_begun(self.folder / cell.name):
                    self._put(MeasuredCell(name=cell.name, at=cell.at, left_out=f"{over} by the cells before"))
                    continue
                ramp = left_to(ramp, so_far, len(waiting))
            scenario = msgspec.structs.replace(cell.scenario, ramp=ramp)
            note = f"cell {self.plan.cells.index(cell) + 1} of {len(self.plan.cells)}: {cell.name}"
            return Planned(cell.name, note, partial(self.plan.serving, cell, scenario))
        return None

    def ended(self, run: Planned, result: Outcome | HarnessError, seconds: float) -> None:
        """Enter a cell's result or failure into the map; raise the failure if nothing was measured before it."""
        cell = next(each for each in self.plan.cells if each.name == run.name)
        if isinstance(result, HarnessError):
            if not (self.plan.each_alone or self.has_measured()):
                raise result
            entry = MeasuredCell(name=cell.name, at=cell.at, error=series.reason_of(result, self.hidden))
        else:
            self.report(result)
            about = result.manifest
            self.manifest = msgspec.structs.replace(
                self.manifest, model=about.model, gpu=about.gpu, simulated=result.summary.simulated, unit=about.unit
            )
            entry = measured(cell, result)
        self._put(costed(entry, self.folder / cell.name, cell))

    def has_measured(self) -> bool:
        return any(cell.status is not None for cell in self.known.values())

    def _put(self, cell: MeasuredCell) -> None:
        self.known[cell.name] = cell
        self.write()

    def write(self) -> None:
        files.write_json(self.folder / levelmap.MAP, self.map(ended=False))

    def map(self, *, ended: bool) -> Map:
        """Return the map of the cells measured so far, complete if it has `ended` and no cell failed.

        `ended`: no other cell is to be measured.
        """
        cells = [self.known[cell.name] for cell in self.plan.cells if cell.name in self.known]
        return Map(
            name=self.manifest.name or "",
            created=self.manifest.created,
            model=self.manifest.model or None,
            gpu=self.manifest.gpu or None,
            simulated=self.manifest.simulated or False,
            unit=self.manifest.unit or Unit.OUTPUT_TOKENS.value,
            complete=ended and not any(cell.error for cell in cells),
            axes=self.plan.axes,
            cells=cells,
        )


def gravest(statuses: Sequence[int]) -> int:
    """Return the exit status of the map: a signal's above all, then 3 (rests on an invalid level), 1, 99 and 0.

    >>> gravest([0, 99, 3, 0]), gravest([0, 1, 99]), gravest([130, 3]), gravest([])
    (3, 1, 130, 0)
    """
    return max(statuses, key=lambda each: each if each >= ExitStatus.SIGNALLED else _GRAVITY.index(each), default=0)


# ---- the entries of the map --------------------------------------------------------------------------------


def spent(cells: Iterable[MeasuredCell]) -> Spent:
    """Return what these cells used of the map's bounds."""
    cost = sum(cell.dollars or 0.0 for cell in cells)
    return Spent(sum(cell.seconds for cell in cells), sum(cell.requests for cell in cells), cost)


def left_to(ramp: Ramp, so_far: Spent, cells: int) -> Ramp:
    """Return the ramp of the next of `cells` cells, with an equal part of the time, requests and money left.

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


def costed(cell: MeasuredCell, folder: Path, planned: Cell) -> MeasuredCell:
    """Return the cell with its seconds, requests and dollars, from its folder; unchanged if it loaded nothing."""
    if not has_begun(folder):
        return cell
    run = Result.open(folder)
    usage = sum(map(Usage.of, run.records), Usage())
    loaded = run.manifest.loaded
    seconds = sum((run.last_s if each.ended_s is UNSET else each.ended_s) - (each.began_s or 0.0) for each in loaded)
    cost = dollars(planned.scenario.hardware, seconds, usage)
    return msgspec.structs.replace(cell, seconds=seconds, requests=len(run.records), dollars=cost)


def has_begun(folder: Path) -> bool:
    """Return whether a run has begun to load in a folder."""
    return folder.is_dir() and bool(result.read_manifest(folder).sessions)
