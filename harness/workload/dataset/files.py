"""How a file holds its records: JSON lines, a JSON array or one object, delimited text with a header, Parquet.

No file is read at once. A record is decoded strictly into the type that its reader declares. What is broken is a value
until somebody decides what becomes of it: an exception in the place of a record, with the place in the file.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypeVar

import msgspec

from harness.base import decoding, files
from harness.base.errors import HarnessError
from harness.results import columns

if TYPE_CHECKING:
    import pyarrow.parquet as pq

LONGEST = 16 << 20  # bytes of one row: a prompt of some million tokens
_PIECE = 1 << 20  # bytes that are read at once, at least, where lines are not
_BOM = b"\xef\xbb\xbf"
_OFFSET = re.compile(r" \(byte (\d+)\)$")  # how msgspec says where the text is broken
_NO_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_OPENS, _QUOTE = b"{[", b'"'
_NO_OBJECT = "it is not an object, with a comma to the next"
_SENT = (  # fields that are sent, in which a null means something
    "messages", "turns", "body", "conversations", "conversation", "items", "prompt", "input", "tools", "functions",
    "parameters",
)  # fmt: skip
_ROWS_AT_ONCE = 128  # rows of a Parquet file: each may be long
_EXPANDS = 100  # data over the size of a Parquet file, at most; usually 2 to 5
_SLACK = 1 << 20  # bytes that a Parquet file of any size may expand to

T = TypeVar("T")
Found: TypeAlias = Iterator[tuple[str, T | Exception]]  # places, and what they hold: a record, or what is wrong with it


class Lines:
    """Lines with their ends, as bytes; one that is longer than `LONGEST` is cut there, and so is longer by a byte."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.number = 0  # number of the line that was read last, from 1 on
        self.begin = 0  # byte at which it begins
        self.end = 0  # byte at which the next one does

    def __iter__(self) -> Iterator[bytes]:
        """Yield each line with its end, without a byte order mark; of one longer than LONGEST only its beginning."""
        while line := self._file.readline(LONGEST + 1):
            self.number += 1
            self.begin = self.end
            self.end += len(line)
            if len(line) > LONGEST:
                self._leave_out()
            yield line.removeprefix(_BOM) if self.number == 1 else line

    def _leave_out(self) -> None:
        """Skip the rest of a line that is too long to be kept."""
        while piece := self._file.readline(_PIECE):
            self.end += len(piece)
            if piece.endswith(b"\n"):
                return


def too_long() -> ValueError:
    return ValueError(f"it is longer than {LONGEST:,} bytes")


def place(line: int, byte: int) -> str:
    return f"line {line}, byte {byte}"


def decoded(decode: Callable[[bytes], T], data: bytes, line: int, byte: int) -> tuple[str, T | Exception]:
    """Return (place, object) decoded from bytes that begin at this line and byte, or (place of the error, error).

    >>> import msgspec
    >>> decoded(msgspec.json.decode, b'{"a": x}', 3, 100)
    ('line 3, byte 106', ValueError('JSON is malformed: invalid character'))
    """
    try:
        return place(line, byte), decode(data)
    except decoding.WRONG as error:
        why = str(error)
        offset = _OFFSET.search(why)
        if not offset:
            return place(line, byte), error
        at = int(offset[1])
        return place(line + data.count(b"\n", 0, at), byte + at), ValueError(why[: offset.start()])


