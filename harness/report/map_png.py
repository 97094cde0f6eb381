"""The level map as a picture, by matplotlib: panels of cells or of points below one heading, one legend at the foot."""

from __future__ import annotations

import math
from typing import Any

from harness.report import png
from harness.report.chart import Chart
from harness.report.format import number
from harness.report.level_map import Box, Grid, Heat, Panels, contour_levels

_PALE, _DEEP = "#e9f1f8", "#0b3a5e"  # the ends of the colours, BLUE between them
_EDGE, _HATCHED = "#c9ced6", "#f4f5f7"
_CELL_W, _CELL_H, _WIDEST = 0.98, 0.66, 7.0  # inches
_LEFT, _RIGHT, _TOP, _BOTTOM, _GAP_X, _GAP_Y = 0.85, 0.3, 1.05, 0.9, 0.75, 0.8  # inches
_CHART = 4.3, 3.0  # inches of a panel of points


def draw(whole: Panels) -> bytes:
    """Draw the map with its heading and its legend."""
    width, height = _panel_size(whole.rows[0][0])
    columns, rows = len(whole.rows[0]), len(whole.rows)
    whole_w = _LEFT + columns * width + (columns - 1) * _GAP_X + _RIGHT
    whole_h = _TOP + rows * height + (rows - 1) * _GAP_Y + _BOTTOM
    paper = png.paper((whole_w, whole_h))
    png.head(paper, whole.title, whole.subtitle, simulated=whole.simulated)
    entries: dict[str, Any] = {}
    for row, panels in enumerate(whole.rows):
        for column, panel in enumerate(panels):
            left, bottom = _LEFT + column * (width + _GAP_X), whole_h - _TOP - height - row * (height + _GAP_Y)
            axes = paper.add_axes((left / whole_w, bottom / whole_h, width / whole_w, height / whole_h))
            if isinstance(panel, Chart):
                entries |= {name: handle for handle, name in png.fill(axes, panel)}
            else:
                small = min(width / len(panel.x.ticks) / _CELL_W, height / len(panel.y.ticks) / _CELL_H, 1.0)
                entries |= _heat(axes, panel, small)
                _frame(axes, panel)
    if whole.same and _CONTOUR not in entries and _PREDICTED not in entries:
        place = 1 - 0.22 / whole_w, 0.2 / whole_h
        paper.text(*place, whole.same, fontsize=8.5, color=png.AMBER, ha="right", va="center", parse_math=False)
    if entries:
        paper.legend(
            entries.values(), entries.keys(), loc="lower left", bbox_to_anchor=(0.16 / whole_w, 0.04 / whole_h),
            ncols=len(entries), fontsize=8.5, labelcolor=png.INK, frameon=False, handlelength=2.2, borderaxespad=0.2,
        )  # fmt: skip
    return png.encoded(paper)


_CONTOUR, _PREDICTED, _NOT_REACHED = "predicted hinge", "predicted", "plateau not reached"  # of the legend


def _panel_size(panel: Heat | Chart) -> tuple[float, float]:
    """Return the inches of a panel: cells of one size as long as there is room."""
    if isinstance(panel, Chart):
        return _CHART
    width, height = _CELL_W * len(panel.x.ticks), _CELL_H * len(panel.y.ticks)
    return max(2.9, min(_WIDEST, width)), max(1.9, min(_WIDEST, height))


