"""One exchange over real sockets, with servers that behave and servers that do not; the same over every transport."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.dialects import DIALECTS
from harness.dialects.decoder import StreamDecoder
from harness.load import sockets
from harness.load.loop import HotSelector, Stamping, new_loop
from harness.load.sockets import Connection, SocketTransport
from harness.load.transport import CutExchange, Exchange, Target, Transport
from harness.load.worker import transport_for
from tests.builders.servers import WIRES, Request, reached, serving
from tests.builders.streams import ALL, VLLM, delta

pytestmark = pytest.mark.usefixtures("receive_path")

every_wire = pytest.mark.parametrize("wire", WIRES)
SOCKETS = [wire for wire in WIRES if "httpx" not in wire]


def plain(port: int) -> Target:
    return Target(scheme="http", host="127.0.0.1", port=port, path="/v1/chat/completions", headers={})


async def send_all(
    transport: Transport,
    selector: HotSelector,
    *,
    times: int = 1,
    timeout_s: float = 5.0,
    body: bytes = b"{}",
    rest_s: float = 0.0,
) -> list[Exchange]:
    """The answers to some requests, one after the other, with a rest after the first, each decoded to its end."""
    exchanges = [Exchange(f"id-{i}") for i in range(times)]
    for exchange in exchanges:
        await transport.send(exchange, transport.request(exchange.request_id, body), timeout_s)
        if exchange is exchanges[0]:
            await asyncio.sleep(rest_s)
    selector.decode_all()
    return exchanges


def exchanges_with(target: Target, *, prepared: int = 1, **options: Any) -> tuple[list[Exchange], Transport]:
    """The answers of a server that is there, and the transport that got them."""
    selector = HotSelector(250_000)

    async def go() -> tuple[list[Exchange], Transport]:
        transport = transport_for(target, selector)
        await transport.prepare(prepared)
        try:
            return await send_all(transport, selector, **options), transport
        finally:
            await transport.aclose()

    with asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
        return runner.run(go())


@every_wire
def test_an_answer_is_given_up_after_some_chunks_and_the_server_is_free_of_it(wire: str) -> None:
    freed = threading.Event()

    def script(r: Request) -> None:
        r.stream(*(delta(content="x") for _ in range(3)), end=False)
        with contextlib.suppress(OSError):
            for _ in range(1000):  # no more tokens, until nobody reads them
                r.send(b"3\r\n:\n\n\r\n")
                time.sleep(0.005)
            return
        freed.set()

    selector = HotSelector(250_000)

    async def go(target: Target) -> Exchange:
        transport = transport_for(target, selector)
        exchange = CutExchange("id", StreamDecoder(), 3)
        try:
            await transport.send(exchange, transport.request("id", b"{}"), 5.0)
            assert await asyncio.to_thread(freed.wait, 3.0)
            selector.decode_all()
        finally:
            await transport.aclose()
        return exchange

    with reached(wire, script) as target, asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
        exchange = runner.run(go(target))
    assert (exchange.error, len(exchange.decoded.arrivals)) == ("abandoned", 3)
    assert exchange.done_ns > exchange.sent_ns


def exchanges_with_script(script: Callable[[Request], None], wire: str = "tcp", **options: Any) -> list[Exchange]:
    with reached(wire, script) as target:
        return exchanges_with(target, **options)[0]


@every_wire
@pytest.mark.parametrize("name", ALL)
def test_every_dialect_s_stream_becomes_two_stamped_tokens(name: str, wire: str) -> None:
    (exchange,) = exchanges_with_script(lambda r: r.stream(*(e + b"\n\n" for e in ALL[name].split(b"\n\n")[:-1])), wire)
    assert (exchange.error, exchange.decoded.output_tokens, len(exchange.decoded.arrivals)) == ("", 2, 2)
    assert exchange.sent_ns < exchange.decoded.arrivals[0] <= exchange.decoded.arrivals[1] <= exchange.done_ns
    assert exchange.complete


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("chat", b'{"choices": [{"message": {"content": "a b"}, "finish_reason": "stop"}]}'),
        ("completions", b'{"choices": [{"text": "a b", "finish_reason": "stop"}]}'),
    ],
)
def test_an_answer_that_does_not_stream_is_heard_of_when_it_is_over(api: str, body: bytes) -> None:
    """A level of them whose chunks were never counted was ended as one that nobody answers."""
    whole = DIALECTS[api].whole
    assert whole is not None
    exchange = Exchange("0", whole())
    exchange.response.take_head(200, {"content-type": "application/json"})
    assert [exchange.take(1, body[:9]), exchange.take(2, body[9:]), exchange.take(3, None)] == [0, 0, 1]
    assert exchange.error == ""
    failed = Exchange("1", whole())
    failed.response.take_head(503, {})
    assert [failed.take(1, b"busy"), failed.take(2, None)] == [0, 0]


@every_wire
def test_what_is_sent_is_the_same_over_every_transport(wire: str) -> None:
    seen: list[Request] = []

    def script(r: Request) -> None:
        seen.append(r)
        r.stream(VLLM)

    with reached(wire, script) as target:
        exchanges_with(msgspec.structs.replace(target, headers={"Authorization": "Bearer k"}), body=b'{"a": 1}')
    (r,) = seen
    names = (
        "x-request-id", "content-type", "accept", "accept-encoding", "user-agent", "authorization", "content-length",
    )  # fmt: skip
    assert [r.header(name) for name in names] == [
        "id-0", "application/json", "text/event-stream", "identity", "knee", "Bearer k", "8",
    ]  # fmt: skip
    assert (r.path, r.header("host")) == ("/v1/chat/completions", target.authority)


def over_how_many(wire: str, times: int) -> tuple[list[Exchange], int]:
    """The answers to requests one after the other, and how many connections they took."""
    sockets: list[socket.socket] = []

    def script(r: Request) -> None:
        sockets.append(r.sock)
        r.stream(VLLM)

    return exchanges_with_script(script, wire, times=times), len(set(map(id, sockets)))


@every_wire
def test_a_connection_is_opened_once_and_used_again(wire: str) -> None:
    exchanges, connections = over_how_many(wire, 5)
    assert [a.error for a in exchanges] == [""] * 5
    assert connections == 1
    assert [a.connect_ns for a in exchanges[1:]] == [0] * 4
    assert (exchanges[0].connect_ns > 0) == ("httpx" in wire), "sockets open before, httpx when it must"


@every_wire
def test_a_connection_that_idled_is_not_used_again(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers end what idles; a request sent at that moment would be lost. Here any time between two is too long."""
    monkeypatch.setattr("harness.load.sockets.IDLE_S", 0.0)
    monkeypatch.setattr("harness.load.httpclient.IDLE_S", 0.0)
    exchanges, connections = over_how_many(wire, 5)
    assert [a.error for a in exchanges] == [""] * 5
    assert connections == 5


