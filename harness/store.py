"""A result folder: what is written while a run lives, and how any folder, finished or dead, is read back.

While running, everything goes to one file, `requests.spool`: frames of `u32 length, u32 crc32, payload`, appended
whole. A payload that is a msgpack array is a batch of records, verbatim as the worker sent it; a payload that is a
map is a header, a level or a handful of telemetry rows. Cut anywhere, every whole frame reads. At the end the spool
becomes `requests.parquet` and `telemetry.parquet` and goes away; a run that is resumed turns them back first. Where
both stand, one of the two was cut off in doing so: they hold the same, and the spool is the whole one.

What a frame says is with the operating system when `write` returns: it survives the death of every process, not
that of the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from harness import files
from harness.errors import HarnessError
from harness.record import FORMAT, Level, Record, phase_of, tokens_of

if TYPE_CHECKING:
    import pandas

SPOOL, REQUESTS, TELEMETRY = "requests.spool", "requests.parquet", "telemetry.parquet"
MANIFEST, SUMMARY = "manifest.json", "summary.json"
FOR_PEOPLE = ("curve.png", "report.html", "report.md")
WRITTEN = (MANIFEST, SPOOL, REQUESTS, TELEMETRY, SUMMARY, *FOR_PEOPLE)
_HEAD = struct.Struct("<II")
_ROW_GROUP, _ROWS_AT_ONCE = 8192, 1024  # requests written and read at once: beside the records memory stays small
_LONGEST = 1 << 30  # a length beyond this is not ours: the file is damaged there


class Header(msgspec.Struct, frozen=True, tag="header", tag_field="kind"):
    """The spool's first frame: how to read the rest without this program."""

    format: int
    fields: tuple[str, ...]
    monotonic_ns_origin: int  # CLOCK_MONOTONIC at t = 0
    unix_origin: float


class LevelFrame(msgspec.Struct, frozen=True, tag="level", tag_field="kind"):
    level: Level


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One telemetry figure: when, who said it (server | client | host | gpu), its name, its value."""

    time_s: float
    source: str
    metric: str
    value: float


class TelemetryFrame(msgspec.Struct, frozen=True, tag="telemetry", tag_field="kind"):
    samples: list[Sample]


Frame = Header | LevelFrame | TelemetryFrame
_encode = msgspec.msgpack.Encoder().encode
_decode_map = msgspec.msgpack.Decoder(Frame).decode
_decode_batch = msgspec.msgpack.Decoder(list[Record]).decode


def frame(payload: bytes) -> bytes:
    """A payload with its length and checksum in front."""
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def batch(records: Sequence[Record]) -> bytes:
    """The payload of a batch; what a worker sends is what the file holds."""
    return _encode(list(records))


def is_batch(payload: bytes) -> bool:
    """Whether a payload is a batch of records: msgpack has three heads for an array."""
    return payload[0] & 0xF0 == 0x90 or payload[0] in (0xDC, 0xDD)


def payloads(data: bytes) -> Iterator[bytes]:
    """Every whole, undamaged payload from the start of the data; stops at the first that is not."""
    at = 0
    while at + _HEAD.size <= len(data):
        length, crc = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        if length > _LONGEST or end > len(data):
            return
        payload = data[at + _HEAD.size : end]
        if zlib.crc32(payload) != crc:
            return
        yield payload
        at = end


class Run(msgspec.Struct, kw_only=True):
    """A result folder read back."""

    path: Path
    manifest: dict[str, Any]
    header: Header
    levels: list[Level]
    records: list[Record]
    samples: list[Sample]
    complete: bool  # the run ended by itself and wrote its parquet

    @property
    def last_s(self) -> float:
        """The last moment that anything here tells of, seconds since the origin."""
        moments = itertools.chain(
            (s.time_s for s in self.samples),
            (max(r.scheduled_s, r.sent_s or 0.0, r.done_s or 0.0) for r in self.records),
            (max(level.begin_s, level.window_end_s or 0.0, level.end_s or 0.0) for level in self.levels),
        )
        return max(moments, default=0.0)


class Spool:
    """The one writer of a run's folder. A frame is written whole or not at all.

    Without a header: the spool of a run that ended early, to go on behind its last whole frame.
    """

    def __init__(self, folder: Path, header: Header | None = None) -> None:
        self._place = str(folder / SPOOL)
        if header is not None:
            self._fd = files.appending(folder / SPOOL, new=True)
            self._end = 0
            self.write(_encode(header))
            return
        if not (folder / SPOOL).exists():
            _unpack(folder)
        self._fd = files.appending(folder / SPOOL, new=False)
        files.remove(folder, (REQUESTS, TELEMETRY))
        self._end = sum(_HEAD.size + len(payload) for payload in payloads(files.read(folder / SPOOL)))
        os.ftruncate(self._fd, self._end)

    def write(self, payload: bytes) -> None:
        """Append one payload, verbatim; what does not fit is taken back, so that what follows reads."""
        data = frame(payload)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
            self._end += len(data)
        except OSError as error:
            os.ftruncate(self._fd, self._end)
            raise HarnessError(
                f"cannot write what is measured: {error.strerror}",
                place=self._place,
                way_out="make room, then go on with `knee run --resume`",
            ) from None

    def level(self, level: Level) -> None:
        self.write(_encode(LevelFrame(level)))

    def telemetry(self, samples: list[Sample]) -> None:
        self.write(_encode(TelemetryFrame(samples)))

    def close(self) -> None:
        os.close(self._fd)


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Nobody else runs into this folder meanwhile; a process that dies lets go of it."""
    fd = files.real_folder(folder, way_out="give the --out of a run")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise HarnessError(
            "another process is still writing into it", place=str(folder), way_out="wait for its end"
        ) from None
    finally:
        os.close(fd)


