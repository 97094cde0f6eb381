"""The level map as a document and as panels: knee and plateau of every cell, with contours of the predicted hinge.

Two axes make a heat map, a third makes small multiples, a single one makes a line. All cells have one size while token
counts about double from cell to cell, so both directions are logarithmic. Where KV memory limits the batch, the
predicted hinge is constant along P + G/2, and halves where that doubles.

Contours are computed on a finer grid than was measured, where the model can be evaluated again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from harness.data.views import Value
from harness.predict.question import predicted_hinge
from harness.report import claims
from harness.report.chart import Chart, Datum, Guide, Scale, Series
from harness.report.document import Column, Document, FileLink, Section, Shaded
from harness.report.facts import BY_CONSTRUCTION
from harness.report.format import MISSING, flat, interval, listed, number, plain
from harness.results import levelmap
from harness.results.levelmap import INPUT, INPUTS, OUTPUT, REPEAT, SEQS, SERVER, Axis, Map, MeasuredCell
from harness.spec.work import Unit

_NAMES = {
    INPUT: "input tokens P",
    OUTPUT: "output tokens G",
    INPUTS: "inputs a request",
    SEQS: "max_num_seqs",
    SERVER: "server",
    REPEAT: "repeat",
}
_SETTINGS = (REPEAT, SEQS, SERVER)  # axes that are no tokens
_FINE = 30  # places along each direction of the predicted grid


def varying(map_: Map) -> list[Axis]:
    """Return the axes with more than one value, in the map's order."""
    return [axis for axis in map_.axes if len(axis.values) > 1]


def tokens_at(values: Sequence[int], position: float) -> float:
    """Return tokens at a place along an axis whose cells are centred on 0, 1, 2, …: straight in their logarithm.

    >>> [round(tokens_at([128, 256, 1024], p)) for p in (0, 0.5, 1, 1.5, 2.5)]
    [128, 181, 256, 512, 2048]
    """
    if len(values) == 1:
        return float(values[0])
    left = min(max(math.floor(position), 0), len(values) - 2)
    low, high = values[left], values[left + 1]
    return float(low * (high / low) ** (position - left))


def contour_levels(low: float, high: float) -> list[float]:
    """Return the hinges that get a contour, each twice the one before, between two; with halves if fewer than 3.

    >>> contour_levels(11, 130), contour_levels(20, 70), contour_levels(17, 17)
    ([16.0, 32.0, 64.0, 128.0], [24.0, 32.0, 48.0, 64.0], [])
    """
    if not 0 < low < high:
        return []
    powers = [2.0**k for k in range(math.floor(math.log2(low)) - 1, math.ceil(math.log2(high)) + 1)]
    levels = [x for x in powers if low < x < high]
    if len(levels) < 3:
        levels = sorted(x for x in (*powers, *(1.5 * each for each in powers)) if low < x < high)
    return levels


class Grid(msgspec.Struct, frozen=True):
    """A predicted hinge for places between the cells: rows from bottom to top, nan where requests do not fit."""

    x: list[float]  # positions, cells being centred on 0, 1, 2, …
    y: list[float]
    hinge: list[list[float]]

    @property
    def range(self) -> tuple[float, float]:
        """Return the least and the largest hinge; (nan, nan) where there is none."""
        found = [value for row in self.hinge for value in row if not math.isnan(value)]
        return (min(found), max(found)) if found else (math.nan, math.nan)


def predicted_grid(map_: Map, x: Axis, y: Axis, fixed: dict[str, int | str]) -> Grid | None:
    """Return the predicted hinge over both axes of tokens: on a fine grid, else that of the cells; None without any.

    None too where one axis is a setting of the server: between two of those there is nothing.
    """
    if {x.name, y.name} != {INPUT, OUTPUT}:
        return None
    rows = [[map_.cell(fixed | {x.name: across, y.name: up}) for across in x.values] for up in y.values]
    made = [[cell.prediction if cell else None for cell in row] for row in rows]
    first = next((each for row in made for each in row if each), None)
    hinge = predicted_hinge(first) if first else None
    if hinge is not None:
        columns, lines = _between(x), _between(y)
        pairs = [[(a, b) if x.name == INPUT else (b, a) for _, a in columns] for _, b in lines]
        fine = [[_or_nan(hinge(P, G)) for P, G in row] for row in pairs]
        return Grid([position for position, _ in columns], [position for position, _ in lines], fine)
    if first is None or len(x.values) < 2 or len(y.values) < 2:
        return None
    coarse = [[_or_nan(each.hinge_concurrency if each else None) for each in row] for row in made]
    return Grid([float(i) for i in range(len(x.values))], [float(j) for j in range(len(y.values))], coarse)


