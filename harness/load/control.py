"""The control plane: single requests to an endpoint, for launch checks and scrapes, off the measured path.

They are bounded whatever the server does: a request has one deadline, connecting and heads included, and its response
at most LONGEST bytes, also once inflated, unless its reader has a bound of its own. No cookie is kept and no redirect
followed. A connection takes one request and is closed: one that is kept may hold a thread of the server that the load
needs.

The client for most endpoints speaks HTTP/1.1 over asyncio's streams (TCP, Unix sockets and TLS), parsed as the load
parses it (`http1`): what a check can read, the load can read too. `httpclient` has the one for those that the load
reaches by httpx.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from harness.base.errors import ProtocolError
from harness.load import tls
from harness.load.http1 import ANY_HEADER, ResponseParser, replaced, request_head
from harness.load.transport import Target

LONGEST = 4 << 20  # bytes of a response, also once inflated; a page of metrics is some hundred KiB
_CODINGS = ("identity", "gzip", "x-gzip", "deflate")
_READ = 65_536
_NEXT_ADDRESS_S = 0.25  # before the name's next address is tried too (RFC 8305, section 5)


class TransportError(Exception):
    """No response, or none that can be read."""


class ConnectError(TransportError):
    """Nothing listens there, or there is no TLS with it."""


class ProxyError(TransportError):
    """A proxy refused."""


class DeadlineError(TransportError):
    """The response did not end in time."""


class ConnectDeadlineError(DeadlineError):
    """There was no connection in time."""


class Page(msgspec.Struct, frozen=True):
    """A whole response; header names in lower case, the body inflated."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as UTF-8, whatever charset it claims: some of Python's codecs take quadratic time, or inflate."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the JSON data of a 200 response; None where it is anything else."""
        if self.status != 200:
            return None
        try:
            return msgspec.json.decode(self.body.removeprefix(b"\xef\xbb\xbf"))
        except (ValueError, RecursionError):  # of any depth
            return None


class Reply(Protocol):
    """A response whose head has arrived; header names in lower case."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def http_version(self) -> str: ...

    def body(self) -> AsyncIterator[bytes]:
        """Yield the body's bytes as they were sent, as they arrive."""
        ...


class Client(Protocol):
    """What sends requests to one server; raises TransportError alone."""

    def request(
        self, method: str, path: str, content: bytes, headers: Mapping[str, str]
    ) -> contextlib.AbstractAsyncContextManager[Reply]:
        """Send one request; its reply is open while the block runs."""
        ...


@contextlib.asynccontextmanager
async def client(target: Target, *, connect_s: float) -> AsyncIterator[Client]:
    """A client of the target's server, of the kind that the load is; `connect_s` bounds connecting, TLS included."""
    if target.transport == "httpx":
        from harness.load.httpclient import HttpxClient

        async with HttpxClient(target, connect_s) as by_httpx:
            yield by_httpx
        return
    yield SocketClient(target, connect_s)


@contextlib.asynccontextmanager
async def response(
    client: Client, method: str, path: str, within_s: float, content: bytes = b"", headers: Mapping[str, str] = {}
) -> AsyncIterator[Reply]:
    """Send one request and give its reply within so many seconds, the block included."""
    try:
        async with asyncio.timeout(within_s), client.request(method, path, content, headers) as reply:
            yield reply
    except TimeoutError:
        raise DeadlineError(f"no end of the answer within {within_s:g} s") from None


async def page(client: Client, path: str, within_s: float, body: bytes | None = None) -> Page:
    """Get a page within so many seconds, of at most LONGEST bytes before and after it is inflated.

    With a body of JSON it is the answer to that.
    """
    method, headers = ("GET", {}) if body is None else ("POST", {"Content-Type": "application/json"})
    async with response(client, method, path, within_s, body or b"", headers) as reply:
        return Page(reply.status, dict(reply.headers), await whole(reply))


async def whole(reply: Reply) -> bytes:
    """Return the body as it was before any compression; bytes, at most LONGEST."""
    coding = reply.headers.get("content-encoding", "identity").strip().lower() or "identity"
    if coding not in _CODINGS:
        raise TransportError(f"it compresses ({coding[:40]!r}), though no compression was asked for")
    body = b"".join([piece async for piece in pieces(reply)])
    if coding != "identity" and body:
        body = _inflated(body, coding)
    if len(body) > LONGEST:
        raise TransportError(f"an answer longer than {LONGEST >> 20} MiB")
    return body


def _inflated(body: bytes, coding: str) -> bytes:
    """Return a body inflated, at most one byte more than LONGEST: no small one grows without bound."""
    inflate = zlib.decompressobj(ANY_HEADER)
    try:
        inflated = inflate.decompress(body, LONGEST + 1)
    except zlib.error as error:
        raise TransportError(f"its {coding} cannot be inflated: {error}") from None
    if len(inflated) <= LONGEST and not inflate.eof:
        raise TransportError(f"its {coding} ends in the midst")
    return inflated


async def pieces(reply: Reply, longest: int = LONGEST) -> AsyncIterator[bytes]:
    """Yield the body's bytes as they were sent, as they arrive; at most `longest` of them."""
    size = 0
    async for piece in reply.body():
        size += len(piece)
        if size > longest:
            raise TransportError(f"an answer longer than {longest >> 20} MiB")
        yield piece


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and everything behind it, the members of groups included."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from causes(member)
    behind = error.__cause__ or error.__context__
    if behind is not None:
        yield from causes(behind)


# ---- the client of most endpoints ------------------------------------------------------------------------------------


class _Connection:
    """An open connection and the response that it reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._response = _AnyResponse()
        self._first_pieces: list[bytes] = []  # of the body, that came with its head
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
            self._first_pieces = await self._more("the server closed the connection without an answer")

    async def body(self) -> AsyncIterator[bytes]:
        for piece in self._first_pieces:
            yield piece
        while not self._response.over:
            for piece in await self._more("the server closed the connection inside its answer"):
                yield piece

    async def _more(self, if_closed: str) -> list[bytes]:
        """Return the body's pieces in the next read."""
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
            if isinstance(error, ConnectionResetError) and error.errno is None:  # so asyncio, amid a handshake
                error = ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "unexpected eof while reading")
                error.reason = "UNEXPECTED_EOF_WHILE_READING"
            one = target.uds or isinstance(error, ssl.SSLError | socket.gaierror)
            raise ConnectError(str(error) if one else "All connection attempts failed") from error
