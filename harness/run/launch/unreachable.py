"""Why an endpoint cannot be reached, or does not serve: the fact and the way out, for one line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec

from harness.base.errors import HarnessError, ProtocolError
from harness.base.secrecy import plain
from harness.dialects import DIALECTS
from harness.load import control, tls
from harness.load.transport import Target
from harness.run.launch.endpoint import Address
from harness.spec import scenario

T = TypeVar("T")
_HANDSHAKE_S = 2.0  # of a server that may speak TLS though the URL is http
_LATE_S = 1.0  # after which a server that should speak TLS is asked whether it does
_LONGEST_MESSAGE = 4096  # characters of a server's message
_LONGEST_REASON = 200  # characters of why a connection broke
_NO_TLS = "it does not speak TLS", "is it http://?"
_NO_UPSTREAM = re.compile(r"connection error|cannot connect|connection refused|upstream connect|no healthy", re.I)


@contextlib.asynccontextmanager
async def explained(where: Address, wire: Target, connect_s: float) -> AsyncIterator[None]:
    """HarnessError in place of any failure to reach the endpoint inside."""
    place = where.base + where.prefix
    try:
        yield
    except control.ConnectDeadlineError:
        speaks = " and does it speak TLS" if where.scheme == "https" else ""
        raise HarnessError(
            f"no connection within {connect_s:g} s", place=place, way_out=f"is it the right host and port{speaks}?"
        ) from None
    except control.DeadlineError:
        raise HarnessError("no answer in time", place=place, way_out="is the server still loading its model?") from None
    except control.TransportError as error:
        raise await _unreachable(error, place, where, wire) from None
    except ProtocolError as error:
        raise HarnessError(
            f"the first request failed: {error.error} ({error})",
            place=where.base + wire.path,
            way_out="see the server's log; nothing was loaded",
        ) from None


async def by_tls(where: Address, wire: Target, first: Coroutine[Any, Any, T]) -> T:
    """What the first request finds; HarnessError where it is late because an https endpoint is http in fact."""
    asking = asyncio.create_task(first)
    try:
        by_us = where.scheme == "https" and wire.transport == "socket"  # not through a proxy
        if by_us and not (await asyncio.wait((asking,), timeout=_LATE_S))[0]:
            shakes, speaks_http = await asyncio.gather(_shakes_hands(where, _LATE_S), _speaks_http(where, wire))
            if speaks_http and not shakes:
                raise HarnessError(_NO_TLS[0], place=where.place, way_out=_NO_TLS[1])
        return await asking
    finally:
        asking.cancel()
        await asyncio.wait((asking,))


async def _unreachable(error: control.TransportError, place: str, where: Address, wire: Target) -> HarnessError:
    """No connection, no TLS, or none that lasted: the fact and the way out."""
    for cause in control.causes(error):
        if isinstance(cause, ssl.SSLError):
            fact, way_out = tls.explained(cause)
            if cause.reason == "UNEXPECTED_EOF_WHILE_READING" and await _speaks_http(where, wire):
                fact, way_out = _NO_TLS
            return HarnessError(fact, place=place, way_out=way_out)
    if isinstance(error, control.ProxyError):
        return HarnessError(
            f"the proxy refuses ({_reason(error)})", place=place, way_out="see HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
        )
    if isinstance(error, control.ConnectError):
        if any(isinstance(cause, socket.gaierror) for cause in control.causes(error)):
            return HarnessError("no host of that name is known", place=place, way_out="check the address")
        command = f"curl --unix-socket {where.uds} http://localhost/v1/models" if where.uds else f"curl {place}"
        numbers = (cause.errno for cause in control.causes(error) if isinstance(cause, OSError) and cause.errno)
        reason = next((os.strerror(number).lower() for number in numbers), _reason(error))
        return HarnessError(
            f"nothing answers there ({reason})", place=place, way_out=f"start the server, then {command}"
        )
    if await speaks_tls(where, wire):
        return is_https(place)
    return HarnessError(f"the connection broke ({_reason(error)})", place=place, way_out="see its log")


async def speaks_tls(where: Address, wire: Target) -> bool:
    """Whether an http endpoint is https in fact: a handshake shows it, whatever the certificate."""
    if where.scheme != "http" or where.uds or wire.transport != "socket":
        return False
    return await _shakes_hands(where, _HANDSHAKE_S)


async def _shakes_hands(where: Address, within_s: float) -> bool:
    """Whether a TLS handshake with the endpoint ends well in so many seconds, whatever its certificate."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(within_s):
            _, writer = await asyncio.open_connection(where.host, where.port, ssl=anybody)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def _speaks_http(where: Address, wire: Target) -> bool:
    """Whether an https endpoint is http in fact: it answers a plain request, and not with 400 as TLS servers do."""
    if where.scheme != "https" or wire.transport != "socket":
        return False
    writer = None
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            reader, writer = await asyncio.open_connection(where.host, where.port)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = await reader.readline()
            return answer.startswith(b"HTTP/") and b" 400 " not in answer
    except (OSError, TimeoutError, ValueError):  # the last: a line without end
        return False
    finally:
        if writer is not None:
            writer.transport.abort()


