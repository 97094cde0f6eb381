"""The endpoint by httpx: the client of launch checks and metrics, and the second transport of the load.

For endpoints that plain sockets do not reach: through a proxy (its variables are honoured), over HTTP/2 (where `h2`
is installed), behind whatever odd. The same stories and error names come out. What it costs: pieces are stamped by
the clock when they reach us, not by the kernel; a token takes many times the CPU; connections are opened when a
request needs one, never ahead; `bytes_received` counts bodies only; nothing is ever sent again, since whether a server
had closed a kept connection before cannot be told from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from harness.errors import ProtocolError
from harness.load import tls
from harness.load.loop import HotSelector, now
from harness.load.transport import IDLE_S, Answer, Target

if TYPE_CHECKING:
    import http.cookiejar

    import httpx

LONGEST = (
    4 << 20
)  # bytes of an answer to a check or a scrape, also once inflated; a page of metrics is some hundred KiB
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's wbits by coding (RFC 9110, 8.4.1)

# CPU seconds per million tokens, 512 streams of 40 tokens/s, one x86 core, Python 3.11, loopback, November 2026:
# httpx, and beside it the sockets of `transport`.
CPU_S_PER_MILLION, SOCKET_CPU_S_PER_MILLION = 164, 8


class Page(msgspec.Struct, frozen=True):
    """A whole answer of the control plane; header names in lower case, the body inflated."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as UTF-8, whatever charset it claims: some of Python's take a square of time, or inflate."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The data of a good answer in JSON; None where it is anything else."""
        if self.status != 200:
            return None
        try:
            return msgspec.json.decode(self.body.removeprefix(b"\xef\xbb\xbf"))
        except (ValueError, RecursionError):  # nested as deep as it likes
            return None


def client(target: Target, *, timeout: httpx.Timeout | float | None = None, again: bool = False) -> httpx.AsyncClient:
    """A client of the target's server; the environment's proxies and HTTP/2 only where the load goes by httpx too.

    `again`: a request whose kept connection had broken is sent once more, as checks may be and load never is. It
    keeps no cookies. What it bounds is each read: a whole request has its deadline in `response`.
    """
    import httpx

    chosen = target.transport == "httpx"
    # Without https nothing is to be trusted: a context that trusts nobody costs nothing to make.
    trust = tls.context(target) if target.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_S)
    unix = httpx.AsyncHTTPTransport(uds=target.uds, verify=trust, limits=limits) if target.uds else None
    return (_again() if again else httpx.AsyncClient)(
        base_url=f"{target.scheme}://{target.authority}",
        headers={"Accept-Encoding": "identity", **target.headers},
        cookies=_no_cookies(),
        verify=trust,
        transport=unix,
        trust_env=chosen and unix is None,
        http2=chosen and importlib.util.find_spec("h2") is not None,
        limits=limits,
        timeout=timeout,
    )


def _no_cookies() -> http.cookiejar.CookieJar:
    """A jar that reads none: parsing them is work that a server can make long."""
    import http.cookiejar

    class Closed(http.cookiejar.CookieJar):
        def extract_cookies(self, response: Any, request: Any) -> None:
            pass

    return Closed()


def _again() -> type[httpx.AsyncClient]:
    """A client that sends a request anew until its connection is a fresh one, as long as kept ones break."""
    import httpx

    class Again(httpx.AsyncClient):
        async def send(self, request: httpx.Request, **how: Any) -> httpx.Response:
            while True:
                opened = False

                async def trace(name: str, _: dict[str, Any]) -> None:
                    nonlocal opened
                    opened = opened or ".connect_" in name

                request.extensions["trace"] = trace
                try:
                    return await super().send(request, **how)
                except (httpx.NetworkError, httpx.RemoteProtocolError):
                    if opened:
                        raise

    return Again


@contextlib.asynccontextmanager
async def response(
    client: httpx.AsyncClient, method: str, path: str, within_s: float, **sent: Any
) -> AsyncIterator[httpx.Response]:
    """One request and its answer, whose body is still to be read, in so many seconds whatever the server does.

    Connecting, TLS, heads, 1xx and whatever is done inside count. Raises httpx.TransportError alone.
    """
    import httpx

    try:
        async with asyncio.timeout(within_s):
            begun = await _sent(client, client.build_request(method, path, **sent))
            try:
                yield begun
            finally:
                await begun.aclose()
    except TimeoutError:
        raise httpx.ReadTimeout(f"no end of the answer within {within_s:g} s") from None


async def _sent(client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    """The answer's head; what httpx makes of bytes that are none is one kind of error."""
    import httpx

    try:
        return await client.send(request, stream=True)
    except (httpx.InvalidURL, ValueError) as error:  # of a redirect that nobody follows, of a header's bytes
        raise httpx.RemoteProtocolError(f"the answer's head cannot be read: {error}") from error


async def page(client: httpx.AsyncClient, path: str, within_s: float) -> Page:
    """Ask for a page, in so many seconds and at most LONGEST bytes, before and after it is inflated.

    httpx.TransportError where none comes, or none that can be read.
    """
    async with response(client, "GET", path, within_s) as begun:
        return Page(begun.status_code, dict(begun.headers), await whole(begun))