@pytest.mark.parametrize("wire", SOCKETS)
@pytest.mark.parametrize("ends", ["Connection: close", "HTTP/1.0"])
def test_the_next_connection_is_open_before_a_server_that_closes_has_answered(wire: str, ends: str) -> None:
    def script(r: Request) -> None:
        r.wait_for_the_next_connection(0.02 if r.number == 0 else 5.0)
        time.sleep(0.02)
        head = b"HTTP/1.0 200 OK\r\n" if ends == "HTTP/1.0" else b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
        r.send(head + b"Content-Type: text/event-stream\r\n\r\n" + VLLM)
        r.close()

    exchanges = exchanges_with_script(script, wire, times=6)
    assert [a.error for a in exchanges] == [""] * 6
    assert [a.connect_ns for a in exchanges[2:]] == [0] * 4, "the second may be the one that finds out"
    for a in exchanges:
        assert a.decoded.arrivals[0] - a.sent_ns >= 20_000_000


@pytest.mark.parametrize("wire", SOCKETS)
def test_a_server_that_closes_without_a_word_costs_resets_at_most(wire: str) -> None:
    """Whether a request left before the close was seen is a race; what is not certain fails, and is not sent again."""

    def script(r: Request) -> None:
        r.stream(VLLM)
        r.close()

    exchanges = exchanges_with_script(script, wire, times=6)
    assert exchanges[0].error == ""
    assert {a.error for a in exchanges} <= {"", "reset"}


