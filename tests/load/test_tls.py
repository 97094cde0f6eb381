"""TLS on the measured path: whom it trusts, what it says of a bad certificate, and bytes cut anywhere."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trustme

from harness.base.errors import HarnessError
from harness.load import tls
from harness.load.transport import Target
from tests.builders.servers import Request, authority, certified, expired, pipe, reached, self_signed, serving
from tests.builders.streams import VLLM, delta
from tests.load.test_transport import exchanges_with, exchanges_with_script

pytestmark = pytest.mark.usefixtures("receive_path")

BAD: dict[str, tuple[Callable[[Path], ssl.SSLContext], str]] = {
    "expired": (lambda folder: expired(), "its certificate has expired"),
    "another host's": (lambda folder: certified("elsewhere.example"), "its certificate is not valid for '127.0.0.1'"),
    "an unknown authority's": (
        lambda folder: certified("127.0.0.1", by=trustme.CA()),
        "its certificate comes from an authority that is not trusted here",
    ),
    "self-signed": (self_signed, "its certificate is self-signed"),
}


def target(port: int, folder: Path, **changes: object) -> Target:
    authority().cert_pem.write_to_path(str(folder / "ca.pem"))
    plain = Target(scheme="https", host="127.0.0.1", port=port, path="/", headers={}, ca_file=str(folder / "ca.pem"))
    return msgspec.structs.replace(plain, **changes)


@pytest.mark.parametrize("transport", ["socket", "httpx"])
@pytest.mark.parametrize("name", BAD)
def test_a_certificate_that_is_not_to_be_trusted_is_an_error_named_tls(
    name: str, transport: str, tmp_path: Path
) -> None:
    made, _ = BAD[name]
    with serving(lambda r: r.stream(VLLM), tls=made(tmp_path)) as port:
        (refused,), _ = exchanges_with(target(port, tmp_path, transport=transport))
        (taken,), _ = exchanges_with(target(port, tmp_path, transport=transport, ca_file="", insecure=True))
    assert (refused.error, refused.sent_ns) == ("tls", 0)
    assert "certificate" in refused.message
    assert taken.error == ""


@pytest.mark.parametrize("name", BAD)
def test_the_explanation_of_a_bad_certificate_has_a_way_out(name: str, tmp_path: Path) -> None:
    made, fact = BAD[name]
    context = tls.context(target(1, tmp_path))
    with serving(lambda r: None, tls=made(tmp_path)) as port, socket.create_connection(("127.0.0.1", port)) as sock:
        with pytest.raises(ssl.SSLError) as caught:
            context.wrap_socket(sock, server_hostname="127.0.0.1")
        reason, way_out = tls.explained(caught.value)
    assert reason == fact
    assert way_out


def test_a_file_of_authorities_that_is_none_is_the_operator_s_mistake(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing\n")
    for path, fact in ((tmp_path / "empty.pem", "no PEM certificates"), (tmp_path / "none.pem", "No such file")):
        with pytest.raises(HarnessError, match=fact) as caught:
            tls.context(target(1, tmp_path, ca_file=str(path)))
        assert caught.value.place.startswith("--ca-file")


@pytest.mark.parametrize("transport", ["socket", "httpx"])
def test_a_server_that_does_not_speak_tls_is_an_error_named_tls(transport: str, tmp_path: Path) -> None:
    def plain(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(1000)
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=plain, args=(listener,))
        thread.start()
        (exchange,), _ = exchanges_with(target(listener.getsockname()[1], tmp_path, transport=transport), prepared=0)
        thread.join(5)
    assert (exchange.error, exchange.sent_ns) == ("tls", 0)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_handshake_is_timed_apart(version: ssl.TLSVersion, tmp_path: Path) -> None:
    context = certified("127.0.0.1")
    context.minimum_version = context.maximum_version = version

    def script(r: Request) -> None:
        r.answer(200, VLLM, "text/event-stream", "Connection: close\r\n")
        r.say_goodbye()

    with serving(script, tls=context) as port:
        exchanges, _ = exchanges_with(target(port, tmp_path), prepared=0, times=3)
    assert [a.error for a in exchanges] == [""] * 3
    assert min(exchanges[0].connect_ns, exchanges[0].tls_ns) > 0


def test_an_answer_ends_with_close_notify_and_without() -> None:
    for end in (Request.close, Request.say_goodbye):

        def script(r: Request, end: Callable[[Request], None] = end) -> None:
            r.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + VLLM)
            end(r)

        assert [a.error for a in exchanges_with_script(script, "tls", times=2)] == ["", ""]

        def cut(r: Request, end: Callable[[Request], None] = end) -> None:
            r.stream(delta(content="a"), end=False)
            end(r)

        (exchange,) = exchanges_with_script(cut, "tls")
        assert (exchange.error, len(exchange.decoded.arrivals)) == ("truncated", 1)


def test_damaged_ciphertext_is_an_error_named_tls() -> None:
    def script(r: Request) -> None:
        r.stream(delta(content="a"), end=False)
        time.sleep(0.02)
        with socket.socket(fileno=socket.dup(r.sock.fileno())) as raw:
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        time.sleep(0.1)

    (exchange,) = exchanges_with_script(script, "tls")
    assert (exchange.error, len(exchange.decoded.arrivals)) == ("tls", 1)


def test_records_cut_anywhere_and_joined_are_read_whole() -> None:
    """A server behind a relay that passes on odd numbers of bytes."""
    exchanges = []
    with reached("tls", lambda r: r.stream(*(e + b"\n\n" for e in VLLM.split(b"\n\n")[:-1]))) as there:
        for step in (1, 7, 500, 100_000):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                thread = threading.Thread(target=relay, args=(listener, there.port, step))
                thread.start()
                port = listener.getsockname()[1]
                exchanges += exchanges_with(msgspec.structs.replace(there, port=port), prepared=0)[0]
                thread.join(5)
    assert [(a.error, a.decoded.output_tokens) for a in exchanges] == [("", 2)] * 4


def relay(listener: socket.socket, port: int, step: int) -> None:
    near, _ = listener.accept()
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with near, socket.create_connection(("127.0.0.1", port)) as far:
        pipe(near, far, step=step)
