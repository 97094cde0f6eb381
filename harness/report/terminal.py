"""A document on a terminal of 80 columns or more, and as plain text where it is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from harness.data.judgement import Gravity
from harness.report import document as doc

_STYLES: dict[str, str] = {Gravity.INVALID: "bold red", Gravity.DOUBT: "yellow", Gravity.NOTE: "dim"}
_LONG = 100  # characters of a cell that is folded even in a file
_WIDE = 100  # columns of a terminal from where on a table with spare columns gets wider gaps


def show(document: doc.Document, console: Console) -> None:
    """Print the document on the terminal, without charts and folded sections."""
    if document.simulated:
        _print(Text.assemble(("SIMULATED", "bold black on yellow"), ": ", document.simulated), console)
        console.print()
    if document.title:
        _print(Text(document.title, "bold"), console)
    if document.subtitle:
        _print(Text(document.subtitle, "dim"), console)
    apart = bool(document.title or document.subtitle)
    for section in document.sections:
        parts = _section(section, console)
        if apart and parts:
            console.print()
        for part in parts:
            _print(part, console, folded=not isinstance(part, Text))
        apart = apart or bool(parts)


def _print(part: RenderableType, console: Console, *, folded: bool = True) -> None:
    """Print a part; in a file no line ends in blanks, and only what is `folded` keeps to a width."""
    if console.is_terminal:
        console.print(part)
        return
    with console.capture() as made:
        console.print(part, soft_wrap=not folded)
    console.print(Text("\n".join(line.rstrip() for line in made.get().splitlines())), soft_wrap=True)


def show_paths(paths: Sequence[tuple[str, str | Path]], console: Console) -> None:
    """Print files with their names after an empty line, never folded, so that a path can be copied."""
    if paths:
        console.print()
    width = max((len(label) for label, _ in paths), default=0)
    for label, path in paths:
        console.print(Text.assemble((label.ljust(width), "dim"), "  ", str(path)), soft_wrap=True)


def _section(section: doc.Section, console: Console) -> list[RenderableType]:
    """Return the parts of a section for the terminal: title, facts, table, lines, remarks and note, if any."""
    parts: list[RenderableType] = []
    if section.facts and section.answer:
        parts.append(_folding([(Text(fact.label, "bold"), Text(fact.text)) for fact in section.facts]))
    elif section.facts:
        parts.append(_figures(section.facts) if console.is_terminal else _figure_lines(section.facts))
    if section.columns:
        parts += _table(section, console)
    parts += [Text(line, "" if section.title or i else "bold") for i, line in enumerate(section.lines)]
    if section.remarks:
        rows = [(Text(remark.gravity, _STYLES[remark.gravity]), _remark(remark, console)) for remark in section.remarks]
        parts.append(_folding(rows))
    if section.note:
        parts.append(Text(section.note, "dim"))
    return [Text(section.title, "bold"), *parts] if section.title and parts else parts


def _figures(facts: Sequence[doc.Fact]) -> Table:
    """Return a line for each fact: label, value and detail."""
    grid = Table.grid(padding=(0, 2))
    for fact in facts:
        grid.add_row(Text(fact.label), Text(fact.value, style="bold"), Text(fact.detail, style="dim"))
    return grid


def _figure_lines(facts: Sequence[doc.Fact]) -> Text:
    """Return a line for each fact as text for a file: aligned by blanks, nothing folded, no blanks at line ends."""
    labels = max(cell_len(fact.label) for fact in facts)
    values = max((cell_len(fact.value) for fact in facts if fact.detail), default=0)
    lines = [f"{set_cell_size(fact.label, labels)}  {_padded(fact, values)}".rstrip() for fact in facts]
    return Text("\n".join(lines))


def _padded(fact: doc.Fact, width: int) -> str:
    """Return the value, before a detail as wide as the others that have one."""
    return f"{set_cell_size(fact.value, width)}  {fact.detail}" if fact.detail else fact.value


def _table(section: doc.Section, console: Console) -> list[RenderableType]:
    """Return a section's table; if it is too wide for the terminal, spare columns are left out.

    A table of numbers without spare columns goes on below. One without spare columns is folded in a file, which has no
    width, only where a cell is long.
    """
    columns = section.columns
    spare = sorted((column for column in columns if column.spare), key=lambda column: column.spare)
    gap = 2 if not spare or console.width >= _WIDE else 1
    whole = not spare and not console.is_terminal and max(_widths(columns)) <= _LONG
    while (width := _width(columns, gap)) > console.width and spare:
        columns = [column for column in columns if column is not spare[0]]
        del spare[0]
    if whole:
        console.width = max(console.width, width)
    broken = any("\n" in str(cell) or "\t" in str(cell) for column in columns for cell in column.cells)
    if broken:
        return [_grid(columns, section.void, gap)]
    parts = [columns] if width <= console.width else _parts(columns, console.width, gap)
    aligned = [_aligned(part, _widths(part), section.void, " " * gap) for part in parts]
    return [*aligned] if parts else [_grid(columns, section.void, gap)]


def _parts(columns: Sequence[doc.Column], most: int, gap: int) -> list[list[doc.Column]]:
    """Return the table cut into tables no wider than `most`, each begun with the columns that name its rows.

    [] if one would still be wider, or if a column of words lies behind these: words fold instead.
    """
    named = 1 + next((i for i, column in enumerate(columns[1:]) if not column.words), 0)
    lead, rest = list(columns[:named]), columns[named:]
    if any(column.words for column in rest):
        return []
    parts: list[list[doc.Column]] = []
    for column in rest:
        if parts and _width([*parts[-1], column], gap) <= most:
            parts[-1].append(column)
        else:
            parts.append([*lead, column])
    return parts if all(_width(part, gap) <= most for part in parts) else []


def _width(columns: Sequence[doc.Column], gap: int) -> int:
    return sum(_widths(columns)) + gap * (len(columns) - 1)


def _widths(columns: Sequence[doc.Column]) -> list[int]:
    """Return what each column takes on a terminal, its heading's longer line included."""
    texts = ([*column.head.split("\n"), *map(str, column.cells)] for column in columns)
    return [max(map(cell_len, text)) for text in texts]


