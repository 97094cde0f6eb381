"""Plain tables of measured levels as CSV, of any origin: `concurrency,output_tokens_per_s[,error]`.

The header names the columns in any order, in any case and among others, also as vLLM names them (`max_concurrency`,
`output_throughput`) or as a person does (`users`, `Tokens per second`); the error is one standard error in tokens per
second. Semicolons and tabs separate as well, and a line that begins with # is a comment. Tables are read strictly: a
line that is not understood, or has more values than the header has columns, is refused by its number.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.base.errors import HarnessError
from harness.base.terminal import few
from harness.results.exporters.csv import ERROR, LOAD, RATE
from harness.results.readers.level import NO_SERVER, ForeignLevel, ForeignResult

PLAIN = "plain table"  # the tool of a file that names none
_OTHERS = {  # what people call a column, as `_spelled` has it; the first that a table has is taken
    "max concurrency": LOAD, "in flight": LOAD, "users": LOAD, "clients": LOAD, "streams": LOAD,
    "output tok/s": RATE, "output throughput": RATE, "tok/s": RATE, "tps": RATE,
}  # fmt: skip
_ONE = ("model", "engine", "precision")  # columns of one value: levels of two servers are no curve
_MOST_ROWS = 10_000
_MOST = 1e12  # requests in flight, tokens per second: none has so many
_COMMA = re.compile(r"-?[\d.]*\d,\d+")
_NUMBERS = "write numbers like 1234.5"
_EXAMPLE = f"begin it with the line '{LOAD},{RATE}' or '{LOAD},{RATE},{ERROR}'"


class Row(NamedTuple):
    """A line of a table that has any value."""

    place: str  # the file and the line's number
    cells: list[str]


def rows(text: str, place: str) -> list[Row]:
    """Return the lines of a CSV without comments and empty ones; raise HarnessError if it is none, or has too many."""
    # A comment becomes an empty line, so that the others keep their numbers.
    lines = ["" if line.lstrip().startswith("#") else line for line in text.removeprefix("\ufeff").splitlines()]
    separator = _separator(next((line for line in lines if line.strip()), ""))
    # strict: a quote that is never closed would make one cell of all lines behind it.
    read = csv.reader((f"{line}\n" for line in lines), delimiter=separator, skipinitialspace=True, strict=True)
    rows: list[Row] = []
    try:
        for cells in read:
            row = Row(f"{place}, line {read.line_num}", [cell.strip() for cell in cells])
            if any(row.cells):
                rows.append(row)
            if len(rows) > _MOST_ROWS + 1:
                raise HarnessError(f"more than {_MOST_ROWS:,} points", place=place, way_out="fit the levels' means")
    except csv.Error as error:
        raise HarnessError(f"not a CSV: {error}", place=place, way_out=_EXAMPLE) from None
    if separator != ",":
        for row in rows:  # spreadsheets write decimal points, or thousands, in many languages
            if cell := next(filter(_COMMA.fullmatch, row.cells), ""):
                raise HarnessError(f"'{cell[:40]}' is not a number", place=row.place, way_out=_NUMBERS)
    return rows


def _separator(header: str) -> str:
    """Return what separates the columns of a table with this first line.

    >>> _separator("concurrency;output_tokens_per_s")
    ';'
    """
    return max(",;\t", key=header.count)


def by_name(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return each row below the first as {name in the first row: cell}, without empty cells.

    >>> by_name([Row("", ["a", "b"]), Row("", ["1", ""]), Row("", ["2", "x"])])
    [{'a': '1'}, {'a': '2', 'b': 'x'}]
    """
    names = rows[0].cells
    return [{name: cell for name, cell in zip(names, row.cells, strict=False) if cell} for row in rows[1:]]


def points(text: str, place: str) -> ForeignResult:
    """Return the levels of a plain CSV table with concurrency, output_tokens_per_s and perhaps an error."""
    return ForeignResult(source=PLAIN, levels=read(text, place), lacks=("no latencies and no lengths", NO_SERVER))


def read(text: str, place: str) -> list[ForeignLevel]:
    r"""Return the levels of a CSV table by its headings; raise HarnessError if a needed column or number is missing.

    >>> found = read("users,tok/s\n1,100\n2,190\n", "x.csv")[1]
    >>> found.concurrency, found.output_tokens_per_s, found.se
    (2.0, 190.0, None)
    """
    table = rows(text, place)
    names = [_spelled(name) for name in table[0].cells] if table else []
    for other, name in _OTHERS.items():
        if name not in names:
            names = [name if each == other else each for each in names]
    for name in (LOAD, RATE, ERROR):
        if name != ERROR and name not in names:
            among = f" among {few(repr(each[:40]) for each in table[0].cells)}" if table else ""
            raise HarnessError(f"no column '{name}'{among}", place=place, way_out=_EXAMPLE)
        if names.count(name) > 1:
            raise HarnessError(f"two columns '{name}'", place=place, way_out="keep the one that is meant")
    for name in filter(names.__contains__, _ONE):
        at = names.index(name)
        known = list(dict.fromkeys(row.cells[at] for row in table[1:] if len(row.cells) > at))
        if len(known) > 1:
            fact = f"it has levels of {known[0][:40]} and of {known[1][:40]}"
            raise HarnessError(fact, place=place, way_out="give each a file of its own")
    if len(table) < 2:
        raise HarnessError("no points below its header", place=place, way_out="give six levels or more")
    return [_level(names, row) for row in table[1:]]


def _spelled(name: str) -> str:
    """Return a column's name in one of the spellings that it may have.

    >>> _spelled("output_tokens_per_s"), _spelled("Output tokens/s"), _spelled("Tokens per second")
    ('output tok/s', 'output tok/s', 'tok/s')
    """
    words = " ".join(name.lower().replace("_", " ").split())
    return words.replace(" per ", "/").replace("tokens", "tok").replace("/second", "/s")


def _level(names: Sequence[str], row: Row) -> ForeignLevel:
    if any(row.cells[len(names) :]):  # 1,200 without quotes is not 1
        fact = f"{len(row.cells)} values, and {len(names)} columns in the header"
        raise HarnessError(fact, place=row.place, way_out=_NUMBERS)
    cells = dict(zip(names, row.cells, strict=False))
    load, rate = (_positive(cells, name, row.place) for name in (LOAD, RATE))
    se = _positive(cells, ERROR, row.place) if cells.get(ERROR) else None
    return ForeignLevel(concurrency=load, output_tokens_per_s=rate, se=se)


def _positive(cells: Mapping[str, str], column: str, place: str) -> float:
    """Return the number above 0 in a column; raise HarnessError if there is none."""
    text = cells.get(column, "")
    if not text:
        raise HarnessError(f"no {column}", place=place, way_out="mend the line, or leave it out")
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < _MOST:
        fact = f"{column} {text[:40]!r} is " + (f"{_MOST:g} or more" if value >= _MOST else "not a number above 0")
        raise HarnessError(fact, place=place, way_out=f"{_NUMBERS}, or leave out the line")
    return value
