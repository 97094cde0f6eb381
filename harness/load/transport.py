"""The seam between a worker's tasks and the wire: where requests go, what came back, and what a transport does.

`Answer` is what is known of one request: its times, its story, its error. A transport fills in when it was sent and
what arrived; what that means is told by `Answer.take`, at once or later. Nothing is retried: a failure is the
request's story. `sockets` and `tls` are the transport of the measured path, `httpclient` is the second one; the
worker takes the one that the target asks for.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec

from harness.dialects import decoder, refusals
from harness.errors import ProtocolError
from harness.load.http1 import ResponseParser

TRANSPORTS = ("socket", "httpx")
_KEPT_ERROR_BODY = 4096
IDLE_S = 4.0  # uvicorn and Node close a connection that idles for 5 s, and what is sent at that moment is lost


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go, and how: all that a worker needs to reach the endpoint. Headers may hold secrets."""

    scheme: str  # http | https
    host: str
    port: int
    path: str
    headers: dict[str, str]
    uds: str = ""  # path of a Unix socket; then host and port only name the server
    ca_file: str = ""  # PEM file of the authorities to trust in place of the system's
    insecure: bool = False  # take any certificate
    transport: str = "socket"  # one of TRANSPORTS

    @property
    def authority(self) -> str:
        """The Host header: what a port is usual for needs no port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.uds or self.port == (443 if self.scheme == "https" else 80)
        return host if usual else f"{host}:{self.port}"


class TlsError(OSError):
    """No TLS with this server: its certificate, its protocol, or its bytes."""


class Exchange:
    """What came back for one request: its times (CLOCK_MONOTONIC ns, 0 = did not happen), its content and error."""

    __slots__ = (
        "_decoder",
        "_refusal",
        "bytes_received",
        "complete",
        "connect_ns",
        "decoded",
        "done_ns",
        "error",
        "merged_late",
        "message",
        "over",
        "request_id",
        "response",
        "sent_ns",
        "stale",
        "tls_ns",
    )
    decoded: decoder.DecodedResponse  # as soon as it is complete

    def __init__(self, request_id: str, decoding: decoder.StreamDecoder | None = None) -> None:
        self.request_id = request_id
        self.response = ResponseParser()
        self._decoder = decoding or decoder.StreamDecoder()
        self.over: asyncio.Future[None] | None = None
        self.stale = False  # sent into a connection that had been closed before
        self.complete = False  # decoded to the end: nothing of it will change any more
        self.connect_ns = self.tls_ns = self.sent_ns = self.done_ns = 0
        self.bytes_received = 0
        self.merged_late = 0  # token-carrying events that shared a read because it came late
        self.error = self.message = ""
        self._refusal = b""

    def take(self, stamp: int, piece: bytes | None) -> int:
        """Decode one body piece; None ends the account."""
        if piece is not None:
            if self.response.streams:
                try:
                    return self._decoder.feed(piece, stamp)
                except ProtocolError as error:  # nothing more is to be had from it
                    self.error, self.message = error.error, str(error)
                    if self.over is not None and not self.over.done():
                        self.over.set_result(None)
                    return 0
            self._refusal = (self._refusal + piece)[:_KEPT_ERROR_BODY]
            return 0
        response = self.response
        if not self.error and not (response.status == 200 and response.streams):
            self.message = self._refusal.decode("utf-8", "replace")
            if response.status == 200:
                self.error, self.message = "content_type", f"{response.headers['content-type']}: {self.message}"
            else:
                self.error = refusals.http_error(response.status, self.message)
                if "retry-after" in response.headers:
                    self.message = f"Retry-After: {response.headers['retry-after']}; {self.message}"
        self.decoded = decoded = self._decoder.end(stamp)
        # What the stream itself says of its end tells more than that the connection broke after it.
        if not self.error or decoded.error == "stream_error":
            self.error, self.message = decoded.error, decoded.message
        self.complete = True
        return 0

    def fail(self, error: str, message: str) -> None:
        if not self.error:
            self.error, self.message = error, message

    @property
    def retry_after_s(self) -> float:
        """The rest that the server asked for, seconds; 0: none, or until a date (RFC 9110, 10.2.3)."""
        asked = self.response.headers.get("retry-after", "")
        return float(asked) if asked.isascii() and asked.isdigit() else 0.0


class LateRead:
    """An answer's piece whose events may share a read only because we read late."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def take(self, stamp: int, piece: bytes | None) -> int:
        carried = self._exchange.take(stamp, piece)
        if carried > 1:
            self._exchange.merged_late += carried
        return carried


class Transport(Protocol):
    """A way to the endpoint: `sockets`, TLS on them, `httpclient`, a fake in tests.

    `resent` counts the requests that were sent again; `stamped` says whether arrivals carry the kernel's stamps
    where the kernel gives any, else they are the clock's.
    """

    resent: int
    stamped: bool

    def request(self, request_id: str, body: bytes) -> Any:
        """What `exchange` sends, built before it is due."""
        ...

    async def send(self, exchange: Exchange, request: Any, timeout_s: float) -> None:
        """Send one request and wait until its answer is over; failures are told by the answer, never raised."""
        ...

    async def prepare(self, connections: int) -> None:
        """Have so many connections open, as far as this transport opens any ahead."""
        ...

    async def aclose(self) -> None: ...
