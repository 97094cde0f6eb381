"""HTTP/1.1 as far as one streamed request needs it: bytes out, body pieces in, cut anywhere. No IO.

A response is framed exactly and resumably: whether it is over is never guessed from its last bytes, because a head may
end in `0\\r\\n\\r\\n` and a terminator may be split over two reads. Body pieces are returned as they arrive and never
collected, so memory is bounded: one head, one list of trailers, one line with a chunk's length.

Strict where RFC 9112 is, because two readers must find the same end: no bare line feeds, no NUL, only digits in a
length, one length. Liberal where servers are: folded headers, a missing reason, blanks after a chunk's length, the same
length twice. Identity is requested, so content codings are refused; trailers are read and dropped; 204 and 304 have no
body. Left out: HEAD, upgrades, what the extensions of chunks mean.
"""

from __future__ import annotations

import contextlib
import functools
import re
import zlib
from collections.abc import Collection, Iterable, Mapping

from harness.base.errors import ProtocolError
from harness.dialects.sse import EVENTS

_LONGEST_HEAD = 65_536  # also of the trailers
_MOST_HEADERS = 256
_MOST_INTERIM = 16  # 1xx responses before the final one
_LONGEST_LENGTH_LINE = 1024  # a chunk's length with its extensions
_LONGEST_LONE = 2048  # bytes of the longest read that `lone` checks

OWN = ("content-type", "content-length", "x-request-id")  # headers that each request has of its own (`request`)
_STATUS_LINE = re.compile(rb"HTTP/1\.(\d) ([1-9]\d\d)(?: .*)?", re.DOTALL)
_BLANKS = re.compile(rb"\r\n[ \t]+")  # a folded header goes on
_NAME = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CHUNK_LENGTH = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\0\r\n]*)?")
_LENGTHS = {b"%x" % length: length for length in range(1, 4096)}  # nearly every chunk of every server


def _lone_starts() -> list[bytes]:
    """Return, by the size of a read, the bytes it begins with if it is exactly one chunk; no match where none fits."""
    starts = [b"no chunk" * _LONGEST_LONE] * _LONGEST_LONE
    for length in range(1, _LONGEST_LONE):
        start = b"%x\r\n" % length
        size = len(start) + length + 2
        if size < _LONGEST_LONE:
            starts[size] = start
    return starts


_STARTS = _lone_starts()
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b"error:", b":")  # what a line of an event stream begins with
_LONGEST_TEXT = 8192  # bytes of a refusal, without its coding
ANY_HEADER = zlib.MAX_WBITS | 32  # gzip's or zlib's, by zlib's manual of inflateInit2