def _between(axis: Axis) -> list[tuple[float, float]]:
    """Return places across an axis' cells, edge to edge, and the tokens there."""
    cells, counts = len(axis.values), [int(value) for value in axis.values]
    places = [-0.5 + cells * i / _FINE for i in range(_FINE + 1)]
    return [(place, tokens_at(counts, place)) for place in places]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


class Box(msgspec.Struct, frozen=True):
    """The text of a cell, in one line or two; `value` None is hatched, or empty where nothing ran."""

    value: float | None
    words: str
    detail: str
    measured: bool


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """Cells of one figure over two axes, by their places, and the predicted hinge over them."""

    title: str
    x: Scale
    y: Scale
    boxes: dict[tuple[int, int], Box]
    span: tuple[float, float]  # least and largest figure of all panels that share their colours
    grid: Grid | None


class Panels(msgspec.Struct, frozen=True, kw_only=True):
    """The whole map: rows of panels below a heading."""

    title: str
    subtitle: str
    simulated: bool
    rows: Sequence[Sequence[Heat | Chart]]
    same: str  # the predicted hinge where it is one for all cells, and could have no contour


def knee_box(cell: MeasuredCell | None) -> Box:
    """Return the measured knee, "≈" before a provisional one; else "not reached", "not measured" or "failed"."""
    return _box(cell, cell.knee if cell else None, whole=False, provisional=_provisional(cell))


def _provisional(cell: MeasuredCell | None) -> bool:
    """Return whether the cell's knee is the hinge of a provisional plateau."""
    return cell is not None and cell.plateau_reached is False and cell.knee is not None and cell.knee == cell.hinge


def _knee_box_predicted(cell: MeasuredCell | None) -> Box:
    """Return the measured knee and the predicted hinge, for panels without contours."""
    box, prediction = knee_box(cell), cell.prediction if cell else None
    if prediction is None or prediction.hinge_concurrency is None or not box.measured:
        return box
    predicted = f"predicted {number(prediction.hinge_concurrency)}"
    return msgspec.structs.replace(box, detail=f"{box.detail}\n{predicted}" if box.detail else predicted)


def plateau_box(cell: MeasuredCell | None) -> Box:
    """Return the plateau in output tokens/s, where it was reached; "≈" before a provisional one."""
    provisional = _provisional(cell)
    shown = cell is not None and (cell.plateau_reached or provisional)
    return _box(cell, cell.plateau_tokens_per_s if cell and shown else None, whole=True, provisional=provisional)


def _box(cell: MeasuredCell | None, value: Value | None, *, whole: bool, provisional: bool) -> Box:
    if cell is None or cell.status is None:
        return Box(None, "failed" if cell is not None and cell.error else "not measured", "", False)
    if value is None or value.value is None:
        return Box(None, "not\nreached", "", True)
    mark = " ✗" if cell.status == 3 else ""
    figure = number(round(value.value) if whole else value.value)
    return Box(value.value, f"{'≈' * provisional}{figure}{mark}", interval(value.ci95), True)


def report(map_: Map) -> Document:
    """Return the map as a document, with a row for every cell and map.png as its picture."""
    title, subtitle = _subject(map_)
    missing = math.prod(len(axis.values) for axis in map_.axes) - len(map_.cells)
    early = "" if map_.complete or not missing else f"The map ended early: {missing} cells are missing."
    failed = [
        f"{plain(cell.name)}: {plain(cell.error or cell.left_out)}"
        for cell in map_.cells
        if cell.error or cell.left_out
    ]
    picture = Section(picture="map.png", alt="Measured knee of every cell", columns=_columns(map_))
    return Document(
        title=title,
        subtitle=subtitle,
        simulated=f"no GPU was measured; {BY_CONSTRUCTION}." if map_.simulated else "",
        sections=[Section(note=early), picture, Section(lines=claims.lines(map_)), Section(lines=failed)],
        source="map.json",
        again="knee report DIR",
    )


def _columns(map_: Map) -> list[Column]:
    cells = map_.cells
    knees, plateaus = [knee_box(cell) for cell in cells], [plateau_box(cell) for cell in cells]
    made = [cell.prediction for cell in cells]
    settings = [axis.name for axis in map_.axes if axis.name in _SETTINGS]
    lengths = [] if REPEAT in settings else [INPUT, _second(map_)]  # a comparison has one workload
    starts = [(cell.start_to_ready_s, cell.first_answer_s) for cell in cells]
    return [
        *(Column(_NAMES[name], [flat(cell.at.get(name)) for cell in cells]) for name in (*lengths, *settings)),
        Column("knee", [box.words for box in knees]),
        Column("95 %", [box.detail or MISSING for box in knees]),
        Column("plateau tok/s", [box.words if box.measured else MISSING for box in plateaus]),
        Column("95 %", [box.detail or MISSING for box in plateaus]),
        Column("predicted hinge", [number(each.hinge_concurrency if each else None) for each in made]),
        Column("predicted tok/s", [number(round(each.plateau_tokens_per_s.mid) if each else None) for each in made]),
        Column("bound by", [flat(each.binding_cap if each else None) for each in made]),
        *([Column("ready s", [number(ready) for ready, _ in starts])] if any(ready for ready, _ in starts) else []),
        *([Column("first answer s", [number(s) for _, s in starts])] if any(s for _, s in starts) else []),
        Column("status", [flat(cell.status) for cell in cells]),
        Column("", [_link(cell) for cell in cells], words=True),
    ]


