"""The endpoint's log of what it wrote and when: the truth that a client's records are compared with.

One frame per request, in the spool's own form (results.frames), appended when the request has ended and on disk
within a tenth of a second; the times as they lie in memory, so that a long answer does not stall the server.
Times are CLOCK_MONOTONIC in nanoseconds, comparable between the processes of one host.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import msgspec

from harness.base import files
from harness.results import frames

_DELAY_NS = 20_000_000  # well within the promised tenth of a second


class Entry(msgspec.Struct, frozen=True):
    """One request, as the server wrote it."""

    id: str  # the client's X-Request-Id
    received_ns: int
    writes_ns: array[int]  # int64, taken right before each write that carried tokens
    tokens: int  # that were really written
    finished: bool  # False: cut by the client, or by the server's end
    end_ns: int


class _Row(msgspec.Struct, array_like=True):
    """An entry in the file."""

    id: str
    received_ns: int
    writes: bytes
    tokens: int
    finished: bool
    end_ns: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Row).decode


class WriteLog:
    """Entries on their way to the file; without a path they go nowhere."""

    def __init__(self, path: str | Path | None) -> None:
        self._file: Any = None
        if path is not None:
            file = files.named(Path(path))
            way_out = "name a file in a folder that exists"
            fd = files.appending(file, new=not file.exists(), way_out=way_out)
            self._file = open(fd, "ab", buffering=0)  # noqa: SIM115
        self._pending: list[Entry] = []
        self.due: int | None = None  # when the pending entries have to be on disk

    def append(self, entry: Entry) -> None:
        if self._file is None:
            return
        self._pending.append(entry)
        if self.due is None:
            self.due = entry.end_ns + _DELAY_NS

    def flush(self) -> None:
        if self._pending:
            self._file.write(b"".join(map(_frame, self._pending)))
            self._pending.clear()
        self.due = None

    def close(self) -> None:
        if self._file is not None:
            self.flush()
            self._file.close()


def _frame(entry: Entry) -> bytes:
    writes = entry.writes_ns.tobytes()
    row = _Row(entry.id, entry.received_ns, writes, entry.tokens, entry.finished, entry.end_ns)
    return frames.frame(_encode(row))


def entries(path: str | Path) -> list[Entry]:
    """Return all requests of a write log, in the order they ended; one that is still being written is not one."""
    rows = map(_decode, frames.payloads(Path(path).read_bytes()))
    return [
        Entry(row.id, row.received_ns, array("q", row.writes), row.tokens, row.finished, row.end_ns) for row in rows
    ]
