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


def rows(text: str, separator: str, most: int, *, strict: bool = True) -> list[list[str]]:
    """Return the first lines of a CSV; `strict`: csv.Error for a quote that is never closed and would hide the rest."""
    lines = csv.reader(io.StringIO(text), delimiter=separator, strict=strict)
    return [row for row, _ in zip(lines, range(most), strict=False)]


def by_name(table: Sequence[Sequence[str]]) -> list[Any]:
    """Return each row of a table by the names in its first row, without what is empty.

    >>> by_name([["a", "b"], ["1", ""], ["2", "x"]])
    [{'a': '1'}, {'a': '2', 'b': 'x'}]
    """
    return [
        {name: cell for name, cell in zip(table[0], row, strict=False) if cell.strip()} for row in table[1:] if any(row)
    ]
