"""A local socket server that does exactly what a test tells it, one thread a connection."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator


class Request:
    """One request as it came, on its connection; a script answers it as it likes."""

    def __init__(self, sock: socket.socket, head: bytes, body: bytes, number: int) -> None:
        self.sock, self.head, self.body, self.number = sock, head, body, number

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

    def close(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Close so that the peer gets a reset, not an end."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


@contextlib.contextmanager
def serving(script: Callable[[Request], None]) -> Iterator[int]:
    """A server on 127.0.0.1 that runs the script for every request; gives its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    connections: list[socket.socket] = []
    lock = threading.Lock()
    count = 0

    def converse(sock: socket.socket) -> None:
        nonlocal count
        buffer = b""
        with contextlib.suppress(OSError):
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
                script(Request(sock, head, body, number))

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connections.append(sock)
            threading.Thread(target=converse, args=(sock,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(2)
        for sock in connections:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
