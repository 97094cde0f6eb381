"""What the simulated endpoint keeps of a client: its socket, the bytes that wait, and the request that is answered.

HTTP/1.1 as bytes is here, too: the head of a request, and that of a response. Left out: reading and writing
(`endpoint`), and what a request's body asks for (`api`).
"""

from __future__ import annotations

import socket
import struct
from array import array
from collections import deque

from harness.base import __version__
from harness.dialects.dialect import Events
from harness.dialects.sse import EVENTS
from harness.sim.api import EventWriter, Generation, PlainWriter, RefusalError
from harness.sim.encoder import AnswerWriter, Encoding

HEAD_LIMIT, BODY_LIMIT = 65_536, 64_000_000
_SERVER = b"server: knee-sim/%s\r\n" % __version__.encode()
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset, as the kernel does for a process that is killed
_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    411: b"Length Required",
    413: b"Content Too Large",
    431: b"Request Header Fields Too Large",
}


class Job:
    """A request that is being answered."""

    __slots__ = ("connection", "generation", "id", "name", "received", "stream", "tokens", "writer", "writes")
    stream: EventWriter | PlainWriter  # the writer of an answer that is generated

    def __init__(
        self,
        id: int,
        name: str,
        generation: Generation | Encoding,
        writer: EventWriter | PlainWriter | AnswerWriter,
        connection: ClientConnection,
    ) -> None:
        self.id = id  # in the machine
        self.name = name  # the client's X-Request-Id
        self.generation = generation
        self.writer = writer
        if not isinstance(writer, AnswerWriter):
            self.stream = writer
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
        if "transfer-encoding" in self.fields:
            raise RefusalError(411, "BadRequestError", "send the body with a Content-Length")
        length = self.fields.get("content-length", "0")
        if not length.isdecimal():
            raise RefusalError(400, "BadRequestError", f"Content-Length {length!r} is no number")
        if int(length) > BODY_LIMIT:
            raise RefusalError(413, "BadRequestError", f"a body of {length} bytes is too large")
        return int(length)


def stream_head(generation: Generation) -> bytes:
    """Return the head of a streamed response."""
    wording = generation.server.wording
    media = wording.media if isinstance(wording, Events) else EVENTS
    return b"HTTP/1.1 200 OK\r\n%scontent-type: %s; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n" % (
        _SERVER,
        media.encode(),
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


def reset(sock: socket.socket) -> None:
    """Make closing this connection a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