def _heat(axes: Any, panel: Heat, small: float) -> dict[str, Any]:
    """Draw all cells, each coloured by its figure, with contours over them; return the legend's entries."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: dict[str, Any] = {}
    colours = LinearSegmentedColormap.from_list("knee", [_PALE, png.BLUE, _DEEP])
    low, high = panel.span
    for place, box in panel.boxes.items():
        if box.value:
            share = 0.5 if high == low else math.log(box.value / low) / math.log(high / low)
            shade: Any = colours(0.04 + 0.8 * share)
            _cell(axes, place, box, small, shade, "white" if share > 0.38 else png.INK)
        else:
            _cell(axes, place, box, small, _HATCHED if box.measured else "white", png.SOFT)
    if panel.grid is not None and _contours(axes, panel.grid, small):
        entries[_CONTOUR] = Line2D([], [], color=png.ORANGE, lw=1.6, ls=png.DASHES["dashed"])
    if any(box.measured and not box.value for box in panel.boxes.values()):
        entries[_NOT_REACHED] = Patch(facecolor=_HATCHED, edgecolor=_EDGE, hatch="////", lw=0)
    return entries


def _cell(axes: Any, place: tuple[int, int], box: Box, small: float, shade: Any, ink: str) -> None:
    """Draw one cell and what is written into it, hatched where it has no figure."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    (i, j), hatch = place, "////" if box.measured and not box.value else ""
    axes.add_patch(Rectangle((i - 0.5, j - 0.5), 1, 1, facecolor=shade, edgecolor=_EDGE, lw=0, hatch=hatch, zorder=1))
    lines = box.detail.count("\n") + 1 if box.detail else 0
    style: dict[str, Any] = {"ha": "center", "va": "center", "color": ink, "zorder": 4, "parse_math": False}
    style["path_effects"] = [withStroke(linewidth=3, foreground=shade)]
    size, weight = (11, "bold") if box.value else (8, "normal")
    axes.text(
        i, j + 0.12 * lines, box.words, linespacing=1.0, fontsize=size * max(small, 0.62), fontweight=weight, **style
    )
    if box.detail:
        axes.text(i, j - 0.2, box.detail, fontsize=7.5 * max(small, 0.62), **style)


def _contours(axes: Any, grid: Grid, small: float) -> bool:
    """Draw the predicted hinge as lines, each with its number in no cell's way; False where it is the same all over."""
    from matplotlib.patheffects import withStroke

    levels = contour_levels(*grid.range)
    if not levels:
        return False
    dashes = [png.DASHES["dashed"]]
    lines = axes.contour(
        grid.x, grid.y, grid.hinge, levels=levels, colors=png.ORANGE, linewidths=1.6, linestyles=dashes, zorder=3
    )
    lines.set_path_effects([withStroke(linewidth=2.8, foreground="white", alpha=0.55)])
    across, up = grid.x[0] + grid.x[-1], grid.y[0] + grid.y[-1]
    inside = [max(grid.x) - 0.12, max(grid.y) - 0.12, across - max(grid.x) + 0.12, up - max(grid.y) + 0.12]
    for level, path in zip(levels, lines.get_paths(), strict=True):
        found = [(x, y) for x, y in path.vertices.tolist() if inside[2] < x < inside[0] and inside[3] < y < inside[1]]
        if found:
            x, y = max(found, key=lambda point: _clear(*point))
            axes.text(
                x, y, number(level), fontsize=8 * max(small, 0.75), color=png.AMBER, ha="center", va="center", zorder=5,
                bbox={"facecolor": "white", "edgecolor": "none", "boxstyle": "round,pad=0.18"},
            )  # fmt: skip
    return True


def _clear(x: float, y: float) -> float:
    """Return the distance of a place from the text of the nearest cell, which is wide and not high."""
    return max(0.7 * abs(x - round(x)), abs(y - round(y)))


def _frame(axes: Any, panel: Heat) -> None:
    """Draw the title, the names of the cells, and white lines between them."""
    png.scale(axes, "x", panel.x)
    png.scale(axes, "y", panel.y)
    axes.tick_params(colors=png.SOFT, labelsize=9, length=0, pad=4)
    for edge in range(1, len(panel.x.ticks)):
        axes.axvline(edge - 0.5, color="white", lw=1.5, zorder=2)
    for edge in range(1, len(panel.y.ticks)):
        axes.axhline(edge - 0.5, color="white", lw=1.5, zorder=2)
    for spine in axes.spines.values():
        spine.set_color(png.LINE)
    axes.set_title(panel.title, fontsize=9.5, color=png.INK, loc="left", pad=6, parse_math=False)
    axes.set_xlabel(panel.x.label, fontsize=9.5, color=png.SOFT, labelpad=5)
    axes.set_ylabel(panel.y.label, fontsize=9.5, color=png.SOFT, labelpad=5)
