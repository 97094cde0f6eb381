"""The endpoint by httpx: the second transport of the load, and the control plane's client where the load takes it.

For endpoints that plain sockets do not reach: through a proxy (its variables are honoured), over HTTP/2 (where `h2` is
installed). Records and error names are the same. What it costs: pieces are stamped by the clock when they reach us, not
by the kernel; a token takes many times the CPU; connections are opened when a request needs one, never ahead;
`bytes_received` counts bodies only; nothing is ever sent again, since httpx does not show whether a server had already
closed a kept connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from harness.base.errors import HarnessError, ProtocolError
from harness.load import control, tls
from harness.load.http1 import replaced
from harness.load.loop import HotSelector, now
from harness.load.transport import IDLE_S, Exchange, Target, session_headers

if TYPE_CHECKING:
    import http.cookiejar

    import httpx


class HttpxClient:
    """The control plane's client over httpx; see `control`."""

    def __init__(self, target: Target, connect_s: float) -> None:
        import httpx

        self._client = _client(target, httpx.Timeout(None, connect=connect_s), kept=0)
        self._client.headers["Connection"] = "close"  # a connection that is kept may hold a thread that the load needs

    async def __aenter__(self) -> HttpxClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, content: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[_HttpxReply]:
        made = self._client.build_request(method, path, content=content, headers=headers)
        with _named():
            begun = await _sent(self._client, made)
        try:
            yield _HttpxReply(begun)
        finally:
            await begun.aclose()


class _HttpxReply:
    def __init__(self, begun: httpx.Response) -> None:
        self._begun = begun
        self.status, self.headers, self.http_version = begun.status_code, begun.headers, begun.http_version

    async def body(self) -> AsyncIterator[bytes]:
        with _named():
            async for piece in self._begun.aiter_raw():
                yield piece


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Raise httpx's errors of the block as the control plane's: deadlines, proxy, connect, transport."""
    import httpx

    try:
        yield
    except httpx.ConnectTimeout as error:
        raise control.ConnectDeadlineError(str(error)) from error
    except httpx.TimeoutException as error:
        raise control.DeadlineError(str(error)) from error
    except httpx.ProxyError as error:
        raise control.ProxyError(str(error)) from error
    except httpx.ConnectError as error:
        raise control.ConnectError(str(error)) from error
    except httpx.TransportError as error:
        raise control.TransportError(str(error) or type(error).__name__) from error


def _client(target: Target, timeout: httpx.Timeout | None = None, *, kept: int | None = None) -> httpx.AsyncClient:
    """Return an httpx client of the target's server, with the environment's proxies, HTTP/2 if installed, no cookies.

    At most `kept` connections idle; None: all.
    Raise HarnessError if httpx can use no such proxy.
    """
    import httpx

    # An empty context takes no time to make: no certificate is checked without https.
    trust = tls.context(target) if target.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=kept, keepalive_expiry=IDLE_S)
    unix = httpx.AsyncHTTPTransport(uds=target.uds, verify=trust, limits=limits) if target.uds else None
    try:
        return httpx.AsyncClient(
            base_url=f"{target.scheme}://{target.authority}",
            headers=replaced({"Accept-Encoding": "identity", "User-Agent": "knee"}, target.headers),
            cookies=_no_cookies(),
            verify=trust,
            transport=unix,
            trust_env=unix is None,
            http2=importlib.util.find_spec("h2") is not None,
            limits=limits,
            timeout=timeout,
        )
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # the error's words may hold a proxy's password
        why = "SOCKS needs socksio" if isinstance(error, ImportError) else "its address is not like http://host:port"
        raise HarnessError(
            f"a proxy of the environment cannot be used: {why}",
            place="--transport httpx",
            way_out="see ALL_PROXY, HTTP_PROXY and HTTPS_PROXY; NO_PROXY='*' turns them off",
        ) from None


def _no_cookies() -> http.cookiejar.CookieJar:
    """Return a jar that reads no cookies: a server could make parsing them slow."""
    import http.cookiejar

    class Closed(http.cookiejar.CookieJar):
        def extract_cookies(self, response: Any, request: Any) -> None:
            pass

    return Closed()


async def _sent(client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    """Return the response's head; malformed bytes are one kind of error, whatever httpx raises."""
    import httpx

    try:
        return await client.send(request, stream=True)
    except (httpx.InvalidURL, ValueError) as error:  # a redirect, which is not followed, or a header's bytes
        raise httpx.RemoteProtocolError(f"the answer's head cannot be read: {error}") from error


