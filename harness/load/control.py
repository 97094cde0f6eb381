"""The control plane: single requests to an endpoint, for launch checks and scrapes, off the measured path.

They are bounded whatever the server does: a request has one deadline, connecting and heads included, and its response
at most LONGEST bytes, also once inflated, unless its reader has a bound of its own. No cookie is kept and no redirect
followed. `client` has the client for most endpoints, `httpclient` the one for those that the load reaches by httpx.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from harness.load.http1 import ANY_HEADER

LONGEST = 4 << 20  # bytes of a response, also once inflated; a page of metrics is some hundred KiB
_CODINGS = ("identity", "gzip", "x-gzip", "deflate")


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
        """Return the body as UTF-8, whatever charset it claims: some codecs take quadratic time, or inflate."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the JSON data of a 200 response; None if it is anything else."""
        if self.status != 200:
            return None
        try:
            return msgspec.json.decode(self.body.removeprefix(b"\xef\xbb\xbf"))
        except (ValueError, RecursionError):  # JSON may be nested to any depth
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
async def response(
    client: Client, method: str, path: str, within_s: float, content: bytes = b"", headers: Mapping[str, str] = {}
) -> AsyncIterator[Reply]:
    """Send one request and yield its reply; the block too must be over within `within_s` seconds."""
    try:
        async with asyncio.timeout(within_s), client.request(method, path, content, headers) as reply:
            yield reply
    except TimeoutError:
        raise DeadlineError(f"no end of the answer within {within_s:g} s") from None


async def page(client: Client, path: str, within_s: float, body: bytes | None = None) -> Page:
    """Get a page within `within_s` seconds; refuse more than LONGEST bytes, compressed or inflated.

    With a body of JSON it is the answer to that.
    """
    method, headers = ("GET", {}) if body is None else ("POST", {"Content-Type": "application/json"})
    async with response(client, method, path, within_s, body or b"", headers) as reply:
        return Page(reply.status, dict(reply.headers), await whole(reply))


async def whole(reply: Reply) -> bytes:
    """Return the body as it was before any compression; bytes.

    Raise TransportError for more than LONGEST bytes, and for a compression that is not known or broken.
    """
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
    """Yield the body's bytes as they were sent, as they arrive; raise TransportError for more than `longest` bytes."""
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
