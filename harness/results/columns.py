"""The parquet files of a result folder, requests and telemetry: written at the end of a run, and read back.

A file may come from anybody. Before a row is read its metadata must be within reason for the file's size: compressed,
10 million rows fit into a megabyte. Then its columns must be those that the run wrote, and its rows those of a run.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from harness.base import decoding, files
from harness.data.record import Header, Level, Record, Sample, check_format, phase_of, tokens_of
from harness.results import frames

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

# Columns of requests.parquet that do not carry the record's own name or need another type.
PLAIN = [
    ("request_id", "string"), ("level", "int32"), ("repeat", "int32"), ("concurrency", "int32"), ("worker", "int32"),
    ("url", "string"), ("class_", "string"), ("session_id", "string"), ("turn", "int32"), ("scheduled_s", "float64"),
    ("sent_s", "float64"), ("connect_s", "float64"), ("first_token_s", "float64"), ("first_content_s", "float64"),
    ("last_token_s", "float64"), ("done_s", "float64"), ("input_tokens", "int64"), ("cached_tokens", "int64"),
    ("output_tokens", "int64"), ("reasoning_tokens", "int64"), ("token_source", "string"), ("status", "int32"),
    ("error", "string"), ("error_message", "string"), ("finish_reason", "string"), ("bytes_received", "int64"),
    ("merged", "int32"), ("tls_s", "float64"), ("lumped", "int32"), ("canary", "int32"), ("differs_at", "int32"),
    ("flaw", "string"), ("score", "float64"), ("noted", "string"),
]  # fmt: skip
_LISTS = {"arrivals_s": "list<element: double>", "arrival_tokens": "list<element: int32>"}
_SAMPLES = {"time_s": "float64", "source": "string", "metric": "string", "value": "float64"}
_TEXTS = [name.rstrip("_") for name, kind in PLAIN if kind == "string"]
_ROW_GROUP, _ROWS_AT_ONCE = 8192, 1024  # requests written and read at once: memory stays small
_GROUP_BYTES = 16 << 20  # bytes of arrivals, from which on a group has fewer requests: answers may be long
_SLACK = 4096  # rows that a file of any size may have
_BYTES_A_REQUEST = 4  # at least: on a virtual clock times repeat, and a request of one token took 6.8; usually 200
_BYTES_A_SAMPLE = 1  # at least; usually 4 to 6
_VALUES_A_BYTE = 4  # most values for each byte of the file: arrivals and their tokens; usually 0.5
_EXPANDS = 50  # data over the file's size, at most; usually 2 to 3
_LONGEST_TEXT = 65_536  # bytes of one text
_GRID = 2.0**26  # parquet keeps arrivals to 1/2^26 s, 15 ns, far below their error: half the bytes of a full double
_WAY_OUT = "was it changed? restore it"
_NO_TELEMETRY = "restore it, or move it away and the run is read without telemetry"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The run's description in requests.parquet, under `knee` in its metadata."""

    header: dict[str, Any]
    levels: list[Level]


def requests(path: Path) -> tuple[Header, list[Level], list[Record]]:
    """Read the header, the levels and the records of a requests.parquet."""
    import pyarrow as pa

    with _opened(path, _TEXTS, "a requests.parquet of this project", _WAY_OUT, _BYTES_A_REQUEST) as file:
        known = {field.name: field.type for field in msgspec.structs.fields(Record)}
        optional = {field.name for field in msgspec.structs.fields(Record) if field.default is not msgspec.NODEFAULT}
        header, levels = _about(file.schema_arrow.metadata or {})
        wanted = {name: kind for name, kind in PLAIN if name.rstrip("_") in file.schema_arrow.names}
        missing = [name for name, _ in PLAIN if name not in wanted and name not in optional]  # an older file has fewer
        _must_have(file, {name.rstrip("_"): kind for name, kind in wanted.items()} | _LISTS, missing)
        nullable = {name for name in wanted if type(None) in getattr(known[name], "__args__", ())}
        records: list[Record] = []
        known_levels = {level.index for level in levels}
        columns = [*(n.rstrip("_") for n in wanted), *_LISTS]
        for group in range(file.num_row_groups):  # one by one: a batch over several would be as large as they are
            for rows in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=columns):
                some = list(_records(rows, list(wanted), nullable))
                if not frames.all_sound(some, known_levels):
                    raise pa.ArrowInvalid("it holds requests beyond reason")
                records += some
    return header, levels, records


