"""The level map as a document: knee and plateau of every cell, over two axes as heat maps, along one as charts.

A third axis makes a heat map for each of its values. Rows have the largest y first, and shades are even in the
logarithm of the figure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from harness.base import ExitStatus
from harness.data.views import Value
from harness.report.chart import Chart, Datum, Guide, Scale, Series
from harness.report.document import Column, Document, FileLink, Section, Shaded
from harness.report.facts import BY_CONSTRUCTION
from harness.report.format import MISSING, flat, interval, listed, number, plain
from harness.results import levelmap
from harness.results.levelmap import BALANCE, INPUT, INPUTS, OUTPUT, REPEAT, SEQS, SERVER, Axis, Map, MeasuredCell
from harness.spec.work import Unit

_NAMES = {
    INPUT: "input tokens P",
    OUTPUT: "output tokens G",
    INPUTS: "inputs a request",
    SEQS: "max_num_seqs",
    SERVER: "server",
    REPEAT: "repeat",
    BALANCE: "balance",
}
_SETTINGS = (REPEAT, SEQS, SERVER, BALANCE)  # axes that are no tokens


class Figure(msgspec.Struct, frozen=True):
    """A figure of a cell with its interval, in words too; without a value the words say why."""

    value: float | None
    words: str
    ci95: tuple[float | None, float | None] | None = None

    @property
    def interval(self) -> str:
        return interval(self.ci95)


def knee(cell: MeasuredCell | None) -> Figure:
    """Return the measured knee, "≈" before a provisional one; else "not reached", "not measured" or "failed"."""
    return _figure(cell, cell.knee if cell else None, provisional=_provisional(cell))


def plateau(cell: MeasuredCell | None) -> Figure:
    """Return the plateau in output tokens/s, if it was reached; "≈" before a provisional one."""
    provisional = _provisional(cell)
    reached = cell is not None and (cell.plateau_reached or provisional)
    return _figure(cell, cell.plateau_tokens_per_s if cell and reached else None, whole=True, provisional=provisional)


def _provisional(cell: MeasuredCell | None) -> bool:
    """Return whether the cell's knee is the hinge of a provisional plateau."""
    return cell is not None and cell.plateau_reached is False and cell.knee is not None and cell.knee == cell.hinge


def _figure(cell: MeasuredCell | None, value: Value | None, *, provisional: bool, whole: bool = False) -> Figure:
    if cell is None or cell.status is None:
        return Figure(None, "failed" if cell is not None and cell.error else "not measured")
    if value is None or value.value is None:
        return Figure(None, "not reached")
    mark = " ✗" if cell.status == ExitStatus.UNSETTLED else ""
    words = number(round(value.value) if whole else value.value)
    return Figure(value.value, f"{'≈' * provisional}{words}{mark}", value.ci95)


_FIGURES = (("Knee, requests in flight", knee), ("Plateau", plateau))


def report(map_: Map) -> Document:
    """Return the report of a level map: charts or heat maps over its axes, and a table with a row for every cell."""
    axes = [axis for axis in map_.axes if len(axis.values) > 1]
    facts = [plain(map_.model or ""), plain(map_.gpu or ""), plain(map_.created or "")]
    missing = math.prod(len(axis.values) for axis in map_.axes) - len(map_.cells)
    early = "" if map_.complete or not missing else f"The map ended early: {missing} cells are missing."
    failed = [
        f"{plain(cell.name)}: {plain(cell.error or cell.left_out)}"
        for cell in map_.cells
        if cell.error or cell.left_out
    ]
    maps = [Section("Along the axis", charts=_charts(map_, axes[0]))] if len(axes) == 1 else []
    maps += _heat_maps(map_, axes) if len(axes) > 1 else []
    cells = Section("Cells", columns=_columns(map_))
    return Document(
        title=f"{plain(map_.name)}: knee by {listed([_NAMES[axis.name] for axis in axes or map_.axes])}",
        subtitle=" · ".join(fact for fact in facts if fact),
        answer="level map",
        simulated=f"no GPU was measured; {BY_CONSTRUCTION}." if map_.simulated else "",
        sections=[Section(note=early), *maps, cells, Section(lines=failed)],
        source="map.json",
        again="knee report DIR",
    )


def _columns(map_: Map) -> list[Column]:
    """Return the table of all cells: settings, knee, plateau, prediction, start times and status of each."""
    cells = map_.cells
    knees, plateaus, made = map(knee, cells), map(plateau, cells), [cell.prediction for cell in cells]
    settings = [axis.name for axis in map_.axes if axis.name in _SETTINGS]
    second = OUTPUT if map_.unit == Unit.OUTPUT_TOKENS else INPUTS
    lengths = [] if REPEAT in settings else [INPUT, second]  # a comparison has one workload
    starts = [(cell.start_to_ready_s, cell.first_answer_s) for cell in cells]
    return [
        *(Column(_NAMES[name], [flat(cell.at.get(name)) for cell in cells]) for name in (*lengths, *settings)),
        *_figure_columns("knee", list(knees)),
        *_figure_columns("plateau tok/s", list(plateaus)),
        Column("predicted hinge", [number(each.hinge_concurrency if each else None) for each in made]),
        Column("predicted tok/s", [number(round(each.plateau_tokens_per_s.mid) if each else None) for each in made]),
        Column("bound by", [flat(each.binding_cap if each else None) for each in made]),
        *([Column("ready s", [number(ready) for ready, _ in starts])] if any(ready for ready, _ in starts) else []),
        *([Column("first answer s", [number(s) for _, s in starts])] if any(s for _, s in starts) else []),
        Column("status", [flat(cell.status) for cell in cells]),
        Column("", [_link(cell) for cell in cells], words=True),
    ]


