"""The control plane's own client: HTTP/1.1 over asyncio's streams, parsed as the load parses it (`http1`).

So what a check can read, the load can read too. TCP, Unix sockets and TLS; no proxies. A connection takes one request
and is closed: one that is kept may hold a thread of the server that the load needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Mapping

from harness.base.errors import ProtocolError
from harness.load import tls
from harness.load.control import Client, ConnectDeadlineError, ConnectError, Reply, TransportError
from harness.load.http1 import ResponseParser, replaced, request_head
from harness.load.transport import Target

_READ = 65_536
_NEXT_ADDRESS_S = 0.25  # then the name's next address is tried too (RFC 8305, section 5)


@contextlib.asynccontextmanager
async def client(target: Target, *, connect_s: float) -> AsyncIterator[Client]:
    """Yield a client of the target's server, of the kind that the load is.

    `connect_s` bounds connecting, TLS included.
    """
    if target.transport == "httpx":
        from harness.load.httpclient import HttpxClient

        async with HttpxClient(target, connect_s) as by_httpx:
            yield by_httpx
        return
    yield SocketClient(target, connect_s)


class _Connection:
    """An open connection and the response that it reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._response = _AnyResponse()
        self._first_pieces: list[bytes] = []  # pieces of the body that came with its head
        self.http_version = "HTTP/1.1"

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def send(self, data: bytes) -> None:
        """Send a request, and wait for the head of its response."""
        self._response = _AnyResponse()
        self._writer.write(data)  # read at once: a server may refuse before it has read all of it
        while not self._response.status:
            self._first_pieces = await self._next_pieces("the server closed the connection without an answer")

    async def body(self) -> AsyncIterator[bytes]:
        for piece in self._first_pieces:
            yield piece
        while not self._response.over:
            for piece in await self._next_pieces("the server closed the connection inside its answer"):
                yield piece

    async def _next_pieces(self, if_closed: str) -> list[bytes]:
        """Return the body's pieces in the next read; [] at the end of a response that ends with its connection.

        TransportError, with the words `if_closed` where the server closed amid the response.
        """
        try:
            data = await self._reader.read(_READ)
            if not data and not self._response.eof():
                raise TransportError(if_closed)
            return self._response.feed(data) if data else []
        except OSError as error:
            raise TransportError(str(error) or type(error).__name__) from error
        except ProtocolError as error:
            raise TransportError(f"its answer cannot be read: {error}") from error

    async def close(self) -> None:
        self._writer.transport.abort()  # nothing more is expected: no orderly close is waited for
        await asyncio.sleep(0)  # in which the loop closes the socket


class _AnyResponse(ResponseParser):
    """A response of any content type and coding; its reader decides what to accept."""

    __slots__ = ()

    def take_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, dict(headers)


def _is_address(host: str) -> bool:
    """Return whether a host is one address, with no next one: a race for it may lose a socket when it is cut."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class SocketClient:
    """Single requests to one server, each on a connection of its own."""

    def __init__(self, target: Target, connect_s: float) -> None:
        self._target, self._connect_s = target, connect_s
        self._context = tls.context(target) if target.scheme == "https" else None
        usual = {"Host": target.authority, "Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "knee"}
        self._headers = replaced(replaced(usual, target.headers), {"Connection": "close"})

    @contextlib.asynccontextmanager
    async def request(self, method: str, path: str, content: bytes, headers: Mapping[str, str]) -> AsyncIterator[Reply]:
        """Send a request on a connection of its own and yield the reply; raise TransportError if that fails."""
        sent = replaced(self._headers, headers)
        if content:
            sent["Content-Length"] = str(len(content))
        try:
            data = request_head(method, path, sent.items()) + b"\r\n" + content
        except UnicodeEncodeError as error:
            raise TransportError(f"no request can hold this path: {error}") from error
        connection = await self._opened()
        try:
            await connection.send(data)
            yield connection
        finally:
            await connection.close()

    async def _opened(self) -> _Connection:
        """Return a new connection; ConnectDeadlineError after `connect_s`, else ConnectError if none is made."""
        target = self._target
        try:
            async with asyncio.timeout(self._connect_s):
                if target.uds:
                    return _Connection(*await asyncio.open_unix_connection(target.uds))
                name = target.host if self._context else None
                return _Connection(
                    *await asyncio.open_connection(
                        target.host, target.port, ssl=self._context, server_hostname=name,
                        happy_eyeballs_delay=None if _is_address(target.host) else _NEXT_ADDRESS_S,
                    )
                )  # fmt: skip
        except TimeoutError:
            raise ConnectDeadlineError(f"no connection within {self._connect_s:g} s") from None
        except OSError as error:
            if isinstance(error, ConnectionResetError) and error.errno is None:  # asyncio raises this amid a handshake
                error = ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "unexpected eof while reading")
                error.reason = "UNEXPECTED_EOF_WHILE_READING"
            one = target.uds or isinstance(error, ssl.SSLError | socket.gaierror)
            raise ConnectError(str(error) if one else "All connection attempts failed") from error
