"""Reaching the endpoint: waiting until it answers, a note where that takes long, and why it cannot be reached."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from harness.base.errors import HarnessError, ProtocolError
from harness.base.secrecy import plain
from harness.load import control, tls
from harness.load.client import client
from harness.load.fleet import answers
from harness.load.messages import Replica
from harness.load.transport import Target
from harness.run.launch.endpoint import Address, Endpoint
from harness.spec.scenario import Target as TargetSpec

T = TypeVar("T")
Note = Callable[[str], None]
AFTER_S = 3.0  # seconds of waiting, after which it is noted
AGAIN_S = 5.0  # seconds that a run waits for a server which has stopped answering, unless --wait says otherwise
_EVERY_S = 0.25  # between two tries
_TRY_S = 2.0  # for one of them
_LOADING = (502, 503, 504)  # what a server that loads its model answers, or a proxy before it
_HANDSHAKE_S = 2.0  # for what shows whether a server speaks TLS or plain HTTP
_LATE_S = 1.0  # after so long a server that should speak TLS is asked whether it does
_LONGEST_REASON = 200  # characters of why a connection broke
_NO_TLS, _IS_HTTP = "it does not speak TLS", "is it http://?"


def nowhere(_: str) -> None:
    """Drop a note."""


@contextlib.contextmanager
def noted(note: Note, what: str) -> Iterator[None]:
    """Show the note "waiting for `what`" if the block takes longer than a few seconds."""
    timer = asyncio.get_running_loop().call_later(AFTER_S, note, f"waiting for {what}")
    try:
        yield
    finally:
        timer.cancel()


async def until_ready(
    servers: Sequence[Address], target: TargetSpec, wait_s: float, note: Callable[[str], None]
) -> None:
    """Wait until every server answers, at most `wait_s`; it raises nothing: the check that follows says why."""
    until_s = time.monotonic() + wait_s
    for where in servers:
        noted = False
        while time.monotonic() < until_s and not await _is_ready(where, target):
            if not noted:
                note(f"waiting up to {wait_s:g} s for {where.place} to answer")
                noted = True
            await asyncio.sleep(_EVERY_S)


async def _is_ready(where: Address, target: TargetSpec) -> bool:
    """Return whether a server answers its model list with any status but one that says it is still loading."""
    wire = Target(
        scheme=where.scheme, host=where.host, port=where.port, path="", headers={}, uds=where.uds,
        ca_file=target.ca_file or "", insecure=target.insecure, transport=target.transport,
    )  # fmt: skip
    try:
        async with client(wire, connect_s=_TRY_S) as http:
            page = await control.page(http, where.path(f"{where.root}/models"), _TRY_S)
    except control.TransportError:
        return False
    return page.status not in _LOADING


async def answers_again(servers: Sequence[Replica], wait_s: float) -> bool:
    """Return whether any of the servers answers, with whatever status, within `wait_s` seconds."""
    until_s = time.monotonic() + wait_s
    while not any(await asyncio.gather(*map(answers, servers))):
        if time.monotonic() + _EVERY_S > until_s:
            return False
        await asyncio.sleep(_EVERY_S)
    return True


@contextlib.asynccontextmanager
async def explained(endpoint: Endpoint, connect_s: float) -> AsyncIterator[None]:
    """Turn any failure in the block to reach the endpoint into a HarnessError with cause and way out."""
    where, place = endpoint.address, endpoint.address.place
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
        raise await _unreachable(error, endpoint) from None
    except ProtocolError as error:
        raise HarnessError(
            f"the first request failed: {error.error} ({error})",
            place=where.base + endpoint.wire.target.path,
            way_out="see the server's log; nothing was loaded",
        ) from None


async def by_tls(endpoint: Endpoint, first: Coroutine[Any, Any, T]) -> T:
    """Await the first request and return its result; if it is late and the https endpoint speaks http, HarnessError."""
    asking = asyncio.create_task(first)
    try:
        if not (await asyncio.wait((asking,), timeout=_LATE_S))[0] and await _speaks_http(endpoint):
            raise HarnessError(_NO_TLS, place=endpoint.address.place, way_out=_IS_HTTP)
        return await asking
    finally:
        asking.cancel()
        await asyncio.wait((asking,))


async def _unreachable(error: control.TransportError, endpoint: Endpoint) -> HarnessError:
    """Return the HarnessError that explains a transport error: TLS, proxy, unknown host, refused, or broken off."""
    where, place = endpoint.address, endpoint.address.place
    for cause in control.causes(error):
        if isinstance(cause, ssl.SSLError):
            fact, way_out = tls.explained(cause)
            if cause.reason == "UNEXPECTED_EOF_WHILE_READING" and await _speaks_http(endpoint):
                fact, way_out = _NO_TLS, _IS_HTTP
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
    if not _by_proxy(endpoint) and await speaks_tls(where):
        return is_https(place)
    return HarnessError(f"the connection broke ({_reason(error)})", place=place, way_out="see its log")


async def speaks_tls(where: Address) -> bool:
    """Return whether an http endpoint is https in fact: a handshake shows it, whatever the certificate."""
    if where.scheme != "http" or where.uds:
        return False
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            _, writer = await asyncio.open_connection(where.host, where.port, ssl=anybody)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


def _by_proxy(endpoint: Endpoint) -> bool:
    """Return whether connections may lead through a proxy, so that one of our own shows nothing."""
    return endpoint.wire.target.transport != "socket"


async def _speaks_http(endpoint: Endpoint) -> bool:
    """Return whether an https endpoint is http in fact: it answers a plain request, not by 400 as TLS servers do."""
    where, writer = endpoint.address, None
    if where.scheme != "https" or _by_proxy(endpoint):
        return False
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
