"""A local socket server that does exactly what a test tells it, one thread a connection; and the ways to reach it."""

from __future__ import annotations

import contextlib
import datetime
import functools
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from harness.load.transport import Target


class Request:
    """One request as it came, on its connection; a script answers it as it likes."""

    def __init__(
        self, sock: socket.socket, head: bytes, body: bytes, number: int, connections: list[socket.socket]
    ) -> None:
        self.sock, self.head, self.body, self.number = sock, head, body, number
        self._connections = connections

    def wait_for_the_next_connection(self, at_most_s: float) -> None:
        """Until a connection is open that is newer than this one."""
        until = time.monotonic() + at_most_s
        while time.monotonic() < until:
            newest = self._connections[-1]
            if newest is not self.sock and type(newest) is type(self.sock):  # under TLS: its handshake is over
                return
            time.sleep(0.001)

    @property
    def path(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    def header(self, name: str) -> str | None:
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.decode().lower() == name.lower():
                return value.strip().decode()
        return None

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def stream(self, *events: bytes, end: bool = True) -> None:
        """A chunked event stream, one chunk an event."""
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in events:
            self.send(b"%x\r\n%b\r\n" % (len(event), event))
        if end:
            self.send(b"0\r\n\r\n")

    def answer(self, status: int, body: bytes, kind: str = "application/json", extra: str = "") -> None:
        self.send(
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body
        )

    def stream_and_close(self, *events: bytes) -> None:
        """An event stream whose last bytes bring the connection's end with them: no request comes between."""
        self.stream(*events, end=False)
        self.sock.send(b"0\r\n\r\n", socket.MSG_MORE)
        self.close()

    def close(self) -> None:
        """End the connection; under TLS without a word, as many servers do."""
        self.sock.shutdown(socket.SHUT_RDWR)

    def say_goodbye(self) -> None:
        """End the connection as TLS asks for, with close_notify."""
        assert isinstance(self.sock, ssl.SSLSocket)
        with contextlib.suppress(OSError):
            self.sock.unwrap()
        self.sock.close()

    def reset(self) -> None:
        """Close so that the peer gets a reset, not an end."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


WIRES = ("tcp", "ipv6", "unix", "tls", "httpx", "httpx tls", "httpx unix")


@functools.cache
def authority() -> trustme.CA:
    return trustme.CA()


def certified(*names: str, by: trustme.CA | None = None) -> ssl.SSLContext:
    """A server's TLS for these names, by the tests' authority or another."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (by or authority()).issue_cert(*names).configure_cert(made)
    return made


def expired() -> ssl.SSLContext:
    """By the tests' authority, for 127.0.0.1, until yesterday."""
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    begin = yesterday - datetime.timedelta(days=9)
    authority().issue_cert("127.0.0.1", not_before=begin, not_after=yesterday).configure_cert(made)
    return made


def self_signed(folder: Path) -> ssl.SSLContext:
    alone = trustme.CA()
    alone.cert_pem.write_to_path(str(folder / "own.pem"))
    alone.private_key_pem.write_to_path(str(folder / "own.key"))
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(folder / "own.pem", folder / "own.key")
    return made


@contextlib.contextmanager
def reached(wire: str, script: Callable[[Request], None]) -> Iterator[Target]:
    """A server that runs the script for every request, and how to reach it over one of WIRES."""
    transport = "httpx" if wire.startswith("httpx") else "socket"
    kind = wire.removeprefix("httpx").strip() or "tcp"
    host = "::1" if kind == "ipv6" else "127.0.0.1"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ca_file, uds = f"{folder}/ca.pem", f"{folder}/server.sock" if kind == "unix" else ""
        authority().cert_pem.write_to_path(ca_file)
        if kind == "ipv6":
            skip_without_ipv6()
        port = stack.enter_context(serving(script, host=host, uds=uds, tls=certified(host) if kind == "tls" else None))
        yield Target(
            scheme="https" if kind == "tls" else "http",
            host=host,
            port=port,
            uds=uds,
            path="/v1/chat/completions",
            headers={},
            ca_file=ca_file if kind == "tls" else "",
            transport=transport,
        )


def tunnel(r: Request) -> None:
    """The script of a proxy that lets CONNECT through and forwards nothing else."""
    host, _, port = r.path.partition(":")
    with socket.create_connection((host, int(port))) as far:
        r.send(b"HTTP/1.1 200 OK\r\n\r\n")
        pipe(r.sock, far)


def pipe(near: socket.socket, far: socket.socket, *, step: int = 65_536) -> None:
    """Pass bytes on both ways until the near side ends; those of the far side in pieces of `step`."""

    def back() -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(65_536):
                for at in range(0, len(data), step):
                    near.sendall(data[at : at + step])

    thread = threading.Thread(target=back)
    thread.start()
    with contextlib.suppress(OSError):
        while data := near.recv(65_536):
            far.sendall(data)
        far.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def skip_without_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")


@contextlib.contextmanager
def serving(
    script: Callable[[Request], None], *, host: str = "127.0.0.1", uds: str = "", tls: ssl.SSLContext | None = None
) -> Iterator[int]:
    """A server that runs the script for every request, on a free port (given) or a Unix socket."""
    if uds:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(uds)
        listener.listen(512)
    else:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family, backlog=512)
    connections: list[socket.socket] = []
    lock = threading.Lock()
    count = 0

    def converse(sock: socket.socket) -> None:
        nonlocal count
        buffer = b""
        with contextlib.ExitStack() as open_, contextlib.suppress(OSError):
            if tls is not None:
                plain, sock = sock, tls.wrap_socket(sock, server_side=True)
                open_.callback(sock.close)  # the server may end during the handshake, and knows this one only after it
                connections[connections.index(plain)] = sock
            while True:
                while b"\r\n\r\n" not in buffer:
                    more = sock.recv(65536)
                    if not more:
                        return
                    buffer += more
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length:")
                    ),
                    0,
                )
                while len(buffer) < length:
                    buffer += sock.recv(65536)
                body, buffer = buffer[:length], buffer[length:]
                with lock:
                    number = count
                    count += 1
                script(Request(sock, head, body, number, connections))

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            if not uds:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connections.append(sock)
            threading.Thread(target=converse, args=(sock,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield 80 if uds else listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(2)
        for sock in connections:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
