"""The level map as a figure and a table: one knee a cell, beside it the plateau, and over it the predicted hinge.

Two axes are a heat map, a third makes small multiples, one alone is a line. Cells are of one size and token counts
double from cell to cell or thereabouts, so both directions are logarithmic: where KV memory binds, the predicted hinge
is constant along P + G/2, and falls to half where that doubles.

The contours come from the model on a finer grid than was measured, made again from what the first prediction assumed,
and only where that gives the prediction itself at the place it was made for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness import files
from harness.errors import HarnessError
from harness.predict import catalog, model, roofline
from harness.report.format import MISSING, flat, interval, number, plain
from harness.report.page import literal
from harness.report.plots import BLUE, ORANGE, png
from harness.results import levelmap
from harness.results.levelmap import INPUT, OUTPUT, SEQS, SERVER, Axis, Map, Measured
from harness.summary import Prediction, Value
from harness.terminal import cut

_INK, _SOFT, _AMBER = "#1b2430", "#5b6673", "#8a5d00"  # as in report.plots
_PALE, _DEEP = "#e9f1f8", "#0b3a5e"  # the ends of the colours, BLUE between them
_NAMES = {INPUT: "input tokens P", OUTPUT: "output tokens G", SEQS: "max_num_seqs", SERVER: "server"}
_FINE = 30  # places along each direction of the predicted grid

Hinge = Callable[[float, float], float | None]


# What is drawn


def varying(map_: Map) -> list[Axis]:
    """The axes with more than one value, in the map's order."""
    return [axis for axis in map_.axes if len(axis.values) > 1]


def predicted_hinge(prediction: Prediction) -> Hinge | None:
    """The predicted hinge at any (P, G), from what a prediction assumed; None where it cannot be made again.

    None for a (P, G) that does not fit into the KV cache.
    """
    assumed = prediction.assumptions
    figures: dict[str, Any] = {
        field: value
        for name, field in (
            ("mbu", "mbu"), ("mfu_prefill", "mfu_prefill"), ("mfu_decode", "mfu_decode"), ("speed", "speed"),
            ("layer_overhead_s", "o_layer"), ("step_overhead_s", "o_step"), ("request_overhead_s", "o_req"),
            ("api_overhead_s", "o_api"), ("gpu_memory_utilization", "gpu_memory_utilization"),
        )
        if (value := getattr(assumed, name)) is not None
    }  # fmt: skip
    if assumed.kv_tokens is not None:
        figures["kv_tokens"] = int(assumed.kv_tokens)
    seqs = prediction.caps.get("max_num_seqs")
    if seqs is not None:
        figures["max_num_seqs"] = int(seqs)
    try:
        served = model.model(catalog.model_config(prediction.model), prediction.model)
        where = roofline.deployment(catalog.gpu(prediction.gpu), gpus=prediction.gpus, **figures)
    except HarnessError:  # a config.json that is gone, or a model that needs more than its name
        return None

    def hinge(P: float, G: float) -> float | None:
        try:
            return roofline.predict(served, where, roofline.Workload(P, G), [1]).hinge_concurrency
        except HarnessError:
            return None

    again, said = hinge(prediction.input_tokens, prediction.output_tokens), prediction.hinge_concurrency
    agrees = again is not None and said is not None and math.isclose(again, said, rel_tol=1e-6)
    return hinge if agrees else None


def tokens_at(values: Sequence[int], position: float) -> float:
    """Tokens at a place along an axis whose cells are centred on 0, 1, 2, …: straight in their logarithm.

    >>> [round(tokens_at([128, 256, 1024], p)) for p in (0, 0.5, 1, 1.5, 2.5)]
    [128, 181, 256, 512, 2048]
    """
    if len(values) == 1:
        return float(values[0])
    left = min(max(math.floor(position), 0), len(values) - 2)
    low, high = values[left], values[left + 1]
    return float(low * (high / low) ** (position - left))


