"""Tables of measured levels as CSV: plain ones of any origin, and those of `knee export --to csv`.

A plain table is `concurrency,output_tokens_per_s[,error]`: the header names the columns in any order, in any case and
among others; the error is one standard error in tokens per second. A calibration also takes `itl_s` and `ttft_s`, means
in seconds. Semicolons and tabs separate as well, and a line that begins with # is a comment. Tables are read strictly:
a line that is not understood, or has more values than the header has columns, is refused by its number.

An exported table has the columns of `exporters.csv`. Its verdicts say which levels are no points of a curve, and which
errors were assumed: its curve is the folder's.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence

import msgspec

from harness.base.errors import HarnessError
from harness.data.judgement import Gravity
from harness.results.exporters.csv import ERROR, LEVELS, LOAD, RATE
from harness.results.readers.level import (
    KNEE,
    NO_SERVER,
    ForeignLevel,
    ForeignResult,
    Latencies,
    level,
    number,
    own_point,
    positive,
    validity,
)

FIT_ERROR_ASSUMED = "fit_error_assumed"  # the code of the rule, which is above this room
PLAIN = "plain table"  # the tool of a file that names none
_OPTIONAL = (ERROR, "itl_s", "ttft_s")  # in the order of the fields
_MOST_ROWS = 10_000
_THOUSANDS = re.compile(r"[1-9]\d{0,2}\.\d{3}")
_MOST = 1e12  # requests in flight, tokens per second: none has so many
_NUMBERS = "write numbers like 1234.5"
_NO = ("", "false", "falsch", "faux", "falso", "onwaar", "0")
_NEEDED = (LOAD, "rate", RATE, ERROR)
_OWN = (*_NEEDED, f"{RATE}_low", "verdicts", "simulated")
_FIGURES = {
    "output_tokens_per_s": "output_tokens_per_s",
    "requests_per_s": "requests_per_s",
    "failed": "errors",
    "input_tokens_mean": "input_tokens_mean",
    "output_tokens_mean": "output_tokens_mean",
    "ttft_s": "ttft",
    "itl_s": "icl",
    "tpot_s": "tpot",
    "itl_mean_s": "itl_mean_s",
    "e2e_s": "e2e",
}
_LATENCIES = Latencies(at="{name}_{statistic}_s")
_EXAMPLE = f"begin it with the line '{LOAD},{RATE}' or '{LOAD},{RATE},{ERROR}'"


class CsvPoint(msgspec.Struct, frozen=True):
    """One measured point."""

    concurrency: float
    output_tokens_per_s: float
    error: float | None = None  # one standard error, tok/s
    itl_s: float | None = None  # means
    ttft_s: float | None = None


def points(text: str, place: str) -> ForeignResult:
    """Return the levels of a plain table."""
    levels = [
        ForeignLevel(concurrency=row.concurrency, output_tokens_per_s=row.output_tokens_per_s, se=row.error)
        for row in read(text, place)
    ]
    return ForeignResult(source=PLAIN, levels=levels, lacks=("no latencies and no lengths", NO_SERVER))


def read(text: str, place: str) -> list[CsvPoint]:
    r"""Return the points of a plain table; an empty error is none.

    >>> read("concurrency,output_tokens_per_s\n1,100\n2,190\n", "x.csv")[1]
    CsvPoint(concurrency=2.0, output_tokens_per_s=190.0, error=None, itl_s=None, ttft_s=None)
    """
    try:
        return _read(text, place)
    except csv.Error as error:
        raise HarnessError(f"not a CSV: {error}", place=place, way_out=_EXAMPLE) from None


def _read(text: str, place: str) -> list[CsvPoint]:
    # A comment becomes an empty line, which the reader skips, so that the others keep their numbers.
    kept = ["" if line.lstrip().startswith("#") else line for line in text.removeprefix("\ufeff").splitlines()]
    before = next((i for i, line in enumerate(kept) if line.strip()), 0)
    separator = separator_of(kept[before]) if kept else ","
    # strict: a quote that is never closed would make one cell of all lines behind it.
    text = "\n".join(kept[before:])
    lines = csv.DictReader(io.StringIO(text), delimiter=separator, skipinitialspace=True, strict=True)
    names = [name.strip().lower() for name in lines.fieldnames or []]
    lines.fieldnames = names
    missing = [name for name in (LOAD, RATE) if name not in names]
    if missing:
        raise HarnessError(f"no column '{missing[0]}'", place=place, way_out=_EXAMPLE)
    twice = [name for name in (LOAD, RATE, *_OPTIONAL) if names.count(name) > 1]
    if twice:
        raise HarnessError(f"two columns '{twice[0]}'", place=place, way_out="keep the one that is meant")
    rows: list[CsvPoint] = []
    cells: list[tuple[str, dict[str, str]]] = []
    for line in lines:
        if not any(cell and cell.strip() for cell in (*map(line.get, names), *(line.get(None) or ()))):
            continue  # a row of separators alone, as spreadsheets leave them
        where = f"{place}, line {before + lines.line_num}"
        if any(value.strip() for value in line.get(None) or ()):  # 1,200 without quotes is not 1
            fact = f"{len(names) + len(line[None])} values, and {len(names)} columns in the header"
            raise HarnessError(fact, place=where, way_out=_NUMBERS)
        load, rate = _positive(line[LOAD], LOAD, where), _positive(line[RATE], RATE, where)
        rest = [_positive(line[name], name, where) if (line.get(name) or "").strip() else None for name in _OPTIONAL]
        if len(rows) == _MOST_ROWS:
            raise HarnessError(f"more than {_MOST_ROWS:,} points", place=place, way_out="fit the levels' means")
        rows.append(CsvPoint(load, rate, *rest))
        cells.append((where, {name: line[name].strip() for name in (LOAD, RATE)}))
    if separator != ",":
        _refuse_thousands(cells)
    if not rows:
        raise HarnessError("no points below its header", place=place, way_out="give six levels or more")
    return rows


def _refuse_thousands(cells: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    """Refuse a number like 1.250 among whole ones up to 100 or more: is it 1.25, or 1250?

    So spreadsheets write thousands where commas are decimal points.
    """
    for name in (LOAD, RATE):
        found = [(row[name], where) for where, row in cells]
        pointed = [(cell, where) for cell, where in found if _THOUSANDS.fullmatch(cell)]
        others = [cell for cell, _ in found if not _THOUSANDS.fullmatch(cell)]
        whole = all(cell.isdecimal() for cell in others) and any(float(cell) >= 100 for cell in others)
        if whole and (small := next((each for each in pointed if float(each[0]) < 100), None)):
            cell, where = small
            fact = f"{name} '{cell}' may be {float(cell):g} or {cell.replace('.', '')}"
            raise HarnessError(fact, place=where, way_out=_NUMBERS)


def separator_of(header: str) -> str:
    """Return what separates the columns of a table with this first line.

    >>> separator_of("concurrency;output_tokens_per_s")
    ';'
    """
    return max(",;\t", key=header.count)


def _positive(text: str | None, column: str, place: str) -> float:
    if not (text or "").strip():
        raise HarnessError(f"no {column}", place=place, way_out="mend the line, or leave it out")
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 < value < _MOST:
        shown = repr(text and text[:40])
        fact = f"{column} {shown} is " + (f"{_MOST:g} or more" if value >= _MOST else "not a number above 0")
        raise HarnessError(fact, place=place, way_out=f"{_NUMBERS}, or leave out the line")
    return value


# ---- `knee export --to csv` -----------------------------------------------------------------------------------------


def is_exported(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a table is one of `knee export`; earlier ones had fewer columns."""
    return bool(rows) and set(_OWN) <= set(rows[0]) <= set(LEVELS)


