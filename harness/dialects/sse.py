"""Server-sent events, lines of JSON, and one JSON document: bytes in, the data of each event out, cut anywhere. No IO.

Follows the WHATWG description as far as data goes: LF, CRLF or CR line ends, comments, several data lines an
event; ids and retry times are skipped, no LLM server puts tokens into them. An error event, by its name or by a
field `error:` as llama-server writes it, comes out as `error: ` and its text, which no JSON begins with, so that the
common event needs no further check. Beyond it, as clients that read line by line take such streams: where a second
data line follows one with a whole JSON object each line is an event, from then on as it comes, and lines without any
field are a proxy's words, which come out as they are.

Memory is bounded: one unfinished event a stream, at most `LONGEST` of it, and all the unfinished events of a process
at most `TOGETHER`. Beyond that the stream is cut off: `TOO_LONG` is the last that comes out.
A piece is a read, far shorter than the longest event. A document is one event, with bounds of its own: that of every
request in flight may arrive at once.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from harness.base.errors import ProtocolError
from harness.dialects.unlisted import UNREADABLE

EVENTS = "text/event-stream"
NDJSON = "application/x-ndjson"
JSON = "application/json"
LONGEST = 4 << 20  # bytes of one event
TOGETHER = 256 << 20  # bytes of all; else 256 streams that never end a line take a GiB
LONGEST_DOCUMENT = 32 << 20  # bytes: 256 vectors of 4,096 numbers as JSON are some 20 MB
DOCUMENTS_TOGETHER = 512 << 20
TOO_LONG = b"\ran event longer than can be kept"  # no server can send it: a CR ends a line
_BOM = b"\xef\xbb\xbf"
_FIELDS = (b"data", b"event", b"error", b"id", b"retry", b"")  # the last: a comment
_WORTH_COUNTING = 65_536  # an unfinished event's bytes, before it counts for TOGETHER


class EventParser:
    """Parses one stream; `feed` returns the data of every event that the bytes complete."""

    __slots__ = ("_counted", "_cr", "_cut_off", "_tail", "unparted")

    media: ClassVar[str] = EVENTS
    buffered: ClassVar[int] = 0  # bytes of unfinished events, over all the streams of this process

    def __init__(self) -> None:
        self._tail = bytearray()  # the event that is not finished, with LF line ends
        self._cr = False  # the last byte was a CR: an LF after it ends no second line
        self._cut_off = False
        self.unparted = False  # events are not parted by blank lines
        self._counted = 0  # this stream's share of `buffered`

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of the events that this piece completes, in order; comments and empty events give nothing.

        The last one is TOO_LONG, and nothing comes after it, once an event is too long.
        """
        line, _, rest = piece.partition(b"\n")
        if rest == b"\n" and line[:6] == b"data: " and 13 not in line and not self._tail:
            return [line[6:]]  # one whole event with LF line ends: nearly every piece of every server
        if not piece or self._cut_off:
            return []
        if self._cr or b"\r" in piece:
            if self._cr and piece.startswith(b"\n"):
                piece = piece[1:]
            self._cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._tail or not piece.endswith(b"\n\n"):
            piece = self._whole(piece)
        out = []
        for block in piece.split(b"\n\n"):
            if block.startswith(b"data: ") and b"\n" not in block:
                out.append(block[6:])
            elif block:
                data = _data(block)
                self.unparted = self.unparted or len(data) > 1
                out += data
        if self._cut_off:
            out.append(TOO_LONG)
        return out

    def end(self) -> list[bytes]:
        """End the stream: an event without its blank line still counts, several servers leave it out."""
        return self.feed(b"\n\n")

    def release(self, most: int) -> bytes | None:
        """Return the begun event and forget it, to be fed again before anything else; None if it has over `most` bytes.

        What is fed again is one piece with the read after it, so `most` is far less than the longest event.
        """
        if self._cr or self._cut_off or self.unparted or len(self._tail) > most:
            return None
        tail = bytes(self._tail)
        self._tail.clear()
        self._count(0)
        return tail

    def _whole(self, piece: bytes) -> bytes:
        """Return the events that are whole with these bytes; the rest is kept. Line ends are LF."""
        tail, cut, ends_line = self._tail, 1, b"\n" in piece
        if (
            ends_line
        ):  # a long line comes in many pieces without one, and to look for two bytes takes forty times as long
            cut = piece.rfind(b"\n\n") + 2
        if cut == 1:  # none in the piece: its first LF may be the second of two
            cut = int(piece.startswith(b"\n") and tail.endswith(b"\n"))
        whole = b""
        if cut:
            whole = bytes(tail) + piece[:cut] if tail else piece[:cut]
            self._tail = tail = bytearray(piece[cut:])
            if len(whole) > LONGEST:
                whole = self._short(whole)
        else:
            tail += piece
        start = max(0, len(tail) - len(piece) - 6)
        begun = tail.find(b"\ndata:", start, len(tail) if ends_line else start + 12) >= 0  # with these bytes
        if self.unparted or (begun and _is_object(bytes(tail.partition(b"\n")[0]))):
            self.unparted, cut = True, tail.rfind(b"\n") + 1
            whole += bytes(tail[:cut])
            self._tail = tail = tail[cut:]
        if self._counted or len(tail) > _WORTH_COUNTING:
            self._count(len(tail))
        if self._cut_off:
            self._tail = bytearray(b"!")  # nothing is the common event any more
            self._count(0)
        return whole

    def _short(self, whole: bytes) -> bytes:
        """Return the events before the first that is too long."""
        at = 0
        for block in whole.split(b"\n\n"):
            if len(block) > LONGEST:
                self._cut_off = True
                return whole[:at]
            at += len(block) + 2
        return whole

    def _count(self, size: int) -> None:
        """Count what is kept among all that is; too much cuts this stream off."""
        if size <= _WORTH_COUNTING:
            size = 0
        EventParser.buffered += size - self._counted
        self._counted = size
        if size > LONGEST + 1 or (size and EventParser.buffered > TOGETHER):  # the last byte may end the last line
            self._cut_off = True


