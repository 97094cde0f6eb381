"""One server that misbehaves as its paths ask, in a process of its own, with a log of what it did when.

`POST /FAULT/WHICH/PACE/…` commits FAULT (a name in `tests.faults`) on the requests that WHICH marks, and answers
the others well, in the words of the API whose path follows: `marked` is every eighth, by the number that ends a
request's id; `load` all but the launch checks, `checks` only these; `all` everything. As a proxy it forwards nothing:
what is asked of another host it answers itself, and it opens no tunnel. One process, one thread, plain sockets: its
stamps are taken right before the write, those of what it receives are the kernel's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from harness.load.loop import clock_offset, enable_stamps
from tests.builders.servers import authority, certified, expired, self_signed
from tests.builders.streams import usage
from tests.builders.wordings import Wording, wording_of

ROOT = Path(__file__).parents[2]
TOKENS = 4  # of a good answer
PROMPT = 8  # tokens of every prompt, by its usage
EVERY, NUMBER = 8, 5  # request number n is marked where n % 8 = 5


class Pace(NamedTuple):
    """Seconds to the first token, and between tokens."""

    first_s: float
    gap_s: float


# Of a server that answers one request at a time, and of one that answers 256: a core writes both at ease.
PACES = {"quick": Pace(0.02, 0.015), "steady": Pace(0.1, 0.04)}


def marked(request_id: str) -> bool:
    number = request_id.rpartition("-")[2]
    return number.isdigit() and int(number) % EVERY == NUMBER


class Wrote(NamedTuple):
    """One line of the log; CLOCK_MONOTONIC nanoseconds."""

    request_id: str
    received_ns: int  # the request's last segment, by the kernel
    first_ns: int  # right before the write of the first token


class Exchange:
    """One request as it came, and all that a fault may do to its answer and its connection."""

    def __init__(
        self, write: Callable[[bytes], Awaitable[None]], sock: socket.socket, request_id: str, received_ns: int,
        pace: Pace, log: int, wording: Wording,
    ) -> None:  # fmt: skip
        self.write, self.sock, self.request_id, self.pace = write, sock, request_id, pace
        self.wording = wording
        self.over = False  # the connection is of no use any more
        self._received_ns, self._log, self._wrote = received_ns, log, 0

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def head(self, headers: bytes = b"") -> None:
        """The head of a good stream, and what opens it."""
        opening = self.wording.opening
        await self.write(self.stream_head(headers) + b"%x\r\n%b\r\n" % (len(opening), opening))

    def stream_head(self, headers: bytes = b"", status: bytes = b"200 OK") -> bytes:
        kind = b"Content-Type: %b\r\nTransfer-Encoding: chunked\r\n" % self.wording.media
        return b"HTTP/1.1 %b\r\n%b%b\r\n" % (status, kind, headers)

    async def token(self) -> None:
        """The next token, at its time; the first one's is logged."""
        await asyncio.sleep(self.pace.gap_s if self._wrote else self.pace.first_s)
        data = self.wording.token
        await self.written(b"%x\r\n" % len(data) + data + b"\r\n")

    async def written(self, data: bytes) -> None:
        """Write bytes that end with a token."""
        at = time.monotonic_ns()
        await self.write(data)
        self._wrote += 1
        if self._wrote == 1:
            os.write(self._log, json.dumps(Wrote(self.request_id, self._received_ns, at)).encode() + b"\n")

    async def tokens(self, count: int) -> None:
        for _ in range(count):
            await self.token()

    async def end(self, *, counts: dict[str, Any] | None = None, finish: str | None = "length") -> None:
        await self.write(self.last(counts=counts, finish=finish))

    def last(self, *, counts: dict[str, Any] | None = None, finish: str | None = "length") -> bytes:
        """The finish, usage, the end mark and the last chunk."""
        last = self.wording.end(usage(PROMPT, TOKENS) if counts is None else counts, finish)
        return b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last)

    async def good(self) -> None:
        await self.head()
        await self.tokens(TOKENS)
        await self.end()

    async def good_and_end(self) -> None:
        """A good answer whose last bytes bring the connection's end with them: no request comes between."""
        await self.head()
        await self.tokens(TOKENS)
        self.sock.send(self.last(), socket.MSG_MORE)
        self.sock.shutdown(socket.SHUT_WR)

    async def answer(self, status: int, body: bytes, headers: bytes = b"", kind: bytes = b"application/json") -> None:
        """An answer that is no stream."""
        head = b"HTTP/1.1 %d X\r\nContent-Type: %b\r\n%bContent-Length: %d\r\n\r\n" % (status, kind, headers, len(body))
        await self.write(head + body)

    def close(self) -> None:
        self.over = True

    def reset(self) -> None:
        """Close so that the peer gets a reset, not an end."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.over = True

    def end_writing(self) -> None:
        """Half close: nothing more comes, though the connection stays."""
        self.sock.shutdown(socket.SHUT_WR)

    async def silence(self) -> None:
        """Say nothing more, for ever."""
        await asyncio.sleep(3600)


Script = Callable[[Exchange], Awaitable[None]]
MODELS = json.dumps({"object": "list", "data": [{"id": "toy", "object": "model"}]}).encode()


class Server:
    """The connections of one process."""

    def __init__(self, faults: dict[str, Script], log: int) -> None:
        self._faults, self._log = faults, log
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            sock, _ = await loop.sock_accept(listener)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            enable_stamps(sock)
            task = loop.create_task(self._converse(sock))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _converse(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()

        async def write(data: bytes) -> None:
            await loop.sock_sendall(sock, data)

        async def read() -> tuple[bytes, int]:
            return await _received(sock)

        with contextlib.suppress(OSError), sock:
            await self._serve(read, write, sock)

    async def converse_tls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The same over TLS, where what is received is stamped by the clock."""

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        async def read() -> tuple[bytes, int]:
            return await reader.read(65_536), time.monotonic_ns()

        with contextlib.suppress(OSError):
            await self._serve(read, write, writer.get_extra_info("socket"))
        writer.close()

    async def _serve(
        self, read: Callable[[], Awaitable[tuple[bytes, int]]], write: Callable[[bytes], Awaitable[None]],
        sock: socket.socket,
    ) -> None:  # fmt: skip
        data, stamp = b"", 0
        while True:
            while b"\r\n\r\n" not in data or len(data) < _length(data):
                more, stamp = await read()
                if not more:
                    return
                data += more
            head, data = data[: data.index(b"\r\n\r\n")], data[_length(data) :]
            method, path = head.split(b" ", 2)[:2]
            parts = urlsplit(path.decode()).path.strip("/").split("/")
            fault, which, pace = parts[:3] if len(parts) > 3 else ("good", "marked", "quick")
            request_id = _header(head, b"x-request-id").decode()
            wording = wording_of("/" + "/".join(parts))
            exchange = Exchange(write, sock, request_id, stamp, PACES[pace], self._log, wording)
            if method == b"CONNECT":
                await exchange.answer(403, b"{}")
                return
            check = request_id == "knee-check"
            asks = {"marked": marked(request_id), "load": not check, "checks": check, "all": True}[which]
            bad = asks and (method == b"POST" or which == "all")
            script: Script = self._faults[fault] if bad else Exchange.good
            if method == b"GET" and not bad:
                known = path.endswith(b"/v1/models")
                await exchange.answer(200 if known else 404, MODELS if known else b"{}")
                continue
            await script(exchange)
            if exchange.over:
                return