def is_https(place: str) -> HarnessError:
    return HarnessError("it speaks TLS", place=place, way_out="give the address as https://")


def _reason(error: Exception) -> str:
    return plain(str(error)[:_LONGEST_REASON]) or type(error).__name__


def server_words(status: int, body: str) -> str:
    """The server's own words of an error, on one line."""
    try:
        data = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        data = None
    message: Any = data
    for key in ("error", "message", "detail"):
        if isinstance(message, dict) and key in message:
            message = message[key]
    text = message if isinstance(message, str) else body
    words = plain(text[:_LONGEST_MESSAGE])[:240].strip()
    return f"{status}: {words}" if words else f"{status} without a word"


def redirected(
    status: int, headers: Mapping[str, str], base: str, path: str, *, cut: str = "", instead: str = ""
) -> HarnessError | None:
    """The error of an address whose server stands elsewhere; None for other answers.

    A redirect is not followed: each request would take it again, and its headers would go to a host nobody named. `cut`
    is what was put at the end of the address that was given, `instead` what that has there.
    """
    location = plain(headers.get("location", "").partition("?")[0][:_LONGEST_REASON])
    if not 300 <= status < 400 or not location:
        return None
    place, path = base + path, path.partition("?")[0]
    try:
        to = urljoin(base + path, location)
        same_host = urlsplit(to).hostname == urlsplit(base).hostname
        slash = same_host and urlsplit(to).path == path + "/"
    except ValueError:  # no address
        to, slash = location, False
    if slash:
        fact = f"{status}: it wants a slash at the end of {path}, which Knee does not send"
        return HarnessError(fact, place=place, way_out="let the server take the path without it")
    if cut and to.rstrip("/").endswith(cut):
        to = to.rstrip("/").removesuffix(cut) + instead
    return HarnessError(f"{status}: it redirects to {to}", place=place, way_out="give the address that it leads to")


def not_served(status: int, body: str, place: str) -> HarnessError | None:
    """The error of a proxy without a server, or of a server that has not loaded its model; None for other answers."""
    if status in (502, 504) or (status >= 500 and _NO_UPSTREAM.search(body)):
        return HarnessError(
            f"{status} from a proxy: its upstream does not answer",
            place=place,
            way_out="start the model server behind it",
        )
    if status == 503:
        return HarnessError(server_words(status, body), place=place, way_out="wait until the model is loaded")
    return None


def way_out_of(status: int, target: scenario.Target) -> str:
    """What there is to do about an error of this status, by what the requests to the target carry."""
    if status in (401, 403):
        return _way_out_of_key(status, target)
    if status == 404:
        return "check --url, --model and --api"
    if status == 429:
        return "give --max-rps, the endpoint's quota"
    return "see the server's log; nothing was loaded"


def _way_out_of_key(status: int, target: scenario.Target) -> str:
    if not target.api_key_env:
        return "see --header and --api-key-env" if target.headers else "give --api-key-env VARIABLE"
    if status == 401 and DIALECTS[target.api].key != "Authorization":  # some servers of this API want it there
        return f"see the key, or give --header 'Authorization: Bearer env:{target.api_key_env}' in its place"
    return "see the key"