def exported(rows: Sequence[Sequence[str]], place: str) -> ForeignResult:
    """Return the levels of an exported table; HarnessError where a cell may be another number than it seems.

    Where the columns are not separated by commas, these are decimal points: so a spreadsheet saves the table.
    """
    found = [
        _checked(dict(zip(rows[0], row, strict=False)), f"{place}, line {line}")
        for line, row in enumerate(rows[1:], 2)
        if row
    ]
    return ForeignResult(
        source=KNEE,
        levels=[_level(row) for row in found],
        simulated=any(_simulated(row) for row in found),
        lacks=(NO_SERVER,),
    )


def _checked(row: dict[str, str], place: str) -> dict[str, str]:
    """Return the row, whose numbers are such."""
    for name, cell in row.items():
        unread = name in _NEEDED and cell.strip() and number(row, name) is None
        if unread or ("," in cell and name != "verdicts"):
            raise HarnessError(f"{name} {cell[:40]!r} is not a number", place=place, way_out=_NUMBERS)
    return row


def _simulated(row: dict[str, str]) -> bool:
    """Return whether the row says so, in a spreadsheet's language as well: only no is no."""
    return row.get("simulated", "").strip().lower() not in _NO


def _level(row: dict[str, str]) -> ForeignLevel:
    began, *others = (number(row, name) or 0.0 for name in ("requests", "errors", "cancelled", "abandoned"))
    X, se, verdicts = number(row, "output_tokens_per_s"), positive(row, ERROR), row.get("verdicts", "").split()
    valid, in_flight_ok = validity(verdicts)
    ended = (number(row, "requests_per_s") or 0.0) * (number(row, "window_s") or 0.0)
    assumed = se is None and f"{Gravity.NOTE}:{FIT_ERROR_ASSUMED}" in verdicts
    weight = positive(row, "assumed_error") or (X / math.sqrt(max(1.0, ended)) if X else None)
    return level(
        row,
        _FIGURES,
        _LATENCIES,
        concurrency=positive(row, "concurrency"),
        rate=positive(row, "rate"),
        valid=valid,
        in_flight_ok=in_flight_ok,
        requests=round(began - sum(others)) or None,
        **own_point(row) | {"se": weight if assumed else se, "se_assumed": assumed},
    )