def request_head(method: str, path: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return a request's head without the empty line that ends it; raise UnicodeEncodeError if it is not Latin-1."""
    return f"{method} {path} HTTP/1.1\r\n".encode("latin-1") + header_lines(headers)


def replaced(headers: Mapping[str, str], by: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with those of `by` in place of any of the same name, whatever its case.

    >>> replaced({"Host": "a", "Accept": "*/*"}, {"host": "b"})
    {'Accept': '*/*', 'host': 'b'}
    """
    return without(headers, {name.lower() for name in by}) | dict(by)


def without(headers: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Return the headers but for some, named in lower case.

    >>> without({"X-A": "1", "content-TYPE": "2"}, ("content-type",))
    {'X-A': '1'}
    """
    return {name: value for name, value in headers.items() if name.lower() not in names}


def header_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1")


def request(head: bytes, request_id: str, body: bytes) -> bytes:
    """Return a whole request: a head that all share, its own id and length, its body."""
    return b"%bContent-Type: application/json\r\nX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        head,
        request_id.encode("latin-1"),
        len(body),
        body,
    )


class ResponseParser:
    """Parses one response as its bytes arrive.

    `feed` returns the body pieces in a read. `over`: the message is complete, by its own framing. `eof`: the peer
    closed, which completes a body that only the close delimits. `streams`: the body is what a decoder reads; False
    for an error's text, None while its first bytes do not show it (`is_readable`).
    """

    __slots__ = (
        "_even", "_interim", "_left", "_mode", "_tail", "headers", "keep_alive", "over", "status", "streams",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.streams: bool | None = True
        self.keep_alive = True
        self.over = False
        self._mode = "head"
        self._tail = bytearray()  # bytes kept because they do not complete anything yet
        self._left = 0  # bytes still to come of a body with a length; of a chunk, its line end included
        self._even = False  # in a chunked body, and the next byte begins a chunk
        self._interim = 0

    def lone(self, data: bytes) -> bytes | None:
        """Return the piece in a read that is exactly one chunk of a chunked body; else None, and nothing is taken.

        Nearly every read of a token stream is one. Its size, its first and its last bytes prove it, which is as exact
        as `feed` and costs a quarter of it.
        """
        size = len(data)
        if self._even and size < _LONGEST_LONE:
            start = _STARTS[size]
            if data.startswith(start) and data.endswith(b"\r\n"):
                return data[len(start) : -2]
        return None

    def feed(self, data: bytes) -> list[bytes]:
        """Take one read; return the body pieces in it, in order."""
        pieces: list[bytes] = []
        try:
            if self._mode == "chunked":
                self._chunks(data, pieces)
            elif self._mode == "head":
                self._head(data, pieces)
            else:
                self._body(data, pieces)
        except ProtocolError as error:
            error.pieces = pieces
            raise
        return pieces

    def chunk_state(self) -> tuple[int, bytes] | None:
        """Return (bytes left of the current chunk, the part of a length line so far); None outside a chunked body."""
        return (self._left, bytes(self._tail)) if self._mode == "chunked" else None

    def go_on(self, left: int, line: bytes) -> None:
        """Frame the rest of a chunked body whose beginning other code has framed."""
        self._left, self._tail, self._even = left, bytearray(line), not left and not line

    def end(self) -> None:
        """The message is complete, as another has framed it."""
        self.over, self._mode = True, "over"

    def eof(self) -> bool:
        """The peer closed: True when that is a proper end of this message."""
        if self._mode == "close":
            self.over = True
        return self.over

    def take_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the status and headers of a head, also one that another library read; header names in lower case."""
        self.status, self.headers = status, dict(headers)
        self.streams = None if status == 200 else False
        coding = headers.get("content-encoding")
        if status == 200 and coding and coding.lower() != "identity":
            raise ProtocolError(f"content-encoding {coding[:40]!r}, though identity was asked for", "encoding")

    def _section(self, data: bytes | bytearray) -> tuple[bytes, bytes] | None:
        """Return (lines up to the next empty line, the bytes after it); None until it has come, and keep the bytes."""
        searched = 0
        if self._tail:
            searched = max(0, len(self._tail) - 3)
            self._tail += data
            data = self._tail
        end = data.find(b"\r\n\r\n", searched)
        if end > _LONGEST_HEAD or (end < 0 and len(data) > _LONGEST_HEAD + 3):
            raise ProtocolError("response head, or trailers, longer than 64 KiB")
        if end < 0:
            if data is not self._tail:
                self._tail += data
            return None
        lines, rest = bytes(data[:end]), bytes(data[end + 4 :])
        self._tail = bytearray()
        return lines, rest

    def _head(self, data: bytes, pieces: list[bytes]) -> None:
        """Take bytes of the response head; once it is whole, decide how its body is framed and take what follows it.

        Interim responses are skipped. Raise ProtocolError for what is not HTTP/1.1 or cannot be framed.
        """
        while True:
            began = bytes(self._tail[:7]) + data[:7]
            if not b"HTTP/1.".startswith(began[:7]):  # raised at once: such a server may wait for more from us
                raise ProtocolError(f"not HTTP/1.1: {(bytes(self._tail) + data)[:80]!r}")
            section = self._section(data)
            if section is None:
                if self._tail.find(b"\n\n", max(0, len(self._tail) - len(data) - 1)) >= 0:
                    raise ProtocolError("the response head ends its lines with bare line feeds")
                return
            head, data = section
            minor, status, headers = _parsed(head)
            if status >= 200:
                break
            self._interim += 1  # the real answer follows
            if status == 101 or self._interim > _MOST_INTERIM:
                raise ProtocolError(f"status {status}, which nobody asked for, {self._interim} in a row")
        self.take_head(status, headers)
        if minor == 0 or "connection" in headers:
            connection = _listed(headers.get("connection", ""))
            self.keep_alive = "close" not in connection and (minor > 0 or "keep-alive" in connection)
        if status in (204, 304):
            self._end(data)
        elif "transfer-encoding" in headers:
            if headers["transfer-encoding"].lower() != "chunked":
                raise ProtocolError(f"transfer-encoding {headers['transfer-encoding'][:40]!r}", "encoding")
            if minor == 0 or "content-length" in headers:
                self.keep_alive = (
                    False  # RFC 9112, 6.1 and 6.3: it frames this message, but the sender contradicts itself
                )
            self._mode = "chunked"
            self._chunks(data, pieces)
        elif "content-length" in headers:
            self._mode, self._left = "length", _content_length(headers["content-length"])
            self._body(data, pieces)
        else:
            self._mode, self.keep_alive = "close", False
            self._body(data, pieces)

    def _body(self, data: bytes, pieces: list[bytes]) -> None:
        """Take bytes of a body that is not chunked (by length or until close), of trailers, or after the end."""
        if self._mode == "close":
            if data:
                pieces.append(data)
        elif self._mode == "length":
            if data and self._left:
                pieces.append(data[: self._left])
            left = self._left - len(data)
            self._left = max(0, left)
            if left <= 0:
                self._end(data[len(data) + left :])
        elif self._mode == "trailers":
            section = self._section(data)
            if section is not None:
                self._end(section[1])
        elif data:
            self._end(data)

    def _end(self, rest: bytes) -> None:
        self.over, self._mode = True, "over"
        if rest:  # unrequested bytes: the next request would take them for its response
            self.keep_alive = False

    def _chunks(self, data: bytes, pieces: list[bytes]) -> None:
        """Take bytes of a chunked body and append what they have of its chunks to `pieces`, also parts of chunks."""
        if self._tail:
            data = bytes(self._tail) + data
            self._tail = bytearray()
        at, size, left = 0, len(data), self._left
        while at < size:
            if not left:
                line = data.find(b"\r\n", at)
                if line < 0:
                    if size - at > _LONGEST_LENGTH_LINE + 1:  # the last byte may be half a line end
                        raise ProtocolError("chunk length line longer than 1 KiB")
                    self._tail += data[at:]
                    break
                length = _LENGTHS.get(data[at:line]) or _chunk_length(data[at:line])
                at = line + 2
                if not length:
                    self._mode, self._even, self._left = "trailers", False, 0
                    self._tail += b"\r\n"  # trailers and no trailers end alike
                    self._body(data[at:], pieces)
                    return
                end = at + length
                if data.startswith(b"\r\n", end):
                    pieces.append(data[at:end])
                    at = end + 2
                    continue
                left = length + 2
            # A chunk that began in an earlier read or ends in a later one: the part that has arrived.
            end = at + left
            if left > 2 and at < size:
                pieces.append(data[at : end - 2])
            if not b"\r\n"[-left:].startswith(data[max(at, end - 2) : end]):
                raise ProtocolError("a chunk does not end where its length says")
            left, at = max(0, end - size), end
        self._left = left
        self._even = not left and not self._tail


def media_type(value: str) -> str:
    """Return the type in a Content-Type header, without its parameters; the first of several.

    >>> media_type("Text/Event-Stream ; charset=utf-8, text/html")
    'text/event-stream'
    """
    return value.partition(",")[0].partition(";")[0].strip().lower()


def is_readable(media: str, headers: Mapping[str, str], start: bytes) -> bool | None:
    """Return whether a body is of the type `media`, by its first bytes where its content type is another.

    `start` is the body as far as it has come; None while that is too little.

    >>> is_readable(EVENTS, {"content-type": "application/json"}, b"\\ndata: {}")
    True
    >>> is_readable(EVENTS, {"content-type": EVENTS}, b'{"error": "busy"}'), is_readable(EVENTS, {}, b"da")
    (False, None)
    """
    start, named = start.lstrip(), media_type(headers.get("content-type", "")) == media
    if not start:
        return None
    if media != EVENTS:
        return named or start[:1] in (b"{", b"[")
    if named:
        return start[:1] not in (b"{", b"[", b"<")
    if start.startswith(_FIELDS):
        return True
    return None if any(field.startswith(start) for field in _FIELDS) else False


def decompressed(body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return the start of a body without its coding, if that is gzip or deflate.

    >>> import gzip
    >>> decompressed(gzip.compress(b"slow down"), {"content-encoding": "gzip"})
    b'slow down'
    """
    if "content-encoding" in headers:
        with contextlib.suppress(zlib.error):
            return zlib.decompressobj(ANY_HEADER).decompress(body, _LONGEST_TEXT) or body
    return body


@functools.lru_cache(maxsize=16)  # a server's heads of one second are often the same
def _parsed(head: bytes) -> tuple[int, int, Mapping[str, str]]:
    """Return a head's minor version, status and headers: names in lower case, a repeated one's values as one list."""
    if b"\r\n " in head or b"\r\n\t" in head:
        head = _BLANKS.sub(b" ", head)
    first, *lines = head.split(b"\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise ProtocolError(f"not an HTTP/1.1 status line: {first[:80]!r}")
    if 0 in head or not head.count(b"\r") == head.count(b"\n") == len(lines):
        raise ProtocolError("a NUL or half a line end in the response head")
    if len(lines) > _MOST_HEADERS:
        raise ProtocolError(f"more than {_MOST_HEADERS} headers")
    headers: dict[str, str] = {}
    for line in lines:
        raw_name, colon, raw_value = line.partition(b":")
        if not colon or not raw_name or raw_name.translate(None, _NAME):
            raise ProtocolError(f"not a header: {line[:80]!r}")
        name, value = raw_name.decode("ascii").lower(), raw_value.strip(b" \t").decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return int(match[1]), int(match[2]), headers


def _listed(value: str) -> list[str]:
    """Return the members of a header that is a list of words.

    >>> _listed("Keep-Alive, , CLOSE")
    ['keep-alive', 'close']
    """
    return [word for part in value.lower().split(",") if (word := part.strip())]


def _content_length(value: str) -> int:
    lengths = {part.strip() for part in value.split(",")}  # the same one twice is one
    length = lengths.pop()
    if lengths or not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise ProtocolError(f"bad content-length: {value[:40]!r}")
    return int(length)


def _chunk_length(line: bytes) -> int:
    """Return a chunk's length in bytes from its hexadecimal line; raise ProtocolError if it is none or too long."""
    if len(line) > _LONGEST_LENGTH_LINE:
        raise ProtocolError("chunk length line longer than 1 KiB")
    match = _CHUNK_LENGTH.fullmatch(line)
    if match is None:
        raise ProtocolError(f"bad chunk length: {line[:40]!r}")
    return int(match[1], 16)