async def whole(begun: httpx.Response) -> bytes:
    """The body as it was before any compression; bytes, at most LONGEST."""
    import httpx

    coding = begun.headers.get("content-encoding", "identity").strip().lower() or "identity"
    inflate = None
    if coding != "identity":
        if coding not in _WINDOWS:
            raise httpx.RemoteProtocolError(f"it compresses ({coding[:40]!r}), though no compression was asked for")
        inflate = zlib.decompressobj(_WINDOWS[coding])
    body = bytearray()
    async for piece in pieces(begun):
        body += piece if inflate is None else _inflated(inflate, piece, coding, LONGEST + 1 - len(body))
        if len(body) > LONGEST:
            raise httpx.RemoteProtocolError(f"an answer longer than {LONGEST >> 20} MiB")
    if body and inflate is not None and not inflate.eof:
        raise httpx.RemoteProtocolError(f"its {coding} ends in the midst")
    return bytes(body)


def _inflated(inflate: zlib._Decompress, piece: bytes, coding: str, most: int) -> bytes:
    """What a piece comes to, at most so many bytes: a bomb is put out while it is small."""
    import httpx

    try:
        return inflate.decompress(piece, most)
    except zlib.error as error:
        raise httpx.RemoteProtocolError(f"its {coding} cannot be inflated: {error}") from None


async def pieces(begun: httpx.Response) -> AsyncIterator[bytes]:
    """The body's bytes as they were sent, as they come; at most LONGEST of them."""
    import httpx

    size = 0
    async for piece in begun.aiter_raw():
        size += len(piece)
        if size > LONGEST:
            raise httpx.RemoteProtocolError(f"an answer longer than {LONGEST >> 20} MiB")
        yield piece


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and everything behind it, the members of groups included."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from causes(member)
    behind = error.__cause__ or error.__context__
    if behind is not None:
        yield from causes(behind)


class HttpxTransport:
    """One httpx client behind the seam of `transport`."""

    stamped = False
    resent = 0

    def __init__(self, target: Target, selector: HotSelector) -> None:
        self._selector = selector
        self._client = client(target)
        self._url = self._client.base_url.join(target.path)
        self._headers = self._client.headers
        self._headers.update({"Accept": "text/event-stream", "Content-Type": "application/json"})
        gc.enable()  # httpx leaves cycles behind; with the sockets there are none to collect

    def letter(self, request_id: str, body: bytes) -> httpx.Request:
        import httpx

        # Not the client's own way to build one: that would send back the cookies of earlier answers.
        letter = httpx.Request("POST", self._url, headers=self._headers, content=body)
        letter.headers["X-Request-Id"] = request_id
        return letter

    async def prepare(self, connections: int) -> None:
        """Nothing: httpx opens a connection when a request needs one, and its time is a figure of its own."""

    async def exchange(self, answer: Answer, letter: httpx.Request, timeout_s: float) -> None:
        """Send one request and wait until its answer is over; failures are told by the answer, never raised."""
        import httpx

        try:
            async with asyncio.timeout(timeout_s):
                await self._send(answer, letter)
        except TimeoutError:
            answer.fail("client_deadline", f"no end within {timeout_s:g} s")
        except ProtocolError as error:
            answer.fail(error.error, str(error))
        except httpx.TransportError as error:
            answer.fail(_name(error), str(error))
        except asyncio.CancelledError:
            answer.fail("cancelled", "cut by us")
            raise
        finally:
            answer.done_ns = answer.done_ns or now()
            answer.take(answer.done_ns, None)

    async def _send(self, answer: Answer, letter: httpx.Request) -> None:
        letter.extensions["trace"] = _Moments(answer)
        response = await _sent(self._client, letter)
        try:
            answer.response.headers = dict(response.headers)
            answer.response.heard(response.status_code, response.headers)
            async for piece in response.aiter_raw():
                answer.bytes_received += len(piece)
                # Decoded at once: a debt would make the loop sleep by ticks, and httpx must be woken by its events.
                stamp = now()
                self._selector.unstamped_read(stamp)
                carried = answer.take(stamp, piece)
                self._selector.events += carried
                if carried > 1 and self._selector.late_look:
                    answer.merged_late += carried
                if answer.error:  # it cannot be read on
                    break
            answer.done_ns = now()
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()


class _Moments:
    """httpcore's own account of one request, taken as it happens: when it connected, and when it began to write."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._tls_began = 0
        self._opened = 0  # when it began to open a connection; 0: it found one open

    async def __call__(self, name: str, info: dict[str, Any]) -> None:
        answer, (_, event, moment) = self._answer, name.split(".")
        if moment == "started" and event in ("connect_tcp", "connect_unix_socket"):
            self._opened = now()
            answer.tls_ns = 0
        elif event == "start_tls":
            if moment == "started":
                self._tls_began = now()
            else:
                answer.tls_ns += now() - self._tls_began
        elif moment == "started" and event == "send_request_headers":  # through a tunnel twice: the last one counts
            answer.sent_ns = now()
            if self._opened:
                answer.connect_ns = answer.sent_ns - self._opened - answer.tls_ns


def _name(error: httpx.TransportError) -> str:
    """httpx's errors by the names that the sockets' have."""
    import httpx

    behind = list(causes(error))
    if any(isinstance(cause, ssl.SSLError) for cause in behind):
        return "tls"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
        return "refused" if any(isinstance(cause, ConnectionRefusedError) for cause in behind) else "connect"
    if isinstance(error, httpx.ProtocolError):
        said = str(error).lower()
        if "peer closed connection" in said:
            return "truncated"
        return "reset" if "disconnected" in said else "protocol"
    return "reset"