def _link(cell: MeasuredCell) -> str | FileLink:
    """Return the cell's name; a link to its report where there is one and a sweep made the name."""
    name = plain(cell.name)
    if cell.status is None or levelmap.FOLDER.fullmatch(cell.name) is None:
        return name
    return FileLink(name, f"{cell.name}/report")


def _subject(map_: Map) -> tuple[str, str]:
    """Return a title and a line under it; what is unknown is left out."""
    facts = [plain(map_.model or ""), plain(map_.gpu or ""), plain(map_.created or "")]
    return (
        f"{plain(map_.name)}: knee by {listed([_NAMES[axis.name] for axis in varying(map_) or map_.axes])}",
        " · ".join(fact for fact in facts if fact),
    )


_KNEE, _PLATEAU = "knee, requests in flight", "plateau"


def panels(map_: Map) -> Panels:
    """Return measured knee and plateau over the axes that vary: cells over two, a third as panels, one as points."""
    axes = varying(map_)
    title, subtitle = _subject(map_)
    tokens = [axis for axis in axes if axis.name in (INPUT, OUTPUT, INPUTS)]
    settings = [axis for axis in axes if axis.name in _SETTINGS]
    rows: Sequence[Sequence[Heat | Chart]]
    if len(axes) == 1:
        rows = [[_points(map_, axes[0], plateau=plateau) for plateau in (False, True)]]
    else:
        x, y, *third = [*tokens, *settings] if axes else _of_one_cell(map_)
        settings_of: list[dict[str, int | str]] = [{axis.name: value} for axis in third[:1] for value in axis.values]
        knees, plateaus = (_cells(map_, x, y, settings_of or [{}], plateau=plateau) for plateau in (False, True))
        rows = [knees, plateaus] if third else [[*knees, *plateaus]]
    same = _same_everywhere(map_) if len(tokens) == len(axes) else ""
    return Panels(title=title, subtitle=subtitle, simulated=map_.simulated, rows=rows, same=same)


def _second(map_: Map) -> str:
    """Return the axis that goes with the length of the prompts."""
    return OUTPUT if map_.unit == Unit.OUTPUT_TOKENS else INPUTS


def _of_one_cell(map_: Map) -> list[Axis]:
    """Return the axes of a map of which none varies: the lengths, or of a comparison its own."""
    if REPEAT in [axis.name for axis in map_.axes]:
        return list(map_.axes)
    return [_only(map_, INPUT), _only(map_, _second(map_))]


def _only(map_: Map, name: str) -> Axis:
    """Return the one value of an axis that does not vary."""
    return Axis(name, list(dict.fromkeys(cell.at[name] for cell in map_.cells)) or [0])


def _cells(map_: Map, x: Axis, y: Axis, panels: Sequence[dict[str, int | str]], *, plateau: bool) -> list[Heat]:
    """Return the knee, or the plateau, of all cells: a panel for each setting that is fixed in it."""
    contours = not plateau and {x.name, y.name} == {INPUT, OUTPUT}
    box = plateau_box if plateau else knee_box if contours else _knee_box_predicted
    title = f"{_PLATEAU}, {map_.per_s}" if plateau else _KNEE
    places = [(i, j) for i in range(len(x.values)) for j in range(len(y.values))]
    boxes = [
        {(i, j): box(map_.cell(fixed | {x.name: x.values[i], y.name: y.values[j]})) for i, j in places}
        for fixed in panels
    ]
    values = [each.value for panel in boxes for each in panel.values() if each.value]
    return [
        Heat(
            title=f"{title}, {flat(fixed)}" if fixed else title,
            x=_axis(x, named=plateau or not fixed),
            y=_axis(y, named=fixed == panels[0]),
            boxes=panel,
            span=(min(values), max(values)) if values else (1.0, 1.0),
            grid=predicted_grid(map_, x, y, fixed) if contours else None,
        )
        for fixed, panel in zip(panels, boxes, strict=True)
    ]


def _axis(axis: Axis, *, named: bool = True) -> Scale:
    """Return the scale of an axis of cells; not `named` where the next panel has the same one."""
    names = [(float(i), flat(value)) for i, value in enumerate(axis.values)]
    return Scale(label=_NAMES[axis.name] if named else "", ends=(-0.5, len(names) - 0.5), ticks=names)


