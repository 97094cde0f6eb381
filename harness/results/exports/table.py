"""The levels, or any rows, as CSV: an empty cell is null. `knee fit` reads the levels' table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from harness.data.summary import Summary
from harness.results.exports import rows
from harness.results.exports.rows import Cell
from harness.results.points import ERROR, LOAD, RATE

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would take a text that begins so for a formula
_SE = "output_tokens_per_s_se"
LEVELS = (LOAD, RATE, ERROR, *(name for name in rows.NAMES if name not in (LOAD, RATE, _SE)))


def levels(summary: Summary) -> str:
    """A line a level; `error` is one standard error of `output_tokens_per_s`, where it was measured."""
    return text(LEVELS, (row | {ERROR: row[_SE]} for row in rows.rows(summary)))


def text(names: Sequence[str], found: Iterable[Mapping[str, Cell]]) -> str:
    r"""The columns of these names, with a heading.

    >>> text(["a", "b"], [{"a": 0.5, "b": None}, {"a": 1, "b": "=2+2"}])
    "a,b\r\n0.5,\r\n1,'=2+2\r\n"
    """
    out = io.StringIO()
    lines = csv.writer(out)
    lines.writerow(names)
    lines.writerows([_plain(row[name]) for name in names] for row in found)
    return out.getvalue()


def _plain(cell: Cell) -> Cell:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
