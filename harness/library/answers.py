"""What follows from results: the curve, stacks against each other, whether thresholds are met, and replicas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness.analysis import curve, seats
from harness.analysis.curve import Fit, Point, points_of
from harness.analysis.points import foreign_point
from harness.analysis.seats import Occupancy
from harness.base import units
from harness.base.errors import HarnessError, nearest
from harness.decide.check import decision, expression, figures, sides
from harness.decide.check.expression import Threshold
from harness.decide.compare import comparison, fairness, runs
from harness.decide.compare.comparison import Comparison
from harness.decide.levels import each_once
from harness.decide.plan import capacity, replicas
from harness.decide.plan import plan as plans
from harness.decide.plan.plan import Plan
from harness.decide.plan.question import Demand, Prices, Question, Reserve
from harness.library.measurement import Measurement, load
from harness.results import readers
from harness.results.readers import table
from harness.results.readers.level import ForeignResult
from harness.spec.work import Unit


class Measured(NamedTuple):
    """Points to fit, what they count per second, what another tool's file lacks, and what shows the seats."""

    points: list[Point]
    unit: Unit
    about: str = ""
    occupancies: Sequence[Occupancy] = ()


def fit(source: str | Path | Measurement | Iterable[Sequence[float]], *, seed: int = 0, format: str = "") -> Fit:
    """Return the curve and its knees: `.curve` and `.knees`, as in summary.json.

    The source is a result folder, a measurement, another tool's file or a folder of such files, a CSV, or pairs of
    concurrency and output tokens per second, with one standard error as a third figure where it is known. `seed` is
    that of the drawn curves, and `format` names the file's format where its content does not say it.
    """
    if isinstance(source, Measurement):
        return fitted(_of_run(source), seed)
    if isinstance(source, str | Path):
        return fitted(read(str(source), format=format), seed)
    return curve.fit([_point(row) for row in source], seed=seed)


def fitted(measured: Measured, seed: int = 0) -> Fit:
    """Return the curve and its knees, with the seats where the levels show them."""
    found = curve.fit(measured.points, seed=seed)
    knees = msgspec.structs.replace(found.knees, seats=seats.as_value(seats.find(measured.occupancies)))
    return msgspec.structs.replace(found, knees=knees)


def read(source: str, *more: str, format: str = "") -> Measured:
    """Read the levels of a result folder, or of another tool's files and folders of files as those of one curve."""
    sources = (source, *more)
    if not any(runs.is_run(each) for each in sources):
        files = [(each, runs.read_foreign(each, format)) for each in sources]
        place = ", ".join(sources)
        return of_foreign(readers.joined(files, place) if more else files[0][1], place)
    if more:
        raise HarnessError("a result folder is fitted alone", place=", ".join(sources), way_out="give one")
    return _of_run(load(source))


def of_foreign(foreign: ForeignResult, place: str) -> Measured:
    """Return the levels of another tool's closed loop; raise HarnessError if it has none."""
    levels = readers.closed_loop(foreign, place)
    rated = sum(1 for level in foreign.levels if level.rate and level.output_tokens_per_s)
    about = [] if foreign.source == table.PLAIN else [f"from {foreign.source}", *foreign.lacks]
    if foreign.simulated:
        about.insert(1, "simulated: no GPU was measured")
    if rated:
        about.append(f"{rated} level{'s' * (rated != 1)} at fixed rates left out")
    points = [foreign_point(C, level) for C, _, level in levels]
    occupied = [each for C, _, level in levels if (each := seats.occupancy_of_file(C, level)) is not None]
    return Measured(points, Unit.OUTPUT_TOKENS, "; ".join(about), occupied)


def _of_run(run: Measurement) -> Measured:
    levels = [level for level in run.summary.levels if level.throughput.mean]
    return Measured(points_of(levels), Unit(run.summary.unit), occupancies=seats.occupancies(levels))