def telemetry(path: Path) -> list[Sample]:
    """Read the samples of a telemetry.parquet."""
    what = "a telemetry.parquet of this project"
    with _opened(path, ("source", "metric"), what, _NO_TELEMETRY, _BYTES_A_SAMPLE) as file:
        _must_have(file, _SAMPLES, [])
        samples = []
        for rows in file.iter_batches(_ROWS_AT_ONCE, columns=list(_SAMPLES)):
            found = [Sample(*row) for row in zip(*(_values(rows, name, null=False) for name in _SAMPLES), strict=True)]
            if not all(map(frames.sound_sample, found)):
                raise ValueError("it holds telemetry beyond reason")
            samples += found
    return samples


@contextlib.contextmanager
def _opened(path: Path, texts: Collection[str], what: str, way_out: str, least: int) -> Iterator[pq.ParquetFile]:
    """Open a parquet file; refuse one that says it has more rows than its size allows at `least` bytes a row.

    Its columns `texts` are read with each text once: a million rows of a long one are small in the file.
    Whatever Arrow finds wrong with it while the block reads becomes one line.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with decoding.reading(str(path), what, way_out), files.opened(path) as source:
        try:
            names = [name for name in pq.read_schema(source).names if name in texts]
            source.seek(0)
            with pq.ParquetFile(source, read_dictionary=names) as file:
                _bounded(file, path.stat().st_size, least)
                yield file
        except MemoryError:
            raise ValueError("it asks for more memory than there is") from None
        except (pa.ArrowException, KeyError, TypeError, IndexError) as error:  # ArrowInvalid is a ValueError too
            raise ValueError(str(error)) from None


def _bounded(file: pq.ParquetFile, size: int, least: int) -> None:
    """Raise ValueError for a parquet file that says it holds more rows or arrivals than its size allows."""
    _sized(file.metadata, size, least)
    for name in set(_LISTS).intersection(file.schema_arrow.names):
        # Reading the metadata of a damaged column ends the process; scanned first, piece by piece, it is an error.
        file.scan_contents([name])
    _counted(file.metadata, size)


def _sized(metadata: pq.FileMetaData, size: int, least: int) -> None:
    """Raise ValueError for a file with more rows, of `least` bytes each, or more bytes in it than its size allows."""
    must_fit(metadata, size, rows=_SLACK + size / least, expanded=_EXPANDS * (_SLACK + size))


def must_fit(metadata: pq.FileMetaData, size: int, *, rows: float = math.inf, expanded: float) -> None:
    """Raise ValueError for a parquet file of `size` bytes that says it holds more rows or bytes than these."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    count, total_bytes = sum(group.num_rows for group in groups), sum(group.total_byte_size for group in groups)
    if count != metadata.num_rows or min([group.num_rows for group in groups], default=0) < 0:
        raise ValueError("its row groups are not its rows")
    if count > rows:
        raise ValueError(f"it says that {size:,} bytes hold {count:,} rows")
    if total_bytes > expanded:
        raise ValueError(f"it says that {size:,} bytes hold {total_bytes:,}")


def _counted(metadata: pq.FileMetaData, size: int) -> None:
    """Raise ValueError for a parquet file that says it holds more arrivals than its size allows."""
    schema = metadata.schema
    leaves = [i for i in range(len(schema)) if schema.column(i).path.partition(".")[0] in _LISTS]
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    values = sum(group.column(leaf).num_values for group in groups for leaf in leaves)
    if values > _SLACK + _VALUES_A_BYTE * size:
        raise ValueError(f"it says that {size:,} bytes hold {values:,} arrivals")


def _must_have(file: pq.ParquetFile, wanted: Mapping[str, str], missing: list[str]) -> None:
    """Raise ValueError for a parquet file that lacks a wanted column or has one of another type.

    `missing` names columns that are known to be lacking.
    """
    schema = file.schema_arrow
    missing = missing + [name for name in wanted if name not in schema.names]
    if missing:
        raise ValueError(f"it has no column {missing[0].rstrip('_')}")
    for name, kind in wanted.items():
        found = str(schema.field(name).type).replace("double", "float64")
        if found not in (kind.replace("double", "float64"), _DICTIONARY if kind == "string" else ""):
            raise ValueError(f"its column {name} is of type {found}, not {kind}")


_DICTIONARY = "dictionary<values=string, indices=int32, ordered=0>"


