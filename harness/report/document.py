"""A report as data: a document of sections, which `terminal`, `markdown` and `page` render.

Figures are formatted here already (`format`), so that every rendering has the same digits. Text from outside is on one
line but not escaped: each renderer escapes it for its medium. No colour, no markup, no width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from harness.report.chart import Chart
from harness.report.format import MISSING

SIMULATED = "the simulated endpoint answered. No GPU was measured."


class Fact(msgspec.Struct, frozen=True):
    """One line of an answer: "label: value; detail"."""

    label: str  # a word of ours, never text from outside
    value: str
    detail: str = ""

    @property
    def text(self) -> str:
        return f"{self.value}; {self.detail}" if self.detail else self.value


class FileLink(msgspec.Struct, frozen=True):
    """A cell that links to a report below the document's folder, where the medium has links."""

    text: str
    to: str  # without its ending, which is the medium's

    def __str__(self) -> str:
        return self.text


class Shaded(msgspec.Struct, frozen=True):
    """A cell of a heat map."""

    text: str
    share: float | None  # place between the least and the largest, 0 to 1; None: no figure

    def __str__(self) -> str:
        return self.text


Cell: TypeAlias = str | FileLink | Shaded


class Column(msgspec.Struct, frozen=True):
    """A column of a table: its heading, in one line or two, and its cells, top to bottom."""

    head: str
    cells: Sequence[Cell]
    words: bool = False  # aligned left, as words are; numbers are aligned right
    spare: int = 0  # a narrow terminal leaves out 1 first, then 2, …; 0 never


class Remark(msgspec.Struct, frozen=True):
    """A verdict with everything that it touches: `where` "" is the whole run."""

    gravity: str  # a judgement.Gravity
    code: str
    where: str
    message: str
    advice: str
    brief: str = ""  # what and where in one line, without figures


class Section(msgspec.Struct, frozen=True):
    """A title, "" for none, and the parts that are not empty, in this order; an empty section is not shown."""

    title: str = ""
    facts: Sequence[Fact] = ()
    answer: bool = False  # the facts are the answer of the report
    command: str = ""  # command that repeats the run
    charts: Sequence[Chart] = ()
    picture: str = ""  # file of the first chart, for media without charts; charts without one are small
    alt: str = ""  # what the picture shows
    columns: Sequence[Column] = ()
    void: frozenset[int] = frozenset()  # rows of invalid levels
    lines: Sequence[str] = ()
    remarks: Sequence[Remark] = ()
    note: str = ""  # about the parts above
    scenario: str = ""  # folded away at first
    folded: bool = False  # whether the whole section is folded on a page


class Document(msgspec.Struct, frozen=True, kw_only=True):
    title: str = ""
    subtitle: str = ""
    answer: str = ""  # in a few words, for the page's title
    sentence: str = ""  # the answer, above the figures
    figures: Sequence[Fact] = ()  # figures at the top of a page, before the curve
    simulated: str = ""  # what was simulated; "" for a measurement
    warning: str = ""  # what happened to the server meanwhile
    sections: Sequence[Section]
    version: str = ""  # version of the program that measured
    source: str = ""  # what it was made from, in the page's last line
    again: str = ""  # the command that makes it again


def rows(columns: Sequence[Column]) -> list[tuple[Cell, ...]]:
    """Return the cells of a table, row by row."""
    return list(zip(*(column.cells for column in columns), strict=True))


def shown(columns: Sequence[Column], empty: Sequence[str] = (MISSING,)) -> list[Column]:
    """Return the columns of a table that have a cell other than those in `empty`.

    >>> [column.head for column in shown([Column("C", ["1", "2"]), Column("SLO", ["–", "–"])])]
    ['C']
    """
    return [column for column in columns if any(cell not in empty for cell in column.cells)]