def _point(row: Sequence[float]) -> Point:
    figures = [float(each) for each in row]
    if len(figures) not in (2, 3) or not all(math.isfinite(figure) and figure > 0 for figure in figures):
        way_out = "give (concurrency, output tokens per second) or a standard error as well, each above 0"
        raise HarnessError(f"{row!r} is no point", place="fit", way_out=way_out)
    return Point(figures[0], None, figures[1], figures[2] if len(figures) == 3 else None)


def compare(*stacks: str | Path, vary: str = "", force: bool = False, format: str = "") -> Comparison:
    """Return the comparison, as in comparison.json.

    Each stack is a result folder, or another tool's file or a folder of them, with its name in front where it needs
    one: "vllm=results/a". Several of one name are its repeats. `vary` names all that may differ of how servers are set
    up, and `force` ranks although something else does. `format` names the files' format, where their content does not
    say it. Raise HarnessError if nothing can be compared.
    """
    found = runs.labelled([str(stack) for stack in stacks], format)
    return comparison.compare(found, vary=fairness.varied(vary), forced=force)


# ---- decisions ------------------------------------------------------------------------------------------------------

_TABLES = {"demand": Demand, "reserve": Reserve, "prices": Prices}
_OF = {field: name for name, table in _TABLES.items() for field in table.__struct_fields__}
_SHORT = {"rps": "requests_per_s", "price": "gpu_hour", "think_time": "think_s"}
Source = str | Path | Measurement


def plan(source: Source, *, slo: str | Mapping[str, float] | None = None, by: str | None = None, **asked: Any) -> Plan:
    """Return how many replicas a demand needs and what they cost, as in plan.json.

    `source` is a run on one replica. What is asked has its name in `question` of plan.json: `requests_per_s` or `users`
    with `think_s`, `gpu_hour` in USD, `utilization`; `rps` and `price` are short for the first two amounts.
    `slo` takes the place of the run's limits. Raise HarnessError for what is not known or contradicts itself.
    """
    tables: dict[str, dict[str, Any]] = {name: {} for name in _TABLES}
    for name, value in asked.items():
        field = _SHORT.get(name, name)
        if field not in _OF:
            raise HarnessError(f"no field of a plan: {name}", place="plan", way_out=nearest(name, [*_OF, *_SHORT]))
        tables[_OF[field]][field] = value
    made = {name: _TABLES[name](**fields) for name, fields in tables.items()}
    question = Question(by=by, **made)  # type: ignore[arg-type]  # before the work that takes time
    traffic = tables["demand"].get("traffic")
    shape = replicas.read_traffic(traffic) if traffic is not None else None
    limits = units.slo(slo, "slo") if isinstance(slo, str) else slo
    return plans.make(capacity.read(_place(source), limits), question, shape)


def check(
    *sources: Source, thresholds: str | Sequence[str], baseline: Source | Sequence[Source] = ()
) -> decision.Report:
    """Return whether results meet thresholds, like "plateau >= 1500": `.outcome` is met, missed or unresolved.

    Several sources are repeats of one run, and so are several baselines. Raise HarnessError for a threshold that no
    result can meet or miss.
    """
    wanted = [expression.parse(text) for text in ([thresholds] if isinstance(thresholds, str) else thresholds)]
    baselines = [baseline] if isinstance(baseline, str | Path | Measurement) else baseline
    if not wanted:
        raise HarnessError("no threshold is given", place="check", way_out="give thresholds='plateau >= 1500'")
    places = ([_place(each) for each in some] for some in (sources, baselines))
    return decided([(each, "thresholds") for each in wanted], *places)


def decided(
    wanted: Sequence[tuple[Threshold, str]], sources: Sequence[str], baselines: Sequence[str]
) -> decision.Report:
    """Return whether folders meet thresholds, each with the place where it is given."""
    figures.must_be_decidable(wanted, baseline=bool(baselines))
    read = [[run for place in each_once(some) for run in sides.read(place)] for some in (sources, baselines)]
    return decision.decide([each for each, _ in wanted], *read)


def _place(source: Source) -> str:
    return str(source.path if isinstance(source, Measurement) else source)