def _about(metadata: Mapping[bytes, bytes]) -> tuple[Header, list[Level]]:
    """Return the header and the levels that a requests file's metadata holds; raise ValueError if they are no run's."""
    if b"knee" not in metadata:
        raise ValueError("it does not say of which run it is")
    about = decoding.typed(decoding.json(metadata[b"knee"]), About)
    header = decoding.typed({key: value for key, value in about.header.items() if key != "kind"}, Header)
    check_format(header.format)
    levels: dict[int, Level] = {}
    for level in about.levels:
        why = "an index that another has" if level.index in levels else frames.unsound_level(level, levels)
        if why:
            raise ValueError(f"it holds a level with {why}")
        levels[level.index] = level
    return header, list(levels.values())


def _records(rows: pa.RecordBatch, names: list[str], nullable: set[str]) -> Iterator[Record]:
    """Yield the records of a batch of rows; raise ValueError if arrivals are null, without tokens, or beyond reason."""
    import numpy as np

    arrivals, counts = rows.column("arrivals_s"), rows.column("arrival_tokens")
    tokens = counts.flatten()
    times = arrivals.flatten()
    if arrivals.null_count or counts.null_count or tokens.null_count or times.null_count:
        raise ValueError("it holds arrivals that are none")
    seconds = np.asarray(np.from_dlpack(times), np.float64)  # to_numpy would import pandas
    if not bool((np.abs(seconds) < frames.LATEST_S).all()):
        raise ValueError("it holds arrivals beyond reason")
    lengths = np.from_dlpack(arrivals.value_lengths())
    if not np.array_equal(lengths, np.from_dlpack(counts.value_lengths())):
        raise ValueError("it holds arrivals without their tokens")
    stamps = np.rint(seconds * 1e9).astype(np.int64).tobytes()
    each = np.from_dlpack(tokens)
    cells = [_values(rows, name.rstrip("_"), null=name in nullable) for name in names]
    low = 0
    for high, *row in zip(np.cumsum(lengths).tolist(), *cells, strict=True):
        mine = each[low:high]
        packed = b"" if (mine == 1).all() else mine.tobytes()
        record = dict(zip(names, row, strict=True))
        yield Record(**record, arrivals=stamps[8 * low : 8 * high], tokens=packed)
        low = high


def _values(rows: pa.RecordBatch, name: str, *, null: bool) -> list[Any]:
    """Return a column's values as Python objects, equal texts as one; raise ValueError for a gap unless `null`."""
    column = rows.column(name)
    if column.null_count and not null:
        raise ValueError(f"its column {name} has gaps")
    return values(column, _LONGEST_TEXT, f"its column {name} holds a text of more than {_LONGEST_TEXT:,} bytes")