class HttpxTransport:
    """One httpx client behind the seam of `transport`."""

    stamped = False
    resent = 0

    def __init__(self, target: Target, selector: HotSelector) -> None:
        self._selector = selector
        self._target = target
        self._client = _client(target)
        self._url = self._client.base_url.join(target.path)
        self._headers = self._client.headers
        self._headers.update({"Accept": target.media, "Content-Type": "application/json"})
        gc.enable()  # httpx makes reference cycles, the sockets make none

    def request(self, request_id: str, body: bytes, session: str = "") -> httpx.Request:
        import httpx

        # Not `Client.build_request`, which sends back the cookies of earlier responses.
        request = httpx.Request("POST", self._url, headers=self._headers, content=body)
        request.headers["X-Request-Id"] = request_id
        request.headers.update(session_headers(self._target, session))
        return request

    async def prepare(self, connections: int) -> None:
        """Nothing: httpx opens a connection when a request needs one, and that time is recorded apart."""

    def begin(self, exchange: Exchange, request: httpx.Request) -> None:
        """Nothing: httpx sends from a task."""

    async def send(self, exchange: Exchange, request: httpx.Request, timeout_s: float) -> None:
        """Send one request and wait until its response is over; failures are noted in the exchange, never raised."""
        import httpx

        try:
            async with asyncio.timeout(timeout_s):
                await self._send_request(exchange, request)
        except TimeoutError:
            exchange.fail("client_deadline", f"no end within {timeout_s:g} s")
        except ProtocolError as error:
            exchange.fail(error.error, str(error))
        except httpx.TransportError as error:
            exchange.fail(_name(error), str(error))
        except asyncio.CancelledError:
            exchange.fail("cancelled", "cut by us")
            raise
        finally:
            exchange.done_ns = exchange.done_ns or now()
            self._selector.events += exchange.take(exchange.done_ns, None)

    async def _send_request(self, exchange: Exchange, request: httpx.Request) -> None:
        """Send a request and pass each piece of its response to the exchange, which decodes it at once."""
        request.extensions["trace"] = _Moments(exchange)
        response = await _sent(self._client, request)
        try:
            exchange.response.headers = dict(response.headers)
            exchange.response.take_head(response.status_code, response.headers)
            async for piece in response.aiter_raw():
                exchange.bytes_received += len(piece)
                # Decoded at once: a queue would make the loop sleep by ticks, and httpx must be woken by its events.
                stamp = now()
                self._selector.unstamped_read(stamp)
                carried = exchange.take(stamp, piece)
                self._selector.events += carried
                if carried > 1 and self._selector.late_read:
                    exchange.merged_late += carried
                if exchange.error:  # the rest cannot be read
                    break
            exchange.done_ns = now()
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()


class _Moments:
    """httpcore's trace of one request: when it connected, and when it began to write."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._tls_began = 0
        self._opened = 0  # when it began to open a connection; 0: it found one open

    async def __call__(self, name: str, info: dict[str, Any]) -> None:
        """Note in the exchange when connecting, TLS and sending began or ended, by an event of httpcore."""
        exchange, (_, event, moment) = self._exchange, name.split(".")
        if moment == "started" and event in ("connect_tcp", "connect_unix_socket"):
            self._opened = now()
            exchange.tls_ns = 0
        elif event == "start_tls":
            if moment == "started":
                self._tls_began = now()
            else:
                exchange.tls_ns += now() - self._tls_began
        elif moment == "started" and event == "send_request_headers":  # through a tunnel twice: the last one counts
            exchange.sent_ns = now()
            if self._opened:
                exchange.connect_ns = exchange.sent_ns - self._opened - exchange.tls_ns


def _name(error: httpx.TransportError) -> str:
    """httpx's errors by the names that those of `sockets` have."""
    import httpx

    behind = list(control.causes(error))
    if any(isinstance(cause, ssl.SSLError) for cause in behind):
        return "tls"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
        return "refused" if any(isinstance(cause, ConnectionRefusedError) for cause in behind) else "connect"
    if isinstance(error, httpx.ProtocolError):
        message = str(error).lower()
        if "peer closed connection" in message:
            return "truncated"
        return "reset" if "disconnected" in message else "protocol"
    return "reset"
