"""The seam between a worker's tasks and the wire: where requests go, one exchange, and what a transport does.

An `Exchange` is one request and its response: times, content, error. A transport fills in when it was sent and what
arrived; `Exchange.take` decodes it, at once or later. Nothing is retried: a failure is the request's result. `sockets`
and `tls` are the transport of the measured path, `httpclient` is the second one; the target names the one to use.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import msgspec

from harness.base.errors import ProtocolError
from harness.data.record import ABANDONED
from harness.dialects import decoder, refusals
from harness.dialects.dialect import Decoder
from harness.dialects.sse import EVENTS, JSON
from harness.dialects.unlisted import UNREADABLE, error_words, printable
from harness.load.http1 import ResponseParser, decompressed, is_readable, media_type
from harness.load.loop import now

if TYPE_CHECKING:
    from harness.load._receive import Stream

TRANSPORTS = ("socket", "httpx")
_KEPT_ERROR_BODY = 4096
# Errors of a connection, and what is noted of them if the answer was whole before.
_CUT = dict.fromkeys(("reset", "truncated", "tls", "protocol"), "cut_after_end") | {"client_deadline": "no_end"}
IDLE_S = 4.0  # uvicorn and Node close a connection that idles for 5 s, and what is sent at that moment is lost


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go, and how: all that a worker needs to reach the endpoint. Headers may hold secrets."""

    scheme: str  # http | https
    host: str
    port: int
    path: str
    headers: dict[str, str]
    media: str = EVENTS  # media type of the answers
    uds: str = ""  # path of a Unix socket; then host and port only name the server
    ca_file: str = ""  # PEM file of the authorities to trust in place of the system's
    insecure: bool = False  # take any certificate
    transport: str = "socket"  # one of TRANSPORTS
    session_header: str = ""  # name of the header that carries a session's id; "": none does

    @property
    def authority(self) -> str:
        """Return the Host header; without the port if it is the scheme's usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.uds or self.port == (443 if self.scheme == "https" else 80)
        return host if usual else f"{host}:{self.port}"


def session_headers(target: Target, session: str) -> list[tuple[str, str]]:
    """Return the header that carries a session's id, percent-encoded if it is no plain word; none without either."""
    return [(target.session_header, quote(session, safe=""))] if target.session_header and session else []


class TlsError(OSError):
    """TLS failed: the server's certificate, its protocol, or its bytes."""