def _is_object(line: bytes) -> bool:
    """Return whether a line has data that is a whole JSON object."""
    data = line.removeprefix(b"data:").strip()
    if not (line.startswith(b"data:") and data.startswith(b"{") and data.endswith(b"}")):
        return False
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except UNREADABLE:
        return False
    return True


def _data(block: bytes) -> list[bytes]:
    """Return the data of one event, from all of its lines; of each line where no blank ones part the events.

    An error event gives one text that begins with "error: "; lines without a field of SSE are data as they are.
    """
    data, name, error, fields = [], b"", None, False
    block = block.removeprefix(_BOM).strip(b"\n")  # blank lines too many are of no event, wherever the stream is cut
    for line in block.split(b"\n") if block else ():
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        fields = fields or field in _FIELDS
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
        elif field == b"error":
            error = value
    if error is None and name == b"error":
        error = b"\n".join(data)
    if error is not None:
        return [b"error: " + error]
    if not fields:
        return [block] if block else []
    if len(data) > 1 and _is_object(b"data:" + data[0]):
        return data
    return [b"\n".join(data)] if data else []


class LineParser(EventParser):
    """Parses one stream of newline-delimited JSON, bounded as events are.

    `feed` returns every line that the bytes complete, without those that are blank.
    """

    __slots__ = ()

    media: ClassVar[str] = NDJSON

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the lines that this piece completes, without blank ones; the rest is kept for the next piece.

        The last one is TOO_LONG, and nothing comes after it, once a line is too long.
        """
        if self._cut_off:
            return []
        lines, newline, rest = piece.rpartition(b"\n")
        out = []
        if newline:
            out = [line for line in (bytes(self._tail) + lines).split(b"\n") if line.strip()]
            self._tail = bytearray(rest)
        else:
            self._tail += piece
        self._count(len(self._tail))
        if self._cut_off:
            self._tail = bytearray()
            self._count(0)
            out.append(TOO_LONG)
        return out


class DocumentParser:
    """A body that is one event; `feed` raises ProtocolError beyond the bounds, `end` returns all of it."""

    __slots__ = ("_data",)

    media: ClassVar[str] = JSON
    buffered: ClassVar[int] = 0  # bytes of unfinished documents, over all the responses of this process

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Keep a piece of the document; always [], as it is whole only at its end. ProtocolError above 32 MiB."""
        self._data += piece
        DocumentParser.buffered += len(piece)
        if len(self._data) > LONGEST_DOCUMENT or DocumentParser.buffered > DOCUMENTS_TOGETHER:
            self.end()
            raise ProtocolError("an answer longer than 32 MiB, or too many of them at once", "line_too_long")
        return []

    def end(self) -> list[bytes]:
        data, self._data = bytes(self._data), bytearray()
        DocumentParser.buffered -= len(data)
        return [data] if data else []
