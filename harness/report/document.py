"""What a report says, as data: a document of sections, which `terminal`, `markdown` and `page` show in their ways.

Figures stand here as people read them (`format`), so that every reader sees the same digits. Text from outside is on
one line and otherwise as it came: whoever shows it escapes it for its own medium. No colour, no markup, no width.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.report.chart import Chart
from harness.report.format import MISSING


class Fact(msgspec.Struct, frozen=True):
    """One line of an answer: "label: value; detail"."""

    label: str  # a word of ours, never text from outside
    value: str
    detail: str = ""

    @property
    def text(self) -> str:
        return f"{self.value}; {self.detail}" if self.detail else self.value


class FileLink(msgspec.Struct, frozen=True):
    """A cell that leads to a file beside the document, where the medium has links."""

    text: str
    to: str

    def __str__(self) -> str:
        return self.text


class Column(msgspec.Struct, frozen=True):
    """A column of a table: its heading, in one line or two, and its cells, top to bottom."""

    head: str
    cells: Sequence[str | FileLink]
    words: bool = False  # words stand left, numbers right
    spare: int = 0  # a narrow terminal leaves out 1 first, then 2, …; 0 stays


class Remark(msgspec.Struct, frozen=True):
    """A verdict with everything that it touches: `where` "" is the whole run."""

    gravity: str  # a judgement.Gravity
    code: str
    where: str
    message: str
    advice: str


class Section(msgspec.Struct, frozen=True):
    """A title, "" for none, and below it whatever there is of these, in this order; nothing at all if there is none."""

    title: str = ""
    facts: Sequence[Fact] = ()
    answer: bool = False  # the facts are what a reader came for
    command: str = ""  # that makes the facts again
    charts: Sequence[Chart] = ()
    picture: str = ""  # a file beside the document, for where charts cannot be; charts without one are small
    alt: str = ""  # what the picture shows
    columns: Sequence[Column] = ()
    void: frozenset[int] = frozenset()  # rows that do not count
    lines: Sequence[str] = ()
    remarks: Sequence[Remark] = ()
    note: str = ""  # about what stands above it
    scenario: str = ""  # the whole of it, for whoever opens it


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A whole report."""

    title: str = ""
    below: str = ""  # a line below the title
    answer: str = ""  # in a few words, where there is room for no more
    simulated: str = ""  # what was played in place of a measurement; "" for a real one
    sections: Sequence[Section]
    version: str = ""  # of the program that measured


def rows(columns: Sequence[Column]) -> list[tuple[str | FileLink, ...]]:
    """The cells of a table, row by row."""
    return list(zip(*(column.cells for column in columns), strict=True))


def shown(columns: Sequence[Column], empty: Sequence[str] = (MISSING,)) -> list[Column]:
    """The columns in which any cell says something.

    >>> [column.head for column in shown([Column("C", ["1", "2"]), Column("SLO", ["–", "–"])])]
    ['C']
    """
    return [column for column in columns if any(cell not in empty for cell in column.cells)]