def test_a_server_that_closes_without_answering_is_not_stormed() -> None:
    connections: set[int] = set()

    def script(r: Request) -> None:
        connections.add(id(r.sock))
        r.send(b"HTTP/1.0 200 OK\r\n\r\n" + VLLM) if r.number < 2 else None
        r.close()

    with reached("tcp", script) as target:
        exchanges, transport = exchanges_with(target, times=20)
    assert [a.error for a in exchanges] == ["", ""] + ["reset"] * 18
    assert isinstance(transport, SocketTransport)
    assert transport.opened <= 2 * len(exchanges) + 1


def test_the_operator_s_headers_replace_those_of_a_request() -> None:
    """Two Host headers are refused, by RFC 9112, section 3.2; a gateway's virtual host is one."""
    heads: list[bytes] = []

    def script(r: Request) -> None:
        heads.append(r.head.lower())
        r.stream(VLLM)

    with reached("tcp", script) as target:
        exchanges_with(msgspec.structs.replace(target, headers={"host": "llama.example.com", "ACCEPT": "*/*"}))
    assert (heads[0].count(b"host:"), heads[0].count(b"accept:")) == (1, 1)
    assert b"host: llama.example.com" in heads[0]


@every_wire
def test_what_each_request_has_of_its_own_is_sent_once_whatever_the_operator_gives(wire: str) -> None:
    """A proxy joins two of a name: application/json, application/json is no type that a server reads."""
    heads: list[bytes] = []

    def script(r: Request) -> None:
        heads.append(r.head.lower())
        r.stream(VLLM)

    with reached(wire, script) as target:
        theirs = {"content-type": "application/json", "X-REQUEST-ID": "mine"}
        exchanges_with(msgspec.structs.replace(target, headers=theirs))
    assert (heads[0].count(b"content-type:"), heads[0].count(b"x-request-id:")) == (1, 1)
    assert b"x-request-id: id-0" in heads[0]


def test_connections_that_idled_are_not_counted_where_more_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open loop between two peaks: what it opened for the first is not used for the second."""
    selector = HotSelector(250_000)

    async def go(target: Target) -> tuple[int, int, int]:
        transport = SocketTransport(target, selector)
        await transport.prepare(8)
        exchanges = [Exchange(f"id-{i}") for i in range(8)]
        await asyncio.gather(*(transport.send(each, transport.request("id", b"{}"), 5.0) for each in exchanges))
        monkeypatch.setattr("harness.load.sockets.IDLE_S", 0.0)
        await transport.prepare(8)
        monkeypatch.setattr("harness.load.sockets.IDLE_S", 4.0)
        again = [Exchange(f"again-{i}") for i in range(8)]
        await asyncio.gather(*(transport.send(each, transport.request("id", b"{}"), 5.0) for each in again))
        await transport.aclose()
        return transport.opened, sum(each.connect_ns > 0 for each in again), transport.resent

    loops = asyncio.Runner(loop_factory=lambda: new_loop(selector))
    with reached("tcp", lambda r: r.stream(VLLM)) as target, loops as runner:
        assert runner.run(go(target)) == (16, 0, 0)


def test_an_address_that_takes_no_connection_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose backlog is full drops what comes, as a route into nowhere does."""
    monkeypatch.setattr("harness.load.sockets._NEXT_ADDRESS_S", 0.1)
    with socket.socket() as silent, socket.socket() as first, socket.socket() as second:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())

        with reached("tcp", lambda r: r.stream(VLLM)) as target:

            async def both(_: SocketTransport) -> list[Any]:
                near = socket.AF_INET, socket.SOCK_STREAM, 0, ""
                return [(*near, silent.getsockname()), (*near, (target.host, target.port))]

            monkeypatch.setattr(SocketTransport, "_resolve", both)
            exchanges, _ = exchanges_with(target, times=2)
    assert [each.error for each in exchanges] == ["", ""]


def test_a_connection_opened_ahead_is_not_used_once_it_idled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that closes after each answer may end what is opened ahead of a long one; here any time is too long."""
    monkeypatch.setattr("harness.load.sockets.IDLE_S", 0.0)

    def script(r: Request) -> None:
        time.sleep(0.01)
        r.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n" + VLLM)
        r.close()

    exchanges = exchanges_with_script(script, "tcp", times=6)
    assert [a.error for a in exchanges] == [""] * 6
    assert all(a.connect_ns > 0 for a in exchanges[1:])


def test_a_server_that_breaks_its_promise_to_keep_connections_is_met_on_fresh_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It answers keep-alive and closes: what went into a dead connection is sent again, and no other is used twice."""
    monkeypatch.setattr("harness.load.sockets._KEPT_NS", 0)  # nothing is learned from one that closes at rest

    with reached("tcp", lambda r: r.stream_and_close(VLLM)) as target:
        exchanges, transport = exchanges_with(target, times=20)
    assert isinstance(transport, SocketTransport)
    assert [a.error for a in exchanges] == [""] * 20
    assert (transport.resent, transport.reuse) == (1, False)
    assert all(a.decoded.arrivals[0] > a.sent_ns for a in exchanges)


