"""The simulated endpoint: the step machine of predict.batching on the wall clock, behind plain sockets.

One thread, one epoll. A step's tokens are written when the step is due; due times are absolute (the next
step begins when the last one was due, not when its writes were done), so the sum of the step times does not
drift, and what a step is late the write log tells. The reference endpoint is the same with the machines of
sim.pacer. Bytes that a slow reader does not take wait in its connection's own queue and hold up nobody. A
client that closes its connection, or its sending half, cancels its request.

Left out: TLS, HTTP/2, chunked request bodies.
"""

from __future__ import annotations

import ipaddress
import os
import select
import signal
import socket
import time
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns

from harness import __version__
from harness.errors import HarnessError
from harness.predict.batching import SimulatedRequest, Step, StepMachine
from harness.sim.api import GENERATE, Counts, EventWriter, Generation, RefusalError, metrics, models, read
from harness.sim.pacer import Flood, Pacer
from harness.sim.profile import Profile, Reference, StreamPace
from harness.sim.writelog import Entry, WriteLog

_SPIN_NS = 100_000  # the end of every wait is spun: the kernel wakes a sleeper up to this late
_AT_ONCE = 8  # sockets read before a look at the clock: a request takes some 50 µs
_CATCH_UP_NS = 1_000_000  # a server that is behind writes so long before it reads again
_READ = 262_144
_FLOOD_BUFFER = 131_072  # bytes that the kernel may hold for one socket of a flood, which fills them all
_HEAD_LIMIT, _BODY_LIMIT = 65_536, 64_000_000
_SERVER = b"server: knee-sim/%s\r\n" % __version__.encode()
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\n" + _SERVER + b"content-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    411: b"Length Required",
    413: b"Content Too Large",
    431: b"Request Header Fields Too Large",
}
_READABLE = ("/health", "/metrics", "/v1/models")


class _Job:
    """A request that is being answered."""

    __slots__ = ("connection", "generation", "id", "name", "received", "tokens", "writer", "writes")

    def __init__(
        self, id: int, name: str, generation: Generation, writer: EventWriter, connection: _Connection
    ) -> None:
        self.id = id  # in the machine
        self.name = name  # the client's X-Request-Id
        self.generation = generation
        self.writer = writer
        self.connection = connection
        self.received = connection.received
        self.writes = array("q")
        self.tokens = 0


class _Piece:
    """Bytes of an answer on their way out; `tokens` until the first of them has left."""

    __slots__ = ("data", "job", "last", "tokens")

    def __init__(self, data: bytes | memoryview, job: _Job | None, tokens: int, last: bool) -> None:
        self.data, self.job, self.tokens, self.last = data, job, tokens, last


