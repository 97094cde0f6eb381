"""Parquet: rows in some columns of a file.

A file may come from anybody, so it is read a few rows at a time, each text of a dictionary once, and one whose metadata
say that it holds far more than its size is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from harness.base import decoding, files
from harness.workload.dataset.lines import LONGEST, too_long

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_ROWS_AT_ONCE = 128  # each may be long
_EXPANDS = 100  # data over the file's size, at most; usually 2 to 5
_SLACK = 1 << 20  # bytes that a file of any size may expand to
_WAY_OUT = "give a Parquet file that is whole"

T = TypeVar("T")


def keys(path: Path) -> list[str]:
    """The names of its columns."""
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def records(path: Path, kind: type[T]) -> Iterator[tuple[str, T | Exception]]:
    """Each row as that type, or what is wrong with it, with its place; a null is a value that is missing."""
    number = 0
    with _opened(path) as file:
        names = [name for name in _names(kind) if name in file.schema_arrow.names]
        try:
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=names):
                columns = [_values(batch.column(name)) for name in names]
                for cells in zip(*columns, strict=True):
                    number += 1
                    named = {name: cell for name, cell in zip(names, cells, strict=True) if cell is not None}
                    try:
                        record = msgspec.convert(named, kind, strict=False)
                    except decoding.WRONG as error:
                        yield f"row {number}", error
                    else:
                        yield f"row {number}", record
        except _wrong() as error:
            yield f"row {number + 1}", ValueError(str(error) or type(error).__name__)


def _names(kind: type[Any]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with files.opened(path) as source, contextlib.ExitStack() as stack:
        with decoding.reading(str(path), "a Parquet file", _WAY_OUT):
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
    """ValueError where there is more in the file than its size can hold."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    if sum(group.num_rows for group in groups) != metadata.num_rows or any(group.num_rows < 0 for group in groups):
        raise ValueError("its row groups are not its rows")
    expanded = sum(group.total_byte_size for group in groups)
    if expanded > _SLACK + _EXPANDS * size:
        raise ValueError(f"it says that {size:,} bytes hold {expanded:,}")


def _wrong() -> tuple[type[Exception], ...]:
    """What Arrow raises for a damaged file."""
    import pyarrow as pa

    return (pa.ArrowException, MemoryError, KeyError, TypeError, IndexError, ValueError, OSError)


def _values(column: pa.Array) -> list[Any]:
    """A column as Python values; equal texts are one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    if (pc.max(pc.binary_length(column.dictionary)).as_py() or 0) > LONGEST:
        raise too_long()
    words = column.dictionary.to_pylist()
    return [None if i is None else words[i] for i in column.indices.to_pylist()]
