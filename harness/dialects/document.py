"""A response that is one document: its bytes, kept until it is whole, and bounded.

At most LONGEST of one, and TOGETHER of all that a process has not yet read to the end: that of every request in flight
may arrive at once.
"""

from __future__ import annotations

from typing import ClassVar

from harness.base.errors import ProtocolError

JSON = "application/json"
LONGEST = 32 << 20  # bytes: 256 vectors of 4,096 numbers as JSON are some 20 MB
TOGETHER = 512 << 20


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
        if len(self._data) > LONGEST or DocumentParser.buffered > TOGETHER:
            self.end()
            raise ProtocolError("an answer longer than 32 MiB, or too many of them at once", "line_too_long")
        return []

    def end(self) -> list[bytes]:
        data, self._data = bytes(self._data), bytearray()
        DocumentParser.buffered -= len(data)
        return [data] if data else []
