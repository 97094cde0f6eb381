"""What the simulated endpoint keeps of a client: its socket, the bytes that wait, and the request that is answered.

HTTP/1.1 as bytes is here, too: the head of a request, and that of a response; and the log of what was written and when,
the truth that a client's records are compared with. Left out: reading and writing (`endpoint`), and what a request for
an answer asks (`api`).
"""

from __future__ import annotations

import socket
from array import array
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from harness.base import __version__, files
from harness.dialects.sse import EVENTS
from harness.results import frames
from harness.sim.api import EventWriter, Generation, RefusalError

HEAD_LIMIT, BODY_LIMIT = 65_536, 64_000_000
_LONGEST_LENGTH = 18  # digits of a Content-Length, which fit into 64 bits
_SERVER = b"server: knee-sim/%s\r\n" % __version__.encode()
_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    411: b"Length Required",
    413: b"Content Too Large",
    431: b"Request Header Fields Too Large",
}


class Job:
    """A request that is being answered."""

    __slots__ = ("connection", "generation", "id", "name", "received", "tokens", "writer", "writes")

    def __init__(
        self,
        id: int,
        name: str,
        generation: Generation,
        writer: EventWriter,
        connection: ClientConnection,
    ) -> None:
        self.id = id  # in the machine
        self.name = name  # the client's X-Request-Id
        self.generation = generation
        self.writer = writer
        self.connection = connection
        self.received = connection.received
        self.writes = array("q")
        self.tokens = 0


class Piece:
    """Bytes of an answer on their way out; `tokens` until the first of them has left."""

    __slots__ = ("data", "job", "last", "tokens")

    def __init__(self, data: bytes | memoryview, job: Job | None, tokens: int, last: bool) -> None:
        self.data, self.job, self.tokens, self.last = data, job, tokens, last


class ClientConnection:
    """One client's socket: one request at a time, what came early waits in `inbox`."""

    __slots__ = ("closing", "inbox", "job", "need", "outbox", "received", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = bytearray()
        self.need = 0  # bytes of inbox below which it cannot contain a whole request
        self.outbox: deque[Piece] = deque()
        self.job: Job | None = None
        self.closing = False  # once the answer is out
        self.received = 0


class RequestHead:
    """The head of one HTTP request."""

    __slots__ = ("fields", "method", "path", "version")

    def __init__(self, raw: bytes) -> None:
        first, *rest = raw.decode("latin-1").split("\r\n")
        parts = first.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise RefusalError(400, "BadRequestError", "this is not HTTP/1.1")
        self.method, target, self.version = parts
        self.path = target.partition("?")[0]
        self.fields = {}
        for line in rest:
            name, _, value = line.partition(":")
            self.fields[name.strip().lower()] = value.strip()

    @property
    def closes(self) -> bool:
        return self.version == "HTTP/1.0" or self.fields.get("connection", "").lower() == "close"

    def body_length(self) -> int:
        """Return the body's length by Content-Length, in bytes; 0 without one.

        Raise RefusalError for a body in chunks, one that is too large, and a length that is no number.
        """
        if "transfer-encoding" in self.fields:
            raise RefusalError(411, "BadRequestError", "send the body with a Content-Length")
        length = self.fields.get("content-length", "0")
        if not length.isdecimal() or len(length) > _LONGEST_LENGTH:
            raise RefusalError(400, "BadRequestError", f"Content-Length {length!r} is no number")
        if int(length) > BODY_LIMIT:
            raise RefusalError(413, "BadRequestError", f"a body of {length} bytes is too large")
        return int(length)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\n%scontent-type: %s; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n" % (
    _SERVER,
    EVENTS.encode(),
)


def response_head(status: int, kind: bytes, length: int, *, closes: bool) -> bytes:
    """Return the head of a response with a body of so many bytes; `kind` is its media type."""
    return b"HTTP/1.1 %d %s\r\n%scontent-type: %s\r\ncontent-length: %d\r\n%s\r\n" % (
        status,
        _REASONS[status],
        _SERVER,
        kind,
        length,
        b"connection: close\r\n" if closes else b"",
    )


_DELAY_NS = 20_000_000  # well within the promised tenth of a second


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One request, as the server wrote it."""

    id: str  # the client's X-Request-Id
    received_ns: int
    writes: bytes  # int64, taken right before each write that carried tokens
    tokens: int  # tokens that were really written
    finished: bool  # False: cut by the client, or by the server's end
    end_ns: int

    @property
    def writes_ns(self) -> array[int]:
        return array("q", self.writes)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


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
            self._file.write(b"".join(frames.frame(_encode(each)) for each in self._pending))
            self._pending.clear()
        self.due = None

    def close(self) -> None:
        if self._file is not None:
            self.flush()
            self._file.close()


def entries(path: str | Path) -> list[Entry]:
    """Return all requests of a write log, in the order they ended; one that is still being written is not one."""
    return list(map(_decode, frames.payloads(Path(path).read_bytes())))