async def _received(sock: socket.socket) -> tuple[bytes, int]:
    """The next bytes and the kernel's stamp of them, on CLOCK_MONOTONIC."""
    while True:
        try:
            data, ancillary, _, _ = sock.recvmsg(65_536, 64)
        except BlockingIOError:
            await _readable(sock)
            continue
        if not ancillary:
            return data, time.monotonic_ns()
        sec, nsec = struct.unpack("qq", ancillary[0][2])
        return data, sec * 1_000_000_000 + nsec - clock_offset()


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(sock, ready.set_result, None)
    try:
        await ready
    finally:
        loop.remove_reader(sock)


def _header(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    return b""


def _length(data: bytes) -> int:
    """Bytes of the first request in the data, whose head is whole."""
    head = data.index(b"\r\n\r\n")
    return head + 4 + int(_header(data[:head], b"content-length") or 0)


class Served(msgspec.Struct, frozen=True):
    """Where a running server is to be found."""

    port: int
    log: str
    tls: dict[str, int] = {}  # port by the kind of its certificate
    ca_file: str = ""

    def written(self) -> dict[str, Wrote]:
        """What the log says so far; its last line may be half written while other levels still run."""
        whole = Path(self.log).read_text().rpartition("\n")[0]
        return {line[0]: Wrote(*line) for line in map(json.loads, whole.splitlines())}


@contextlib.contextmanager
def serving(log: Path, *, port: int = 0, tls: bool = False, cpu: int | None = None) -> Iterator[Served]:
    """A server in a process of its own, on a port of its own or the one that is asked; ended by a kill."""
    asked = [str(log), str(port), str(int(tls)), str(-1 if cpu is None else cpu)]
    command = [sys.executable, "-c", "from tests.trust.misbehaving import main; main()", *asked]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield msgspec.json.decode(process.stdout.readline(), type=Served)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _certificates(folder: Path) -> dict[str, ssl.SSLContext]:
    return {
        "good": certified("127.0.0.1"),
        "expired": expired(),
        "another host's": certified("elsewhere.example"),
        "self-signed": self_signed(folder),
    }


async def _main(log: Path, port: int, tls: bool) -> None:
    from tests.trust.faults import SCRIPTS

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)  # handshakes that fail, as they should
    server = Server(SCRIPTS, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    secure, ca_file = {}, log.parent / "ca.pem"
    if tls:
        authority().cert_pem.write_to_path(str(ca_file))
        for kind, made in _certificates(log.parent).items():
            opened = await asyncio.start_server(server.converse_tls, "127.0.0.1", 0, ssl=made, backlog=1024)
            secure[kind] = opened.sockets[0].getsockname()[1]
    served = Served(listener.getsockname()[1], str(log), secure, str(ca_file))
    os.write(1, msgspec.json.encode(served) + b"\n")
    await server.accept(listener)


def main() -> None:
    """The server's process."""
    if (cpu := int(sys.argv[4])) >= 0:
        os.sched_setaffinity(0, {cpu})
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1"))