class Exchange:
    """One request and its response: times (CLOCK_MONOTONIC ns, 0 = did not happen), content and error."""

    __slots__ = (
        "_decoder", "_kept", "bytes_received", "complete", "connect_ns", "connection", "decoded", "done_ns", "error",
        "merged_late", "message", "noted", "over", "request_id", "response", "sent_ns", "stale", "stream", "tls_ns",
        "url",
    )  # fmt: skip
    decoded: decoder.DecodedResponse  # set as soon as it is complete

    def __init__(self, request_id: str, decoding: Decoder | None = None) -> None:
        self.request_id = request_id
        self.url = ""  # URL of the replica that it went to; "": there is one server
        self._decoder = decoding or decoder.StreamDecoder()
        self.response = ResponseParser()
        self.stream: Stream | None = None  # set while the compiled receive path receives the response
        self.connection: Any = None  # the transport's own, while the request is on it
        self.over: asyncio.Future[None] | None = None
        self.stale = False  # sent into a connection that had been closed before
        self.complete = False  # decoded to the end: nothing of it changes any more
        self.connect_ns = self.tls_ns = self.sent_ns = self.done_ns = 0
        self.bytes_received = 0
        self.merged_late = 0  # token-carrying events that shared a read because it came late
        self.error = self.message = ""
        self.noted: list[str] = []  # what it was measured in spite of, besides what its decoder notes
        self._kept = b""  # start of a body while that does not tell what it is, or an error's text

    def take(self, stamp: int, piece: bytes | None) -> int:
        """Decode one piece of a response's body (None: its end); return how many chunks in it carry tokens."""
        if piece is None:
            return self._end(stamp)
        carried = self._decode(stamp, piece) if self.response.streams else self._take_start(stamp, piece)
        if (stream := self.stream) is not None and stream.decoded() and self.response.streams:
            stream.resume(self._usual())
        return carried

    def _decode(self, stamp: int, piece: bytes) -> int:
        """Decode a piece; return its chunks with tokens. A body that cannot be read is given up with the error."""
        try:
            carried = self._decoder.feed(piece, stamp)
        except ProtocolError as error:  # the rest cannot be read
            self.error, self.message = error.error, str(error)
            self.frame_here()
            self._give_up()
            return 0
        if self._decoder.came_whole and not self.done_ns and self.connection is not None:
            self.connection.await_end(self)
        return carried

    def _end(self, stamp: int) -> int:
        """Finish a response: decide its error, complete its decoding; return the chunks of a body that is one JSON."""
        if (stream := self.stream) is not None:
            self.stream = None
            received, late, begun = stream.end()
            self.bytes_received += received
            self.merged_late += late
            if begun:
                self._decoder.feed(begun, stamp)
        response = self.response
        if response.streams is None and self._kept:  # too little to tell, and all there is
            self._begin(stamp)
        if not self.error and (response.status != 200 or response.streams is False):
            self.error, self.message = self._refused()
        cut = _CUT.get(self.error)
        self.decoded = decoded = self._decoder.end(stamp, ended=not self.error and "no_end" not in self.noted)
        # An error event says more than that the connection broke after it.
        if not self.error or decoded.error == "stream_error":
            self.error, self.message = decoded.error, decoded.message
        elif cut is not None and not decoded.error:  # behind the end of the answer
            self.error = self.message = ""
            self.noted.append(cut)
        self.complete = True
        return len(decoded.arrivals) if self._decoder.media == JSON else 0

    def _usual(self) -> decoder.Usual | None:
        """Return how the usual events of the rest may be decoded elsewhere; None: they may not."""
        return self._decoder.usual() if isinstance(self._decoder, decoder.StreamDecoder) else None

    def frame_here(self) -> None:
        """Let the response's own parser frame what comes from now on."""
        if (stream := self.stream) is not None and (state := stream.leave()) is not None:
            self.response.go_on(*state)

    def _take_start(self, stamp: int, piece: bytes) -> int:
        """Keep the first pieces of a body until they show whether the decoder reads such a body; then decode them."""
        response = self.response
        self._kept += piece
        if response.streams is None:
            self._kept = self._kept.lstrip()
            response.streams = is_readable(self._decoder.media, response.headers, self._kept)
            if response.streams:
                return self._begin(stamp)
        self._kept = self._kept[:_KEPT_ERROR_BODY]
        return 0

    def _begin(self, stamp: int) -> int:
        """Decode the kept start of a body, noting an odd content type; return how many chunks in it carry tokens."""
        start, self._kept, self.response.streams = self._kept, b"", True
        if (kind := media_type(self.response.headers.get("content-type", ""))) != self._decoder.media:
            self.noted.append(f"content_type:{printable(kind) or 'none'}")
        return self._decode(stamp, start)

    def _refused(self) -> tuple[str, str]:
        """Return (error, message) of a response that is no answer, by its status and body; out of memory is `oom`."""
        response = self.response
        body = decompressed(self._kept, response.headers)[:_KEPT_ERROR_BODY]
        text = body.decode("utf-8", "replace")
        if response.status == 200:
            with contextlib.suppress(*UNREADABLE):
                if words := error_words(msgspec.json.decode(body)):
                    return "stream_error", words
            kind = response.headers.get("content-type", "no content type")
            return "content_type", f"{kind}: no {'event' if self._decoder.media == EVENTS else 'answer'} in it: {text}"
        if "retry-after" in response.headers:
            text = f"Retry-After: {response.headers['retry-after']}; {text}"
        return refusals.http_error(response.status, text), text

    def end_unfinished_body(self) -> None:
        """End it with its answer, which is whole, as its body has not come to an end for too long."""
        self.noted.append("no_end")
        self._give_up()

    def end_late(self, timeout_s: float) -> None:
        """End it at its deadline, `timeout_s` after its send, unless its response is over."""
        if self.over is None or not self.over.done():
            self.fail("client_deadline", f"no end within {timeout_s:g} s")
            self._give_up()

    def _give_up(self) -> None:
        """Read no more of it."""
        if self.over is not None and not self.over.done():
            self.over.set_result(None)

    def fail(self, error: str, message: str) -> None:
        if not self.error:
            self.error, self.message = error, message
            self.frame_here()  # what is received now ends it

    @property
    def retry_after_s(self) -> float:
        """Return the Retry-After header, seconds; 0: none, or a date (RFC 9110, 10.2.3)."""
        value = self.response.headers.get("retry-after", "")
        return float(value) if value.isascii() and value.isdigit() else 0.0


