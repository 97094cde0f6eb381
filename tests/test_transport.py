"""One exchange over a real socket, with servers that behave and servers that do not."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable

import pytest

from harness.load.http1 import request, request_head
from harness.load.loop import HotSelector, Stamping, new_loop
from harness.load.transport import Answer, SocketTransport
from tests.servers import Request, serving
from tests.streams import ALL, VLLM, delta

HEAD = request_head("POST", "/v1/chat/completions", "h", {})


def exchange(
    script: Callable[[Request], None], *, times: int = 1, timeout_s: float = 5.0, body: bytes = b"{}"
) -> list[Answer]:
    """The answers to some requests, one after the other, each decoded to its end."""
    selector = HotSelector(250_000)

    async def go(port: int) -> list[Answer]:
        transport = SocketTransport(selector, "127.0.0.1", port)
        await transport.prepare(1)
        answers = []
        for i in range(times):
            answer = Answer(f"id-{i}")
            await transport.exchange(answer, request(HEAD, answer.request_id, body), timeout_s)
            answers.append(answer)
        selector.decode_all()
        transport.close()
        return answers

    with serving(script) as port, asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
        return runner.run(go(port))


@pytest.mark.parametrize("name", ALL)
def test_every_dialect_s_stream_becomes_two_stamped_tokens(name: str) -> None:
    (answer,) = exchange(lambda r: r.stream(*(e + b"\n\n" for e in ALL[name].split(b"\n\n")[:-1])))
    assert (answer.error, answer.story.output_tokens, len(answer.story.arrivals)) == ("", 2, 2)
    assert answer.sent_ns < answer.story.arrivals[0] <= answer.story.arrivals[1] <= answer.done_ns
    assert answer.complete


def test_a_connection_is_opened_once_and_used_again() -> None:
    ports: list[int] = []

    def script(r: Request) -> None:
        ports.append(r.sock.getpeername()[1])
        r.stream(VLLM)

    answers = exchange(script, times=5)
    assert [a.error for a in answers] == [""] * 5
    assert len(set(ports)) == 1
    assert [a.connect_ns for a in answers] == [0] * 5


def test_connect_time_is_its_own_figure_where_the_server_closes_after_each_answer() -> None:
    def script(r: Request) -> None:
        r.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n" + VLLM)
        r.close()

    first, second = exchange(script, times=2)
    assert (first.error, second.error) == ("", "")
    assert first.connect_ns == 0
    assert second.connect_ns > 0
    assert second.story.arrivals[0] > second.sent_ns


def test_a_server_that_breaks_its_promise_to_keep_connections_is_met_on_fresh_ones() -> None:
    """It answers keep-alive and closes: what went into a dead connection is sent again, and no other is used twice."""

    def script(r: Request) -> None:
        r.stream(VLLM)
        time.sleep(0.005)
        r.close()

    selector = HotSelector(250_000)

    async def go(port: int) -> tuple[list[Answer], SocketTransport]:
        transport = SocketTransport(selector, "127.0.0.1", port)
        answers = [Answer(f"id-{i}") for i in range(20)]
        for answer in answers:
            await transport.exchange(answer, request(HEAD, answer.request_id, b"{}"), 5.0)
        selector.decode_all()
        transport.close()
        return answers, transport

    with serving(script) as port, asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
        answers, transport = runner.run(go(port))
    assert [a.error for a in answers] == [""] * 20
    assert (transport.resent, transport.reuse) == (1, False)
    assert all(a.story.arrivals[0] > a.sent_ns for a in answers)


def test_an_error_in_the_stream_is_named_though_the_connection_breaks_after_it() -> None:
    for end in (Request.close, Request.reset):

        def script(r: Request, end: Callable[[Request], None] = end) -> None:
            r.stream(delta(content="a"), b'data: {"error": {"message": "engine died"}}\n\n', end=False)
            time.sleep(0.05)
            end(r)

        (answer,) = exchange(script)
        assert (answer.error, "engine died" in answer.message) == ("stream_error", True)


def test_a_refusal_before_the_whole_request_was_read_is_the_server_s_word() -> None:
    def early(sock: socket.socket) -> None:
        sock.recv(1000)
        sock.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        time.sleep(0.2)
        sock.close()

    selector = HotSelector(250_000)

    async def go(port: int) -> Answer:
        answer = Answer("x")
        await SocketTransport(selector, "127.0.0.1", port).exchange(answer, request(HEAD, "x", b"x" * 30_000_000), 5.0)
        selector.decode_all()
        return answer

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: early(listener.accept()[0]))
        thread.start()
        with asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
            answer = runner.run(go(listener.getsockname()[1]))
        thread.join()
    assert (answer.error, answer.message) == ("http_4xx", "big")


def test_arrivals_lie_where_the_server_wrote_them() -> None:
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
    (answer,) = exchange(script)
    stamping.close()
    errors = [a - w for a, w in zip(answer.story.arrivals, wrote, strict=True)]
    # Before the write is impossible. The gaps between stamps are the server's own gaps, read late or not.
    assert min(errors) >= 0
    assert stamping.source == "kernel"
    assert max(errors) - min(errors) < 5_000_000


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
        ("no finish reason", lambda r: r.stream(delta(content="a"), b"data: [DONE]\n\n"), "truncated"),
        ("not HTTP", lambda r: r.send(b"SSH-2.0-x\r\n\r\n"), "protocol"),
        ("HTML", lambda r: r.answer(200, b"<html></html>", "text/html"), "truncated"),
        ("error in the stream", lambda r: r.stream(b'data: {"error": {"message": "x"}}\n\n'), "stream_error"),
    ],
)
def test_a_bad_answer_is_an_error_with_a_name(name: str, script: Callable[[Request], None], error: str) -> None:
    (answer,) = exchange(script)
    assert answer.error == error, (name, answer.message)
    assert answer.complete
    assert answer.done_ns >= answer.sent_ns > 0


def test_a_server_that_never_answers_meets_the_deadline() -> None:
    (answer,) = exchange(lambda r: time.sleep(1.0), timeout_s=0.05)
    assert answer.error == "client_deadline"
    (answer,) = exchange(lambda r: (r.stream(delta(content="a"), end=False), time.sleep(1.0)), timeout_s=0.2)
    assert (answer.error, len(answer.story.arrivals)) == ("client_deadline", 1)


def test_a_refused_connection_is_a_record_not_an_exception() -> None:
    selector = HotSelector()

    async def go() -> Answer:
        answer = Answer("x")
        await SocketTransport(selector, "127.0.0.1", 1).exchange(answer, b"", 1.0)
        selector.decode_all()
        return answer

    with asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
        answer = runner.run(go())
    assert (answer.error, answer.sent_ns, answer.complete) == ("refused", 0, True)


def test_a_request_larger_than_the_socket_s_buffer_arrives_whole() -> None:
    sizes: list[int] = []

    def script(r: Request) -> None:
        sizes.append(len(r.body))
        r.stream(VLLM)

    (answer,) = exchange(script, body=b"x" * 8_000_000)
    assert (answer.error, sizes) == ("", [8_000_000])


def test_a_failed_connection_is_not_used_again() -> None:
    def script(r: Request) -> None:
        if r.number == 0:
            r.stream(delta(content="a"), end=False)
            r.close()
        else:
            r.stream(VLLM)

    first, second = exchange(script, times=2)
    assert (first.error, second.error) == ("truncated", "")
