"""One JSON array of objects, however long, or one object: cut into its objects without reading all of it.

The objects are found by their brackets alone, so that a broken one does not hide the next; each is then decoded by
itself. A file that ends too early gives its whole objects and the place where it breaks off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from harness.base import files
from harness.workload.dataset.json_object import decoded, place
from harness.workload.dataset.lines import LONGEST, too_long

_PIECE = 1 << 20  # bytes that are read at once, at least
_NO_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_OPENS, _QUOTE, _BOM = b"{[", b'"', b"\xef\xbb\xbf"
_NO_OBJECT = "it is not an object, with a comma to the next"

T = TypeVar("T")


def records(path: Path, kind: type[T]) -> Iterator[tuple[str, T | Exception]]:
    """Each object as that type, or what is wrong with it, with its place; a number may be written as text."""
    decode = msgspec.json.Decoder(kind, strict=False).decode
    with files.opened(path) as file:
        for line, byte, found in _objects(_Window(file)):
            if isinstance(found, bytes):
                yield decoded(decode, found, line, byte)
            else:
                yield place(line, byte), found


class _Window:
    """A part of a file, from a moving beginning on."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._before = 0  # bytes of the file before `data`
        self.data = b""
        self.begin = 0  # index of what is still needed
        self.line = 1  # in which that is

    def move(self, index: int) -> None:
        """Nothing before this index is needed any more."""
        self.line += self.data.count(b"\n", self.begin, index)
        self.begin = index

    def more(self) -> bool:
        """Read on, False at the end of the file; what is needed now begins at index 0."""
        piece = self._file.read(max(_PIECE, len(self.data) - self.begin))  # a long string is gone through again
        self._before += self.begin
        self.data, self.begin = self.data[self.begin :] + piece, 0
        return bool(piece)

    @property
    def byte(self) -> int:
        return self._before + self.begin


def _objects(window: _Window) -> Iterator[tuple[int, int, bytes | ValueError]]:
    """Each object's bytes, behind the line and the byte where it begins."""
    depth = at = 0  # of brackets, within an object; index up to which they are counted
    array = over = False  # its first bracket, and its last one, have come
    while True:
        at = _no_bracket(window.data, at)
        bracket = window.data[at : at + 1]
        if bracket in (b"", _QUOTE):
            if len(window.data) - window.begin > LONGEST:
                yield window.line, window.byte, too_long()
                return
            at -= window.begin
            if not window.more():
                break
            continue
        if not depth:
            ends_array = array and not over and bracket == b"]"
            expected = bracket == b"{" or ends_array or (bracket == b"[" and not array)
            if over or not expected or window.data[window.begin : at].removeprefix(_BOM).strip() not in (b"", b","):
                yield window.line, window.byte, ValueError(_NO_OBJECT)
            array, over = array or bracket == b"[", over or ends_array
            window.move(at if bracket == b"{" else at + 1)
        if depth or bracket == b"{":
            depth += 1 if bracket in _OPENS else -1
            if not depth:
                found = window.data[window.begin : at + 1]
                yield window.line, window.byte, found if len(found) <= LONGEST else too_long()
                window.move(at + 1)
        at += 1
    yield from _end(window, at, depth, array and not over)


def _no_bracket(data: bytes, at: int) -> int:
    """Index of the next bracket outside of a string; that of a string that does not end, or of the data's end."""
    found = _NO_BRACKET.match(data, at)
    assert found is not None, "it matches nothing at all too"
    return found.end()


def _end(window: _Window, at: int, depth: int, unfinished: bool) -> Iterator[tuple[int, int, ValueError]]:
    """What is wrong where the file ends, if anything is."""
    if not depth and not unfinished:
        if window.data.strip():
            yield window.line, window.byte, ValueError(_NO_OBJECT)
        return
    why = "the file ends before its array does"
    if depth:
        where = "in the middle of a string, " if window.data[at : at + 1] == _QUOTE else ""
        why = f"the file ends {where}in the object from {place(window.line, window.byte)} on"
    window.move(len(window.data))
    yield window.line, window.byte, ValueError(why)
