"""How a file holds its records: JSON lines, a JSON array or one object, delimited text with a header, Parquet.

No file is read at once: text is mapped into memory. A record is decoded strictly into the type that its reader
declares. What is broken is a value
until somebody decides what becomes of it: an exception in the place of a record, with the place in the file.
"""

from __future__ import annotations

import contextlib
import csv
import mmap
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias, TypeVar

import msgspec

from harness.base import decoding, files
from harness.base.errors import HarnessError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

LONGEST = 16 << 20  # bytes of one row: a prompt of some million tokens
_BOM = b"\xef\xbb\xbf"
_OFFSET = re.compile(r" \(byte (\d+)\)$")  # how msgspec says where the text is broken
# Up to the next bracket outside of a string, or to a string without an end.
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}"]|\Z)', re.DOTALL)
_NO_OBJECT = "it is not an object, with a comma to the next"
_ROWS_AT_ONCE = 128  # of a Parquet file: each may be long
_EXPANDS = 100  # data over the size of a Parquet file, at most; usually 2 to 5
_SLACK = 1 << 20  # bytes that a Parquet file of any size may expand to

T = TypeVar("T")
_Bytes: TypeAlias = mmap.mmap | bytes
Found: TypeAlias = Iterator[tuple[str, T | Exception]]  # places, and what they hold: a record, or what is wrong with it


class Line(NamedTuple):
    """A line with its end; of one that is longer than `LONGEST` that and a byte more."""

    number: int  # from 1 on
    begin: int  # byte at which it begins
    end: int  # byte at which the next one does
    data: bytes


def _mapped(file: BinaryIO) -> _Bytes:
    """Return the bytes of a file, which are read as they are looked at; an empty one cannot be mapped."""
    empty = os.fstat(file.fileno()).st_size == 0
    return b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _lines(data: _Bytes) -> Iterator[Line]:
    number = begin = 0
    while begin < len(data):
        number += 1
        end = data.find(b"\n", begin) + 1 or len(data)
        line = data[begin : min(end, begin + LONGEST + 1)]
        yield Line(number, begin, end, line.removeprefix(_BOM) if number == 1 else line)
        begin = end


def too_long() -> ValueError:
    return ValueError(f"it is longer than {LONGEST:,} bytes")


def place(line: int, byte: int) -> str:
    return f"line {line}, byte {byte}"


def decoded(decode: Callable[[bytes], T], data: bytes, line: int, byte: int) -> tuple[str, T | Exception]:
    """Return the object that begins at this line and byte of its file.

    >>> import msgspec
    >>> decoded(msgspec.json.decode, b'{"a": x}', 3, 100)
    ('line 3, byte 106', ValueError('JSON is malformed: invalid character'))
    """
    if len(data) > LONGEST:
        return place(line, byte), too_long()
    try:
        return place(line, byte), decode(data)
    except decoding.WRONG as error:
        why = str(error)
        offset = _OFFSET.search(why)
        if not offset:
            return place(line, byte), error
        at = int(offset[1])
        return place(line + data.count(b"\n", 0, at), byte + at), ValueError(why[: offset.start()])


def json_lines(path: Path, kind: type[T]) -> Found[T]:
    """Read JSON lines, one object a line; a number may be written as text."""
    decode = msgspec.json.Decoder(kind, strict=False).decode
    with files.opened(path) as file:
        for line in _lines(_mapped(file)):
            if not line.data.isspace():
                yield decoded(decode, line.data, line.number, line.begin)


def json_array(path: Path, kind: type[T]) -> Found[T]:
    """Read one JSON array of objects, however long, or one object; a number may be written as text.

    The objects are found by their brackets alone, so that a broken one does not hide the next; each is then decoded by
    itself. A file that ends too early gives its whole objects and the place where it breaks off.
    """
    decode = msgspec.json.Decoder(kind, strict=False).decode
    line = counted = 0
    with files.opened(path) as file:
        data = _mapped(file)
        for begin, end, wrong in _objects(data):
            line, counted = line + data[counted:begin].count(b"\n"), begin
            if wrong:
                yield place(line + 1, begin), ValueError(wrong)
            else:
                yield decoded(decode, data[begin : min(end, begin + LONGEST + 1)], line + 1, begin)


