"""What the httpx transport is there for: proxies and HTTP/2; that it costs no blind waits and keeps no secrets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from harness.base.errors import HarnessError
from harness.load.httpclient import HttpxClient
from harness.load.loop import HotSelector, new_loop
from harness.load.transport import Exchange, Target
from harness.load.worker import transport_for
from tests.builders.servers import Request, authority, certified, reached, serving, tunnel
from tests.builders.streams import VLLM, delta
from tests.load.test_transport import exchanges_with, exchanges_with_script

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """None but the test's own."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_plain_request_goes_through_the_environment_s_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def proxy(r: Request) -> None:
        seen.append(r.path)
        r.stream(VLLM)

    with serving(proxy) as port:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        there = Target(scheme="http", host="far.example", port=8000, path="/v1/x", headers={}, transport="httpx")
        (exchange,), _ = exchanges_with(there)
    assert (exchange.error, seen) == ("", ["http://far.example:8000/v1/x"])


def test_a_tls_request_goes_through_a_tunnel_and_its_times_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def proxy(r: Request) -> None:
        seen.append(r.head.split(b" HTTP")[0].decode())
        tunnel(r)

    with serving(proxy) as port, reached("httpx tls", lambda r: r.stream(VLLM)) as there:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        exchanges, _ = exchanges_with(there, times=2)
    assert [a.error for a in exchanges] == ["", ""]
    assert seen == [f"CONNECT 127.0.0.1:{there.port}"]
    assert min(exchanges[0].connect_ns, exchanges[0].tls_ns) > 0
    assert (exchanges[1].connect_ns, exchanges[1].tls_ns) == (0, 0)


def test_a_proxy_that_refuses_is_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda r: r.answer(403, b"no")) as port, reached("httpx tls", lambda r: None) as there:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        (exchange,), _ = exchanges_with(there)
    assert (exchange.error, exchange.complete) == ("connect", True)


@pytest.mark.parametrize(
    ("proxy", "why"),
    [
        ("socks5://me:s3cretpw@far.example:1080", "SOCKS needs socksio"),
        ("quic://me:s3cretpw@far.example:1080", "its address is not like http://host:port"),
        ("http://me:s3cretpw@far.example:s3cretpw", "its address is not like http://host:port"),
    ],
)
def test_a_proxy_that_httpx_cannot_use_is_one_line_without_its_password(
    monkeypatch: pytest.MonkeyPatch, proxy: str, why: str
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)  # where it is installed, httpx speaks SOCKS
    monkeypatch.setenv("ALL_PROXY", proxy)
    there = Target(scheme="http", host="h", port=80, path="/", headers={}, transport="httpx")
    with pytest.raises(HarnessError) as caught:
        HttpxClient(there, 1.0)
    assert f"--transport httpx: a proxy of the environment cannot be used: {why}; see ALL_PROXY" in str(caught.value)
    assert "s3cretpw" not in str(caught.value)


def test_the_sockets_do_not_know_of_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    for wire in ("tcp", "tls"):
        (exchange,) = exchanges_with_script(lambda r: r.stream(VLLM), wire)
        assert exchange.error == ""


def test_cookies_of_one_answer_are_not_sent_with_the_next_request() -> None:
    cookies: list[str | None] = []

    def script(r: Request) -> None:
        cookies.append(r.header("cookie"))
        r.answer(200, VLLM, "text/event-stream", "Set-Cookie: replica=1\r\n")

    exchanges_with_script(script, "httpx", times=3)
    assert cookies == [None] * 3


def test_a_redirect_is_the_server_s_answer_and_not_followed() -> None:
    (exchange,) = exchanges_with_script(
        lambda r: r.answer(307, b"", extra="Location: http://127.0.0.1:1/\r\n"), "httpx"
    )
    assert (exchange.error, exchange.response.status) == ("http_3xx", 307)


def test_the_loop_is_woken_by_what_arrives_whatever_timers_are_near() -> None:
    """No tick, no blind wait: with a timer due every 1.9 ms a piece is still stamped when it comes."""
    wrote: list[int] = []

    def script(r: Request) -> None:
        r.stream(end=False)
        for i in range(40):
            time.sleep(0.0037)
            chunk = delta("length" if i == 39 else None, content=" x")
            wrote.append(time.monotonic_ns())
            r.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        r.send(b"0\r\n\r\n")

    async def chore() -> None:
        while True:
            await asyncio.sleep(0.0019)

    async def go(target: Target, selector: HotSelector) -> Exchange:
        transport = transport_for(target, selector)
        busy = asyncio.create_task(chore())
        exchange = Exchange("x")
        await transport.send(exchange, transport.request("x", b"{}"), 5.0)
        busy.cancel()
        await transport.aclose()
        return exchange

    halves = []  # the median of each try: a busy machine may be late now and then, a blind wait is every time
    for _ in range(5):
        wrote.clear()
        selector = HotSelector(50_000_000)  # a tick that would be seen
        with reached("httpx", script) as target, asyncio.Runner(loop_factory=partial(new_loop, selector)) as runner:
            exchange = runner.run(go(target, selector))
        late = sorted(a - w for a, w in zip(exchange.decoded.arrivals, wrote, strict=True))
        assert late[0] >= 0
        halves.append(late[20])
        if min(halves) < 500_000:
            break
    assert min(halves) < 500_000


def test_http_2_is_spoken_where_the_server_offers_it(tmp_path: Path) -> None:
    pytest.importorskip("h2", reason="HTTP/2 is an extra: pip install knee-harness[http2]")
    authority().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with http2_server() as (port, bodies):
        there = Target(
            scheme="https", host="127.0.0.1", port=port, path="/v1/x", headers={}, ca_file=str(tmp_path / "ca.pem"),
            transport="httpx",
        )  # fmt: skip
        exchanges, _ = exchanges_with(there, times=3, body=b'{"n": 1}')
    assert [(a.error, a.decoded.output_tokens) for a in exchanges] == [("", 2)] * 3
    assert [json.loads(body) for body in bodies] == [{"n": 1}] * 3
    assert [a.connect_ns > 0 for a in exchanges] == [True, False, False]


@contextlib.contextmanager
def http2_server() -> Iterator[tuple[int, list[bytes]]]:
    """One connection of HTTP/2 over TLS; every request gets the same stream."""
    from h2 import events
    from h2.config import H2Configuration
    from h2.connection import H2Connection

    made = certified("127.0.0.1")
    made.set_alpn_protocols(["h2"])
    bodies: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        with made.wrap_socket(listener.accept()[0], server_side=True) as sock:
            connection = H2Connection(H2Configuration(client_side=False))
            connection.initiate_connection()
            open_bodies: dict[int, bytes] = {}
            while True:
                sock.sendall(connection.data_to_send())
                data = sock.recv(65_536)
                if not data:
                    return
                for event in connection.receive_data(data):
                    if isinstance(event, events.DataReceived):
                        open_bodies[event.stream_id] = open_bodies.get(event.stream_id, b"") + event.data
                    elif isinstance(event, events.StreamEnded):
                        bodies.append(open_bodies.pop(event.stream_id, b""))
                        head = [(":status", "200"), ("content-type", "text/event-stream")]
                        connection.send_headers(event.stream_id, head)
                        connection.send_data(event.stream_id, VLLM, end_stream=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield listener.getsockname()[1], bodies
        thread.join(5)
