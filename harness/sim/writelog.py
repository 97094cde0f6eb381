"""The endpoint's own account of what it wrote and when: the truth that a client's records are held against.

One JSON line per request, appended when the request has ended and on disk within a tenth of a second.
Times are CLOCK_MONOTONIC in nanoseconds, comparable between the processes of one host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from harness.errors import HarnessError

_HOLD_NS = 20_000_000  # well within the promised tenth of a second


class Entry(msgspec.Struct, frozen=True):
    """One request, as the server wrote it."""

    id: str  # the client's X-Request-Id
    received_ns: int
    writes_ns: list[int]  # taken right before the write of each chunk that carried tokens
    tokens: int  # that were really written
    finished: bool  # False: cut by the client, or by the server's end
    end_ns: int


class WriteLog:
    """Entries on their way to the file; without a path they go nowhere."""

    def __init__(self, path: str | Path | None) -> None:
        try:
            self._file: Any = None if path is None else Path(path).open("ab", buffering=0)  # noqa: SIM115
        except OSError as error:
            fact = f"cannot write {path} ({error.strerror})"
            raise HarnessError(fact, place="--log", way_out="name a file in a folder that exists") from None
        self._held: list[Entry] = []
        self.due: int | None = None  # when the entries held back have to be on disk

    def append(self, entry: Entry) -> None:
        if self._file is None:
            return
        self._held.append(entry)
        if self.due is None:
            self.due = entry.end_ns + _HOLD_NS

    def flush(self) -> None:
        if self._held:
            # One write of whole lines: a kill cuts between them.
            self._file.write(b"".join(msgspec.json.encode(entry) + b"\n" for entry in self._held))
            self._held.clear()
        self.due = None

    def close(self) -> None:
        if self._file is not None:
            self.flush()
            self._file.close()


def entries(path: str | Path) -> list[Entry]:
    """All requests of a write log, in the order they ended; a line that is still being written is not one."""
    decode = msgspec.json.Decoder(Entry).decode
    whole, _, _ = Path(path).read_bytes().rpartition(b"\n")
    return [decode(line) for line in whole.splitlines()]
