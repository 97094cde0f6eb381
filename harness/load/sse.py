"""Server-sent events: bytes in, the data of each event out, cut anywhere. No IO, no JSON.

Follows the WHATWG description as far as data goes: LF, CRLF or CR line ends, comments, several data lines an
event; event names, ids and retry times are read over, no LLM server puts tokens into them.
"""

from __future__ import annotations


class Events:
    """The events of one stream; `feed` returns the data of every event that the bytes complete."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Data of the events completed by this piece, in order; comments and empty events give nothing."""
        line, _, rest = piece.partition(b"\n")
        if rest == b"\n" and line[:6] == b"data: " and 13 not in line and not self._tail:
            return [line[6:]]  # one whole event with LF line ends: nearly every piece of every server
        if self._tail:
            piece = self._tail + piece
            self._tail = b""
        if b"\r" in piece:
            if piece.endswith(b"\r"):  # its LF may still come
                piece, self._tail = piece[:-1], b"\r"
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not piece.endswith(b"\n\n"):
            cut = piece.rfind(b"\n\n") + 2
            rest = piece[cut:] if cut > 1 else piece
            self._tail = rest + self._tail
            if cut < 2:
                return []
            piece = piece[:cut]
        out = []
        for block in piece.split(b"\n\n"):
            if block.startswith(b"data: ") and b"\n" not in block:
                out.append(block[6:])
            elif block:
                data = _data(block)
                if data is not None:
                    out.append(data)
        return out

    def end(self) -> list[bytes]:
        """The stream is over: an event without its blank line still counts, several servers leave it out."""
        return self.feed(b"\n\n")


def _data(block: bytes) -> bytes | None:
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