def _points(map_: Map, axis: Axis, *, plateau: bool) -> Chart:
    """Return the knee, or the plateau, along one axis with its interval, and the predicted one as a line."""
    cells = [map_.cell({axis.name: value}) for value in axis.values]
    points, words = [], []
    for position, cell in enumerate(cells):
        box = plateau_box(cell) if plateau else knee_box(cell)
        value = (cell.plateau_tokens_per_s if plateau else cell.knee) if cell else None
        if box.value is None or value is None:
            label = box.words.replace("\n", " ")
            words.append(Guide(at=position, tone="cap", label=label, low=True))
            continue
        low, high = (box.value if end is None else end for end in value.ci95 or (None, None))
        points.append(Datum(position, box.value, min(low, box.value), max(high, box.value), label=box.words))
    line = [Datum(x, y) for x, y in _predicted_line(axis, cells, plateau=plateau)]
    top = max([0.0, *(point.high or 0.0 for point in points), *(point.y for point in line)])
    series = [
        Series(name="measured, 95 % interval", tone="measured", points=points, marker="dot"),
        Series(name="predicted", tone="predicted", points=line, line="dashed"),
    ]
    return Chart(
        name="plateau" if plateau else "knee",
        x=_axis(axis),
        y=Scale(label=f"{_PLATEAU}, {map_.per_s}" if plateau else _KNEE, ends=(0, 1.14 * (top or 1.0))),
        series=[each for each in series if each.points],
        guides=words,
    )


def _predicted_line(axis: Axis, cells: Sequence[MeasuredCell | None], *, plateau: bool) -> list[tuple[float, float]]:
    """Return predicted hinge or plateau along an axis as (position, value): of the cells, the hinge finer if it can."""
    made = [(position, cell.prediction) for position, cell in enumerate(cells) if cell and cell.prediction]
    if not made:
        return []
    hinge = None if plateau or axis.name not in (INPUT, OUTPUT) else predicted_hinge(made[0][1])
    if hinge is None:
        values = [(float(at), x.plateau_tokens_per_s.mid if plateau else x.hinge_concurrency) for at, x in made]
        return [(at, value) for at, value in values if value is not None]
    P, G = made[0][1].input_tokens, made[0][1].output_tokens
    found = [(place, hinge(n, G) if axis.name == INPUT else hinge(P, n)) for place, n in _between(axis)]
    return [(place, value) for place, value in found if value is not None]


def _same_everywhere(map_: Map) -> str:
    """Return the predicted hinge in words where all cells have the same one, which has no contour."""
    made = [cell.prediction for cell in map_.cells if cell.prediction is not None]
    hinges = sorted({each.hinge_concurrency for each in made if each.hinge_concurrency is not None})
    if not hinges:
        return ""
    bounds = sorted({flat(each.binding_cap) for each in made})
    return f"predicted hinge {', '.join(number(each) for each in hinges)} ({', '.join(bounds)})"


# ---- heat maps as tables ---------------------------------------------------------------------------------------------


def with_heat(document: Document, whole: Panels) -> Document:
    """Return a level map's report with its heat maps before its table of cells, for a page and a terminal."""
    found = [panel for row in whole.rows for panel in row]
    charts = [panel for panel in found if isinstance(panel, Chart) and panel.series]
    maps = [panel for panel in found if isinstance(panel, Heat)]
    x = next((panel.x.label for panel in maps if panel.x.label), "")  # panels share their axes' names
    y = next((panel.y.label for panel in maps if panel.y.label), "")
    heads = [Section("Along the axis", charts=charts)] if charts else []
    heads += [Section(panel.title[:1].upper() + panel.title[1:], columns=heat_table(panel, x, y)) for panel in maps]
    early, cells, *rest = document.sections
    cells = msgspec.structs.replace(cells, title="Cells", picture="")
    return msgspec.structs.replace(document, answer="level map", sections=[early, *heads, cells, *rest])


def heat_table(panel: Heat, x: str, y: str) -> list[Column]:
    """Return a column for each value of x, and rows with the largest y first; shades are even in the logarithm."""
    low, high = panel.span
    rows = list(enumerate(name for _, name in panel.y.ticks))[::-1]

    def cell(box: Box) -> Shaded:
        detail = box.detail.replace("\n", "; ")
        words = box.words.replace("\n", " ") + (f" ({detail})" if detail else "")
        share = None
        if box.value:
            share = 0.5 if high == low else math.log(box.value / low) / math.log(high / low)
        return Shaded(words, share)

    columns = [
        Column(f"{x}\n{name}", [cell(panel.boxes[i, j]) for j, _ in rows]) for i, (_, name) in enumerate(panel.x.ticks)
    ]
    return [Column(y, [name for _, name in rows], words=True), *columns]
