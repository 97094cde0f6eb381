"""What a report says, as data: sections of blocks, which `terminal`, `markdown` and `page` show each in its own way.

Figures stand here as people read them (`format`), so that every reader sees the same digits. Text from outside is on
one line and otherwise as it came: whoever shows it escapes it for its own medium. No colour, no markup, no width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from harness.report.chart import Chart


class Fact(msgspec.Struct, frozen=True):
    """One line of an answer: "label: value; detail"."""

    label: str  # a word of ours, never text from outside
    value: str
    detail: str = ""

    @property
    def text(self) -> str:
        return f"{self.value}; {self.detail}" if self.detail else self.value


class Answer(msgspec.Struct, frozen=True):
    """The facts that a reader came for, most important first."""

    facts: list[Fact]


class Facts(msgspec.Struct, frozen=True):
    """Facts to look up, and the command that makes them again."""

    facts: list[Fact]
    command: str = ""


class Link(msgspec.Struct, frozen=True):
    """A cell that leads to a file beside the document, where the medium has links."""

    text: str
    to: str


class Column(msgspec.Struct, frozen=True):
    """A column of a table: its heading, in one line or two, and its cells, top to bottom."""

    head: str
    cells: Sequence[str | Link]
    words: bool = False  # words stand left, numbers right
    spare: int = 0  # a narrow terminal leaves out 1 first, then 2, …; 0 stays


class Table(msgspec.Struct, frozen=True):
    """Columns of one length."""

    columns: list[Column]
    void: frozenset[int] = frozenset()  # rows that do not count


class Remark(msgspec.Struct, frozen=True):
    """A verdict with everything that it touches: `where` "" is the whole run."""

    severity: str  # invalid | doubt | note
    code: str
    where: str
    message: str
    advice: str


class Remarks(msgspec.Struct, frozen=True):
    """Verdicts, the gravest first."""

    remarks: list[Remark]


class Charts(msgspec.Struct, frozen=True):
    """Charts of one size; where charts cannot be, the picture of that name beside the document stands for them."""

    charts: list[Chart]
    small: bool = False
    picture: str = ""
    alt: str = ""


class Lines(msgspec.Struct, frozen=True):
    """Sentences, a line each."""

    lines: list[str]


class Note(msgspec.Struct, frozen=True):
    """A sentence about what stands above it."""

    text: str


class Folded(msgspec.Struct, frozen=True):
    """A long text of several lines that is opened by whoever wants it."""

    title: str
    text: str


Block: TypeAlias = Answer | Facts | Table | Remarks | Charts | Lines | Note | Folded


class Section(msgspec.Struct, frozen=True):
    """Blocks below a title, "" for none. One without a block is left out."""

    title: str
    blocks: Sequence[Block]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A whole report."""

    title: str = ""
    below: str = ""  # a line below the title
    answer: str = ""  # in a few words, where there is room for no more
    simulated: str = ""  # what was played in place of a measurement; "" for a real one
    sections: list[Section]
    version: str = ""  # of the program that measured


def shown(columns: Sequence[Column], empty: Sequence[str] = ("–",)) -> Table:
    """A table of the columns in which any cell says something.

    >>> [column.head for column in shown([Column("C", ["1", "2"]), Column("SLO", ["–", "–"])]).columns]
    ['C']
    """
    return Table([column for column in columns if any(cell not in empty for cell in column.cells)])
