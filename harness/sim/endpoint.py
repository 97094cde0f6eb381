"""The simulated endpoint: the step machine of predict.batching on the wall clock, behind plain sockets.

One thread, one epoll. A step's tokens are written when the step is due; due times are absolute (the next
step begins when the last one was due, not when its writes were done), so the sum of the step times does not
drift, and the write log shows by how much a step is late. The reference endpoint is the same with a machine of its
own. Bytes that a slow reader does not take wait in its connection's own queue and delay no other. A
client that closes its connection, or its sending half, cancels its request.

Left out: TLS, HTTP/2, chunked request bodies.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from time import monotonic_ns

from harness.base import kernel
from harness.predict.batching import Step
from harness.predict.sequence import SimulatedRequest
from harness.sim import api
from harness.sim.connection import (
    BODY_LIMIT,
    HEAD_LIMIT,
    STREAM_HEAD,
    ClientConnection,
    Entry,
    Job,
    Piece,
    RequestHead,
    WriteLog,
    response_head,
)
from harness.sim.machines import Flood, Pacer, machine_of
from harness.sim.profile import Profile, Reference, StreamPace

_SPIN_NS = 100_000  # the end of every wait is spun: the kernel wakes a sleeper up to this late
_AT_ONCE = 8  # sockets read before the clock is checked: a request takes some 50 µs
_CATCH_UP_NS = 1_000_000  # a server that is behind writes so long before it reads again
_READ = 262_144
_FLOOD_BUFFER = 131_072  # bytes that the kernel may buffer for one socket of a flood, which fills them all
_RESET = "/reset_prefix_cache"  # vLLM's path
_POSTED = (*api.GENERATE, _RESET)
_READABLE = ("/health", "/metrics", "/v1/models")


class Endpoint:
    """The server's state and its loop; see the module."""

    def __init__(self, profile: Profile | Reference, listener: socket.socket, log: WriteLog) -> None:
        self.profile = profile
        self._machine = machine_of(profile)
        self._flood = self._machine if isinstance(self._machine, Flood) else None
        pace = profile.pace if isinstance(profile, Reference) else StreamPace()
        self._burst = pace.flood or pace.lump  # tokens a write
        self._lump = self._burst > 1 and not pace.flood  # in one chunk
        self._counts = api.Counts()
        self._listener, self._log = listener, log
        self._connections: dict[int, ClientConnection] = {}
        self._jobs: dict[int, Job] = {}
        self._issued = 0
        self._step: Step | None = None  # the one that is running
        self._due = 0  # when it ends
        self._stopped = False
        self._stops: set[int] = set()
        listener.setblocking(False)
        self._poller = kernel.poller()
        self._poller.register(listener.fileno(), kernel.IN)

    def stop_when_readable(self, fd: int) -> None:
        """End the loop as soon as `fd` can be read or is closed at its other end."""
        self._stops.add(fd)
        self._poller.register(fd, kernel.IN)

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
                for fd, events in self._poller.poll(0, _AT_ONCE):
                    self._on_event(fd, events)
                if self._step is None and self._jobs:
                    self._begin(monotonic_ns())  # it was idle
                if self._log.due is not None and monotonic_ns() >= self._log.due:
                    self._log.flush()
        finally:
            for connection in list(self._connections.values()):
                self._drop(connection)
            self._poller.close()
            self._listener.close()

    # ---- the clock --------------------------------------------------------------------------------------

    def _begin(self, now: int) -> None:
        self._step = self._machine.step()
        if self._step is not None:
            self._due = now + round(self._step.duration * 1e9)

    def _wait(self) -> None:
        """Sleep until a socket stirs or something is due; the last stretch before a step's end is spun."""
        times = [self._due - _SPIN_NS] if self._step is not None else []
        times += [] if self._log.due is None else [self._log.due]
        ahead = (min(times) - monotonic_ns()) / 1e9 if times else None
        if ahead is None or ahead > 0:
            kernel.wait(self._poller, ahead)
        elif self._step is not None and self._due - monotonic_ns() <= _SPIN_NS:
            while monotonic_ns() < self._due:
                pass

    def _deliver(self, step: Step) -> None:
        """Write the tokens of a step that has ended."""
        for request, position, finished in step.tokens:
            job = self._jobs.get(request)
            if job is None:
                continue  # cancelled while the step ran
            if self._burst == 1 and position and job.generation.stream and not finished:
                self._counts.generation_tokens += 1
                self._send(job.connection, job.writer.middle(position), job, 1)
            else:
                self._write(job, position, finished)

    def _write(self, job: Job, position: int, finished: bool) -> None:
        """Count and send a step's tokens of one request; a response that does not stream is sent once it is whole."""
        tokens = min(self._burst, job.generation.output_tokens - position)
        self._counts.generation_tokens += tokens
        if position == 0:
            cached = job.writer.cached_tokens = self._machine.cached_tokens(job.id)
            self._counts.prompt_tokens += job.generation.prompt_tokens
            self._counts.cached_tokens += cached or 0
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
        """Handle what happened to a file descriptor: end, accept a connection, write to one, or read from it."""
        if fd in self._stops:
            self._stopped = True
        elif fd == self._listener.fileno():
            self._accept()
        elif connection := self._connections.get(fd):
            if events & kernel.OUT:
                self._flush(connection)
            if events & ~kernel.OUT and fd in self._connections:
                self._receive(connection)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError:
                return  # no client is left, or no descriptor is: then the backlog keeps them
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._flood is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _FLOOD_BUFFER)
            self._connections[sock.fileno()] = ClientConnection(sock)
            self._poller.register(sock.fileno(), kernel.IN)

    def _receive(self, connection: ClientConnection) -> None:
        """Read what has come on a connection and serve its whole requests.

        The connection is dropped at its end, on an error, and if what is unread grows past the largest head and body.
        """
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
        if len(connection.inbox) > HEAD_LIMIT + BODY_LIMIT:
            self._drop(connection)
        else:
            self._serve(connection)

    def _serve(self, connection: ClientConnection) -> None:
        """Answer the requests in the inbox, in order, up to one that takes time."""
        while connection.inbox and not (connection.job or connection.outbox or connection.closing):
            if len(connection.inbox) < connection.need or not self._serve_one(connection):
                return

    def _serve_one(self, connection: ClientConnection) -> bool:
        """Take one request from the inbox and begin its answer; False while it is not all here."""
        inbox = connection.inbox
        end = inbox.find(b"\r\n\r\n")
        if end < 0:
            if len(inbox) > HEAD_LIMIT:
                self._refuse(connection, api.RefusalError(431, "BadRequestError", "the head has no end"), close=True)
            return False
        try:
            head = RequestHead(bytes(inbox[:end]))
            total = end + 4 + head.body_length()
        except api.RefusalError as refusal:
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
        except api.RefusalError as refusal:
            self._refuse(connection, refusal, close=head.closes)
        return True

    def _route(self, connection: ClientConnection, head: RequestHead, body: bytes) -> None:
        """Answer a request or begin its generation; raise RefusalError for a wrong path, method or body."""
        if head.path not in _POSTED and head.path not in _READABLE:
            raise api.RefusalError(404, "NotFoundError", f"there is no {head.path} here")
        if head.method != ("POST" if head.path in _POSTED else "GET"):
            raise api.RefusalError(405, "BadRequestError", f"{head.path} does not answer {head.method}")
        if head.path == "/health":
            self._answer(connection, 200, b"")
        elif head.path == "/metrics":
            text = api.metrics(self._machine, self._counts, self.profile.model_name)
            self._answer(connection, 200, text, b"text/plain; version=0.0.4; charset=utf-8")
        elif head.path == "/v1/models":
            self._answer(connection, 200, api.models(self.profile))
        elif head.path == _RESET:
            self._machine.reset_cache()
            self._answer(connection, 200, b"")
        else:
            self._begin_job(connection, head, api.read(head.path, body, self.profile))

    def _begin_job(self, connection: ClientConnection, head: RequestHead, generation: api.Generation) -> None:
        """Submit a generation to the machine; a streamed one gets its response head before its first token."""
        self._issued += 1
        name, created = head.fields.get("x-request-id") or f"sim-{self._issued}", int(time.time())
        answer = api.EventWriter(generation, name, self.profile.model_name, created)
        job = Job(self._issued, name, generation, answer, connection)
        request = SimulatedRequest(
            job.id,
            generation.prompt_tokens,
            generation.output_tokens,
            hashes=generation.hashes,
            priority=generation.priority,
        )
        if isinstance(self._machine, Pacer):
            late = job.received - self._due if self._step is not None else 0
            self._machine.submit(request, max(late, 0) / 1e9)
        else:
            self._machine.submit(request)
        self._jobs[job.id] = connection.job = job
        if generation.stream:
            self._send(connection, STREAM_HEAD)  # at once, however long the queue is

    def _refuse(self, connection: ClientConnection, refusal: api.RefusalError, *, close: bool) -> None:
        """Send a refusal as a whole response; with `close` the connection ends behind it."""
        connection.closing = close
        self._answer(connection, refusal.status, refusal.body)

    def _answer(
        self,
        connection: ClientConnection,
        status: int,
        body: bytes,
        kind: bytes = b"application/json",
        *,
        job: Job | None = None,
    ) -> None:
        """Send a whole HTTP response and count its job's tokens as written; what the socket does not take waits."""
        head = response_head(status, kind, len(body), closes=connection.closing)
        self._send(connection, head + body, job, job.generation.output_tokens if job else 0, last=True)

    def _send(
        self,
        connection: ClientConnection,
        data: bytes | memoryview,
        job: Job | None = None,
        tokens: int = 0,
        last: bool = False,
    ) -> None:
        """Write now what the socket takes; the rest waits in the outbox. `last` ends an answer."""
        if connection.outbox:
            self._keep(connection, Piece(data, job, tokens, last))
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
            self._keep(connection, Piece(data[sent:], job, 0 if sent else tokens, last))
        elif last:
            self._answered(connection)

    def _keep(self, connection: ClientConnection, piece: Piece) -> None:
        """Leave to the outbox what the socket does not take; a flood stops for its stream until it does."""
        if not connection.outbox:
            self._poller.modify(connection.sock.fileno(), kernel.IN | kernel.OUT)
        connection.outbox.append(piece)
        if self._flood is not None and connection.job is not None:
            self._flood.pause(connection.job.id)

    def _flush(self, connection: ClientConnection) -> None:
        """Write what has waited, as far as the socket takes it."""
        waiting, connection.outbox = connection.outbox, deque()
        while waiting and not connection.outbox and connection.sock.fileno() >= 0:
            piece = waiting.popleft()
            if not waiting:
                self._poller.modify(connection.sock.fileno(), kernel.IN)
            self._send(connection, piece.data, piece.job, piece.tokens, piece.last)
        connection.outbox.extend(waiting)
        if self._flood is not None and connection.job is not None and not connection.outbox:
            self._flood.release(connection.job.id)
        self._serve(connection)

    def _answered(self, connection: ClientConnection) -> None:
        """Log an answer that has left whole; the caller goes on to the next request."""
        job, connection.job = connection.job, None
        if job is not None:
            self._note(job, finished=True)
        if connection.closing:
            self._drop(connection)

    def _drop(self, connection: ClientConnection) -> None:
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
        self._poller.unregister(fd)
        connection.sock.close()

    def _note(self, job: Job, *, finished: bool) -> None:
        entry = Entry(job.name, job.received, job.writes.tobytes(), job.tokens, finished, monotonic_ns())
        self._log.append(entry)
