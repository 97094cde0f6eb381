"""How a worker sleeps: asyncio on a selector of our own.

Slots, deadlines and schedules are ordinary coroutines; the one special thing is `select`. It decodes waiting bytes
in the time it would sleep, sleeps exactly to the next tick or timer, reads the hot sockets with the kernel's
receive stamps, and only then hands asyncio its own descriptors. The order matters: decoding first and sending last
keeps the send lag under the tick; reading inside `select` spares asyncio a callback per event.

On Linux that is an epoll. Where the kernel gives no stamps the clock is used, and the source is `user`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import select
import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from harness.base import kernel
from harness.load import receive

if TYPE_CHECKING:
    from harness.load._receive import Poller, Stream

SO_TIMESTAMPNS = 35  # asm-generic/socket.h; SOL_SOCKET, ancillary struct timespec on CLOCK_REALTIME
PR_SET_TIMERSLACK = 29  # linux/prctl.h
# Undecoded pieces above which an eighth is decoded before reading on, and bytes above which all is: TCP holds the
# server back meanwhile, and memory is bounded whatever it sends.
FAR_BEHIND, FAR_BEHIND_BYTES = 4096, 4 << 20
LATE_BINS, LATE_SHIFT = 1024, 17  # read-delay histogram: 1,024 bins of 131 µs
# Half of the ITL, of which a tick is an eighth at most: what comes within it was not sent an ITL apart.
_PROMPT_TICKS = 4
_SLEPT = 50_000  # ns in the kernel, from which there was nothing to read before
CLOCK_SET = 1_000_000  # ns between two reads of its offset: slewing (adjtimex(2): 500 ppm) stays below, a step does not
_READABLE = kernel.IN
_NEVER = 1 << 62
_timespec = struct.Struct("qq").unpack_from
Decrypt = Callable[[bytes, int], bytes | None]  # takes a read and its stamp
now = time.monotonic_ns


class Decodable(Protocol):
    def take(self, stamp: int, piece: bytes | None) -> int:
        """Decode one piece (None: the answer is over); returns the token-carrying chunks in it."""


class Hot(Protocol):
    """A socket on the measured path."""

    fd: int
    recvmsg_into: Any

    @property
    def decrypt(self) -> Decrypt | None: ...  # None: nothing is encrypted

    def received(self, data: bytes, stamp: int) -> None: ...

    def arrived(self, data: bytes, stamp: int) -> None: ...  # what was received, in plain text

    def over(self, stamp: int) -> None: ...

    def lost(self, error: OSError | None, stamp: int) -> None: ...

    def writable(self) -> None: ...


class LateRead:
    """Takes a piece of an exchange whose events may share a read only because we read late."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Any) -> None:
        self._exchange = exchange

    def take(self, stamp: int, piece: bytes | None) -> int:
        carried: int = self._exchange.take(stamp, piece)
        if carried > 1:
            self._exchange.merged_late += carried
        return carried


class _Keys(dict[int, selectors.SelectorKey]):
    """By descriptor, or by an object that has one, as asyncio looks them up from Python 3.13 on."""

    def get(self, fileobj: Any, default: Any = None) -> Any:
        return super().get(fileobj if isinstance(fileobj, int) else fileobj.fileno(), default)


