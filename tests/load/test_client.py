"""The control plane's client: what it sends, that it keeps no connection, and what it calls those that fail."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from harness.load import control
from harness.load.client import client
from harness.load.transport import Target
from tests.builders.servers import WIRES, Request, authority, reached
from tests.builders.stacks import models

every_wire = pytest.mark.parametrize("wire", WIRES)
SOCKETS = [wire for wire in WIRES if "httpx" not in wire]


def fetch(target: Target, *paths: str) -> list[control.Page]:
    """The pages of a server, one after the other, by one client."""

    async def go() -> list[control.Page]:
        async with client(target, connect_s=5.0) as api:
            return [await control.page(api, path, 5.0) for path in paths]

    return asyncio.run(go())


@every_wire
def test_a_page_is_requested_with_the_target_s_headers_on_a_connection_of_its_own(wire: str) -> None:
    seen: list[Request] = []

    def script(r: Request) -> None:
        seen.append(r)
        r.answer(200, models())

    with reached(wire, script) as target:
        there = msgspec.structs.replace(target, headers={"authorization": "Bearer k", "x-one": "1"})
        pages = fetch(there, "/a?b=1", "/v1/models")
    assert [page.json() for page in pages] == [pages[0].json()] * 2
    assert [r.path for r in seen] == ["/a?b=1", "/v1/models"]
    assert len({id(r.sock) for r in seen}) == 2
    for r in seen:
        names = (
            "host", "authorization", "x-one", "accept", "accept-encoding", "user-agent", "content-length", "connection",
        )  # fmt: skip
        sent = [target.authority, "Bearer k", "1", "*/*", "identity", "knee", None, "close"]
        assert [r.header(name) for name in names] == sent


@every_wire
def test_the_operator_s_headers_replace_ours(wire: str) -> None:
    heads: list[bytes] = []

    def script(r: Request) -> None:
        heads.append(r.head.lower())
        r.answer(200, b"")

    with reached(wire, script) as target:
        fetch(msgspec.structs.replace(target, headers={"accept": "text/plain", "USER-AGENT": "me"}), "/")
    assert [heads[0].count(each) for each in (b"accept: text/plain", b"accept: */*", b"user-agent: me")] == [1, 0, 1]
    assert heads[0].count(b"user-agent:") == 1


@every_wire
def test_a_question_with_a_body_is_streamed_back(wire: str) -> None:
    def script(r: Request) -> None:
        r.stream(r.body, (r.header("content-type") or "").encode(), (r.header("x-request-id") or "").encode())

    async def go(target: Target) -> tuple[int, str | None, bytes]:
        headers = {"Content-Type": "application/json", "X-Request-Id": "knee-check"}
        async with (
            client(target, connect_s=5.0) as api,
            control.response(api, "POST", "/x", 5.0, b"x" * 300_000, headers) as reply,
        ):
            return (
                reply.status,
                reply.headers.get("content-type"),
                b"".join([piece async for piece in control.pieces(reply)]),
            )

    with reached(wire, script) as target:
        status, kind, body = asyncio.run(go(target))
    assert (status, kind) == (200, "text/event-stream")
    assert body == b"x" * 300_000 + b"application/jsonknee-check"


@every_wire
def test_no_connection_stays_open_behind_an_answer(wire: str) -> None:
    """A server of one thread takes the load's connection once ours is closed, though the client lives."""
    closed: list[bool] = []

    def script(r: Request) -> None:
        r.answer(200, models())
        if r.path == "/first":
            r.sock.settimeout(5.0)
            with contextlib.suppress(ConnectionError):
                closed.append(r.sock.recv(1) == b"")

    async def go(target: Target) -> None:
        async with client(target, connect_s=5.0) as api:
            await control.page(api, "/first", 5.0)
            for _ in range(100):
                if closed:
                    return
                await asyncio.sleep(0.01)

    with reached(wire, script) as target:
        asyncio.run(go(target))
        assert closed == [True]


