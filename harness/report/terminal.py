"""A document on a terminal of 80 columns or more, and as plain text where it is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harness.judgement import Gravity
from harness.report import document as doc

_STYLES: dict[str, str] = {Gravity.INVALID: "bold red", Gravity.DOUBT: "yellow", Gravity.NOTE: "dim"}
_WIDE = 100  # columns of a terminal from where on a table with spare columns gets wider gaps


def show(document: doc.Document, console: Console) -> None:
    """Print the document; charts and what is folded away have no place on a terminal."""
    if document.simulated:
        console.print(Text.assemble(("SIMULATED", "bold black on yellow"), ": ", document.simulated))
        console.print()
    if document.title:
        console.print(Text(document.title, "bold"))
    if document.subtitle:
        console.print(Text(document.subtitle, "dim"))
    apart = bool(document.title or document.subtitle)
    for section in document.sections:
        parts = _section(section, console)
        if apart and parts:
            console.print()
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text) and not console.is_terminal)
        apart = apart or bool(parts)


def show_paths(paths: Sequence[tuple[str, str | Path]], console: Console) -> None:
    """Print files with their names after an empty line, never folded, so that a path can be copied."""
    if paths:
        console.print()
    width = max((len(label) for label, _ in paths), default=0)
    for label, path in paths:
        console.print(Text.assemble((label.ljust(width), "dim"), "  ", str(path)), soft_wrap=True)


def _section(section: doc.Section, console: Console) -> list[RenderableType]:
    """The parts of a section, with its title if there are any; the first line of one without a title is bold."""
    parts: list[RenderableType] = []
    if section.facts and section.answer:
        parts.append(_folding([(Text(fact.label, "bold"), Text(fact.text)) for fact in section.facts]))
    elif section.facts:
        parts.append(_fitted(_figures(section.facts), console))
    if section.columns:
        parts.append(_table(section, console))
    parts += [Text(line, "" if section.title or i else "bold") for i, line in enumerate(section.lines)]
    if section.remarks:
        rows = [(Text(each.gravity, _STYLES[each.gravity]), _remark(each, console)) for each in section.remarks]
        parts.append(_folding(rows))
    if section.note:
        parts.append(Text(section.note, "dim"))
    return [Text(section.title, "bold"), *parts] if section.title and parts else parts


def _figures(facts: Sequence[doc.Fact]) -> Table:
    """A line for each fact: label, value and detail."""
    grid = Table.grid(padding=(0, 2))
    for fact in facts:
        grid.add_row(Text(fact.label), Text(fact.value, style="bold"), Text(fact.detail, style="dim"))
    return grid


def _table(section: doc.Section, console: Console) -> Table:
    """A table; where it is too wide for the terminal, without as many spare columns as needed.

    One without spare columns is never cut in a file, which has no width.
    """
    columns = section.columns
    spare = sorted((column for column in columns if column.spare), key=lambda column: column.spare)
    gap = 2 if not spare or console.width >= _WIDE else 1
    if not spare:
        return _fitted(_grid(columns, section.void, gap), console)
    while True:
        grid = _grid(columns, section.void, gap)
        if not spare or Measurement.get(console, console.options.update(width=1000), grid).maximum <= console.width:
            return grid
        columns = [column for column in columns if column is not spare[0]]
        del spare[0]


def _grid(columns: Sequence[doc.Column], void: frozenset[int], gap: int) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    upright: Literal["top", "bottom"] = "bottom" if any("\n" in column.head for column in columns) else "top"
    above = ""  # the first line of a heading, which is not repeated by the columns after it
    for column in columns:
        side: Literal["left", "right"] = "left" if column.words else "right"
        first, _, second = column.head.partition("\n")
        head = Text(second if second and first == above else column.head, "dim", justify=side)
        above = first
        grid.add_column(head, justify=side, no_wrap=not column.words, vertical=upright)
    for i, cells in enumerate(doc.rows(columns)):
        grid.add_row(*(Text(str(cell)) for cell in cells), style="red" if i in void else "")
    return grid


def _fitted(grid: Table, console: Console) -> Table:
    """The same, its width the console's where that is a file."""
    if not console.is_terminal:
        most = Measurement.get(console, console.options.update(max_width=10_000), grid).maximum
        console.width = max(console.width, most)
    return grid


def _folding(rows: Sequence[tuple[Text, Text]]) -> Table:
    """Labels with their texts, which are folded where they are long."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def _remark(remark: doc.Remark, console: Console) -> Text:
    """A remark in full; one without a code is a line, which a terminal cuts."""
    if not remark.code:
        cut = console.is_terminal
        return Text(remark.message, no_wrap=cut, overflow="ellipsis" if cut else None)
    where = f" at {remark.where}" if remark.where else ""
    text = Text.assemble((remark.code, "bold"), f"{where}: {remark.message}")
    if remark.advice:
        text.append(f"\n→ {remark.advice}", "dim")
    return text