class HotSelector(selectors.BaseSelector):
    """asyncio's selector and the measured path's in one poller."""

    def __init__(self, tick_ns: int = 1_000_000, *, pure: bool = False) -> None:
        self.tick_ns = tick_ns
        self.decode_queue: collections.deque[tuple[Decodable, int, bytes | None]] = collections.deque()
        self.stamped = True  # the kernel stamps what arrives
        self.busy = 0  # requests in flight; with none, sleep in the kernel instead of by ticks
        self.undecoded_bytes = 0  # read since the queue was last empty
        self.events = 0  # token-carrying chunks decoded
        self.reads = 0
        self.unstamped = 0
        self.late = [0] * LATE_BINS
        self._epoll = kernel.poller()
        self._keys = _Keys()
        self._hot: dict[int, Hot] = {}
        self._buffer = bytearray(65_536)
        self._view = memoryview(self._buffer)
        self._offset = 0  # CLOCK_REALTIME − CLOCK_MONOTONIC, read anew every second
        self._offset_until = 0
        self._next_tick = 0
        self._polled = now()  # when the sockets were last polled
        self.poller: Poller | None = None  # the compiled path's poller
        if receive.poller is not None and not pure:
            fd = cast(select.epoll, self._epoll).fileno()
            self.poller = receive.poller(fd, self, self.decode_queue.append, LateRead)
        self.span = 0  # ns from the previous poll to this one: all that is read now arrived within it

    # asyncio's side: the documented BaseSelector interface
    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        self._epoll.register(fd, _mask(events))
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys.pop(fd)
        with contextlib.suppress(OSError):  # a closed descriptor left the epoll by itself
            self._epoll.unregister(fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        self._epoll.modify(fd, _mask(events))
        return key

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[fileobj if isinstance(fileobj, int) else fileobj.fileno()]

    def get_map(self) -> _Keys:  # type: ignore[override]  # asyncio only reads it
        return self._keys

    def close(self) -> None:
        self._epoll.close()

    # the measured path
    def add(self, hot: Hot) -> None:
        self._hot[hot.fd] = hot
        if self.poller is not None:
            self.poller.add(hot.fd, hot)
        self._epoll.register(hot.fd, kernel.IN)

    def want_write(self, hot: Hot, wanted: bool) -> None:
        self._epoll.modify(hot.fd, kernel.IN | (kernel.OUT if wanted else 0))

    def drop(self, hot: Hot) -> None:
        if self._hot.pop(hot.fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(hot.fd)
            if self.poller is not None:
                self.poller.drop(hot.fd)

    def stream(self, hot: Hot, exchange: Any) -> Stream:
        """Return the compiled stream of a response that is in chunks."""
        assert self.poller is not None
        return self.poller.stream(hot.fd, exchange)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return ready keys, after reading every hot socket that is ready, each read with its stamp.

        With requests in flight it sleeps by ticks, in which queued pieces are decoded; without any, in the kernel.
        """
        if self.poller is not None:
            return self._select_compiled(self.poller, timeout)
        t = now()
        if not self.stamped and (self.busy or self.decode_queue):
            # Tokens without a kernel stamp are stamped when read, and so read at once, not by ticks.
            if self.decode_queue:
                self.decode_until(t)
            else:
                kernel.wait(self._epoll, timeout)
        elif self.busy or self.decode_queue:
            wake = self._next_tick
            if timeout is not None:
                wake = min(wake, t + int(timeout * 1e9))
            if self.decode_queue:
                self.decode_until(wake)
                t = now()
            if wake > t:
                time.sleep((wake - t) / 1e9)
                t = now()
            if t >= self._next_tick:
                self._next_tick = t + self.tick_ns
        elif timeout is None or timeout > 0.0:  # nothing to stamp: wait for events, or to the microsecond for a timer
            kernel.wait(self._epoll, timeout)
            if (woke := now()) - t > _SLEPT:
                self._polled = woke  # until then there was nothing
        polled = self._epoll.poll(0, 8192)
        t, offset, since = now(), self._offset, self._polled
        self.span, self._polled = t - since, t
        if t > self._offset_until or abs(time.time_ns() - t - offset) > CLOCK_SET:
            self._offset = clock_offset()
            self._offset_until = now() + 1_000_000_000
            # It is unknown this once which offset a stamp needs: put it into the future, where ours replaces it.
            offset = -(1 << 62) if offset and abs(self._offset - offset) > CLOCK_SET else self._offset
        ready = []
        hot, keys, late, view = self._hot, self._keys, self.late, self._view
        buffers, second, base, reads, read_bytes = [self._buffer], -1, 0, 0, 0
        for fd, mask in polled:
            stream = hot.get(fd)
            if stream is None:
                if fd in keys:
                    key = keys[fd]
                    ready.append((key, _events(mask) & key.events))
                continue
            if mask != _READABLE:  # anything else is read as well, and the read fails
                if mask & kernel.OUT:
                    stream.writable()
                if mask == kernel.OUT or fd not in hot:
                    continue
            # From here to the end of the loop every tenth of a microsecond counts: this is done once for each token.
            try:
                size, ancillary, _, _ = stream.recvmsg_into(buffers, 64)
            except OSError as error:
                if not isinstance(error, BlockingIOError):
                    stream.lost(error, now())
                continue
            stamp = t = now()
            if not size:
                stream.lost(None, t)
                continue
            if ancillary:
                sec, nsec = _timespec(ancillary[0][2])
                if sec != second:
                    second, base = sec, sec * 1_000_000_000 - offset
                stamp = base + nsec  # stamp of the last segment consumed
                if stamp > t:  # only if the wall clock was set: then ours
                    stamp = t
                bin_ = (t - stamp) >> LATE_SHIFT
                late[bin_ if bin_ < LATE_BINS else LATE_BINS - 1] += 1
            else:  # no earlier than the previous poll, which did not find it
                self.unstamped += 1
                bin_ = (t - since) >> LATE_SHIFT
                late[bin_ if bin_ < LATE_BINS else LATE_BINS - 1] += 1
            reads += 1
            read_bytes += size
            stream.received(bytes(view[:size]), stamp)
        self.reads += reads
        self.undecoded_bytes += read_bytes
        return ready

    def _select_compiled(self, poller: Poller, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return ready keys as `select` does, but read sockets in compiled code until Python has something to do."""
        t, busy, polled = now(), True, -1
        if timeout is not None and timeout <= 0.0 and self.busy and t < self._next_tick:
            return []  # what is ready goes on: each response ends in some turns of the loop, a tick has one poll
        once = bool(self.decode_queue) or not self.busy  # what is decoded may set a timer
        until = _NEVER if timeout is None else t + int(timeout * 1e9)
        if self.decode_queue:
            self.decode_until(min(self._next_tick, until))
        elif not self.busy:
            busy = False
            if timeout is None or timeout > 0.0:
                kernel.wait(self._epoll, timeout)
                if (woke := now()) - t > _SLEPT:
                    polled = woke
        if not self.decode_queue:
            self.undecoded_bytes = 0
        (
            foreign, reads, unstamped, queued, events, self.span, self._polled, self._next_tick, self._offset,
        ) = poller.wait(until, self.tick_ns, busy, once, polled, self._offset)  # fmt: skip
        self.reads += reads
        self.unstamped += unstamped
        self.undecoded_bytes += queued
        self.events += events
        keys, ready = self._keys, []
        for fd, mask in foreign:
            if (key := keys.get(fd)) is not None:
                ready.append((key, _events(mask) & key.events))
        return ready

    @property
    def late_read(self) -> bool:
        """Return whether the previous poll is so long past that the events of one read may have been sent apart."""
        return self.span > _PROMPT_TICKS * self.tick_ns

    def unstamped_read(self, stamp: int) -> None:
        """Count a read that another transport made in this turn of the loop, and stamped by the clock."""
        self.reads += 1
        self.unstamped += 1
        self.late[min(LATE_BINS - 1, max(0, stamp - self._polled + self.span) >> LATE_SHIFT)] += 1

    def take_late(self) -> tuple[int, ...]:
        """Return the histogram of read delays since the last call, without empty bins at its end, and reset it.

        The list stays the same one: a new one five times a second would scatter the heap of a long run.
        """
        if self.poller is not None:
            return self.poller.take_late()
        length = next((i for i in range(LATE_BINS, 0, -1) if self.late[i - 1]), 0)
        taken = tuple(self.late[:length])
        self.late[:length] = [0] * length
        return taken

    def decode_until(self, wake: int) -> None:
        """Decode queued pieces until time `wake`; if far behind, at least an eighth of the queue, or all of it."""
        queue = self.decode_queue
        must = len(queue) >> 3 if len(queue) > FAR_BEHIND else 0
        if self.undecoded_bytes > FAR_BEHIND_BYTES:
            must = len(queue)
        while queue:
            for _ in range(min(4, len(queue))):
                decodable, stamp, piece = queue.popleft()
                self.events += decodable.take(stamp, piece)
                must -= 1
            if must <= 0 and now() > wake:
                break
        if not queue:
            self.undecoded_bytes = 0

    def decode_all(self) -> None:
        while self.decode_queue:
            decodable, stamp, piece = self.decode_queue.popleft()
            self.events += decodable.take(stamp, piece)


def clock_offset() -> int:
    """Return CLOCK_REALTIME − CLOCK_MONOTONIC, in nanoseconds: the tightest of three readings."""
    readings = []
    for _ in range(3):
        before, real, after = now(), time.time_ns(), now()
        readings.append((after - before, real - (before + after) // 2))
    return min(readings)[1]


def _events(mask: int) -> int:
    return (1 if mask & ~kernel.OUT else 0) | (2 if mask & ~kernel.IN else 0)


def _mask(events: int) -> int:
    return (kernel.IN if events & selectors.EVENT_READ else 0) | (kernel.OUT if events & selectors.EVENT_WRITE else 0)


def new_loop(selector: selectors.BaseSelector) -> asyncio.AbstractEventLoop:
    """Make the event loop of a worker."""
    return asyncio.SelectorEventLoop(selector)


def sharpen_timers() -> None:
    """Let this thread's sleeps end within a microsecond instead of the kernel's default 50."""
    kernel.prctl(PR_SET_TIMERSLACK, 1000)


class Stamping:
    """Keeps the kernel's receive stamping switched on, for as long as it is open.

    The kernel turns stamping on some time after the first socket enables it, so the first reads of a run would have
    no stamps: one loopback pair enables it ahead and waits for its first stamped byte. `source` is `kernel` or `user`.
    """

    def __init__(self, patience_s: float = 0.2) -> None:
        self._sockets: list[socket.socket] = []
        self.source = "user"
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = socket.create_connection(listener.getsockname())
            far, _ = listener.accept()
        self._sockets = [near, far]
        if not enable_stamps(near):
            return
        until = now() + int(patience_s * 1e9)
        while now() < until:
            far.send(b"x")
            _, ancillary, _, _ = near.recvmsg(16, 64)
            if ancillary:
                self.source = "kernel"
                return
            time.sleep(0.001)

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


def enable_stamps(sock: socket.socket) -> bool:
    """Have the kernel stamp what the socket receives; False if it cannot."""
    if not hasattr(select, "epoll"):  # the option's number is Linux's
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True