def _figure_columns(head: str, figures: Sequence[Figure]) -> list[Column]:
    intervals = Column("95 %", [figure.interval or MISSING for figure in figures])
    return [Column(head, [figure.words for figure in figures]), intervals]


def _link(cell: MeasuredCell) -> str | FileLink:
    """Return a link to the cell's report, or only its name if it has none or the name is no folder of a sweep."""
    name = plain(cell.name)
    if cell.status is None or levelmap.FOLDER.fullmatch(cell.name) is None:
        return name
    return FileLink(name, f"{cell.name}/report")


# ---- heat maps as tables ---------------------------------------------------------------------------------------------


def _heat_maps(map_: Map, axes: Sequence[Axis]) -> list[Section]:
    """Return tables, shaded by value, of knee and of plateau over two axes, one for each setting of the other axes."""
    x, y, *others = sorted(axes, key=lambda axis: axis.name in _SETTINGS)
    settings = [
        dict(zip([axis.name for axis in others], values, strict=True))
        for values in itertools.product(*(axis.values for axis in others))
    ]
    sections = []
    for title, figure in _FIGURES:
        tables = [
            [[figure(map_.cell(fixed | {x.name: a, y.name: b})) for b in y.values[::-1]] for a in x.values]
            for fixed in settings
        ]
        known = [each.value for table in tables for column in table for each in column if each.value]
        span = (min(known), max(known)) if known else (1.0, 1.0)
        unit = f", {map_.per_s}" if figure is plateau else ""
        for fixed, table in zip(settings, tables, strict=True):
            columns = [
                Column(f"{_NAMES[x.name]}\n{flat(value)}", [_shaded(each, span) for each in column])
                for value, column in zip(x.values, table, strict=True)
            ]
            names = Column(_NAMES[y.name], [flat(value) for value in y.values[::-1]], words=True)
            sections.append(Section(f"{title}{unit}{f', {flat(fixed)}' if fixed else ''}", columns=[names, *columns]))
    return sections


def _shaded(figure: Figure, span: tuple[float, float]) -> Shaded:
    words = f"{figure.words} ({figure.interval})" if figure.interval else figure.words
    if not figure.value:
        return Shaded(words, None)
    low, high = span
    return Shaded(words, 0.5 if high == low else math.log(figure.value / low) / math.log(high / low))


# ---- along one axis --------------------------------------------------------------------------------------------------


def _charts(map_: Map, axis: Axis) -> list[Chart]:
    """Return the charts of knee and plateau along an axis, measured with intervals and predicted."""
    cells = [map_.cell({axis.name: value}) for value in axis.values]
    made = [(float(at), cell.prediction) for at, cell in enumerate(cells) if cell and cell.prediction]
    hinges = [(at, each.hinge_concurrency) for at, each in made if each.hinge_concurrency is not None]
    plateaus = [(at, each.plateau_tokens_per_s.mid) for at, each in made]
    charts = [
        _chart("knee", "knee, requests in flight", axis, [knee(cell) for cell in cells], hinges),
        _chart("plateau", f"plateau, {map_.per_s}", axis, [plateau(cell) for cell in cells], plateaus),
    ]
    return [chart for chart in charts if chart.series]


def _chart(
    name: str, label: str, axis: Axis, figures: Sequence[Figure], predicted: Sequence[tuple[float, float]]
) -> Chart:
    """Return the chart of a figure over an axis: measured with intervals, or in words if missing, and predicted."""
    points, words = [], []
    for at, figure in enumerate(figures):
        if figure.value is None:
            words.append(Guide(at=at, tone="cap", label=figure.words, low=True))
            continue
        low, high = (figure.value if end is None else end for end in figure.ci95 or (None, None))
        points.append(Datum(at, figure.value, min(low, figure.value), max(high, figure.value), label=figure.words))
    line = [Datum(at, each) for at, each in predicted]
    top = max([0.0, *(point.high or 0.0 for point in points), *(point.y for point in line)])
    series = [
        Series(name="measured, 95 % interval", tone="measured", points=points, marker="dot"),
        Series(name="predicted", tone="predicted", points=line, line="dashed"),
    ]
    ticks = [(float(i), flat(value)) for i, value in enumerate(axis.values)]
    return Chart(
        name=name,
        x=Scale(label=_NAMES[axis.name], ends=(-0.5, len(ticks) - 0.5), ticks=ticks),
        y=Scale(label=label, ends=(0, 1.14 * (top or 1.0))),
        series=[each for each in series if each.points],
        guides=words,
    )