def header(monotonic_ns_origin: int, unix_origin: float) -> Header:
    return Header(FORMAT, tuple(f.name for f in msgspec.structs.fields(Record)), monotonic_ns_origin, unix_origin)


def create(path: str | Path) -> Path:
    """A new result folder; one that holds something is the operator's mistake, nothing is overwritten."""
    folder, way_out = Path(path), "choose another --out"
    files.make_folder(folder, way_out=way_out)
    try:
        empty = not any(folder.iterdir())
    except OSError as error:
        raise HarnessError(error.strerror or str(error), place=str(folder), way_out=way_out) from None
    if not empty:
        raise HarnessError("the folder is not empty", place=str(folder), way_out=way_out)
    files.write(folder / MANIFEST, "{}\n", way_out=way_out)  # says now, not after the load, that it cannot be written
    return folder


def fresh(name: str) -> Path:
    """Where a run that was given no folder leaves its result."""
    results = Path("results")
    files.make_folder(results, way_out="give --out")
    return files.child(results, name)


def json_text(value: Any) -> str:
    """How every JSON file here is written."""
    return json.dumps(msgspec.to_builtins(value), indent=1, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one step, so that a reader never sees half of it."""
    files.write(path, json_text(value))


def manifest(path: str | Path) -> dict[str, Any]:
    """What a folder's manifest says; empty where there is none."""
    folder = Path(path)
    if not folder.is_dir():
        raise HarnessError("no such result folder", place=str(folder), way_out="give the --out of a run")
    if not (folder / MANIFEST).exists():
        return {}
    said: dict[str, Any] = json.loads(files.read(folder / MANIFEST))
    return said


def read(path: str | Path) -> Run:
    """Any result folder: finished (parquet) or dead in the middle (spool)."""
    folder, said = Path(path), manifest(path)
    if (folder / SPOOL).exists():
        return _read_spool(folder, said)
    if (folder / REQUESTS).exists():
        head, levels, records = _read_requests(folder / REQUESTS)
        samples = _read_telemetry(folder / TELEMETRY)
        return Run(
            path=folder, manifest=said, header=head, levels=levels, records=records, samples=samples, complete=True
        )
    raise HarnessError("neither requests.parquet nor requests.spool here", place=str(folder), way_out="was it a run?")


def _read_spool(folder: Path, said: dict[str, Any]) -> Run:
    head: Header | None = None
    levels: dict[int, Level] = {}
    records: list[Record] = []
    samples: list[Sample] = []
    for payload in payloads(files.read(folder / SPOOL)):
        if is_batch(payload):
            records += _decode_batch(payload)
            continue
        item = _decode_map(payload)
        if isinstance(item, Header):
            head = item
        elif isinstance(item, LevelFrame):
            levels[item.level.index] = item.level
        else:
            samples += item.samples
    if head is None:
        raise HarnessError("the spool ends before its first frame", place=str(folder), way_out="nothing was measured")
    ordered = [levels[index] for index in sorted(levels)]
    return Run(
        path=folder, manifest=said, header=head, levels=ordered, records=records, samples=samples, complete=False
    )


def finish(folder: Path) -> Run:
    """Turn the spool into requests.parquet and telemetry.parquet; the spool goes only when both are whole."""
    run = _read_spool(folder, {})
    _write_requests(folder / REQUESTS, run)
    _write_telemetry(folder / TELEMETRY, run.samples)
    files.remove(folder, (SPOOL,))
    del run  # not two of them at once
    return read(folder)


def _unpack(folder: Path) -> None:
    """Turn the parquet files of a run that was interrupted back into the spool that they were."""
    run = read(folder)
    with files.replacing(folder / SPOOL) as file:
        file.write(frame(_encode(run.header)))
        file.writelines(frame(_encode(LevelFrame(level))) for level in run.levels)
        for i in range(0, len(run.records), _ROWS_AT_ONCE):
            file.write(frame(batch(run.records[i : i + _ROWS_AT_ONCE])))
        for i in range(0, len(run.samples), _ROWS_AT_ONCE):
            file.write(frame(_encode(TelemetryFrame(run.samples[i : i + _ROWS_AT_ONCE]))))


# Columns of requests.parquet that do not carry the record's own name or need another type.
_PLAIN = [
    ("request_id", "string"), ("level", "int32"), ("repeat", "int32"), ("concurrency", "int32"), ("worker", "int32"),
    ("url", "string"), ("class_", "string"), ("session_id", "string"), ("turn", "int32"), ("scheduled_s", "float64"),
    ("sent_s", "float64"), ("connect_s", "float64"), ("first_token_s", "float64"), ("first_content_s", "float64"),
    ("last_token_s", "float64"), ("done_s", "float64"), ("input_tokens", "int64"), ("cached_tokens", "int64"),
    ("output_tokens", "int64"), ("reasoning_tokens", "int64"), ("token_source", "string"), ("status", "int32"),
    ("error", "string"), ("error_message", "string"), ("finish_reason", "string"), ("bytes_received", "int64"),
    ("merged", "int32"), ("tls_s", "float64"), ("lumped", "int32"),
]  # fmt: skip


_GRID = 2.0**26  # parquet keeps arrivals to 1/2^26 s, 15 ns, far below their error: half the bytes of a full double


def _kept(seconds: Any) -> Any:
    """Times on the grid of the parquet."""
    return (seconds * _GRID).round() / _GRID


def _ordered(records: Sequence[Record]) -> list[Record]:
    """In the order they were sent; those that never were stand last."""
    return sorted(records, key=lambda r: (r.sent_s is None, r.sent_s, r.request_id))


def _requests_table(records: Sequence[Record], run: Run) -> Any:
    """Some of the run's requests as an Arrow table with the columns of requests.parquet."""
    import numpy as np
    import pyarrow as pa

    by_index = {level.index: level for level in run.levels}
    columns: dict[str, Any] = {}
    for name, kind in _PLAIN:
        columns[name.rstrip("_")] = pa.array([getattr(r, name) for r in records], type=kind)
    columns["phase"] = pa.array(
        [phase_of(r.sent_s if r.sent_s is not None else r.scheduled_s, by_index[r.level]) for r in records],
        type="string",
    )
    counts = np.fromiter((len(r.arrivals) // 8 for r in records), dtype=np.int64, count=len(records))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    stamps = np.frombuffer(b"".join(r.arrivals for r in records), dtype=np.int64)
    tokens = np.frombuffer(b"".join(tokens_of(r).tobytes() for r in records), dtype=np.int32)
    columns["arrivals_s"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(_kept(stamps * 1e-9)))
    columns["arrival_tokens"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))
    about = {"header": msgspec.to_builtins(run.header), "levels": msgspec.to_builtins(run.levels)}
    return pa.table(columns).replace_schema_metadata({b"knee": json.dumps(about).encode()})


def requests(path: str | Path) -> pandas.DataFrame:
    """The requests of any result folder as a data frame, a row a request; the columns of requests.parquet."""
    run = read(path)
    return _requests_table(_ordered(run.records), run).to_pandas()


def _write_requests(path: Path, run: Run) -> None:
    import pyarrow.parquet as pq

    times = [n for n, k in _PLAIN if k == "float64"] + ["arrivals_s.list.element"]
    names = [n.rstrip("_") for n, k in _PLAIN if k != "float64"] + ["phase", "arrival_tokens.list.element"]
    records = _ordered(run.records)
    groups = (records[i : i + _ROW_GROUP] for i in range(0, len(records) or 1, _ROW_GROUP))
    first = _requests_table(next(groups), run)
    # Times share their high bytes: split by byte and compressed, a stamp costs 2 to 3 bytes.
    encoding = dict.fromkeys(times, "BYTE_STREAM_SPLIT")
    with (
        files.replacing(path) as part,
        pq.ParquetWriter(
            part, first.schema, compression="zstd", compression_level=9, column_encoding=encoding, use_dictionary=names
        ) as file,
    ):
        file.write_table(first)
        for group in groups:
            file.write_table(_requests_table(group, run))


def _read_requests(path: Path) -> tuple[Header, list[Level], list[Record]]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    files.opened(path).close()  # a FIFO would never end
    try:
        file = pq.ParquetFile(path)
        about = json.loads(file.schema_arrow.metadata[b"knee"])
    except (pa.ArrowInvalid, KeyError, TypeError):
        raise HarnessError(
            "not a requests.parquet of this project", place=str(path), way_out="was it changed?"
        ) from None
    fields = {key: value for key, value in about["header"].items() if key != "kind"}
    head = msgspec.convert(fields, Header)
    if head.format != FORMAT:
        raise HarnessError(
            f"format {head.format}, this program reads {FORMAT}", place=str(path), way_out="use its version"
        )
    levels = msgspec.convert(about["levels"], list[Level])
    names = [name for name, _ in _PLAIN if name.rstrip("_") in file.schema_arrow.names]  # an older file has fewer
    records = []
    with file:
        for rows in file.iter_batches(_ROWS_AT_ONCE):
            arrivals, tokens = rows.column("arrivals_s"), rows.column("arrival_tokens").flatten().to_numpy()
            stamps = np.rint(arrivals.flatten().to_numpy() * 1e9).astype(np.int64).tobytes()
            ends = np.cumsum(arrivals.value_lengths().to_numpy()).tolist()
            columns = [rows.column(name.rstrip("_")).to_pylist() for name in names]
            low = 0
            for high, *row in zip(ends, *columns, strict=True):
                mine = tokens[low:high]
                packed = b"" if (mine == 1).all() else mine.tobytes()
                record = dict(zip(names, row, strict=True))
                records.append(Record(**record, arrivals=stamps[8 * low : 8 * high], tokens=packed))
                low = high
    return head, levels, records


def _write_telemetry(path: Path, samples: list[Sample]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "time_s": pa.array([s.time_s for s in samples], type="float64"),
        "source": pa.array([s.source for s in samples], type="string"),
        "metric": pa.array([s.metric for s in samples], type="string"),
        "value": pa.array([s.value for s in samples], type="float64"),
    }
    with files.replacing(path) as part:
        pq.write_table(pa.table(columns), part, compression="zstd", use_dictionary=["source", "metric"])


def _read_telemetry(path: Path) -> list[Sample]:
    if not path.exists():
        return []
    files.opened(path).close()
    import pyarrow.parquet as pq

    columns = pq.read_table(path).to_pydict()
    return [Sample(*row) for row in zip(*(columns[k] for k in ("time_s", "source", "metric", "value")), strict=True)]