def _heads(columns: Sequence[doc.Column]) -> list[str]:
    """Return the headings of two lines, without the first line where the column before has the same one."""
    heads, above = [], ""
    for column in columns:
        first, _, second = column.head.partition("\n")
        heads.append(second if second and first == above else column.head)
        above = first
    return heads


def _aligned(columns: Sequence[doc.Column], widths: Sequence[int], void: frozenset[int], gap: str) -> Text:
    """Return a table that fits the width as one text, padded by hand: rich's grid takes most of a command's time."""
    heads = [head.split("\n") for head in _heads(columns)]
    tall = max(map(len, heads), default=1)
    above = list(zip(*([""] * (tall - len(lines)) + lines for lines in heads), strict=True))
    out = Text()
    for i, cells in enumerate([*above, *doc.rows(columns)]):
        padded = [
            text + spaces if column.words else spaces + text
            for column, width, text in zip(columns, widths, map(str, cells), strict=True)
            for spaces in [" " * (width - cell_len(text))]
        ]
        style = "bold dim" if i < tall else "red" if i - tall in void else ""
        out.append("\n" * bool(i) + gap.join(padded), style)
    return out


def _grid(columns: Sequence[doc.Column], void: frozenset[int], gap: int) -> Table:
    """Return the columns as a table of the terminal, the rows in `void` in red, `gap` blanks between columns."""
    grid = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    upright: Literal["top", "bottom"] = "bottom" if any("\n" in column.head for column in columns) else "top"
    for column, head in zip(columns, _heads(columns), strict=True):
        side: Literal["left", "right"] = "left" if column.words else "right"
        title = Text(head, "dim", justify=side)
        grid.add_column(title, justify=side, no_wrap=not column.words, vertical=upright)
    for i, cells in enumerate(doc.rows(columns)):
        grid.add_row(*(Text(str(cell)) for cell in cells), style="red" if i in void else "")
    return grid


def _folding(rows: Sequence[tuple[Text, Text]]) -> Table:
    """Return a grid of (label, text) rows in which long texts are folded."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def _remark(remark: doc.Remark, console: Console) -> Text:
    """Return a remark with code, place, message and advice; one without a code as one line, cut on a terminal."""
    if not remark.code:
        cut = console.is_terminal
        return Text(remark.message, no_wrap=cut, overflow="ellipsis" if cut else None)
    where = f" at {remark.where}" if remark.where else ""
    text = Text.assemble((remark.code, "bold"), f"{where}: {remark.message}")
    if remark.advice:
        text.append(f"\n→ {remark.advice}", "dim")
    return text
