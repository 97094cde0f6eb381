"""Delimited text with a header: CSV, and the same with semicolons or tabs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from harness.base import decoding, files
from harness.workload.dataset.lines import LONGEST, Lines, too_long

T = TypeVar("T")


def keys(path: Path) -> list[str]:
    """The names of its columns."""
    with files.opened(path) as file:
        return _header(Lines(file), str(path))[0]


def records(path: Path, kind: type[T]) -> Iterator[tuple[str, T | Exception]]:
    """Each row as that type, or what is wrong with it, with its place; an empty cell is one that is missing."""
    csv.field_size_limit(LONGEST)  # of this process; the default is shorter than a long prompt
    begin = 0  # byte of the row that is read

    def text(line: bytes) -> str:
        if lines.end - begin > LONGEST:
            raise too_long()
        return line.decode()

    with files.opened(path) as file:
        lines = Lines(file)
        header, delimiter = _header(lines, str(path))
        rows = csv.reader(map(text, lines), delimiter=delimiter, strict=True)
        while True:
            begin, place = lines.end, f"line {lines.number + 1}, byte {lines.end}"
            try:
                cells = next(rows)
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise ValueError(f"it has {len(cells)} cells, its header {len(header)}")
                named = dict(zip(header, cells, strict=True))
                if "" in cells:
                    named = {name: cell for name, cell in named.items() if cell}
                record = msgspec.convert(named, kind, strict=False)
            except StopIteration:
                return
            except csv.Error as error:
                yield place, ValueError(str(error))
            except decoding.WRONG as error:
                yield place, error
            else:
                yield place, record


def _header(lines: Lines, place: str) -> tuple[list[str], str]:
    """The names of the columns, which are the first line, and what stands between them."""
    with decoding.reading(place, "delimited text", "give a file that begins with the names of its columns"):
        line = next(iter(lines), b"")
        if len(line) > LONGEST:
            raise too_long()
        text = line.decode()
        delimiter = max(",;\t", key=text.count)
        try:
            return [name.strip() for name in next(csv.reader([text], delimiter=delimiter, strict=True), [])], delimiter
        except csv.Error as error:
            raise ValueError(str(error)) from None