def test_a_server_that_closes_after_each_response_is_known_before_a_request_goes_into_one() -> None:
    """It closes a moment after its response, though it promised to keep the connection."""

    def script(r: Request) -> None:
        ids.append(r.header("x-request-id"))
        r.stream(VLLM)
        time.sleep(0.05)
        r.close()

    ids: list[str | None] = []
    with reached("tcp", script) as target:
        exchanges, transport = exchanges_with(target, times=4, rest_s=0.2)
    assert isinstance(transport, SocketTransport)
    assert [a.error for a in exchanges] == [""] * 4
    assert (transport.resent, transport.reuse, len(ids)) == (0, False, 4)


@every_wire
@pytest.mark.parametrize("end", [Request.close, Request.reset])
def test_a_request_that_the_server_may_have_read_is_not_sent_again(wire: str, end: Callable[[Request], None]) -> None:
    """It takes every second request of a kept connection and closes without a word: that is its failure."""
    ids: list[str | None] = []

    def script(r: Request) -> None:
        ids.append(r.header("x-request-id"))
        r.stream(VLLM) if len(ids) % 2 else end(r)

    with reached(wire, script) as target:
        exchanges, transport = exchanges_with(target, times=6)
    assert [a.error for a in exchanges] == ["", "reset"] * 3
    assert (transport.resent, ids) == (0, [f"id-{i}" for i in range(6)])


@pytest.mark.parametrize("wire", SOCKETS)
def test_a_server_that_resets_what_it_promised_to_keep_fails_one_request_and_no_more(wire: str) -> None:
    """It answers the first request of a connection and resets the second: no other connection is used twice."""
    answered: set[int] = set()

    def script(r: Request) -> None:
        if id(r.sock) in answered:
            return r.reset()
        answered.add(id(r.sock))
        held.append(r.sock)  # so that no other socket has its id
        return r.stream(VLLM)

    held: list[Any] = []
    with reached(wire, script) as target:
        exchanges, transport = exchanges_with(target, times=8)
    assert [a.error for a in exchanges] == ["", "reset", *[""] * 6]
    assert isinstance(transport, SocketTransport)
    assert (transport.resent, transport.reuse) == (0, False)


@every_wire
def test_an_error_in_the_stream_is_named_though_the_connection_breaks_after_it(wire: str) -> None:
    for end in (Request.close, Request.reset):

        def script(r: Request, end: Callable[[Request], None] = end) -> None:
            r.stream(delta(content="a"), b'data: {"error": {"message": "engine died"}}\n\n', end=False)
            time.sleep(0.05)
            end(r)

        (exchange,) = exchanges_with_script(script, wire)
        assert (exchange.error, "engine died" in exchange.message) == ("stream_error", True)


def test_a_refusal_before_the_whole_request_was_read_is_the_server_s_word() -> None:
    def early(sock: socket.socket) -> None:
        sock.recv(1000)
        sock.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        time.sleep(0.2)
        sock.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: early(listener.accept()[0]))
        thread.start()
        (exchange,), _ = exchanges_with(plain(listener.getsockname()[1]), body=b"x" * 30_000_000)
        thread.join()
    assert (exchange.error, exchange.message) == ("http_4xx", "big")


@pytest.mark.alone
@pytest.mark.parametrize("wire", ["tcp", "tls"])
@pytest.mark.parametrize("one_chunk", [True, False])
def test_events_of_one_segment_are_the_server_s_lump_where_the_read_was_in_time(wire: str, one_chunk: bool) -> None:
    two = delta(content="a"), delta(content="b")

    def script(request: Request) -> None:
        request.stream(end=False)
        for pause in (0.05, 0.05):
            time.sleep(pause)
            events = [b"".join(two)] if one_chunk else two
            request.send(b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in events))
        request.send(b"0\r\n\r\n")

    (exchange,) = exchanges_with_script(script, wire)
    assert exchange.decoded.merged == 4
    if not one_chunk:
        assert exchange.merged_late <= 2, "this machine may be late once"


