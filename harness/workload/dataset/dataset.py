"""A dataset: a file of requests, opened, and read row by row as often as it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from harness.base import decoding
from harness.base.errors import HarnessError
from harness.workload.dataset import names, result
from harness.workload.dataset.formats import FORMATS, broken, container, fields, known, recognise
from harness.workload.dataset.row import Row

_MOST_KEPT = 3  # errors of those that were left out


class Skipped(msgspec.Struct):
    """The broken rows that were left out."""

    count: int = 0
    first: list[HarnessError] = []

    def add(self, error: HarnessError) -> None:
        self.count += 1
        if len(self.first) < _MOST_KEPT:
            self.first.append(error)


class Dataset(msgspec.Struct, frozen=True):
    """A file and its format; nothing of it is kept in memory."""

    path: Path
    format: str
    unread: tuple[str, ...] = ()  # fields of its first records that look like work, and that nobody reads

    def rows(self, skipped: Skipped | None = None) -> Iterator[Row]:
        """The requests as they stand in the file, times since the first of them.

        A broken row is a HarnessError that names file, line and byte; with `skipped` it is left out and counted there.
        So is the end of a file that breaks off, behind all that is whole.
        """
        made, clock = FORMATS[self.format], _Clock()
        records = container(self.path).records(self.path, made.record)
        for place, record in made.gather(records) if made.gather else records:
            try:
                if isinstance(record, Exception):
                    raise record
                for row in made.rows(record, place):
                    yield clock.since_first(row)
            except decoding.WRONG as error:
                found = broken(self.path, place, made.what, error)
                if skipped is None:
                    raise found from None
                skipped.add(found)


def open_dataset(path: Path, format: str | None = None) -> Dataset:
    """A file, or a result folder, of a format that is known by its contents or named; HarnessError for any other."""
    if path.is_dir():
        path /= result.FILE
    if format is not None:
        return Dataset(path, known(format, str(path)))
    first, found = fields(path)
    name = recognise(path, first)
    read = FORMATS[name].fields
    return Dataset(path, name, tuple(names.unread(found, read)) if read else ())


class _Clock:
    """Rows with their times since the first one; ValueError where one has none.

    A row with a pause in place of a time comes so long after the row before of its session, whose answer takes no time.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self._begun = False
        self._latest: dict[str, float] = {}  # of sessions, where pauses may follow

    def since_first(self, row: Row) -> Row:
        at = row.at_s
        if not self._begun:
            self._begun, self._first = True, at
        if at is None and row.pause_s is not None and row.session in self._latest:
            at = self._latest[row.session] + row.pause_s
        if at is None or self._first is None:
            if at is not None or self._first is not None:
                raise ValueError("it has a time, or none, unlike the rows before it")
            return row
        if row.session:
            self._latest[row.session] = at
        return msgspec.structs.replace(row, at_s=at - self._first)
