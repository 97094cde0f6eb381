"""The heat maps of a level map as tables, shaded where the medium has colours, and those of a single axis as charts."""

from __future__ import annotations

import math

import msgspec

from harness.report.chart import Chart
from harness.report.document import Column, Document, Section, Shaded
from harness.report.level_map import Box, Heat, Panels


def with_heat(document: Document, whole: Panels) -> Document:
    """A level map's report with its heat maps before its table of cells, for a page and a terminal."""
    found = [panel for row in whole.rows for panel in row]
    charts = [panel for panel in found if isinstance(panel, Chart) and panel.series]
    maps = [panel for panel in found if isinstance(panel, Heat)]
    x = next((panel.x.label for panel in maps if panel.x.label), "")  # panels share their axes' names
    y = next((panel.y.label for panel in maps if panel.y.label), "")
    heads = [Section("Along the axis", charts=charts)] if charts else []
    heads += [Section(panel.title[:1].upper() + panel.title[1:], columns=table(panel, x, y)) for panel in maps]
    early, cells, *rest = document.sections
    cells = msgspec.structs.replace(cells, title="Cells", picture="")
    return msgspec.structs.replace(document, answer="level map", sections=[early, *heads, cells, *rest])


def table(panel: Heat, x: str, y: str) -> list[Column]:
    """A column for each value of x, and rows with the largest y first; shades are even in the logarithm."""
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
