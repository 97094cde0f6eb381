"""Hostile answers and what is made of them: the corpus, its mutations, and the property that fuzzing holds.

The property: an answer's record is a function of its bytes. Read whole, byte by byte or cut anywhere, it says the same
error, tokens, counts and reasons; a stamp is that of the read which brought the byte that completed the event; and no
exception leaves. What reads change is left out: `merged`, how many bytes of a refused answer were still taken, and the
words of a message. Used by tests/trust/test_fuzz.py and scripts/fuzz.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import random
import re
import socket
import ssl
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from harness.dialects import sse
from harness.dialects.decoder import StreamDecoder
from harness.dialects.tokens import TokenPlacer
from harness.load import http1
from harness.load.loop import HotSelector, now
from harness.load.sockets import Connection, SocketTransport
from harness.load.tls import SecureConnection, SecureTransport
from harness.load.transport import Exchange, Target
from tests.builders.servers import certified
from tests.builders.streams import ALL, delta, event, usage


class ReadOutcome(NamedTuple):
    """What one reading made of an answer. Times are byte offsets: how far the server had come."""

    error: str
    status: int
    counts: tuple[int | None, ...]  # input, cached, output, reasoning
    tokens: tuple[int, ...]
    source: str
    finish: str
    kept: bool  # the connection would be used again
    arrivals: tuple[int, ...]
    content: int  # first_content
    done: int
    cut_off: bool  # by us, because it could not be read on


class _Wire:
    """As much of a socket as a stream asks for when its bytes are brought by hand."""

    family = socket.AF_INET
    recvmsg_into = None

    def fileno(self) -> int:
        return -1

    def send(self, data: bytes) -> int:
        return len(data)

    def close(self) -> None:
        pass


class _Over:
    """As much of a future as an answer asks for without a loop."""

    def __init__(self) -> None:
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, _: None) -> None:
        self._done = True


class Reader:
    """The measured path without a loop: a stream of the real transport whose reads are given.

    `pure`: without what is compiled. `late`: each read came so late that its events may have been sent apart.
    """

    def __init__(self, *, pure: bool = False, late: bool = False) -> None:
        self._selector = HotSelector(pure=pure)
        self._selector.span = 1_000_000_000 if late else 0
        self.last: tuple[Any, ...] = ()  # all that a record has of the last answer
        target = Target(scheme="http", host="127.0.0.1", port=1, path="/", headers={})
        self._pool = SocketTransport(target, self._selector)

    def outcome(
        self, reads: Sequence[bytes], *, reset: bool = False, placer: TokenPlacer | None = None, every: int = 1
    ) -> ReadOutcome:
        """The record of an answer that came in these reads, until the server closed or reset the connection.

        What is queued is decoded after so many reads.
        """
        self._pool.reuse = True  # whatever the last answer's end told of the server
        exchange, wire, over = Exchange("", StreamDecoder(placer)), _Wire(), _Over()
        exchange.over = over  # type: ignore[assignment]
        stream = Connection(wire, self._pool)  # type: ignore[arg-type]
        stream.begin(exchange, b"?")
        at, cut_off = 0, False
        for number, data in enumerate(reads, 1):
            at += len(data)
            stream.received(data, at)
            if number % every == 0:
                self._selector.decode_all()
            if over.done() and not exchange.done_ns:  # then `send` closes
                stream.close()
                cut_off, exchange.done_ns = True, at
            if not stream.open:
                break
        kept = stream.open and bool(exchange.done_ns)
        if stream.open:
            stream.lost(OSError("reset") if reset else None, at + 1)
        self._selector.decode_all()
        exchange.take(exchange.done_ns, None)
        decoded = exchange.decoded
        self.last = (decoded, exchange.done_ns, *_beside_times(exchange), kept, cut_off)
        return ReadOutcome(
            error=exchange.error,
            status=exchange.response.status,
            counts=(decoded.input_tokens, decoded.cached_tokens, decoded.output_tokens, decoded.reasoning_tokens),
            tokens=tuple(decoded.tokens),
            source=decoded.token_source,
            finish=decoded.finish_reason,
            kept=kept,
            arrivals=tuple(decoded.arrivals),
            content=decoded.first_content,
            done=exchange.done_ns,
            cut_off=cut_off,
        )


def _beside_times(exchange: Exchange) -> tuple[Any, ...]:
    """What a record has of an exchange beside its times and what was decoded."""
    return (
        exchange.bytes_received, exchange.merged_late, exchange.noted, exchange.error, exchange.message,
        exchange.response.status, exchange.response.keep_alive,
    )  # fmt: skip


class Both:
    """The same reads by the compiled path and by the pure one: all that a record has must be equal."""

    def __init__(self) -> None:
        self._pairs = [(Reader(late=late), Reader(pure=True, late=late)) for late in (False, True)]

    def difference(self, data: bytes, *, reset: bool = False, placer: TokenPlacer | None = None) -> str:
        """Return how the two records of an answer differ; empty if they do not. The bytes choose how it is read."""
        choose = random.Random(zlib.crc32(data))
        ends = [match.end() for match in _CHUNK_END.finditer(data)]
        kind = choose.random()
        if kind < 0.4:  # as servers write: a chunk a read, or several, some cut
            places = [end + choose.choice((0, 0, 0, 0, 0, -1, 1, 9)) for end in ends if choose.random() < 0.8]
        elif kind < 0.8:
            step = choose.choice((1, 2, 7, 40, 300))
            places = [*ends[:2], *range(ends[0] if ends else 0, len(data), step)]
        else:
            places = [int(choose.random() * len(data)) for _ in range(4)]
        reads, every = cut(data, places), choose.choice((1, 1, 1, 3))
        compiled, pure = choose.choice(self._pairs)
        for reader in (compiled, pure):
            reader.outcome(reads, reset=reset, placer=placer, every=every)
        if compiled.last == pure.last:
            return ""
        return f"reads {reads}, decoded every {every}\ncompiled {compiled.last}\n  is not pure\n{pure.last}"


class Encrypted:
    """The same answer over TLS on a socket, by the compiled path and by the pure one: their records must be equal.

    Times are numbers of reads: the two readings are not at the same time.
    """

    def __init__(self) -> None:
        self._server = certified("127.0.0.1")
        target = Target(scheme="https", host="127.0.0.1", port=1, path="/", headers={}, insecure=True)
        late, prompt = 1, 1_000_000_000_000  # ticks
        self._pairs = [
            [SecureTransport(target, HotSelector(tick, pure=pure)) for pure in (False, True)] for tick in (late, prompt)
        ]

    def difference(self, data: bytes) -> str:
        """Return how the two records of an answer differ; empty if they do not. The bytes choose how it is sent."""
        choose = random.Random(zlib.crc32(data))
        ends = [match.end() for match in _CHUNK_END.finditer(data)]
        records = cut(data, choose.choice((ends, [int(choose.random() * len(data)) for _ in range(4)], ())))
        size, end = len(data) + 100 * len(records), choose.choice(("goodbye", "close", "reset", "damage"))
        places = [int(choose.random() * size) for _ in range(choose.choice((0, 4, 40)))]
        compiled, pure = (self._reading(pool, records, places, end) for pool in choose.choice(self._pairs))
        return "" if compiled == pure else f"{records}, {places}, {end}\n{compiled}\n  is not\n{pure}"

    def _reading(
        self, pool: SecureTransport, records: list[bytes], places: list[int], end: str
    ) -> tuple[tuple[int, ...], dict[str, Any], tuple[Any, ...], bool]:
        """All that a record has of an answer that is sent in these records of TLS, whose bytes are sent in pieces."""
        pool.reuse = True  # whatever the last answer's end told of the server
        near, far = socket.socketpair()
        near.setblocking(False)
        connection = SecureConnection(near, pool, pool._context, "127.0.0.1")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = self._server.wrap_bio(incoming, outgoing, server_side=True)
        for _ in range(3):
            with contextlib.suppress(ssl.SSLWantReadError):
                connection._tls.do_handshake()
            incoming.write(connection._outgoing.read())
            with contextlib.suppress(ssl.SSLWantReadError):
                server.do_handshake()
            connection._incoming.write(outgoing.read())
        for record in records:
            server.write(record)
        if end == "goodbye":
            with contextlib.suppress(ssl.SSLWantReadError):
                server.unwrap()
        data = outgoing.read() + (b"\x17\x03\x03\x00\x20" + bytes(32) if end == "damage" else b"")

        exchange, over, selector, began = Exchange("", StreamDecoder()), _Over(), pool.selector, [now()]
        exchange.over = over  # type: ignore[assignment]
        selector.add(connection)
        connection.begin(exchange, b"?")
        for part in cut(data, places):
            far.send(part)
            selector.select(0)
            selector.decode_all()
            began.append(now())
            if over.done() and not exchange.done_ns:  # then `send` closes
                connection.close()
            if not connection.open:
                break
        kept = connection.open and bool(exchange.done_ns)
        if end != "reset":
            far.recv(65_536)  # who closes with unread bytes resets
        far.close()
        if connection.open:
            selector.select(0)
            selector.decode_all()
        assert not connection.open
        exchange.take(exchange.done_ns, None)
        decoded = exchange.decoded
        times = tuple(
            bisect.bisect(began, time) for time in (*decoded.arrivals, decoded.first_content, exchange.done_ns)
        )
        beside = msgspec.structs.asdict(decoded) | {"arrivals": None, "first_content": None}
        return times, beside, _beside_times(exchange), kept


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The bytes in reads that end at these places, and wherever else a read is as long as it may be.

    A read is far shorter than the longest event, so small limits make small reads.
    """
    inside = {*places, *range(0, len(data), sse.LONGEST // 2)}
    edges = sorted({0, len(data), *(place for place in inside if 0 < place < len(data))})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def difference(exact: ReadOutcome, other: ReadOutcome, reads: Sequence[bytes]) -> str:
    """How a reading differs from the byte-by-byte one of the same bytes beyond what its reads explain; else empty."""
    edges = [*itertools.accumulate(map(len, reads))]
    edges.append(edges[-1] + 1 if edges else 1)

    def stamped(offset: int) -> int:
        return next(edge for edge in edges if edge >= offset) if offset else 0

    expected = exact._replace(
        arrivals=tuple(map(stamped, exact.arrivals)), content=stamped(exact.content), done=stamped(exact.done)
    )
    if exact.cut_off:  # found when it is decoded: by then the same read may have brought the end
        expected = expected._replace(kept=other.kept, done=other.done, cut_off=other.cut_off)
    return "" if expected == other else f"{expected}\n  is not\n{other}"


def framed(body: bytes, how: str) -> bytes:
    """An answer with this body, framed as servers do."""
    head = b"HTTP/1.1 200 OK\r\nserver: x\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    if how == "length":
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    if how == "close":
        return head + b"Connection: close\r\n\r\n" + body
    if how == "events":
        chunks = [piece for piece in re.split(rb"(?<=\n\n)|(?<=\n\r\n)", body) if piece]
    else:
        chunks = [body[i : i + 700] for i in range(0, len(body), 700)]
    ended = b"0\r\nX-Sum: 1\r\n\r\n" if how == "trailers" else b"0\r\n\r\n"
    data = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + data + ended


FRAMINGS = ("events", "blocks", "trailers", "length", "close")
_CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
BODIES = [
    *ALL.values(),
    *(body.replace(b"\n", b"\r\n") for body in ALL.values()),
    delta(reasoning_content="hm é") + delta(content="a b") + delta("stop", content="c", usage=usage(7, 9)),
    delta(tool_calls=[_CALL]) + delta("tool_calls") + event({"choices": [], "usage": usage(7, 5)}),
    delta(content="a") + event({"error": {"message": "engine died", "code": 500}}),
    delta(content="a") + b"event: error\ndata: boom\n\n" + b'error: {"code": 500}\n\n',
]
OTHERS = [
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 18\r\n\r\nCUDA out of memory",
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n" + b'{"choices": [1]}',
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nX: a\r\n b\r\nConnection: keep-alive\r\n\r\n" + ALL["vllm"],
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: /v2\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n\x1f\x8b\x08\r\n0\r\n\r\n",
]
_WORDS = [
    b"\r\n", b"\n", b"\r", b"\n\n", b"\r\n\r\n", b"\n\n\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b" ",
    b"\t", b":", b"data:", b"data: ", b"data: [DONE]\n\n", b"data: \n\n", b": ping\n\n", b"event: error\n",
    b"error: x\n\n", b"id: 1\n", b"0\r\n\r\n", b"0\r\n", b"5\r\nhello\r\n", b"0x1a\r\n", b"+5\r\n", b"1_0\r\n",
    b"-1\r\n", b"f" * 16, b"f" * 17, b";a=b", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: 5, 6\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip\r\n", b"Content-Encoding: br\r\n", b"Connection: close\r\n",
    b"Content-Type: text/html\r\n", b"X: y\r\n" * 40, b"a" * 700, b"[" * 1200, b'{"error": "x"}', b'{"usage": {}}',
]  # fmt: skip
_VALUES = [
    b"null", b"-1", b"0", b"1", b"2147483647", b"2147483648", b"1" * 5000, b"1.5", b"1e999", b"true", b"false", b'""',
    b'"x"', b'"\xff"', b'"\\ud800"', b'"\\u00e9\\u0000"', b"[]", b"[null]", b"{}", b"[{}]", b"[" * 1100, b"NaN",
    b'"length"', b'{"message": "x"}', b"[{}, {}]", b'[{"index": 1, "delta": {"content": "z"}}]',
    b'"' + b"long " * 200 + b'"',
]  # fmt: skip
_CHUNK_END = re.compile(rb"(?<=\n)\r\n")
_VALUE = re.compile(rb'(?<=": )(?:"[^"]*"|-?\d+|null|\[\]|\{|\[)')


@functools.cache
def _value_spans(body: bytes) -> list[tuple[int, int]]:
    return [match.span() for match in _VALUE.finditer(body)]


def _battered(data: bytes, choose: random.Random) -> bytes:
    """The bytes after one to four accidents."""
    for _ in range(choose.choice((1, 1, 2, 4))):
        at = int(choose.random() * (len(data) + 1))
        upto = at + int(choose.random() * choose.choice((4, 40, 400)))
        kind = choose.random()
        if kind < 0.2:
            data = data[:at] + bytes((int(choose.random() * 256),)) + data[at + 1 :]
        elif kind < 0.4:
            data = data[:at] + data[upto:]
        elif kind < 0.5:
            data = data[:upto] + data[at:]
        elif kind < 0.55:
            data = data[:at]
        else:
            data = data[:at] + choose.choice(_WORDS) + data[at:]
    return data


def mutated(choose: random.Random) -> bytes:
    """One hostile answer: wrong in its values, its events, its framing, or anywhere."""
    kind = choose.random()
    if kind < 0.1:
        return _battered(choose.choice(OTHERS), choose)
    body = choose.choice(BODIES)
    if kind < 0.45 and (spans := _value_spans(body)):
        a, b = choose.choice(spans)
        body = body[:a] + choose.choice(_VALUES) + body[b:]
    elif kind < 0.5:
        body = body[: int(choose.random() * len(body))] + choose.choice(BODIES)
    elif kind < 0.75:
        body = _battered(body, choose)
    data = framed(body, choose.choice(FRAMINGS))
    return _battered(data, choose) if kind >= 0.75 or choose.random() < 0.1 else data


@contextlib.contextmanager
def small_limits() -> Iterator[None]:
    """Limits that small inputs reach."""
    small = [
        (sse, "LONGEST", 600), (sse, "_WORTH_COUNTING", 64), (http1, "_LONGEST_HEAD", 400),
        (http1, "_MOST_HEADERS", 12), (http1, "_LONGEST_LENGTH_LINE", 40), (http1, "_MOST_INTERIM", 2),
    ]  # fmt: skip
    before: list[tuple[Any, str, int]] = [(module, name, getattr(module, name)) for module, name, _ in small]
    for module, name, limit in small:
        setattr(module, name, limit)
    try:
        yield
    finally:
        for module, name, limit in before:
            setattr(module, name, limit)
