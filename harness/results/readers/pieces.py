"""The pieces of a file from outside: documents of JSON or YAML one after the other, or the rows of a table.

A list is its elements. So a line a level, a file a level joined by `cat`, and a list of levels are read alike.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from harness.base import decoding

_JSON = json.JSONDecoder(parse_constant=lambda _: None)
_YAML = re.compile(r"(---\s|#|[A-Za-z_]\w*:(\s|$))")  # how a report begins
_DOCUMENT = re.compile(r"^---\s*$", re.MULTILINE)
_GROUP = "[.'\u00a0\u202f ]"  # what separates thousands where commas are decimal points
_WHOLE = rf"-?(\d+|\d{{1,3}}({_GROUP}\d{{3}})+)"
_DECIMAL, _INTEGER = re.compile(rf"{_WHOLE},\d+(E[+-]?\d+)?", re.I), re.compile(_WHOLE)
_EITHER = re.compile(r"-?[1-9]\d{0,2},\d{3}")  # commas may separate thousands as well
_SEPARATOR = re.compile(r"\A\s*sep=(.)[ \t]*\n", re.I)  # what spreadsheets begin a table with
_MARKS = (b"\xff\xfe", b"\xfe\xff")  # of UTF-16, which Windows' shell redirects to
_BETWEEN = re.compile(r"[\s,]*")


def of_json(text: str, most: int) -> list[Any]:
    """Return the documents of JSON as plain data, `most` and one at most; one of decoding.WRONG.

    >>> of_json('{"a": 1}{"a": NaN}\\n[{"a": 3}, {"a": 4}]', 9)
    [{'a': 1}, {'a': None}, {'a': 3}, {'a': 4}]
    """
    found: list[Any] = []
    at = _end(text, 0)
    while at < len(text) and len(found) <= most:
        value, at = _JSON.raw_decode(text, at)
        decoding.check(value, numbers=False)
        found += value if isinstance(value, list) else [value]
        at = _end(text, at)
    return found


def _end(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return found.end() if found else at


def is_yaml(text: str) -> bool:
    """Return whether a text that is no JSON begins as a document of YAML does.

    >>> is_yaml("version: '0.2'"), is_yaml("concurrency,output_tokens_per_s")
    (True, False)
    """
    return _YAML.match(text.lstrip()) is not None and "," not in text.lstrip().partition("\n")[0]


def of_yaml(text: str, most: int) -> list[Any]:
    """Return the documents of YAML as plain data; one of decoding.WRONG."""
    documents = [each for each in _DOCUMENT.split(text) if each.strip()][: most + 1]
    found = [msgspec.to_builtins(msgspec.yaml.decode(each)) for each in documents]
    decoding.check(found, numbers=False)
    return [piece for each in found for piece in (each if isinstance(each, list) else [each])]


def text_of(data: bytes) -> str:
    r"""Return a file's text, its line ends LF, without what marks its encoding and its separator; ValueError: no text.

    >>> text_of("\ufeffa;b\r\n".encode("utf-16-le")), text_of(b"sep=;\r\na;b\r1;2")
    ('a;b\n', 'a;b\n1;2')
    """
    text = data.decode("utf-16" if data[:2] in _MARKS else "utf-8").removeprefix("\ufeff")
    return _SEPARATOR.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def with_points(table: Sequence[Sequence[str]], separator: str) -> list[list[str]]:
    """Return a table's cells with decimal points where its commas are that: so spreadsheets write it in many languages.

    They are where the columns are not separated by commas, and one cannot be for thousands. Then other marks are.

    >>> with_points([["97,5", "1.800", "1 234,5"]], ";"), with_points([["1,800", "1.5"]], ";")
    ([['97.5', '1800', '1234.5']], [['1,800', '1.5']])
    """
    cells = [[cell.strip() for cell in row] for row in table]
    if separator == "," or not any(
        _DECIMAL.fullmatch(cell) and not _EITHER.fullmatch(cell) for row in cells for cell in row
    ):
        return [list(row) for row in table]
    return [[_with_point(cell) for cell in row] for row in cells]


def _with_point(cell: str) -> str:
    if _DECIMAL.fullmatch(cell) or _INTEGER.fullmatch(cell):
        return re.sub(_GROUP, "", cell).replace(",", ".")
    return cell


def rows(text: str, separator: str, most: int, *, strict: bool = True) -> list[list[str]]:
    """Return the first lines of a CSV; `strict`: csv.Error for a quote that is never closed and would hide the rest."""
    lines = csv.reader(io.StringIO(text), delimiter=separator, strict=strict)
    return with_points([row for row, _ in zip(lines, range(most), strict=False)], separator)


def by_name(table: Sequence[Sequence[str]]) -> list[Any]:
    """Return each row of a table by the names in its first row, without what is empty.

    >>> by_name([["a", "b"], ["1", ""], ["2", "x"]])
    [{'a': '1'}, {'a': '2', 'b': 'x'}]
    """
    return [
        {name: cell for name, cell in zip(table[0], row, strict=False) if cell.strip()} for row in table[1:] if any(row)
    ]