def contour_levels(low: float, high: float) -> list[float]:
    """Hinges that get a contour, each twice the one before, strictly between two; with halves where they are few.

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
        """Least and largest hinge; (nan, nan) where there is none."""
        found = [value for row in self.hinge for value in row if not math.isnan(value)]
        return (min(found), max(found)) if found else (math.nan, math.nan)


def predicted_grid(map_: Map, x: Axis, y: Axis, fixed: dict[str, int | str]) -> Grid | None:
    """The predicted hinge over both axes of tokens: on a fine grid, else that of the cells; None without predictions.

    None too where one axis is a setting of the server: between two of those there is nothing.
    """
    if {x.name, y.name} != {INPUT, OUTPUT}:
        return None
    cells = {
        (column, row): map_.cell(fixed | {x.name: across, y.name: up})
        for column, across in enumerate(x.values)
        for row, up in enumerate(y.values)
    }
    made = {place: cell.prediction for place, cell in cells.items() if cell is not None and cell.prediction is not None}
    if not made:
        return None
    hinge = predicted_hinge(next(iter(made.values())))
    if hinge is not None:
        across, up = _steps(len(x.values)), _steps(len(y.values))
        columns = [tokens_at(_counts(x), position) for position in across]
        rows = [tokens_at(_counts(y), position) for position in up]
        turned = x.name == OUTPUT
        pairs = [[(row, column) if turned else (column, row) for column in columns] for row in rows]
        return Grid(across, up, [[_or_nan(hinge(P, G)) for P, G in row] for row in pairs])
    if len(x.values) < 2 or len(y.values) < 2:
        return None
    at = [[made.get((i, j)) for i in range(len(x.values))] for j in range(len(y.values))]
    coarse = [[_or_nan(each.hinge_concurrency if each else None) for each in row] for row in at]
    return Grid([float(i) for i in range(len(x.values))], [float(j) for j in range(len(y.values))], coarse)


def _steps(cells: int) -> list[float]:
    """Positions across so many cells, edge to edge."""
    return [-0.5 + cells * i / _FINE for i in range(_FINE + 1)]


def _counts(axis: Axis) -> list[int]:
    return [int(value) for value in axis.values]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


class Box(msgspec.Struct, frozen=True):
    """What a cell says: its figure and what stands under it; `value` None is hatched, or empty where nothing ran."""

    value: float | None
    words: str
    below: str
    measured: bool


def knee_box(cell: Measured | None) -> Box:
    """The measured knee, "≈" before one that is provisional; "not reached" is an answer, "failed" is none."""
    return _box(cell, cell.knee if cell else None, whole=False, provisional=_provisional(cell))


def _provisional(cell: Measured | None) -> bool:
    """Whether the cell's knee is the hinge of a plateau that is not sure to be reached."""
    return cell is not None and cell.plateau_reached is False and cell.knee is not None and cell.knee == cell.hinge


def _knee_box_told(cell: Measured | None) -> Box:
    """The measured knee with the predicted hinge in words, where no contour can say it."""
    box, made = knee_box(cell), cell.prediction if cell else None
    if made is None or made.hinge_concurrency is None or not box.measured:
        return box
    told = f"predicted {number(made.hinge_concurrency)}"
    return msgspec.structs.replace(box, below=f"{box.below}\n{told}" if box.below else told)


def plateau_box(cell: Measured | None) -> Box:
    """The plateau in output tokens/s, where it was reached; "≈" before one that is provisional as the knee is."""
    provisional = _provisional(cell)
    shown = cell is not None and (cell.plateau_reached or provisional)
    return _box(cell, cell.plateau_tokens_per_s if cell and shown else None, whole=True, provisional=provisional)


def _box(cell: Measured | None, value: Value | None, *, whole: bool, provisional: bool) -> Box:
    if cell is None or cell.status is None:
        return Box(None, "failed" if cell is not None and cell.error else "not measured", "", False)
    if value is None or value.value is None:
        return Box(None, "not\nreached", "", True)
    mark = " ✗" if cell.status == 3 else ""
    figure = number(round(value.value) if whole else value.value)
    return Box(value.value, f"{'≈' * provisional}{figure}{mark}", interval(value.ci95), True)


# map.md


