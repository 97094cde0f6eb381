"""HTTP/1.1 as far as one streamed request needs it: bytes out, body pieces in, cut anywhere. No IO.

A response is framed exactly and resumably: whether it is over is never guessed from how the bytes end, because a
head may end in `0\\r\\n\\r\\n` and a terminator may be cut over two reads. Content codings are refused by asking
for none; trailers are read and dropped; responses to HEAD, 204 and 304 have no body.
"""

from __future__ import annotations

_LONGEST_HEAD = 65_536
_LONGEST_LONE = 2048  # bytes of a read that `lone` looks at


def _lone_starts() -> list[bytes]:
    """By the size of a read: how it begins if it holds exactly one chunk; something longer where no chunk fits."""
    starts = [b"no chunk" * _LONGEST_LONE] * _LONGEST_LONE
    for length in range(1, _LONGEST_LONE):
        start = b"%x\r\n" % length
        size = len(start) + length + 2
        if size < _LONGEST_LONE:
            starts[size] = start
    return starts


_STARTS = _lone_starts()


class ProtocolError(Exception):
    """The bytes are not the HTTP/1.1 response they should be."""


def request_head(method: str, path: str, host: str, headers: dict[str, str]) -> bytes:
    """The constant part of a request's head, to be ended per request by `request`."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Accept: text/event-stream", "Accept-Encoding: identity"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n"


def request(head: bytes, request_id: str, body: bytes) -> bytes:
    """A whole request: its own id and length after the constant head."""
    return b"%bContent-Type: application/json\r\nX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        head,
        request_id.encode("latin-1"),
        len(body),
        body,
    )


class Response:
    """One response as its bytes arrive.

    `feed` returns the body pieces that the read completed; `over` says that the message is complete, by its own
    framing; `eof` tells it that the peer closed, which completes a body that only the close delimits.
    """

    __slots__ = ("_even", "_left", "_mode", "_tail", "headers", "keep_alive", "over", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.keep_alive = True
        self.over = False
        self._mode = "head"
        self._tail = b""  # bytes kept because they do not complete anything yet
        self._left = 0  # bytes still to come of a body with a length
        self._even = False  # in a chunked body, and the next byte begins a chunk

    def lone(self, data: bytes) -> bytes | None:
        """The piece in a read that is exactly one chunk of a chunked body; None, and nothing is taken, for others.

        Nearly every read of a token stream is. That it is follows from its size and how it begins and ends, which
        is as exact as `feed` and costs a quarter of it.
        """
        size = len(data)
        if self._even and size < _LONGEST_LONE:
            start = _STARTS[size]
            if data.startswith(start) and data.endswith(b"\r\n"):
                return data[len(start) : -2]
        return None

    def feed(self, data: bytes) -> list[bytes]:
        """Take one read; return the body pieces it completes, in order."""
        if self._tail:
            data = self._tail + data
            self._tail = b""
        if self._mode == "chunked":
            return self._chunks(data)
        if self._mode == "head":
            return self._head(data)
        if self._mode == "length":
            return self._length(data)
        return [data] if data else []

    def eof(self) -> bool:
        """The peer closed: True when that is a proper end of this message."""
        if self._mode == "close":
            self.over = True
        return self.over

    def _head(self, data: bytes) -> list[bytes]:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > _LONGEST_HEAD:
                raise ProtocolError("response head longer than 64 KiB")
            self._tail = data
            return []
        first, *lines = data[:end].split(b"\r\n")
        parts = first.split(b" ", 2)
        if not first.startswith(b"HTTP/1.") or len(parts) < 2 or not parts[1].isdigit():
            raise ProtocolError(f"not an HTTP/1.1 status line: {first[:80]!r}")
        self.status = int(parts[1])
        rest = data[end + 4 :]
        if 100 <= self.status < 200:  # an interim answer; the real one follows
            return self._head(rest)
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon:
                raise ProtocolError(f"not a header: {line[:80]!r}")
            self.headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (first.startswith(b"HTTP/1.1") or "keep-alive" in connection)
        if self.status in (204, 304):
            self.over = True
            return []
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._mode = "chunked"
            return self._chunks(rest)
        if "content-length" in self.headers:
            length = self.headers["content-length"]
            if not length.isdigit():
                raise ProtocolError(f"bad content-length: {length[:40]!r}")
            self._mode, self._left = "length", int(length)
            return self._length(rest)
        self._mode, self.keep_alive = "close", False
        return [rest] if rest else []

    def _length(self, data: bytes) -> list[bytes]:
        piece = data[: self._left]
        self._left -= len(piece)
        self.over = self._left == 0
        return [piece] if piece else []

    def _chunks(self, data: bytes) -> list[bytes]:
        pieces: list[bytes] = []
        at, size = 0, len(data)
        self._even = False
        while at < size:
            line = data.find(b"\r\n", at)
            if line < 0:
                if size - at > 1024:
                    raise ProtocolError("chunk length line longer than 1 KiB")
                break
            try:
                length = int(data[at:line].partition(b";")[0], 16)
            except ValueError:
                raise ProtocolError(f"bad chunk length: {data[at:line][:40]!r}") from None
            if length < 0:
                raise ProtocolError("negative chunk length")
            if length == 0:
                if data.startswith(b"\r\n", line + 2):
                    self.over = True
                    return pieces
                end = data.find(b"\r\n\r\n", line)  # trailers
                if end < 0:
                    break
                self.over = True
                return pieces
            end = line + 2 + length
            if end + 2 > size:
                break
            if data[end : end + 2] != b"\r\n":
                raise ProtocolError("a chunk does not end where its length says")
            pieces.append(data[line + 2 : end])
            at = end + 2
        self._tail = data[at:]
        self._even = not self._tail
        return pieces