def values(column: pa.Array, longest: int, why: str) -> list[Any]:
    """Return an Arrow column as Python objects, one for equal texts; ValueError(why) for a text of more bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    if (pc.max(pc.binary_length(column.dictionary)).as_py() or 0) > longest:
        raise ValueError(why)
    texts = column.dictionary.to_pylist()
    return [None if i is None else texts[i] for i in column.indices.to_pylist()]


# ---- written ----------------------------------------------------------------------------------------------


def array(values: Sequence[Any] | np.ndarray, kind: str) -> pa.Array:
    """Return the values, shape [n], as an Arrow array of type `kind` (string or a number type); None is null.

    It is made of its buffers, since `pyarrow.array` would import pandas, which takes a while. The layouts are those of
    the Arrow columnar format, "Fixed-size Primitive" and "Variable-size Binary".
    """
    import numpy as np
    import pyarrow as pa

    validity, gaps = None, [] if isinstance(values, np.ndarray) else [value is None for value in values]
    if any(gaps):
        validity = pa.py_buffer(np.packbits(np.logical_not(gaps), bitorder="little"))
    if kind == "string":
        texts = [b"" if value is None else value.encode() for value in values]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(texts)), validity)
    numbers = np.asarray([0 if value is None else value for value in values] if any(gaps) else values, dtype=kind)
    return pa.Array.from_buffers(pa.type_for_alias(kind), len(numbers), [validity, pa.py_buffer(numbers)])


def ordered(records: Sequence[Record]) -> list[Record]:
    """Return records in the order they were sent; those that never were come last."""
    return sorted(records, key=lambda r: (r.sent_s is None, r.sent_s, r.request_id))


def table(records: Sequence[Record], header: Header, levels: Sequence[Level]) -> pa.Table:
    """Return some of a run's requests as an Arrow table with the columns of requests.parquet."""
    import numpy as np
    import pyarrow as pa

    by_index = {level.index: level for level in levels}
    cells: dict[str, Any] = {}
    for name, kind in PLAIN:
        cells[name.rstrip("_")] = array([getattr(record, name) for record in records], kind)
    cells["phase"] = array(
        [phase_of(r.sent_s if r.sent_s is not None else r.scheduled_s, by_index[r.level]) for r in records], "string"
    )
    counts = np.fromiter((len(record.arrivals) // 8 for record in records), dtype=np.int64, count=len(records))
    offsets = array(np.concatenate([[0], np.cumsum(counts)]), "int32")
    stamps = np.frombuffer(b"".join(record.arrivals for record in records), dtype=np.int64)
    tokens = np.frombuffer(b"".join(tokens_of(record).tobytes() for record in records), dtype=np.int32)
    arrivals_s = (stamps * 1e-9 * _GRID).round() / _GRID
    cells["arrivals_s"] = pa.ListArray.from_arrays(offsets, array(arrivals_s, "float64"))
    cells["arrival_tokens"] = pa.ListArray.from_arrays(offsets, array(tokens, "int32"))
    about = {"header": msgspec.to_builtins(header), "levels": msgspec.to_builtins(levels)}
    return pa.table(cells).replace_schema_metadata({b"knee": json.dumps(about).encode()})


def _groups(rows: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Yield the records in groups, at most _ROW_GROUP records and about _GROUP_BYTES of arrivals each; at least one."""
    first = size = 0
    for i, row in enumerate(rows):
        size += len(row.arrivals)
        if i + 1 - first == _ROW_GROUP or size >= _GROUP_BYTES:
            yield rows[first : i + 1]
            first, size = i + 1, 0
    if first < len(rows) or not rows:
        yield rows[first:]


def write_requests(path: Path, header: Header, levels: Sequence[Level], records: Sequence[Record]) -> None:
    """Write a new requests.parquet, whole.

    Where a server sends long answers at once, all of an answer's arrivals are one time, and shrink so much that a
    reader would not believe the file. Such a one is written without compression.
    """
    for compression in ("zstd", "none"):
        with files.replacing(path) as part:
            metadata, size = _write(part, header, levels, records, compression), part.tell()
        try:
            _sized(metadata, size, _BYTES_A_REQUEST)
            _counted(metadata, size)
            break
        except ValueError:
            continue


def _write(
    part: BinaryIO, header: Header, levels: Sequence[Level], records: Sequence[Record], compression: str
) -> pq.FileMetaData:
    """Write the records as a parquet file; return its metadata."""
    import pyarrow.parquet as pq

    times = [n for n, k in PLAIN if k == "float64"] + ["arrivals_s.list.element"]
    names = [n.rstrip("_") for n, k in PLAIN if k != "float64"] + ["phase", "arrival_tokens.list.element"]
    groups = _groups(ordered(records))
    first = table(next(groups), header, levels)
    # Times share their high bytes: split by byte and compressed, a stamp costs 2 to 3 bytes.
    encoding = dict.fromkeys(times, "BYTE_STREAM_SPLIT")
    written: list[pq.FileMetaData] = []
    try:
        with pq.ParquetWriter(
            part, first.schema, compression=compression, compression_level=9 if compression == "zstd" else None,
            column_encoding=encoding, use_dictionary=names, metadata_collector=written,
        ) as file:  # fmt: skip
            file.write_table(first)
            for group in groups:
                file.write_table(table(group, header, levels))
    except RuntimeError as error:  # the writer's own end fails too, and hides that the disk is full
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
    return written[0]


def write_telemetry(path: Path, samples: Sequence[Sample]) -> None:
    """Write a new telemetry.parquet, whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    cells = {name: array([getattr(sample, name) for sample in samples], kind) for name, kind in _SAMPLES.items()}
    for compression in ("zstd", "none"):
        content = pa.BufferOutputStream()
        pq.write_table(pa.table(cells), content, compression=compression, use_dictionary=["source", "metric"])
        packed = content.getvalue()
        if packed.size >= _BYTES_A_SAMPLE * len(samples):  # else an idle server's, so small that `_bounded` refuses it
            break
    with files.replacing(path) as part:
        part.write(packed)