def _decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Return what decodes JSON; a number may be written as text, and a null is a value that is missing."""
    strict = msgspec.json.Decoder(kind, strict=False).decode

    def decode(data: bytes) -> T:
        try:
            return strict(data)
        except msgspec.ValidationError:
            if b"null" not in data:
                raise
            return msgspec.convert(_without_nulls(json.loads(data)), kind, strict=False)

    return decode


def _without_nulls(value: Any) -> Any:
    """Return decoded JSON without the nulls of its records; what may be sent stays as it is."""
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: each if name in _SENT else _without_nulls(each) for name, each in value.items() if each is not None}


def json_lines(path: Path, kind: type[T]) -> Found[T]:
    """Read JSON lines, one object a line, blank lines left out; a line too long or wrong is an error in its place."""
    decode = _decoder(kind)
    with files.opened(path) as file:
        lines = Lines(file)
        for line in lines:
            if len(line) > LONGEST:
                yield place(lines.number, lines.begin), too_long()
            elif not line.isspace():
                yield decoded(decode, line, lines.number, lines.begin)


def json_array(path: Path, kind: type[T]) -> Found[T]:
    """Read one JSON array of objects, however long, or one object.

    The objects are found by their brackets alone, so that a broken one does not hide the next; each is then decoded by
    itself. A file that ends too early gives its whole objects and the place where it breaks off.
    """
    decode = _decoder(kind)
    with files.opened(path) as file:
        for line, byte, value in _objects(_Window(file)):
            if isinstance(value, bytes):
                yield decoded(decode, value, line, byte)
            else:
                yield place(line, byte), value


class _Window:
    """A part of a file, from a moving beginning on."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._before = 0  # bytes of the file before `data`
        self.data = b""
        self.begin = 0  # index of what is still needed
        self.line = 1  # in which that is

    def move(self, index: int) -> None:
        """Forget what is before this index."""
        self.line += self.data.count(b"\n", self.begin, index)
        self.begin = index

    def more(self) -> bool:
        """Read the next piece of the file and drop what is no longer needed; return False at the end of the file."""
        piece = self._file.read(max(_PIECE, len(self.data) - self.begin))  # a long string is gone through again
        self._before += self.begin
        self.data, self.begin = self.data[self.begin :] + piece, 0
        return bool(piece)

    @property
    def byte(self) -> int:
        return self._before + self.begin


def _objects(window: _Window) -> Iterator[tuple[int, int, bytes | ValueError]]:
    """Yield (line, byte, content or error) of each JSON object in a file of one array, found by brackets alone."""
    depth = at = 0  # depth of brackets within an object; index up to which they are counted
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
    """Return the index of the next bracket outside of a string, of a string without an end, or of the data's end."""
    found = _NO_BRACKET.match(data, at)
    assert found is not None, "it matches nothing at all too"
    return found.end()


def _end(window: _Window, at: int, depth: int, unfinished: bool) -> Iterator[tuple[int, int, ValueError]]:
    """Yield (line, byte, error) if a JSON file ends within an object or its array, or with text that is no object."""
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


def _delimited_columns(path: Path) -> list[str]:
    """Return the names in the header of a CSV or TSV file."""
    with files.opened(path) as file:
        return _header(Lines(file), str(path))[0]


def delimited(path: Path, kind: type[T]) -> Found[T]:
    """Read delimited text with a header, commas, semicolons or tabs between; an empty cell is one that is missing."""
    csv.field_size_limit(LONGEST)  # the process's limit; the default is shorter than a long prompt
    begin = 0  # byte of the row that is read

    def text(line: bytes) -> str:
        if lines.end - begin > LONGEST:
            raise too_long()
        return line.decode()

    with files.opened(path) as file:
        lines = Lines(file)
        header, delimiter = _header(lines, str(path))
        rows = csv.reader(map(text, lines), delimiter=delimiter, strict=True)
        while True:
            begin, at = lines.end, place(lines.number + 1, lines.end)
            try:
                cells = next(rows)
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise ValueError(f"it has {len(cells)} cells, its header {len(header)}")
                named = dict(zip(header, cells, strict=True))
                if "" in cells:
                    named = {name: cell for name, cell in named.items() if cell}
            except StopIteration:
                return
            except csv.Error as error:
                yield at, ValueError(str(error))
            except decoding.WRONG as error:
                yield at, error
            else:
                yield at, _converted(named, kind)


def _converted(named: dict[str, Any], kind: type[T]) -> T | Exception:
    try:
        return msgspec.convert(named, kind, strict=False)
    except decoding.WRONG as error:
        return error


