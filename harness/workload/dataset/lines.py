"""The lines of a file, one at a time and none longer than is reasonable, each with its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

LONGEST = 16 << 20  # bytes of one row: a prompt of some million tokens
_PIECE = 1 << 20  # bytes that are read at once of what is left out
_BOM = b"\xef\xbb\xbf"


class Lines:
    """Lines with their ends, as bytes; one that is longer than `LONGEST` is cut there, and so is longer by a byte."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.number = 0  # of the line that was read last, from 1 on
        self.begin = 0  # byte at which it begins
        self.end = 0  # byte at which the next one does

    def __iter__(self) -> Iterator[bytes]:
        while line := self._file.readline(LONGEST + 1):
            self.number += 1
            self.begin = self.end
            self.end += len(line)
            if len(line) > LONGEST:
                self._leave_out()
            yield line.removeprefix(_BOM) if self.number == 1 else line

    def _leave_out(self) -> None:
        """Go on to the end of a line that is too long."""
        while piece := self._file.readline(_PIECE):
            self.end += len(piece)
            if piece.endswith(b"\n"):
                return


def too_long() -> ValueError:
    return ValueError(f"it is longer than {LONGEST:,} bytes")
