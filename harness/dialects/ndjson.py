"""Newline-delimited JSON: bytes in, lines out, cut anywhere. Bounded as events are."""

from __future__ import annotations

from typing import ClassVar

from harness.dialects.sse import TOO_LONG, EventParser

NDJSON = "application/x-ndjson"


class LineParser(EventParser):
    """Parses one stream; `feed` returns every line that the bytes complete, without those that are blank."""

    __slots__ = ()

    media: ClassVar[str] = NDJSON

    def feed(self, piece: bytes) -> list[bytes]:
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