def _header(lines: Lines, place: str) -> tuple[list[str], str]:
    """Return (column names, delimiter) of delimited text: from its first line, whose most frequent of , ; tab it is."""
    with decoding.reading(place, "delimited text", "give a file that begins with the names of its columns"):
        line = next(iter(lines), b"")
        if len(line) > LONGEST:
            raise too_long()
        text = line.decode()
        delimiter = max(",;\t", key=text.count)
        try:
            return [name.strip() for name in next(csv.reader([text], delimiter=delimiter, strict=True), [])], delimiter
        except csv.Error as error:
            raise ValueError(str(error)) from None


def _parquet_columns(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def parquet(path: Path, kind: type[T]) -> Found[T]:
    """Read the rows of a Parquet file, of the columns that are asked for; a null is a value that is missing.

    A file may come from anybody, so it is read a few rows at a time, each text of a dictionary once, and one whose
    metadata say that it holds far more than its size is refused.
    """
    number = 0
    with _opened(path) as file:
        read = [field.encode_name for field in msgspec.structs.fields(kind)]  # type: ignore[arg-type]  # a Struct, or all
        names = [name for name in read if name in file.schema_arrow.names]
        try:
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=names):
                found = [columns.values(batch.column(name), LONGEST, str(too_long())) for name in names]
                for cells in zip(*found, strict=True):
                    number += 1
                    named = {name: cell for name, cell in zip(names, cells, strict=True) if cell is not None}
                    yield f"row {number}", _converted(named, kind)
        except _wrong() as error:
            yield f"row {number + 1}", ValueError(str(error) or type(error).__name__)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file to read in pieces; raise HarnessError if it is none, or claims to hold more than it can."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with files.opened(path) as source, contextlib.ExitStack() as stack:
        with decoding.reading(str(path), "a Parquet file", "give a Parquet file that is whole"):
            try:
                schema = pq.read_schema(source)
                texts = [field.name for field in schema if pa.types.is_string(field.type)]
                source.seek(0)
                # A piece of a column at a time: a group of rows may be most of the file.
                file = pq.ParquetFile(source, read_dictionary=texts, buffer_size=1 << 20, pre_buffer=False)
                stack.enter_context(file)
                size = path.stat().st_size
                columns.must_fit(file.metadata, size, expanded=_SLACK + _EXPANDS * size)
            except _wrong() as error:
                raise ValueError(str(error)) from None
        yield file


def _wrong() -> tuple[type[Exception], ...]:
    """Return what Arrow raises for a damaged file."""
    import pyarrow as pa

    return (pa.ArrowException, MemoryError, KeyError, TypeError, IndexError, ValueError, OSError)


class Container(msgspec.Struct, frozen=True):
    """One way to hold records."""

    records: Callable[[Path, type[Any]], Found[Any]]  # each as that type, or what is wrong with it, with its place
    columns: Callable[[Path], list[str]] | None = None  # their names; None: each record has names of its own


JSON_LINES, JSON_ARRAY = Container(json_lines), Container(json_array)
DELIMITED, PARQUET = Container(delimited, _delimited_columns), Container(parquet, _parquet_columns)
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}


def container(path: Path) -> Container:
    """Return how a file holds its records, by its first bytes; raise HarnessError if it is empty or compressed."""
    where = str(path)
    with decoding.reading(where, "a dataset", "give a file that can be read"), files.opened(path) as file:
        line = file.readline(LONGEST).removeprefix(_BOM)
        while line.isspace():
            line = file.readline(LONGEST)
    if not line:
        raise HarnessError("the file is empty", place=where, way_out="give one that holds requests")
    for magic, name in _COMPRESSED.items():
        if line.startswith(magic):
            raise HarnessError(f"the file is compressed by {name}", place=where, way_out="unpack it first")
    if line.startswith(b"PAR1"):
        return PARQUET
    if line.lstrip().startswith(b"["):
        return JSON_ARRAY
    if not line.lstrip().startswith(b"{"):
        return DELIMITED
    return JSON_LINES if path.suffix in (".jsonl", ".ndjson") or _is_object(line) else JSON_ARRAY


def _is_object(line: bytes) -> bool:
    """Say whether a line is one whole JSON object."""
    try:
        msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except decoding.WRONG:
        return False
    return True