class _Connection:
    """One client's socket: one request at a time, what came early waits in `inbox`."""

    __slots__ = ("closing", "inbox", "job", "need", "outbox", "received", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = bytearray()
        self.need = 0  # bytes of inbox below which looking at it again is useless
        self.outbox: deque[_Piece] = deque()
        self.job: _Job | None = None
        self.closing = False  # once the answer is out
        self.received = 0


class _Head:
    """The head of one HTTP request."""

    __slots__ = ("fields", "method", "path", "version")

    def __init__(self, raw: bytes) -> None:
        first, *rest = raw.decode("latin-1").split("\r\n")
        parts = first.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise RefusalError(400, "BadRequestError", "this is not HTTP/1.1")
        self.method, target, self.version = parts
        self.path = target.partition("?")[0]
        self.fields = {}
        for line in rest:
            name, _, value = line.partition(":")
            self.fields[name.strip().lower()] = value.strip()

    @property
    def closes(self) -> bool:
        return self.version == "HTTP/1.0" or self.fields.get("connection", "").lower() == "close"

    def body_length(self) -> int:
        if "transfer-encoding" in self.fields:
            raise RefusalError(411, "BadRequestError", "send the body with a Content-Length")
        length = self.fields.get("content-length", "0")
        if not length.isdecimal():
            raise RefusalError(400, "BadRequestError", f"Content-Length {length!r} is no number")
        if int(length) > _BODY_LIMIT:
            raise RefusalError(413, "BadRequestError", f"a body of {length} bytes is too large")
        return int(length)


class Endpoint:
    """The server's state and its loop; see the module."""

    def __init__(self, profile: Profile | Reference, listener: socket.socket, log: WriteLog) -> None:
        self.profile = profile
        self._machine = _machine(profile)
        self._flood = self._machine if isinstance(self._machine, Flood) else None
        pace = profile.pace if isinstance(profile, Reference) else StreamPace()
        self._burst = pace.flood or pace.lump  # tokens a write
        self._lump = self._burst > 1 and not pace.flood  # in one chunk
        self._counts = Counts()
        self._listener, self._log = listener, log
        self._connections: dict[int, _Connection] = {}
        self._jobs: dict[int, _Job] = {}
        self._issued = 0
        self._step: Step | None = None  # the one that is running
        self._due = 0  # when it ends
        self._stopped = False
        self._stops: set[int] = set()
        listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(listener.fileno(), select.EPOLLIN)

    def stop_when_readable(self, fd: int) -> None:
        """End the loop as soon as `fd` can be read or is closed at its other end."""
        self._stops.add(fd)
        self._epoll.register(fd, select.EPOLLIN)

    def run(self) -> None:
        """Serve until stopped; then cut what is left, and log it."""
        try:
            while not self._stopped:
                self._wait()
                now = monotonic_ns()
                until = now + _CATCH_UP_NS
                while self._step is not None and self._due <= now < until:
                    self._deliver(self._step)
                    self._begin(self._due)
                    now = monotonic_ns()
                for fd, events in self._epoll.poll(0, _AT_ONCE):
                    self._on_event(fd, events)
                if self._step is None and self._jobs:
                    self._begin(monotonic_ns())  # it was idle
                if self._log.due is not None and monotonic_ns() >= self._log.due:
                    self._log.flush()
        finally:
            for connection in list(self._connections.values()):
                self._drop(connection)
            self._epoll.close()

    # ---- the clock --------------------------------------------------------------------------------------

    def _begin(self, now: int) -> None:
        self._step = self._machine.step()
        if self._step is not None:
            self._due = now + round(self._step.duration * 1e9)

    def _wait(self) -> None:
        """Sleep until a socket stirs or something is due; the last stretch before a step's end is spun."""
        times = [self._due - _SPIN_NS] if self._step is not None else []
        times += [self._log.due] if self._log.due is not None else []
        ahead = (min(times) - monotonic_ns()) / 1e9 if times else None
        if ahead is None or ahead > 0:
            # select on the epoll itself: it sleeps by the microsecond, epoll.poll by the millisecond.
            select.select([self._epoll.fileno()], [], [], ahead)
        elif self._step is not None and self._due - monotonic_ns() <= _SPIN_NS:
            while monotonic_ns() < self._due:
                pass

    def _deliver(self, step: Step) -> None:
        """Write the tokens of a step that has ended."""
        jobs, single, quick = self._jobs, self._burst == 1, 0
        for request, position, finished in step.tokens:
            job = jobs.get(request)
            if job is None:
                continue  # cancelled while the step ran
            if not (single and position and job.generation.stream) or finished or job.connection.outbox:
                self._write(job, position, finished)
                continue
            # One event in the middle of a stream, and nothing in its way: most of them by far.
            quick += 1
            data = job.writer.middle(position)
            stamp = monotonic_ns()
            try:
                sent = job.connection.sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:  # reset by the client
                self._drop(job.connection)
                continue
            if sent:
                job.writes.append(stamp)
                job.tokens += 1
            if sent < len(data):
                self._keep(job.connection, _Piece(data[sent:], job, 0 if sent else 1, False))
        self._counts.generation_tokens += quick

    def _write(self, job: _Job, position: int, finished: bool) -> None:
        """Write what a step gives to one request, whatever it is."""
        tokens = min(self._burst, job.generation.output_tokens - position)
        self._counts.generation_tokens += tokens
        if position == 0:
            self._counts.prompt_tokens += job.generation.prompt_tokens
        if finished:
            del self._jobs[job.id]
            self._counts.success[job.generation.finish_reason] += 1
        if job.generation.stream:
            data = (job.writer.lump if self._lump else job.writer.run)(position, tokens, finished)
            self._send(job.connection, data, job, tokens, finished)
        elif finished:
            self._answer(job.connection, 200, job.writer.whole(), job=job)
        if finished:
            self._serve(job.connection)

    # ---- sockets ----------------------------------------------------------------------------------------

    def _on_event(self, fd: int, events: int) -> None:
        if fd in self._stops:
            self._stopped = True
        elif fd == self._listener.fileno():
            self._accept()
        elif connection := self._connections.get(fd):
            if events & select.EPOLLOUT:
                self._flush(connection)
            if events & ~select.EPOLLOUT and fd in self._connections:
                self._receive(connection)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError:
                return  # nobody is left, or no descriptor is: then the backlog keeps them
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._flood is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _FLOOD_BUFFER)
            self._connections[sock.fileno()] = _Connection(sock)
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        connection.received = monotonic_ns()
        connection.inbox += data
        if len(connection.inbox) > _HEAD_LIMIT + _BODY_LIMIT:
            self._drop(connection)
        else:
            self._serve(connection)

    def _serve(self, connection: _Connection) -> None:
        """Answer what the inbox holds, in order, up to a request that takes time."""
        while connection.inbox and not (connection.job or connection.outbox or connection.closing):
            if len(connection.inbox) < connection.need or not self._serve_one(connection):
                return

    def _serve_one(self, connection: _Connection) -> bool:
        """Take one request from the inbox and begin its answer; False while it is not all here."""
        inbox = connection.inbox
        end = inbox.find(b"\r\n\r\n")
        if end < 0:
            if len(inbox) > _HEAD_LIMIT:
                self._refuse(connection, RefusalError(431, "BadRequestError", "the head has no end"), close=True)
            return False
        try:
            head = _Head(bytes(inbox[:end]))
            total = end + 4 + head.body_length()
        except RefusalError as refusal:
            self._refuse(connection, refusal, close=True)  # where the next request begins is unknown
            return False
        if len(inbox) < total:
            if connection.need != total and head.fields.get("expect", "").lower() == "100-continue":
                self._send(connection, b"HTTP/1.1 100 Continue\r\n\r\n")
            connection.need = total
            return False
        body = bytes(inbox[end + 4 : total])
        del inbox[:total]
        connection.need = 0
        connection.closing = head.closes
        try:
            self._route(connection, head, body)
        except RefusalError as refusal:
            self._refuse(connection, refusal, close=head.closes)
        return True

    def _route(self, connection: _Connection, head: _Head, body: bytes) -> None:
        if head.path not in GENERATE and head.path not in _READABLE:
            raise RefusalError(404, "NotFoundError", f"there is no {head.path} here")
        if head.method != ("POST" if head.path in GENERATE else "GET"):
            raise RefusalError(405, "BadRequestError", f"{head.path} does not answer {head.method}")
        key = self.profile.api_key
        if head.path.startswith("/v1/") and key and head.fields.get("authorization") != f"Bearer {key}":
            raise RefusalError(401, "AuthenticationError", "this endpoint needs its API key")
        if head.path == "/health":
            self._answer(connection, 200, b"")
        elif head.path == "/metrics":
            text = metrics(self._machine, self._counts, self.profile.model_name)
            self._answer(connection, 200, text, b"text/plain; version=0.0.4; charset=utf-8")
        elif head.path == "/v1/models":
            self._answer(connection, 200, models(self.profile))
        else:
            self._generate(connection, head, read(head.path, body, self.profile))

    def _generate(self, connection: _Connection, head: _Head, generation: Generation) -> None:
        self._issued += 1
        name = head.fields.get("x-request-id") or f"sim-{self._issued}"
        writer = EventWriter(generation, name, self.profile.model_name, int(time.time()))
        job = _Job(self._issued, name, generation, writer, connection)
        request = SimulatedRequest(job.id, generation.prompt_tokens, generation.output_tokens)
        if isinstance(self._machine, Pacer):
            late = job.received - self._due if self._step is not None else 0
            self._machine.submit(request, max(late, 0) / 1e9)
        else:
            self._machine.submit(request)
        self._jobs[job.id] = connection.job = job
        if generation.stream:
            self._send(connection, _STREAM_HEAD)  # at once, however long the queue is

    def _refuse(self, connection: _Connection, refusal: RefusalError, *, close: bool) -> None:
        connection.closing = close
        self._answer(connection, refusal.status, refusal.body)

    def _answer(
        self,
        connection: _Connection,
        status: int,
        body: bytes,
        kind: bytes = b"application/json",
        *,
        job: _Job | None = None,
    ) -> None:
        """A whole answer in one write."""
        head = b"HTTP/1.1 %d %s\r\n%scontent-type: %s\r\ncontent-length: %d\r\n%s\r\n" % (
            status,
            _REASONS[status],
            _SERVER,
            kind,
            len(body),
            b"connection: close\r\n" if connection.closing else b"",
        )
        self._send(connection, head + body, job, job.generation.output_tokens if job else 0, last=True)

    def _send(
        self,
        connection: _Connection,
        data: bytes | memoryview,
        job: _Job | None = None,
        tokens: int = 0,
        last: bool = False,
    ) -> None:
        """Write now what the socket takes; the rest waits in the outbox. `last` ends an answer."""
        if connection.outbox:
            self._keep(connection, _Piece(data, job, tokens, last))
            return
        stamp = monotonic_ns()
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # reset by the client
            self._drop(connection)
            return
        if job is not None and tokens and sent:
            job.writes.append(stamp)
            job.tokens += tokens
        if sent < len(data):
            self._keep(connection, _Piece(data[sent:], job, 0 if sent else tokens, last))
        elif last:
            self._answered(connection)

    def _keep(self, connection: _Connection, piece: _Piece) -> None:
        """Leave to the outbox what the socket does not take; a flood stops for its stream until it does."""
        if not connection.outbox:
            self._epoll.modify(connection.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
        connection.outbox.append(piece)
        if self._flood is not None and connection.job is not None:
            self._flood.pause(connection.job.id)

    def _flush(self, connection: _Connection) -> None:
        """Write what has waited, as far as the socket takes it."""
        waiting, connection.outbox = connection.outbox, deque()
        while waiting and not connection.outbox and connection.sock.fileno() >= 0:
            piece = waiting.popleft()
            if not waiting:
                self._epoll.modify(connection.sock.fileno(), select.EPOLLIN)
            self._send(connection, piece.data, piece.job, piece.tokens, piece.last)
        connection.outbox.extend(waiting)
        if self._flood is not None and connection.job is not None and not connection.outbox:
            self._flood.release(connection.job.id)
        self._serve(connection)

    def _answered(self, connection: _Connection) -> None:
        """An answer has left whole: log it; whoever called goes on to the next request."""
        job, connection.job = connection.job, None
        if job is not None:
            self._note(job, finished=True)
        if connection.closing:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        """Close a connection; what it was waiting for is cancelled."""
        fd = connection.sock.fileno()
        if fd < 0:
            return
        job, connection.job = connection.job, None
        if job is not None:
            self._jobs.pop(job.id, None)
            self._machine.cancel(job.id)
            self._note(job, finished=False)
        connection.outbox.clear()
        connection.inbox.clear()
        del self._connections[fd]
        connection.sock.close()  # which takes it out of the epoll too

    def _note(self, job: _Job, *, finished: bool) -> None:
        entry = Entry(job.name, job.received, job.writes, job.tokens, finished, monotonic_ns())
        self._log.append(entry)


def _machine(profile: Profile | Reference) -> StepMachine | Pacer | Flood:
    if isinstance(profile, Profile):
        return StepMachine(profile.model, profile.deployment)
    pace = profile.pace
    return Flood(pace.flood) if pace.flood else Pacer(pace.ttft_s, pace.itl_s, pace.groups, pace.lump)


def beyond_this_machine(host: str) -> bool:
    """Whether others can reach what listens on that IPv4 host; an empty one is every address of this machine."""
    return not ipaddress.ip_address(socket.gethostbyname(host)).is_loopback


def serve(
    profile: Profile | Reference,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    log: str | Path | None = None,
    ready: Callable[[str], object] = lambda url: None,
    lifeline: int | None = None,
    share_port: bool = False,
) -> None:
    """Serve in this thread, the main one, until SIGTERM, SIGINT or the end of `lifeline`; port 0 takes any.

    `ready` is called with the URL as soon as connections are taken; with `share_port` other processes may take
    connections at the same port.
    """
    log_file = WriteLog(log)
    try:
        listener = socket.create_server((host, port), backlog=4096, reuse_port=share_port)
    except OSError as error:
        fact = f"cannot listen on {host}:{port} ({error.strerror})"
        raise HarnessError(fact, place="--port", way_out="--port 0 takes a free one") from None
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    endpoint = Endpoint(profile, listener, log_file)
    endpoint.stop_when_readable(wake)
    if lifeline is not None:
        endpoint.stop_when_readable(lifeline)
    # The byte that a signal puts into the pipe ends the loop; the handler only keeps it from ending us.
    old = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    old_fd = signal.set_wakeup_fd(woken)
    try:
        ready(f"http://{host}:{listener.getsockname()[1]}")
        endpoint.run()
    finally:
        signal.set_wakeup_fd(old_fd)
        for number, handler in old.items():
            signal.signal(number, handler)
        log_file.close()
        listener.close()
        os.close(wake)
        os.close(woken)
