"""The rows of a dataset in a file of their own, which is written once and then mapped into memory by every worker.

    rows in msgpack, one behind the other as their file has them
    columns of numbers, each at a multiple of 8 bytes
    what columns there are, in msgpack; the length of that as u64; a mark

Numbers of the machine that wrote it: it is made for one run and goes away with it. To map it takes neither numpy nor
time, and what workers look at they share.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from harness.base import files
from harness.base.errors import HarnessError
from harness.workload.dataset import Row

if TYPE_CHECKING:
    import numpy as np

MOST_ROWS = 10_000_000
_MARK = b"KneeRows"
_END = struct.Struct("<Q8s")
_NO_TIME, _UNKNOWN = float("nan"), -1


class _Column(msgspec.Struct, frozen=True):
    at: int  # bytes before it
    size: int


class Table:
    """Rows by their numbers, in the order of their times, and what is known of all of them as columns.

    `at_s` holds seconds since the first row, shape [rows]; nan where the dataset has no times. `input_tokens` and
    `output_tokens` hold −1 where a length is not known, and `session` the session's number, from 0 on; a row that
    belongs to none is one of its own.
    """

    def __init__(self, path: Path) -> None:
        """Map the table at `path` into memory, without reading its rows; raise HarnessError if the file is none."""
        with files.opened(path) as file:
            self._bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        length, mark = _END.unpack(self._bytes[-_END.size :])
        if mark != _MARK:
            raise HarnessError("is not a table of requests", place=str(path), way_out="make it anew")
        about = msgspec.msgpack.decode(self._bytes[-_END.size - length : -_END.size], type=dict[str, _Column])
        parts = {name: self._bytes[column.at : column.at + column.size] for name, column in about.items()}
        self.at_s = parts["at_s"].cast("d")
        self.input_tokens, self.output_tokens = parts["input_tokens"].cast("i"), parts["output_tokens"].cast("i")
        self.session = parts["session"].cast("i")
        self._begins, self._ends = parts["begin"].cast("Q"), parts["end"].cast("Q")
        self._members, self._starts = parts["member"].cast("i"), parts["start"].cast("i")
        self._decode = msgspec.msgpack.Decoder(Row).decode

    def __len__(self) -> int:
        return len(self.at_s)

    @property
    def sessions(self) -> int:
        return len(self._starts) - 1

    def longer_than(self, rows: int) -> int:
        """Return how many sessions have more rows than that."""
        return sum(end - begin > rows for begin, end in pairwise(self._starts))

    def row(self, number: int) -> Row:
        """Return a row, as its dataset has it."""
        return self._decode(self._bytes[self._begins[number] : self._ends[number]])

    def of_session(self, session: int) -> list[int]:
        """Return the numbers of a session's rows, in their order."""
        return list(self._members[self._starts[session] : self._starts[session + 1]])


def write(rows: Iterable[Row], path: Path) -> Table:
    """Write the rows where only the user may read them, and open them; raise HarnessError if there are none."""
    at_s, inputs, outputs = array("d"), array("i"), array("i")
    offsets, sessions = array("Q", [0]), array("q")
    encode, end = msgspec.msgpack.Encoder().encode, 0
    with files.replacing(path, private=True) as file:
        for number, row in enumerate(rows):
            if number == MOST_ROWS:
                way_out = "cut the dataset to the part that is to be sent"
                raise HarnessError(f"it is row {number + 1:,}, and no more are read", place=row.place, way_out=way_out)
            data = encode(row)
            file.write(data)
            end += len(data)
            offsets.append(end)
            at_s.append(_NO_TIME if row.at_s is None else row.at_s)
            inputs.append(_UNKNOWN if row.input_tokens is None else row.input_tokens)
            outputs.append(_UNKNOWN if row.output_tokens is None else row.output_tokens)
            sessions.append(hash(row.session or number.to_bytes(8)))
        if not at_s:
            raise HarnessError("the dataset holds no requests", way_out="give one that does")
        columns = {"input_tokens": inputs, "output_tokens": outputs, "begin": offsets[:-1], "end": offsets[1:]}
        _finish(file, end, _sorted_by_time(at_s, sessions, columns))
    return Table(path)


def _sorted_by_time(at_s: array[float], sessions: array[int], columns: dict[str, array[int]]) -> dict[str, Any]:
    """Return all columns sorted by the rows' times, which begin at 0, and the rows of each session in that order."""
    import numpy as np

    times = np.frombuffer(at_s)
    order = np.argsort(times, kind="stable")
    ordered: dict[str, Any] = {name: np.asarray(column)[order] for name, column in columns.items()}
    session, members, starts = _grouped(np.frombuffer(sessions, np.int64)[order])
    return ordered | {"at_s": times[order] - times[order[0]], "session": session, "member": members, "start": starts}


def _grouped(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (session number of each row, by first occurrence; rows sorted by session; where each session starts).

    Sessions are distinguished by 64 bits that nobody can foresee: of a million, two are one in 10⁻⁷ of all runs.
    """
    import numpy as np

    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    session = rank[inverse]
    members = np.argsort(session, kind="stable").astype(np.int32)
    starts = np.searchsorted(session[members], np.arange(len(first) + 1)).astype(np.int32)
    return session, members, starts


def _finish(file: BinaryIO, end: int, columns: dict[str, Any]) -> None:
    """Write the columns as raw buffers behind the rows in the file, then a directory of their places."""
    about = {}
    for name, column in columns.items():
        file.write(bytes(-end % 8))
        end += -end % 8
        about[name] = _Column(end, memoryview(column).nbytes)
        file.write(column)
        end += about[name].size
    packed = msgspec.msgpack.encode(about)
    file.write(packed + _END.pack(len(packed), _MARK))