@pytest.mark.parametrize("wire", ["tcp", "httpx"])
@pytest.mark.parametrize(
    "script",
    [
        lambda r: r.send(b"HTTP/1.0 200 OK\r\n\r\n" + models()) or r.close(),
        lambda r: r.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + models()) or r.close(),
        lambda r: [r.send(bytes([byte])) for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"],
        lambda r: r.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
        lambda r: r.stream(models()[:9], models()[9:]),
    ],
)
def test_an_answer_may_be_framed_in_any_way(script: Callable[[Request], Any], wire: str) -> None:
    with reached(wire, script) as target:
        first, second = fetch(target, "/", "/")
    assert first.json() == second.json()
    assert first.json() is not None


def test_a_refusal_before_the_whole_request_was_read_is_the_server_s_word() -> None:
    def early(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        sock.recv(1000)
        sock.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        time.sleep(0.2)
        sock.close()

    async def go(port: int) -> tuple[int, bytes]:
        target = Target(scheme="http", host="127.0.0.1", port=port, path="/", headers={})
        async with (
            client(target, connect_s=5.0) as api,
            control.response(api, "POST", "/", 5.0, b"x" * 30_000_000) as reply,
        ):
            return reply.status, await control.whole(reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=early, args=(listener,))
        thread.start()
        assert asyncio.run(go(listener.getsockname()[1])) == (413, b"big")
        thread.join()


def nowhere(**change: Any) -> Target:
    return msgspec.structs.replace(Target(scheme="http", host="127.0.0.1", port=1, path="/", headers={}), **change)


@pytest.mark.parametrize("transport", ["socket", "httpx"])
@pytest.mark.parametrize(
    "change", [{}, {"host": "localhost"}, {"scheme": "https"}, {"uds": "/no/such"}, {"host": "no-such-host.invalid"}]
)
def test_no_server_differs_from_a_response_that_fails(change: dict[str, Any], transport: str) -> None:
    with pytest.raises(control.ConnectError) as caught:
        fetch(nowhere(transport=transport, **change), "/")
    assert str(caught.value)


@pytest.mark.parametrize("transport", ["socket", "httpx"])
def test_a_certificate_that_is_not_trusted_is_found_behind_the_error(transport: str) -> None:
    with reached("tls", lambda r: r.answer(200, b"{}")) as target, pytest.raises(control.ConnectError) as caught:
        fetch(msgspec.structs.replace(target, ca_file="", transport=transport), "/")
    assert any(isinstance(cause, ssl.SSLCertVerificationError) for cause in control.causes(caught.value))


@pytest.mark.parametrize("transport", ["socket", "httpx"])
def test_a_server_that_closes_amid_the_handshake_is_one_without_tls(transport: str, tmp_path: Any) -> None:
    authority().cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def closes(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        sock.recv(10_000)
        sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=closes, args=(listener,))
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(control.ConnectError) as caught:
            fetch(nowhere(scheme="https", port=port, ca_file=str(tmp_path / "ca.pem"), transport=transport), "/")
        thread.join()
    (found,) = [cause for cause in control.causes(caught.value) if isinstance(cause, ssl.SSLError)][:1]
    assert found.reason == "UNEXPECTED_EOF_WHILE_READING"


@pytest.mark.parametrize("transport", ["socket", "httpx"])
def test_connecting_has_a_deadline_of_its_own(transport: str) -> None:
    async def go(port: int) -> None:
        there = nowhere(scheme="https", insecure=True, port=port, transport=transport)
        async with client(there, connect_s=0.1) as api:
            await control.page(api, "/", 5.0)

    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(control.ConnectDeadlineError):
        asyncio.run(go(silent.getsockname()[1]))


def test_no_request_has_a_path_that_is_no_latin_1() -> None:
    with reached("tcp", lambda r: r.answer(200, b"{}")) as target, pytest.raises(control.TransportError, match="path"):
        fetch(target, "/模型")
