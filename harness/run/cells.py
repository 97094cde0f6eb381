"""The cells of a level map: one run for each combination of the axes, what it found, and what it cost."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from harness.base import files
from harness.base.errors import HarnessError
from harness.data.judgement import rank
from harness.data.manifest import StackStart
from harness.data.summary import Summary, Value
from harness.results import folder as folders
from harness.results import levelmap, result
from harness.results.levelmap import INPUT, INPUTS, OUTPUT, SEQS, SERVER, Axis, MeasuredCell
from harness.results.result import Result
from harness.run.experiment import Outcome
from harness.search.budget import Budget, Spent, Usage, dollars
from harness.spec import reading
from harness.spec.recipe import Claim
from harness.spec.scenario import Ramp, Scenario, Sweep

if TYPE_CHECKING:
    from harness.run.view import View

_SHORT = {INPUT: "in", OUTPUT: "out", INPUTS: "texts", SEQS: "seqs", SERVER: ""}  # in a cell's name


class Cell(msgspec.Struct, frozen=True):
    """One combination of the axes: its name, its place on the axes, and the scenario of its run."""

    name: str
    at: dict[str, int | str]
    scenario: Scenario


Serving = contextlib.AbstractContextManager[tuple[Scenario, StackStart | None]]


def _as_it_is(cell: Cell, scenario: Scenario, view: View) -> Serving:
    """The endpoint that the scenario names."""
    return contextlib.nullcontext((scenario, None))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a campaign, their axes, and where each of them finds its endpoint."""

    axes: list[Axis]
    cells: list[Cell]
    serving: Callable[[Cell, Scenario, View], Serving] = _as_it_is  # there as long as the cell is measured
    each_alone: bool = False  # each cell has the scenario's bounds for itself, and ends no other by its failure
    claims: list[Claim] = []
    described: dict[str, Any] = {}  # of it in the manifest


def plan(scenario: Scenario) -> Plan:
    """The level map of a scenario."""
    return Plan(cells=planned(scenario), axes=axes(scenario))


def axes(scenario: Scenario) -> list[Axis]:
    """The axes that the scenario sweeps: input, output, texts, server's setting, server; empty for a single run."""
    spec = scenario.sweep
    swept: list[tuple[str, Sequence[int | str]]] = [
        (INPUT, spec.input_tokens), (OUTPUT, spec.output_tokens), (INPUTS, spec.inputs or []),
        (SEQS, spec.max_num_seqs), (SERVER, list(spec.urls)),
    ]  # fmt: skip
    return [Axis(name, list(values)) for name, values in swept if values]


def planned(scenario: Scenario, place: str = "[sweep]") -> list[Cell]:
    """A run for each combination, in the order of the axes; the last axis changes fastest.

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
    """The scenario of one cell."""
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
    """HarnessError where nothing is swept, or a server's name cannot name a folder."""
    if not swept:
        raise HarnessError("nothing is swept", place=place, way_out="write it like input_tokens = [128, 512, 2048]")
    for name in scenario.sweep.urls:
        if not levelmap.FOLDER.fullmatch(name):
            way_out = "letters, digits, '.', '_' and '-', for it names folders"
            raise HarnessError(f"{name!r} cannot name a server", place=f"{place} urls", way_out=way_out)


def spent(cells: Sequence[MeasuredCell]) -> Spent:
    """What these cells used of the map's bounds."""
    cost = sum(cell.dollars or 0.0 for cell in cells)
    return Spent(sum(cell.seconds for cell in cells), sum(cell.requests for cell in cells), cost)


def left_to(ramp: Ramp, so_far: Spent, cells: int) -> Ramp:
    """The ramp of the next of so many cells, bounded by an equal part of what is left of the map's bounds.

    >>> left_to(Ramp(max_seconds=60.0, max_requests=250), Spent(40.0, 100), cells=2).max_requests
    75
    """
    part = Budget(ramp, before=so_far, repeats=cells)
    requests = None if part.requests is None else math.ceil(part.requests)
    return msgspec.structs.replace(ramp, max_seconds=part.seconds, max_requests=requests, max_dollars=part.dollars)


def measured(cell: Cell, outcome: Outcome) -> MeasuredCell:
    """The map's entry of a cell, still without its cost (`costed`)."""
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
    """The codes of all verdicts, the gravest first, each once."""
    found = [*summary.verdicts, *(verdict for level in summary.levels for verdict in level.verdicts)]
    return list(dict.fromkeys(verdict.code for verdict in sorted(found, key=rank)))


def costed(cell: MeasuredCell, folder: Path, of: Cell) -> MeasuredCell:
    """The cell with its cost, read from its folder; a run that loaded nothing cost nothing."""
    if not begun(folder):
        return cell
    run = Result.open(folder)
    usage = sum(map(Usage.of, run.records), Usage())
    loaded = run.manifest.loaded
    seconds = sum((run.last_s if each.ended_s is UNSET else each.ended_s) - (each.began_s or 0.0) for each in loaded)
    cost = dollars(of.scenario.hardware, seconds, usage)
    return msgspec.structs.replace(cell, seconds=seconds, requests=len(run.records), dollars=cost)


def begun(folder: Path) -> bool:
    """Whether a run has begun to load in a folder; what a run killed before that left is removed."""
    if not folder.is_dir():
        return False
    if result.read_manifest(folder).sessions:
        return True
    files.remove(folder, (folders.MANIFEST, *folders.segments(folder).values()))
    files.remove_folder(folder)  # where something else lies in it, `run` says so
    return False
