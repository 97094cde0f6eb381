"""Sockets: one request at a time on each open connection, stamped by the kernel.

On the measured path a read is stamped by the kernel, framed at once (so that the slot knows when its response is over)
and queued; it is decoded later, in the time the loop would sleep. The send is stamped just before the first byte is
written on a connection that is already open; connect and TLS times are figures of their own.

Nothing is retried: a failure is the request's result. The exception is a request that went into a connection which the
server had already closed, though it promised to keep it: it is sent again on a fresh connection, stamped anew and
counted, where that is certain (`Connection._untaken`). Where the server may have read it and closed without a response,
that is the failure `reset`. After either no connection is used twice, nor after the server closed one within a second
of its response, as llama-server does. No connection that idled for IDLE_S is used again: servers close those.

Where the server closes after each response, every request that begins opens one connection for the next: a request
finds an open one, and a server that refuses is not flooded. One opened ahead and idle for IDLE_S is not used either.
TCP (IPv4, IPv6) and Unix sockets are here; `tls` puts TLS on them.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import fcntl
import socket
import struct
import termios
from typing import Any

from harness.base.errors import ProtocolError
from harness.load import http1
from harness.load.loop import Decrypt, HotSelector, LateRead, enable_stamps, now
from harness.load.receive import OVER
from harness.load.transport import IDLE_S, Deadlines, Exchange, Target, TlsError, session_headers

_PREPARE_S = 10.0  # a server that accepts no connections shows in the requests; the level begins all the same
_NEXT_ADDRESS_S = 2.0  # one of several addresses has so long to accept a connection
_AT_ONCE = 64  # connections opened together: within the usual listen backlog
_NO_END_S = 5.0  # the body of a whole answer has to end within so long
_KEPT_NS = 1e9  # a server that closes a connection this soon after its response keeps none
_int, _int_size = struct.Struct("i").unpack, struct.calcsize("i")


class Connection:
    """One connection; a hot socket of the loop."""

    decrypt: Decrypt | None = None  # nothing is encrypted

    __slots__ = (
        "_exchange", "_pool", "_sent", "_unsent", "connect_ns", "done_ns", "fd", "open", "opened_ns", "recvmsg_into",
        "sock", "tls_ns",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, pool: SocketTransport) -> None:
        self.sock, self.fd = sock, sock.fileno()
        self.recvmsg_into = sock.recvmsg_into
        self.open = True
        self.opened_ns = now()
        self.done_ns = 0  # when its last response was over; 0: it had none
        self.connect_ns = self.tls_ns = 0  # what opening it took
        self._pool = pool
        self._exchange: Exchange | None = None
        self._unsent = memoryview(b"")
        self._sent = 0  # bytes of the request that the kernel took, while no response has begun

    def begin(self, exchange: Exchange, data: bytes) -> None:
        """Stamp and send; what the socket does not take at once follows when it is writable."""
        self._exchange = exchange
        exchange.sent_ns = now()
        try:
            self._sent = sent = self.sock.send(data)
        except BlockingIOError:
            self._sent = sent = 0
        except OSError as error:  # not a byte of it has left
            self._sent = 0
            self.lost(error, now())
            return
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
            self._pool.selector.want_write(self, True)

    def writable(self) -> None:
        try:
            sent = self.sock.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            # The server stopped reading; its response may still be read, else the read fails too.
            self._pool.selector.want_write(self, False)
            return
        self._sent += sent
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._pool.selector.want_write(self, False)

    def arrived(self, data: bytes, stamp: int) -> None:
        """Frame bytes that came at `stamp` and queue them for decoding; finish the exchange if its response ends."""
        exchange = self._exchange
        if exchange is None:  # unrequested bytes: the next request would take them for its response
            self.close()
            return
        response, stream, selector = exchange.response, exchange.stream, self._pool.selector
        if stream is not None:
            if taken := stream.feed(data, stamp, selector.late_read):
                if taken == OVER:
                    self.over(stamp)
                return
            exchange.frame_here()
        exchange.bytes_received += len(data)
        if stream is None and (piece := response.lone(data)) is not None:
            selector.decode_queue.append((exchange, stamp, piece))
            return
        try:
            pieces = response.feed(data)
        except ProtocolError as error:
            pieces = error.pieces
            exchange.fail(error.error, str(error))
        chunks = response.chunk_state() if selector.poller is not None else None
        if chunks is not None and stream is None:
            stream = exchange.stream = selector.stream(self, exchange)
        if pieces:
            # One read, one stamp: several events in its pieces count as merged. In a read that was not late the server
            # sent them together, and events of one chunk always were.
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            apart = selector.late_read and (len(pieces) > 1 or "transfer-encoding" not in response.headers)
            if stream is not None:
                stream.put(piece, stamp, apart)
            else:
                selector.decode_queue.append((LateRead(exchange) if apart else exchange, stamp, piece))
        if response.over or exchange.error:
            self._finish(stamp)
        elif stream is not None and chunks is not None:
            stream.frame_on(*chunks)

    received = arrived  # it is not encrypted

    def over(self, stamp: int) -> None:
        """The response was framed by its stream, and is over."""
        assert self._exchange is not None
        self._exchange.response.end()
        self._finish(stamp)

    def lost(self, error: OSError | None, stamp: int) -> None:
        """End the response as reset or truncated: the connection broke or was closed; without one, only close."""
        exchange = self._exchange
        if exchange is None:
            if stamp - self.done_ns < _KEPT_NS:
                self._pool.breaks()
            self.close()
            return
        if self.done_ns and not exchange.bytes_received:
            self._pool.breaks()
            exchange.stale = self._untaken(error)
        if error is not None or not exchange.response.eof():
            if error is not None:
                exchange.fail("reset", str(error))
            elif exchange.bytes_received:
                exchange.fail("truncated", "the server closed the connection inside its answer")
            else:
                exchange.fail("reset", "the server closed the connection without an answer")
        self._finish(stamp)  # closes: it has failed, or was to end with its connection

    def await_end(self, exchange: Exchange) -> None:
        """The answer of an exchange is whole: its body has to end soon."""
        self._pool.await_end(exchange)

    def _untaken(self, error: OSError | None) -> bool:
        """Return whether it is certain that the server never received a byte of the request.

        It is where the first write failed, or where the peer's FIN came and acknowledged no byte: a FIN acknowledges
        all that was received before it, so this one was sent before the request arrived. A reset acknowledges
        nothing, so after one it is unknown what had been read; so it is on a Unix socket.
        """
        if not self._sent:
            return True
        if error is not None or self.sock.family == socket.AF_UNIX:
            return False
        (unacknowledged,) = _int(fcntl.ioctl(self.fd, termios.TIOCOUTQ, bytes(_int_size)))  # tcp(7), SIOCOUTQ
        return bool(unacknowledged >= self._sent)

    def _finish(self, stamp: int) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        assert exchange.over is not None
        exchange.done_ns = self.done_ns = stamp
        if not exchange.response.keep_alive:
            self._pool.closes()
        if exchange.error or not exchange.response.keep_alive or self._unsent or not self._pool.reuse:
            self.close()
        if not exchange.over.done():
            exchange.over.set_result(None)

    def close(self) -> None:
        if self.open:
            self.open = False
            self._exchange = None
            self._pool.forget(self)
            self.sock.close()


class SocketTransport:
    """Connections to one host, over all its addresses of one family in turn; one request at a time on each."""

    def __init__(self, target: Target, selector: HotSelector) -> None:
        self.selector = selector
        self.reuse = True
        self.resent = self.opened = 0
        self.stamped = not target.uds  # the kernel stamps what comes over a network only
        self._target = target
        usual = {"Host": target.authority, "Accept": target.media, "Accept-Encoding": "identity", "User-Agent": "knee"}
        headers = http1.without(http1.replaced(usual, target.headers), http1.OWN)
        self._head = http1.request_head("POST", target.path, headers.items())
        self._addresses: list[Any] = []
        self._down: set[Any] = set()  # addresses that took no connection when they were tried last
        self._turn = 0  # connections that were begun
        self._resolving: asyncio.Task[list[Any]] | None = None
        self._free: collections.deque[Connection] = collections.deque()
        self._connections: set[Connection] = set()
        self._in_flight = 0
        self._ahead = False  # the server closes after each response: the next connection is opened meanwhile
        self._opening: set[asyncio.Task[int]] = set()
        self._deadlines: dict[float, Deadlines] = {}  # by the seconds that a request may take
        self._ends = Deadlines(_NO_END_S, Exchange.end_unfinished_body)
        self.await_end = self._ends.add

    def request(self, request_id: str, body: bytes, session: str = "") -> bytes:
        head = self._head + http1.header_lines(session_headers(self._target, session))
        return http1.request(head, request_id, body)

    async def open(self) -> Connection:
        """Return a new connection, stamped and in the selector; raise OSError if none can be made."""
        if not self._addresses:  # once for all that wait: it takes a thread, and resolvers drop floods
            if self._resolving is None:
                self._resolving = asyncio.get_running_loop().create_task(self._resolve())
                self._resolving.add_done_callback(self._resolved)
            self._addresses = await asyncio.shield(self._resolving)
        last: OSError = OSError(f"{self._target.host} has no address")
        addresses = self._in_turn()
        for entry in addresses:
            family, kind, proto, _, address = entry
            sock = socket.socket(family, kind, proto)
            sock.setblocking(False)
            try:
                began = now()
                async with asyncio.timeout(None if entry is addresses[-1] else _NEXT_ADDRESS_S):
                    await _connect(sock, address)
                connect_ns = now() - began
                if family != socket.AF_UNIX:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    enable_stamps(sock)
                connection = await self._connected(sock)
            except TlsError:  # a server is there, and its other addresses would fail alike
                sock.close()
                raise
            except OSError as error:
                sock.close()
                last = error
                self._down.add(entry)
                continue
            except BaseException:  # cancelled: the descriptor must not stay
                sock.close()
                raise
            self._down.discard(entry)
            connection.connect_ns = connect_ns
            self.selector.add(connection)
            self._connections.add(connection)
            self.opened += 1
            return connection
        self._addresses = []  # a name may stand for others by now
        self._down.clear()
        raise last

    def _in_turn(self) -> list[Any]:
        """Return the name's addresses as the next connection tries them: those of the first one's family go round.

        Those that failed come last.
        """
        up = [address for address in self._addresses if address not in self._down] or self._addresses
        alike = [each for each in up if each[0] == up[0][0]]
        at, self._turn = self._turn % max(1, len(alike)), self._turn + 1
        return list(dict.fromkeys([*alike[at:], *alike[:at], *up, *self._addresses]))

    def _resolved(self, task: asyncio.Task[list[Any]]) -> None:
        self._resolving = None
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it; those that wait have raised it

    async def _resolve(self) -> list[Any]:
        if self._target.uds:
            return [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", self._target.uds)]
        loop = asyncio.get_running_loop()
        return await loop.getaddrinfo(self._target.host, self._target.port, type=socket.SOCK_STREAM)

    async def _connected(self, sock: socket.socket) -> Connection:
        """Return the connection over a connected socket, ready for a request."""
        return Connection(sock, self)

    async def prepare(self, connections: int) -> None:
        """Open connections until so many can be used; a refusal shows in the requests, not here."""
        for connection in [each for each in self._free if not self._usable(each)]:
            self._free.remove(connection)
            connection.close()
        missing = connections - len(self._connections)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PREPARE_S):
                while missing > 0:
                    group = min(missing, _AT_ONCE)
                    if sum(await asyncio.gather(*(self._open_free() for _ in range(group)))) < group:
                        return
                    missing -= group

    async def _open_free(self) -> int:
        """Open one connection for the next request; returns 1, or 0 if there is none."""
        try:
            self._free.append(await self.open())
        except OSError:
            return 0
        return 1

    def closes(self) -> None:
        """The server closed after its response: from now on the next connection is opened while one streams."""
        if not self._ahead:
            self._ahead = True
            self._open_ahead(self._in_flight - 1)  # for those in flight, which opened none when they began

    def breaks(self) -> None:
        """Use no connection twice from now on: the server ended one that it had promised to keep."""
        self.reuse, self._ahead = False, True

    def _open_ahead(self, connections: int) -> None:
        """Open so many more, though never more than there are requests in flight."""
        for _ in range(min(connections, self._in_flight - len(self._free) - len(self._opening), _AT_ONCE)):
            task = asyncio.get_running_loop().create_task(self._open_free())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def forget(self, connection: Connection) -> None:
        """Neither read nor count a connection that closes."""
        self.selector.drop(connection)
        self._connections.discard(connection)

    def _take(self) -> Connection | None:
        while self._free:
            connection = self._free.popleft()  # the oldest: servers accept connections in order
            if self._usable(connection):
                return connection
            connection.close()
        return None

    def _usable(self, connection: Connection) -> bool:
        """Return whether a free connection may take a request: the server is not likely to close it at this moment."""
        fresh = now() - (connection.done_ns or connection.opened_ns) < IDLE_S * 1e9
        return connection.open and (fresh and self.reuse if connection.done_ns else fresh or not self._ahead)

    def begin(self, exchange: Exchange, request: bytes) -> None:
        """Send a request at once on a connection that is open, if there is one."""
        if (connection := self._take()) is not None:
            self._count(1)
            self._put(connection, exchange, request)

    def _count(self, requests: int) -> None:
        self.selector.busy += requests
        self._in_flight += requests

    def _put(self, connection: Connection, exchange: Exchange, request: bytes) -> None:
        exchange.connection = connection
        exchange.over = asyncio.get_running_loop().create_future()
        connection.begin(exchange, request)
        if self._ahead:
            self._open_ahead(1)

    async def send(self, exchange: Exchange, request: bytes, timeout_s: float) -> None:
        """Send a request that has not begun; wait until its response is over. Failures are noted, never raised."""
        if exchange.connection is None:
            self._count(1)
        if (deadlines := self._deadlines.get(timeout_s)) is None:
            deadlines = Deadlines(timeout_s, lambda late: late.end_late(timeout_s))
            self._deadlines[timeout_s] = deadlines
        deadline = deadlines.add(exchange)
        try:
            while True:
                if exchange.connection is None:
                    connection = self._take() or await self._opened(exchange, deadline, timeout_s)
                    if exchange.error:  # its deadline came while the connection was opened
                        self._free.append(connection)
                        break
                    self._put(connection, exchange, request)
                assert exchange.over is not None
                await exchange.over
                if not exchange.stale or now() >= deadline:
                    break
                exchange.connection = exchange.over = None
                self.resent += 1
                exchange.error, exchange.message, exchange.stale, exchange.done_ns = "", "", False, 0
        except TlsError as error:
            exchange.fail("tls", str(error))
        except ConnectionRefusedError as error:
            exchange.fail("refused", str(error))
        except OSError as error:
            exchange.fail("connect", str(error))
        except asyncio.CancelledError:
            exchange.fail("cancelled", "cut by us")
            raise
        finally:
            self._count(-1)
            deadlines.remove(exchange)
            self._ends.remove(exchange)
            used, exchange.connection = exchange.connection, None
            if exchange.done_ns == 0:
                exchange.done_ns = now()
                if used is not None:
                    used.close()
            elif used is not None and used.open:
                self._free.append(used)
            self.selector.decode_queue.append((exchange, exchange.done_ns, None))

    async def _opened(self, exchange: Exchange, deadline_ns: int, timeout_s: float) -> Connection:
        """Return a new connection for a request; raise OSError if none can be made before its deadline."""
        try:
            async with asyncio.timeout((deadline_ns - now()) * 1e-9) as left:
                connection = await self.open()
        except TimeoutError as error:
            if left.expired():
                exchange.end_late(timeout_s)
            raise OSError(str(error)) from error
        exchange.connect_ns, exchange.tls_ns = connection.connect_ns, connection.tls_ns
        return connection

    async def aclose(self) -> None:
        for each in (self._ends, *self._deadlines.values()):
            each.close()
        opening = list(self._opening)
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.close()


async def _connect(sock: socket.socket, address: Any) -> None:
    if sock.family != socket.AF_UNIX:
        await asyncio.get_running_loop().sock_connect(sock, address)
        return
    while True:  # a Unix socket connects at once, or its listener's backlog is full
        try:
            sock.connect(address)
        except BlockingIOError:
            await asyncio.sleep(0.001)
        else:
            return
