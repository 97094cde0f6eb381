"""A worker's sockets: one request at a time on each open connection, met through one seam, `exchange`.

On the measured path a read is stamped by the kernel, framed at once (so that the slot knows when its answer is
over) and queued undecoded; what it means is told later by `Answer.take`, in the time the loop would sleep. `send`
is stamped just before the first byte is written on a connection that is already open; connect time is its own
figure. Nothing is retried: a failure is the request's story. One thing is not yet a request: bytes sent into a
connection that the server had already closed after the answer before, though it promised to keep it. Those are sent
again on a fresh connection, stamped anew and counted, and no connection is used twice from then on.

Plain HTTP over TCP. TLS, Unix sockets and httpx as a second transport come later, behind the same seam.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Protocol

from harness.load.dialects import Story, http_error
from harness.load.http1 import ProtocolError, Response
from harness.load.loop import HotSelector, ask_for_stamps, now

_KEPT_ERROR_BODY = 4096
_PREPARE_S = 10.0  # a server that does not take connections shows in the requests; the level must begin all the same


class Answer:
    """What came back for one request: its times (CLOCK_MONOTONIC ns, 0 = did not happen), story and error."""

    __slots__ = (
        "_refusal",
        "bytes_received",
        "complete",
        "connect_ns",
        "done_ns",
        "error",
        "message",
        "over",
        "request_id",
        "response",
        "sent_ns",
        "stale",
        "story",
    )

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.response = Response()
        self.story = Story()
        self.over: asyncio.Future[None] | None = None
        self.stale = False  # sent into a connection that had been closed before
        self.complete = False  # decoded to the end: nothing of it will change any more
        self.connect_ns = self.sent_ns = self.done_ns = 0
        self.bytes_received = 0
        self.error = self.message = ""
        self._refusal = b""

    def take(self, stamp: int, piece: bytes | None) -> int:
        """Decode one body piece; None ends the account."""
        if piece is not None:
            if self.response.status == 200:
                return self.story.feed(stamp, piece)
            if len(self._refusal) < _KEPT_ERROR_BODY:
                self._refusal += piece
            return 0
        status = self.response.status
        if not self.error and status != 200:
            self.message = self._refusal.decode("utf-8", "replace")
            self.error = http_error(status, self.message)
        self.story.end(stamp)
        # What the stream itself says of its end tells more than that the connection broke after it.
        if not self.error or self.story.error == "stream_error":
            self.error, self.message = self.story.error, self.story.message
        self.complete = True
        return 0

    def fail(self, error: str, message: str) -> None:
        if not self.error:
            self.error, self.message = error, message


class Transport(Protocol):
    """The seam: sockets here, a fake in tests."""

    async def exchange(self, answer: Answer, data: bytes, timeout_s: float) -> None: ...

    async def prepare(self, connections: int) -> None: ...

    def close(self) -> None: ...


class Stream:
    """One connection; a hot socket of the loop."""

    __slots__ = ("_answer", "_pool", "_unsent", "fd", "open", "recvmsg_into", "sock", "used")

    def __init__(self, sock: socket.socket, pool: SocketTransport) -> None:
        self.sock, self.fd = sock, sock.fileno()
        self.recvmsg_into = sock.recvmsg_into
        self.open = True
        self.used = False  # by a request before
        self._pool = pool
        self._answer: Answer | None = None
        self._unsent = memoryview(b"")

    def begin(self, answer: Answer, data: bytes) -> None:
        """Stamp and send; what the socket does not take at once follows when it is writable."""
        self._answer = answer
        answer.sent_ns = now()
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.lost(error, now())
            return
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
            self._pool.selector.want_write(self, True)

    def writable(self) -> None:
        try:
            self._unsent = self._unsent[self.sock.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            # The server stopped listening; an answer that says why may still be read, else the read fails too.
            self._pool.selector.want_write(self, False)
            return
        if not self._unsent:
            self._pool.selector.want_write(self, False)

    def arrived(self, data: bytes, stamp: int) -> None:
        answer = self._answer
        if answer is None:  # bytes that nobody asked for: this connection cannot be trusted with a request
            self.close()
            return
        answer.bytes_received += len(data)
        try:
            pieces = answer.response.feed(data)
        except ProtocolError as error:
            answer.fail("protocol", str(error))
            self._finish(stamp)
            return
        if pieces:
            # One read, one stamp: its pieces travel together, and several events in them count as merged.
            self._pool.selector.debt.append((answer, stamp, pieces[0] if len(pieces) == 1 else b"".join(pieces)))
        if answer.response.over:
            self._finish(stamp)

    def lost(self, error: OSError | None, stamp: int) -> None:
        answer = self._answer
        if answer is None:
            self.close()
            return
        answer.stale = self.used and not answer.bytes_received
        if error is not None or not answer.response.eof():
            if error is not None:
                answer.fail("reset", str(error))
            elif answer.bytes_received:
                answer.fail("truncated", "the server closed the connection inside its answer")
            else:
                answer.fail("reset", "the server closed the connection without an answer")
        self._finish(stamp)  # closes: what is lost has failed, or was to end with its connection

    def _finish(self, stamp: int) -> None:
        answer, self._answer = self._answer, None
        assert answer is not None
        assert answer.over is not None
        answer.done_ns = stamp
        self.used = True
        if answer.error or not answer.response.keep_alive or self._unsent or not self._pool.reuse:
            self.close()
        if not answer.over.done():
            answer.over.set_result(None)

    def close(self) -> None:
        if self.open:
            self.open = False
            self._answer = None
            self._pool.forget(self)
            self.sock.close()


class SocketTransport:
    """Open connections to one address, and the exchange of one request over one of them."""

    def __init__(self, selector: HotSelector, host: str, port: int) -> None:
        self.selector = selector
        self.reuse = True
        self.resent = 0
        self._host, self._port = host, port
        self._addresses: list[Any] = []
        self._free: list[Stream] = []
        self._streams: set[Stream] = set()

    async def open(self) -> Stream:
        """A new connection, stamped and hot; OSError when there is none to be had."""
        loop = asyncio.get_running_loop()
        last: OSError = OSError(f"{self._host} has no address")
        if not self._addresses:  # once: a look-up takes a thread
            self._addresses = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        for family, kind, proto, _, address in self._addresses:
            sock = socket.socket(family, kind, proto)
            sock.setblocking(False)
            try:
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                last = error
                continue
            except BaseException:  # cancelled: the descriptor must not stay
                sock.close()
                raise
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(sock)
            stream = Stream(sock, self)
            self.selector.add(stream)
            self._streams.add(stream)
            return stream
        raise last

    async def prepare(self, connections: int) -> None:
        """Have so many connections open, before the level starts; a refusal shows in the requests, not here."""
        missing = connections - len(self._streams)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PREPARE_S):
                while missing > 0:
                    group = min(missing, 64)  # within the usual listen backlog
                    failed = await asyncio.gather(*(self._open_free() for _ in range(group)), return_exceptions=True)
                    if any(failed):
                        return
                    missing -= group

    async def _open_free(self) -> None:
        self._free.append(await self.open())

    def forget(self, stream: Stream) -> None:
        """A stream that closes is neither read nor counted any more."""
        self.selector.drop(stream)
        self._streams.discard(stream)

    def _take(self) -> Stream | None:
        while self._free:
            stream = self._free.pop()
            if stream.open and (self.reuse or not stream.used):
                return stream
            stream.close()
        return None

    async def exchange(self, answer: Answer, data: bytes, timeout_s: float) -> None:
        """Send one request and wait until its answer is over; failures are told by the answer, never raised."""
        self.selector.busy += 1
        stream = None
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                while True:
                    stream = self._take()
                    if stream is None:
                        began = now()
                        stream = await self.open()
                        answer.connect_ns = now() - began
                    answer.over = asyncio.get_running_loop().create_future()
                    stream.begin(answer, data)
                    await answer.over
                    if not answer.stale:
                        break
                    self.reuse = False
                    self.resent += 1
                    answer.error, answer.message, answer.stale, answer.done_ns = "", "", False, 0
        except TimeoutError as error:
            late = deadline.expired()
            answer.fail(
                "client_deadline" if late else "connect", f"no end within {timeout_s:g} s" if late else str(error)
            )
        except OSError as error:
            answer.fail("refused" if isinstance(error, ConnectionRefusedError) else "connect", str(error))
        except asyncio.CancelledError:
            answer.fail("cancelled", "cut by us")
            raise
        finally:
            self.selector.busy -= 1
            if answer.done_ns == 0:
                answer.done_ns = now()
                if stream is not None:
                    stream.close()
            elif stream is not None and stream.open:
                self._free.append(stream)
            self.selector.debt.append((answer, answer.done_ns, None))

    def close(self) -> None:
        for stream in list(self._streams):
            with contextlib.suppress(OSError):
                stream.close()