@pytest.mark.parametrize(("span", "late"), [(0, 0), (10_000_000, 2)])
def test_events_that_were_sent_apart_and_read_together_are_ours(span: int, late: int) -> None:
    selector, exchange = HotSelector(250_000), Exchange("id")
    near, far = socket.socketpair()
    stream = Connection(near, SocketTransport(plain(1), selector))
    stream._exchange = exchange
    exchange.response.feed(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    event = delta(content="a")
    chunk = b"%x\r\n%b\r\n" % (len(event), event)
    selector.span = span
    stream.arrived(chunk + chunk, 1)
    stream.arrived(chunk, 2)
    stream.arrived(b"%x\r\n%b\r\n" % (2 * len(event), 2 * event), 3)
    stream.arrived(b"%x\r\n%b\r\n" % (30 * len(event), 30 * event), 4)  # too long for the quick way
    selector.decode_all()
    exchange.take(5, None)
    assert exchange.merged_late == late, "one chunk was sent at once, whenever it is read"
    assert exchange.decoded.merged == 34
    near.close()
    far.close()


@pytest.mark.parametrize("wire", ["tcp", "ipv6", "tls"])
def test_arrivals_lie_where_the_server_wrote_them(wire: str) -> None:
    wrote: list[int] = []

    def script(r: Request) -> None:
        r.stream(end=False)
        for finish in (None, None, "length"):
            time.sleep(0.02)
            chunk = delta(finish, content=" x")
            wrote.append(time.monotonic_ns())
            r.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        r.send(b"0\r\n\r\n")

    stamping = Stamping()
    (exchange,) = exchanges_with_script(script, wire)
    stamping.close()
    errors = [a - w for a, w in zip(exchange.decoded.arrivals, wrote, strict=True)]
    # Before the write is impossible. The gaps between stamps are the server's own gaps, read late or not.
    assert min(errors) >= 0
    assert stamping.source == "kernel"
    assert max(errors) - min(errors) < 5_000_000


@every_wire
@pytest.mark.parametrize(
    ("name", "script", "error"),
    [
        ("refusal", lambda r: r.answer(500, b'{"error":"boom"}'), "http_5xx"),
        ("too many", lambda r: r.answer(429, b"{}"), "http_429"),
        ("not found", lambda r: r.answer(404, b"{}"), "http_4xx"),
        ("out of memory", lambda r: r.answer(500, b"CUDA out of memory"), "oom"),
        ("closed at once", lambda r: r.close(), "reset"),
        ("reset at once", lambda r: r.reset(), "reset"),
        ("closed inside", lambda r: (r.stream(delta(content="a"), end=False), r.close()), "truncated"),
        ("reset inside", lambda r: (r.stream(delta(content="a"), end=False), time.sleep(0.05), r.reset()), "reset"),
        ("no finish reason", lambda r: r.stream(delta(content="a")), "truncated"),
        ("not HTTP", lambda r: r.send(b"SSH-2.0-x\r\n\r\n"), "protocol"),
        ("HTML", lambda r: r.answer(200, b"<html></html>", "text/html"), "content_type"),
        ("error in the stream", lambda r: r.stream(b'data: {"error": {"message": "x"}}\n\n'), "stream_error"),
    ],
)
def test_a_bad_answer_is_an_error_with_a_name(
    name: str, script: Callable[[Request], None], error: str, wire: str
) -> None:
    if name == "reset inside" and wire.endswith("unix"):
        error = "truncated"  # a Unix socket knows no reset
    (exchange,) = exchanges_with_script(script, wire)
    assert exchange.error == error, (name, exchange.message)
    assert exchange.complete
    assert exchange.done_ns >= exchange.sent_ns > 0


@pytest.mark.alone
@every_wire
def test_a_server_that_never_answers_meets_the_deadline(wire: str) -> None:
    (exchange,) = exchanges_with_script(lambda r: time.sleep(0.3), wire, timeout_s=0.05)
    assert exchange.error == "client_deadline"
    (exchange,) = exchanges_with_script(
        lambda r: (r.stream(delta(content="a"), end=False), time.sleep(1.0)), wire, timeout_s=0.5
    )
    assert (exchange.error, len(exchange.decoded.arrivals)) == ("client_deadline", 1)


@pytest.mark.parametrize("transport", ["socket", "httpx"])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"port": 1}, "refused"),
        ({"port": 1, "host": "localhost"}, "refused"),
        ({"port": 1, "scheme": "https"}, "refused"),
        ({"uds": "/no/such/socket"}, "connect"),
        ({"host": "no-such-host.invalid"}, "connect"),
    ],
)
def test_no_server_is_a_record_not_an_exception(change: dict[str, Any], error: str, transport: str) -> None:
    (exchange,), _ = exchanges_with(msgspec.structs.replace(plain(80), transport=transport, **change))
    assert (exchange.error, exchange.sent_ns, exchange.complete) == (error, 0, True)