def table(map_: Map) -> str:
    """The map as Markdown, for map.md beside map.png: a line a cell."""
    settings = [axis.name for axis in map_.axes if axis.name in (SEQS, SERVER)]
    where = [INPUT, OUTPUT, *settings]
    heads = [_NAMES[name] for name in where]
    heads += ["knee", "95 %", "plateau tok/s", "95 %", "predicted hinge", "predicted tok/s", "bound by", "status", ""]
    rows = [[literal(head) for head in heads], ["---:"] * (len(heads) - 1) + ["---"]]
    for cell in map_.cells:
        figures = [flat(cell.at.get(name)) for name in where] + _row(cell)
        rows.append([*(literal(figure) for figure in figures), _link(cell)])
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    title, below = _subject(map_)
    failed = [
        f"- {literal(plain(cell.name))}: {literal(plain(cell.error or cell.left_out))}"
        for cell in map_.cells
        if cell.error or cell.left_out
    ]
    missing = math.prod(len(axis.values) for axis in map_.axes) - len(map_.cells)
    parts = [
        f"# {literal(title)}",
        literal(below),
        "> **SIMULATED**: no GPU was measured; agreement with the prediction is there by construction."
        if map_.simulated
        else "",
        "" if map_.complete or not missing else f"The map ended early: {missing} cells are missing.",
        "![Measured knee of every cell](map.png)",
        lines,
        "\n".join(failed),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(cell: Measured) -> list[str]:
    knee, plateau, made = knee_box(cell), plateau_box(cell), cell.prediction
    return [
        knee.words.replace("\n", " "),
        knee.below or MISSING,
        plateau.words.replace("\n", " ") if cell.status is not None else MISSING,
        plateau.below or MISSING,
        number(made.hinge_concurrency if made else None),
        number(round(made.plateau_tokens_per_s.mid) if made else None),
        flat(made.binding_cap if made else None),
        flat(cell.status),
    ]


def _link(cell: Measured) -> str:
    """The cell's name, which leads to its report where there is one and the name is one that a sweep gives."""
    name = literal(plain(cell.name))
    if cell.status is None or levelmap.FOLDER.fullmatch(cell.name) is None:
        return name
    return f"[{name}]({cell.name}/report.md)"


def _subject(map_: Map) -> tuple[str, str]:
    """A title and a line under it; what is unknown is left out."""
    facts = [plain(map_.model or ""), plain(map_.gpu or ""), plain(map_.created or "")]
    return (
        f"{plain(map_.name)}: knee by {_joined([_NAMES[axis.name] for axis in varying(map_) or map_.axes])}",
        " · ".join(fact for fact in facts if fact),
    )


def _joined(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1]


# map.png

_CELL_W, _CELL_H, _WIDEST = 0.98, 0.66, 7.0  # inches
_LEFT, _RIGHT, _TOP, _BOTTOM, _GAP_X, _GAP_Y = 0.85, 0.3, 1.05, 0.9, 0.75, 0.8  # inches


def map_png(map_: Map, path: Path | str) -> None:
    """Write the map as a PNG: measured knee and plateau over the axes that vary, the predicted hinge as contours."""
    axes = varying(map_)
    if len(axes) == 1:
        _line_png(map_, axes[0], path)
        return
    tokens = [axis for axis in axes if axis.name in (INPUT, OUTPUT)]
    settings = [axis for axis in axes if axis.name in (SEQS, SERVER)]
    x, y, *rest = [*tokens, *settings] if axes else [_only(map_, INPUT), _only(map_, OUTPUT)]
    third = rest[0] if rest else None
    panels = [{third.name: value} for value in third.values] if third else [{}]
    _heat_png(map_, x, y, panels, path)


def _only(map_: Map, name: str) -> Axis:
    """The one value of an axis that does not vary."""
    return Axis(name, list(dict.fromkeys(cell.at[name] for cell in map_.cells)) or [0])


def _heat_png(map_: Map, x: Axis, y: Axis, panels: Sequence[dict[str, int | str]], path: Path | str) -> None:
    across, up = len(x.values), len(y.values)
    width = max(2.9, min(_WIDEST, _CELL_W * across))
    height = max(1.9, min(_WIDEST, _CELL_H * up))
    several = len(panels) > 1
    columns, rows = (len(panels), 2) if several else (2, 1)
    size = (
        _LEFT + columns * width + (columns - 1) * _GAP_X + _RIGHT,
        _TOP + rows * height + (rows - 1) * _GAP_Y + _BOTTOM,
    )
    figure = _figure(map_, size)
    small = min(width / across / _CELL_W, height / up / _CELL_H, 1.0)
    drawn: set[str] = set()
    knee = knee_box if {x.name, y.name} == {INPUT, OUTPUT} else _knee_box_told
    told = (("knee, requests in flight", knee), ("plateau, output tok/s", plateau_box))
    for kind, (title, box) in enumerate(told):
        boxes = [
            {
                (i, j): box(map_.cell(fixed | {x.name: a, y.name: b}))
                for i, a in enumerate(x.values)
                for j, b in enumerate(y.values)
            }
            for fixed in panels
        ]
        values = [each.value for panel in boxes for each in panel.values() if each.value]
        span = (min(values), max(values)) if values else (1.0, 1.0)
        for index, (fixed, panel) in enumerate(zip(panels, boxes, strict=True)):
            column, row = (index, kind) if several else (kind, 0)
            left = _LEFT + column * (width + _GAP_X)
            bottom = size[1] - _TOP - height - row * (height + _GAP_Y)
            axes = figure.add_axes((left / size[0], bottom / size[1], width / size[0], height / size[1]))
            drawn |= _panel(axes, panel, span, small)
            grid = predicted_grid(map_, x, y, fixed) if kind == 0 else None
            if grid is not None and _contours(axes, grid, small):
                drawn.add("contour")
            _dress(axes, x, y, bare_x=row < rows - 1, bare_y=column > 0 and several)
            axes.set_title(f"{title}, {flat(fixed)}" if several else title, fontsize=9.5, color=_INK, loc="left", pad=6)
    _legend(figure, map_, drawn, size)
    files.write(Path(path), png(figure))


def _panel(axes: Any, boxes: dict[tuple[int, int], Box], span: tuple[float, float], small: float) -> set[str]:
    """The cells of one panel, each coloured by its figure, and that written into it; which kinds of cell there are."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    colours = LinearSegmentedColormap.from_list("knee", [_PALE, BLUE, _DEEP])
    low, high = span
    kinds = set()
    for (i, j), box in boxes.items():
        shade: Any = "white"
        ink, hatch = _SOFT, ""
        if box.value:
            share = 0.5 if high == low else math.log(box.value / low) / math.log(high / low)
            shade, ink = colours(0.04 + 0.8 * share), "white" if share > 0.38 else _INK
        elif box.measured:
            hatch, shade = "////", "#f4f5f7"
            kinds.add("hatched")
        else:
            kinds.add("empty")
        place = Rectangle((i - 0.5, j - 0.5), 1, 1, facecolor=shade, edgecolor="#c9ced6", lw=0, hatch=hatch, zorder=1)
        axes.add_patch(place)
        lines = box.below.count("\n") + 1 if box.below else 0
        around = [withStroke(linewidth=3, foreground=shade)]
        said: dict[str, Any] = {"ha": "center", "va": "center", "color": ink, "zorder": 4, "parse_math": False}
        axes.text(
            i, j + 0.12 * lines, box.words, linespacing=1.0, fontsize=(11 if box.value else 8) * max(small, 0.62),
            fontweight="bold" if box.value else "normal", path_effects=around, **said,
        )  # fmt: skip
        if box.below:
            axes.text(i, j - 0.2, box.below, fontsize=7.5 * max(small, 0.62), path_effects=around, **said)
    return kinds


def _contours(axes: Any, grid: Grid, small: float) -> bool:
    """The predicted hinge as lines, each with its number where it is in no cell's way; False where it is the same."""
    from matplotlib.patheffects import withStroke

    levels = contour_levels(*grid.range)
    if not levels:
        return False
    lines = axes.contour(
        grid.x, grid.y, grid.hinge, levels=levels, colors=ORANGE, linewidths=1.6, linestyles=[(0, (4, 2))], zorder=3
    )
    lines.set_path_effects([withStroke(linewidth=2.8, foreground="white", alpha=0.55)])
    across, up = grid.x[0] + grid.x[-1], grid.y[0] + grid.y[-1]
    inside = [max(grid.x) - 0.12, max(grid.y) - 0.12, across - max(grid.x) + 0.12, up - max(grid.y) + 0.12]
    for level, path in zip(levels, lines.get_paths(), strict=True):
        found = [(x, y) for x, y in path.vertices.tolist() if inside[2] < x < inside[0] and inside[3] < y < inside[1]]
        if found:
            x, y = max(found, key=lambda point: _clear(*point))
            axes.text(
                x, y, number(level), fontsize=8 * max(small, 0.75), color=_AMBER, ha="center", va="center", zorder=5,
                bbox={"facecolor": "white", "edgecolor": "none", "boxstyle": "round,pad=0.18"},
            )  # fmt: skip
    return True


def _clear(x: float, y: float) -> float:
    """How far a place lies from what the nearest cell says, which is wide and not high: its rows' edges are free."""
    return max(0.7 * abs(x - round(x)), abs(y - round(y)))


def _dress(axes: Any, x: Axis, y: Axis, *, bare_x: bool, bare_y: bool) -> None:
    axes.set_xlim(-0.5, len(x.values) - 0.5)
    axes.set_ylim(-0.5, len(y.values) - 0.5)
    axes.set_xticks(range(len(x.values)), [flat(value) for value in x.values], parse_math=False)
    axes.set_yticks(range(len(y.values)), [flat(value) for value in y.values], parse_math=False)
    axes.tick_params(colors=_SOFT, labelsize=9, length=0, pad=4)
    for edge in range(1, len(x.values)):
        axes.axvline(edge - 0.5, color="white", lw=1.5, zorder=2)
    for edge in range(1, len(y.values)):
        axes.axhline(edge - 0.5, color="white", lw=1.5, zorder=2)
    for spine in axes.spines.values():
        spine.set_color("#b6bec8")
    if not bare_x:
        axes.set_xlabel(_NAMES[x.name], fontsize=9.5, color=_SOFT, labelpad=5)
    if not bare_y:
        axes.set_ylabel(_NAMES[y.name], fontsize=9.5, color=_SOFT, labelpad=5)


def _line_png(map_: Map, axis: Axis, path: Path | str) -> None:
    """One axis: knee and plateau with their intervals, and the predicted ones as a line."""
    width, height = 4.3, 3.0
    size = (_LEFT + 2 * width + _GAP_X + _RIGHT, _TOP + height + _BOTTOM)
    figure = _figure(map_, size)
    cells = [map_.cell({axis.name: value}) for value in axis.values]
    drawn: set[str] = set()
    for kind, title in enumerate(("knee, requests in flight", "plateau, output tok/s")):
        left = _LEFT + kind * (width + _GAP_X)
        axes = figure.add_axes((left / size[0], _BOTTOM / size[1], width / size[0], height / size[1]))
        boxes = [(knee_box, plateau_box)[kind](cell) for cell in cells]
        found = [(cell.knee, cell.plateau_tokens_per_s)[kind] if cell else None for cell in cells]
        top = 0.0
        for position, (box, value) in enumerate(zip(boxes, found, strict=True)):
            if box.value is None or value is None:
                drawn.add("word")
                axes.text(
                    position, 0.02, box.words.replace("\n", " "), transform=axes.get_xaxis_transform(), rotation=90,
                    ha="center", va="bottom", fontsize=8.5, color=_SOFT,
                )  # fmt: skip
                continue
            low, high = (end if end is not None else box.value for end in value.ci95 or (None, None))
            drawn.add("point")
            axes.errorbar(
                [position], [box.value], yerr=[[max(0.0, box.value - low)], [max(0.0, high - box.value)]], fmt="o",
                ms=6, mew=1.4, capsize=3, elinewidth=1.1, color=BLUE, zorder=4,
            )  # fmt: skip
            axes.annotate(
                box.words, (position, box.value), xytext=(8, 6), textcoords="offset points", fontsize=8.5, color=_INK
            )
            top = max(top, high)
        line = _predicted_line(axis, cells, plateau=bool(kind))
        if line:
            drawn.add("line")
            axes.plot(*zip(*line, strict=True), color=ORANGE, lw=1.4, ls=(0, (4, 2)), zorder=2)
            top = max([top, *(value for _, value in line)])
        axes.set_ylim(0, 1.14 * (top or 1.0))
        axes.set_xlim(-0.5, len(axis.values) - 0.5)
        axes.set_xticks(range(len(axis.values)), [flat(value) for value in axis.values], parse_math=False)
        axes.tick_params(colors=_SOFT, labelsize=9, length=3, width=0.8)
        axes.yaxis.set_major_formatter(lambda value, _: number(round(value, 6)))
        axes.grid(axis="y", color="#e6e9ed", lw=0.8)
        axes.set_axisbelow(True)
        for name, spine in axes.spines.items():
            spine.set_visible(name in ("left", "bottom"))
            spine.set_color("#b6bec8")
        axes.set_xlabel(_NAMES[axis.name], fontsize=9.5, color=_SOFT, labelpad=5)
        axes.set_title(title, fontsize=9.5, color=_INK, loc="left", pad=8)
    _legend(figure, map_, drawn, size)
    files.write(Path(path), png(figure))


def _predicted_line(axis: Axis, cells: Sequence[Measured | None], *, plateau: bool) -> list[tuple[float, float]]:
    """Predicted hinge or plateau along one axis as (position, value): of the cells, the hinge finer where it can be."""
    made = [(position, cell.prediction) for position, cell in enumerate(cells) if cell and cell.prediction]
    if not made:
        return []
    hinge = None if plateau or axis.name not in (INPUT, OUTPUT) else predicted_hinge(made[0][1])
    if hinge is None:
        values = [(float(at), x.plateau_tokens_per_s.mid if plateau else x.hinge_concurrency) for at, x in made]
        return [(at, value) for at, value in values if value is not None]
    P, G = made[0][1].input_tokens, made[0][1].output_tokens
    along = [(position, tokens_at(_counts(axis), position)) for position in _steps(len(axis.values))]
    found = [(position, hinge(n, G) if axis.name == INPUT else hinge(P, n)) for position, n in along]
    return [(position, value) for position, value in found if value is not None]


def _figure(map_: Map, size: tuple[float, float]) -> Any:
    """An empty figure with its heading."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    title, below = _subject(map_)
    head: dict[str, Any] = {"va": "center", "parse_math": False}
    room = size[0] - (1.5 if map_.simulated else 0.4)
    figure.text(
        0.22 / size[0],
        1 - 0.26 / size[1],
        cut(title, int(room * 7.4)),
        fontsize=14,
        fontweight="bold",
        color=_INK,
        **head,
    )
    figure.text(0.22 / size[0], 1 - 0.54 / size[1], cut(below, int(size[0] * 13)), fontsize=9.5, color=_SOFT, **head)
    if map_.simulated:
        figure.text(
            1 - 0.22 / size[0], 1 - 0.26 / size[1], "SIMULATED", fontsize=9.5, fontweight="bold", color=_INK,
            ha="right", va="center", bbox={"facecolor": "#ffd84d", "edgecolor": "none", "boxstyle": "round,pad=0.4"},
        )  # fmt: skip
    return figure


def _legend(figure: Any, map_: Map, drawn: set[str], size: tuple[float, float]) -> None:
    """What the marks mean, at the foot; only those that were drawn."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    names: list[str] = []
    dashed = Line2D([], [], color=ORANGE, lw=1.6, ls=(0, (4, 2)))
    for kind, handle, name in (
        ("point", Line2D([], [], marker="o", ms=6, ls="", color=BLUE), "measured, 95 % interval"),
        ("contour", dashed, "predicted hinge"),
        ("line", dashed, "predicted"),
        ("hatched", Patch(facecolor="#f4f5f7", edgecolor="#c9ced6", hatch="////", lw=0), "plateau not reached"),
    ):
        if kind in drawn:
            handles.append(handle)
            names.append(name)
    tokens = all(axis.name in (INPUT, OUTPUT) for axis in varying(map_))
    same = _same_everywhere(map_) if tokens and not drawn & {"contour", "line"} else ""
    if same:
        figure.text(1 - 0.22 / size[0], 0.2 / size[1], same, fontsize=8.5, color=_AMBER, ha="right", va="center")
    if handles:
        figure.legend(
            handles, names, loc="lower left", bbox_to_anchor=(0.16 / size[0], 0.04 / size[1]), ncols=len(handles),
            fontsize=8.5, labelcolor=_INK, frameon=False, handlelength=2.2, borderaxespad=0.2,
        )  # fmt: skip


def _same_everywhere(map_: Map) -> str:
    """In words what has no contour: one predicted hinge for all cells."""
    made = [cell.prediction for cell in map_.cells if cell.prediction is not None]
    hinges = sorted({each.hinge_concurrency for each in made if each.hinge_concurrency is not None})
    if not hinges:
        return ""
    bounds = sorted({flat(each.binding_cap) for each in made})
    return f"predicted hinge {', '.join(number(each) for each in hinges)} ({', '.join(bounds)})"