def _objects(data: _Bytes) -> Iterator[tuple[int, int, str]]:
    """Yield where each outermost object begins and ends, and where something else is, with what is wrong with it."""
    depth = begin = end = 0
    array = False
    for found in _BRACKET.finditer(data):
        bracket, at = found[1], found.start(1)
        if bracket in (b"", b'"'):
            break
        if not depth:
            if bracket != b"{":
                continue
            between = _between(data, end, at)
            array = array or (not end and between.startswith(b"["))
            if between not in (b"", b"," if end else b"["):
                yield end, at, _NO_OBJECT
            begin = at
        depth += 1 if bracket in (b"{", b"[") else -1
        if not depth:
            end = at + 1
            yield begin, end, ""
    last, rest = len(data), _between(data, end, len(data))
    if depth and last - begin > LONGEST:
        yield begin, last, ""
    elif depth:
        where = place(data[:begin].count(b"\n") + 1, begin)
        yield last, last, f"the file ends in the object from {where} on"
    elif (array or rest.startswith(b"[")) and b"]" not in rest:
        yield last, last, "the file ends before its array does"
    elif rest not in (b"", b"]" if array else b"[]"):
        yield end, last, _NO_OBJECT


def _between(data: _Bytes, begin: int, end: int) -> bytes:
    """Return what is between two objects, without blanks; of much the beginning."""
    return data[begin : min(end, begin + LONGEST)].removeprefix(_BOM).strip()


def _delimited_columns(path: Path) -> list[str]:
    with files.opened(path) as file:
        return _header(_lines(_mapped(file)), str(path))[0]


def delimited(path: Path, kind: type[T]) -> Found[T]:
    """Read delimited text with a header, commas, semicolons or tabs between; an empty cell is one that is missing."""
    csv.field_size_limit(LONGEST)  # of this process; the default is shorter than a long prompt
    begin = 0  # byte of the row that is read
    last = Line(0, 0, 0, b"")

    def text(line: Line) -> str:
        nonlocal last
        last = line
        if line.end - begin > LONGEST:
            raise too_long()
        return line.data.decode()

    with files.opened(path) as file:
        lines = _lines(_mapped(file))
        header, delimiter, last = _header(lines, str(path))
        rows = csv.reader(map(text, lines), delimiter=delimiter, strict=True)
        while True:
            begin, at = last.end, place(last.number + 1, last.end)
            try:
                cells = next(rows)
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise ValueError(f"it has {len(cells)} cells, its header {len(header)}")
            except StopIteration:
                return
            except csv.Error as error:
                yield at, ValueError(str(error))
            except decoding.WRONG as error:
                yield at, error
            else:
                named = {name: cell for name, cell in zip(header, cells, strict=True) if cell}
                yield at, _converted(named, kind)


def _converted(named: dict[str, Any], kind: type[T]) -> T | Exception:
    try:
        return msgspec.convert(named, kind, strict=False)
    except decoding.WRONG as error:
        return error


def _header(lines: Iterator[Line], place: str) -> tuple[list[str], str, Line]:
    """Return the names of the columns, what separates them, and their line, the first one."""
    with decoding.reading(place, "delimited text", "give a file that begins with the names of its columns"):
        line = next(lines)
        if len(line.data) > LONGEST:
            raise too_long()
        text = line.data.decode()
        delimiter = max(",;\t", key=text.count)
        try:
            names = next(csv.reader([text], delimiter=delimiter, strict=True), [])
            return [name.strip() for name in names], delimiter, line
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
                columns = [_values(batch.column(name)) for name in names]
                for cells in zip(*columns, strict=True):
                    number += 1
                    named = {name: cell for name, cell in zip(names, cells, strict=True) if cell is not None}
                    yield f"row {number}", _converted(named, kind)
        except _wrong() as error:
            yield f"row {number + 1}", ValueError(str(error) or type(error).__name__)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
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
                _bounded(file.metadata, path.stat().st_size)
            except _wrong() as error:
                raise ValueError(str(error)) from None
        yield file


def _bounded(metadata: pq.FileMetaData, size: int) -> None:
    """Raise ValueError where there is more in the file than its size can hold."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    if sum(group.num_rows for group in groups) != metadata.num_rows or any(group.num_rows < 0 for group in groups):
        raise ValueError("its row groups are not its rows")
    expanded = sum(group.total_byte_size for group in groups)
    if expanded > _SLACK + _EXPANDS * size:
        raise ValueError(f"it says that {size:,} bytes hold {expanded:,}")


def _wrong() -> tuple[type[Exception], ...]:
    """Return what Arrow raises for a damaged file."""
    import pyarrow as pa

    return (pa.ArrowException, MemoryError, KeyError, TypeError, IndexError, ValueError, OSError)


def _values(column: pa.Array) -> list[Any]:
    """Return a column as Python values; equal texts are one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    if (pc.max(pc.binary_length(column.dictionary)).as_py() or 0) > LONGEST:
        raise too_long()
    words = column.dictionary.to_pylist()
    return [None if i is None else words[i] for i in column.indices.to_pylist()]


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
    """Return how a file holds its records, by its first bytes; HarnessError where it is empty or compressed."""
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