def test_every_address_of_a_name_is_tried_and_the_one_that_answers_is_kept() -> None:
    """localhost is ::1 and 127.0.0.1, and somebody listens on one of them."""
    with reached("tcp", lambda r: r.stream(VLLM)) as there:
        exchanges, _ = exchanges_with(msgspec.structs.replace(there, host="localhost"), prepared=3, times=4)
    assert [(a.error, a.connect_ns) for a in exchanges] == [("", 0)] * 4


@pytest.mark.parametrize(
    ("found", "taken"),
    [
        (["127.0.0.2", "127.0.0.3"], ["127.0.0.2", "127.0.0.3"] * 2),
        (["::1", "127.0.0.2"], ["127.0.0.2"] * 4),  # nobody listens at ::1
        (["127.0.0.2", "::1", "127.0.0.3"], ["127.0.0.2", "127.0.0.3"] * 2),
    ],
)
def test_connections_go_round_the_addresses_of_one_family(
    found: list[str], taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go(port: int) -> list[str]:
        async def resolved(*_: Any, **__: Any) -> list[Any]:
            family = {True: socket.AF_INET6, False: socket.AF_INET}
            return [(family[":" in each], socket.SOCK_STREAM, 0, "", (each, port)) for each in found]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        transport = SocketTransport(msgspec.structs.replace(plain(port), host="pool.test"), selector)
        peers = [(await transport.open()).sock.getpeername()[0] for _ in range(4)]
        await transport.aclose()
        return peers

    selector = HotSelector(250_000)
    with (
        serving(lambda r: r.stream(VLLM), host="0.0.0.0") as port,
        asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner,
    ):
        assert runner.run(go(port)) == taken


def test_an_address_that_takes_no_connection_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    connect = sockets._connect

    async def counted(sock: socket.socket, address: Any) -> None:
        tried.append(address[0])
        await connect(sock, address)

    async def go(port: int) -> None:
        async def resolved(*_: Any, **__: Any) -> list[Any]:
            where = [("127.0.0.2", 1), ("127.0.0.1", port)]
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", each) for each in where]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        monkeypatch.setattr(sockets, "_connect", counted)
        transport = SocketTransport(msgspec.structs.replace(plain(port), host="pool.test"), selector)
        for _ in range(4):
            await transport.open()
        await transport.aclose()

    selector = HotSelector(250_000)
    with (
        reached("tcp", lambda r: r.stream(VLLM)) as there,
        asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner,
    ):
        runner.run(go(there.port))
    assert tried == ["127.0.0.2", *["127.0.0.1"] * 4]


def test_a_name_is_resolved_once_for_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolvers drop storms, and ask again after seconds."""
    selector, lookups = HotSelector(250_000), []

    async def go(target: Target) -> list[Exchange]:
        loop = asyncio.get_running_loop()
        resolve = loop.getaddrinfo

        async def counted(*arguments: Any, **more: Any) -> Any:
            lookups.append(arguments)
            return await resolve(*arguments, **more)

        monkeypatch.setattr(loop, "getaddrinfo", counted)
        transport = transport_for(target, selector)
        exchanges = [Exchange(f"id-{i}") for i in range(8)]
        await asyncio.gather(*(transport.send(a, transport.request(a.request_id, b"{}"), 5.0) for a in exchanges))
        selector.decode_all()
        await transport.aclose()
        return exchanges

    with (
        reached("tcp", lambda r: r.stream(VLLM)) as there,
        asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner,
    ):
        exchanges = runner.run(go(msgspec.structs.replace(there, host="localhost")))
    assert [a.error for a in exchanges] == [""] * 8
    assert len(lookups) == 1


def test_a_unix_listener_with_a_full_backlog_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    taken: list[socket.socket] = []

    def accept(listener: socket.socket) -> None:
        for _ in range(6):
            time.sleep(0.01)
            taken.append(listener.accept()[0])
        taken[0].recv(4096)
        taken[0].sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(VLLM), VLLM))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        (exchange,), transport = exchanges_with(msgspec.structs.replace(plain(80), uds=path), prepared=6)
        thread.join(5)
    for sock in taken:
        sock.close()
    assert isinstance(transport, SocketTransport)
    assert (exchange.error, exchange.connect_ns, transport.opened) == ("", 0, 6)


@every_wire
@pytest.mark.parametrize("prepared", [0, 1])
def test_a_request_that_has_begun_is_sent_once_and_at_once_where_a_connection_is_open(wire: str, prepared: int) -> None:
    seen: list[Request] = []
    selector = HotSelector(250_000)

    async def go(target: Target) -> tuple[Exchange, bool, int]:
        transport = transport_for(target, selector)
        await transport.prepare(prepared)
        exchange, request = Exchange("x"), transport.request("x", b"{}")
        transport.begin(exchange, request)
        begun = exchange.sent_ns > 0
        await asyncio.sleep(0.05)  # its answer is over before anyone waits for it
        await transport.send(exchange, request, 5.0)
        selector.decode_all()
        await transport.aclose()
        return exchange, begun, selector.busy

    with (
        reached(wire, lambda r: (seen.append(r), r.stream(VLLM))) as target,
        asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner,
    ):
        exchange, begun, busy = runner.run(go(target))
    assert begun == (prepared == 1 and wire in SOCKETS)
    assert (exchange.error, exchange.decoded.output_tokens, len(seen), busy) == ("", 2, 1, 0)
    assert exchange.sent_ns < exchange.decoded.arrivals[0] <= exchange.done_ns


@pytest.mark.alone
@every_wire
def test_a_request_that_is_cut_by_us_is_cancelled(wire: str) -> None:
    async def go(target: Target, selector: HotSelector) -> Exchange:
        transport = transport_for(target, selector)
        exchange = Exchange("x")
        task = asyncio.create_task(transport.send(exchange, transport.request("x", b"{}"), 5.0))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        selector.decode_all()
        await transport.aclose()
        return exchange

    selector = HotSelector(250_000)
    with (
        reached(wire, lambda r: (r.stream(delta(content="a"), end=False), time.sleep(0.3))) as target,
        asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner,
    ):
        exchange = runner.run(go(target, selector))
    assert (exchange.error, len(exchange.decoded.arrivals), exchange.complete) == ("cancelled", 1, True)


@every_wire
def test_a_request_larger_than_the_socket_s_buffer_arrives_whole(wire: str) -> None:
    sizes: list[int] = []

    def script(r: Request) -> None:
        sizes.append(len(r.body))
        r.stream(VLLM)

    (exchange,) = exchanges_with_script(script, wire, body=b"x" * 8_000_000)
    assert (exchange.error, sizes) == ("", [8_000_000])


@every_wire
def test_a_failed_connection_is_not_used_again(wire: str) -> None:
    def script(r: Request) -> None:
        if r.number == 0:
            r.stream(delta(content="a"), end=False)
            r.close()
        else:
            r.stream(VLLM)

    first, second = exchanges_with_script(script, wire, times=2)
    assert (first.error, second.error) == ("truncated", "")


def test_a_connection_that_opens_while_others_find_no_address_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others emptied the list of addresses meanwhile, so that the name is looked up again."""
    connect = sockets._connect

    async def meanwhile(sock: socket.socket, address: Any) -> None:
        transport._addresses = []
        await connect(sock, address)

    monkeypatch.setattr(sockets, "_connect", meanwhile)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        selector = HotSelector()
        transport = SocketTransport(plain(listener.getsockname()[1]), selector)

        async def main() -> bool:
            connection = await transport.open()
            connection.close()
            return transport.opened == 1

        with asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
            assert runner.run(main())