class CutExchange(Exchange):
    """An exchange whose answer is given up after some chunks that carried tokens, as a user does who has read enough.

    It ends as one does that cannot be read on: its connection is closed, and the server is free of it.
    """

    __slots__ = ("_left",)

    def __init__(self, request_id: str, decoding: Decoder, chunks: int) -> None:
        super().__init__(request_id, decoding)
        self._left = chunks

    def _usual(self) -> None:
        """Every chunk is counted here."""

    def take(self, stamp: int, piece: bytes | None) -> int:
        """Take a piece as `Exchange` does, and give the response up once so many chunks carried tokens."""
        carried = super().take(stamp, piece)
        self._left -= carried
        if self._left <= 0 and piece is not None and not self.done_ns:
            self.fail(ABANDONED, "given up after some tokens")
            self._give_up()
        return carried


class Transport(Protocol):
    """A way to the endpoint: `sockets`, TLS on them, `httpclient`, a fake in tests.

    `resent` counts the requests that were sent again. `stamped`: arrivals have the kernel's stamps where the kernel
    gives any, else the clock's.
    """

    @property
    def resent(self) -> int: ...
    @property
    def stamped(self) -> bool: ...

    def request(self, request_id: str, body: bytes, session: str = "") -> Any:
        """Return what `send` sends, built before it is due."""
        ...

    def begin(self, exchange: Exchange, request: Any) -> None:
        """Send a request at once if it need not wait for a connection; if it must, `send` does it."""
        ...

    async def send(self, exchange: Exchange, request: Any, timeout_s: float) -> None:
        """Send a request that has not begun; wait until its response is over. Failures are noted, never raised."""
        ...

    async def prepare(self, connections: int) -> None:
        """Open so many connections, as far as this transport opens any ahead."""
        ...

    async def aclose(self) -> None: ...


class Deadlines:
    """Calls `expired` with each exchange whose deadline has come; all of them may take the same time.

    One timer serves them all. A timer of its own for each request would cost time where many are sent at once, and
    asyncio keeps those that were taken back in memory until they are half of all.
    """

    def __init__(self, seconds: float, expired: Callable[[Exchange], None]) -> None:
        self._seconds = seconds
        self._expired = expired
        self._at: dict[Exchange, int] = {}  # CLOCK_MONOTONIC ns; the first one added has the first deadline
        self._timer: asyncio.TimerHandle | None = None

    def add(self, exchange: Exchange) -> int:
        """Start an exchange's time limit now; return its deadline, CLOCK_MONOTONIC ns."""
        self._at[exchange] = deadline = now() + round(self._seconds * 1e9)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._check)
        return deadline

    def remove(self, exchange: Exchange) -> None:
        """It is over. The timer stays: it is set to the next deadline when it goes off."""
        self._at.pop(exchange, None)

    def close(self) -> None:
        """No deadline comes any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """End every request that is past its deadline, and set the timer for the next one."""
        self._timer = None
        while self._at:
            exchange, deadline = next(iter(self._at.items()))
            if (left_ns := deadline - now()) > 0:
                self._timer = asyncio.get_running_loop().call_later(left_ns * 1e-9, self._check)
                return
            del self._at[exchange]
            self._expired(exchange)
