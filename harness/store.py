"""A result folder: what is written while a run lives, and how any folder, finished or dead, is read back.

While running, everything goes to one file, `requests.spool`: frames (harness.frames), appended whole. Cut or damaged
anywhere, every whole frame before that reads, and the run says what is lost. At the end the spool
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
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from harness import arrow, columns, decoding, files, frames
from harness import manifest as manifests
from harness.errors import HarnessError
from harness.frames import Header as Header
from harness.frames import LevelFrame, TelemetryFrame
from harness.frames import Sample as Sample
from harness.frames import batch as batch
from harness.frames import frame as frame
from harness.frames import is_batch as is_batch
from harness.frames import payloads as payloads
from harness.record import FORMAT, Level, Record, phase_of, tokens_of

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")

SPOOL, REQUESTS, TELEMETRY = "requests.spool", "requests.parquet", "telemetry.parquet"
MANIFEST, SUMMARY = "manifest.json", "summary.json"
FOR_PEOPLE = ("curve.png", "report.html", "report.md")
WRITTEN = (MANIFEST, SPOOL, REQUESTS, TELEMETRY, SUMMARY, *FOR_PEOPLE)
_ROW_GROUP, _ROWS_AT_ONCE = 8192, 1024  # requests written and read at once: beside the records memory stays small


class Run(msgspec.Struct, kw_only=True):
    """A result folder read back."""

    path: Path
    manifest: dict[str, Any]
    header: Header
    levels: list[Level]
    records: list[Record]
    samples: list[Sample]
    complete: bool  # the run ended by itself and wrote its parquet
    damage: str = ""  # why the end of its spool could not be read

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
            self.write(frames.encode(header))
            return
        if not (folder / SPOOL).exists():
            _unpack(folder)
        self._fd = files.appending(folder / SPOOL, new=False)
        files.remove(folder, (REQUESTS, TELEMETRY))
        self._end = _set_aside(folder)
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
        self.write(frames.encode(LevelFrame(level)))

    def telemetry(self, samples: list[Sample]) -> None:
        self.write(frames.encode(TelemetryFrame(samples)))

    def close(self) -> None:
        os.close(self._fd)


def _set_aside(folder: Path) -> int:
    """Bytes of the spool's whole frames. What stands behind them is kept apart, unless it is zeros."""
    found = frames.read(folder / SPOOL)
    if found.damage is None or found.damage.why == frames.ZEROS:
        return found.end
    rest = next(each for n in itertools.count(1) if not os.path.lexists(each := folder / f"{SPOOL}.damaged-{n}"))
    with files.replacing(rest) as aside, files.opened(folder / SPOOL) as file:
        file.seek(found.end)
        shutil.copyfileobj(file, aside)
    return found.end


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
    file = folder / MANIFEST
    if not file.exists():
        return {}
    way_out = "restore it"
    if (folder / SPOOL).exists() or (folder / REQUESTS).exists():
        way_out = "what was measured lies beside it: restore it, or move it away and `knee report` reads without it"
    with decoding.reading(str(file), "a manifest of this project", way_out):
        said = decoding.json(decoding.content(file))
        kept = decoding.typed(said, manifests.Manifest)
        if kept.format != FORMAT:
            raise ValueError(f"it has format {kept.format}, this program reads {FORMAT}")
        shown: dict[str, Any] = said
    return shown


def typed(folder: Path, value: Any, kind: type[T]) -> T:
    """A part of a folder's manifest as that type, which only some readers need."""
    with decoding.reading(str(folder / MANIFEST), "a manifest of this project", "restore it"):
        return decoding.typed(value, kind)


def must_go_on(folder: Path, said: dict[str, Any]) -> None:
    """Refuse a manifest that lacks something a run or a level map needs to be gone on with."""
    typed(folder, said, manifests.Begun)
    if "workload" not in said:
        typed(folder, said, manifests.BegunMap)
        return
    typed(folder, said, manifests.BegunRun)
    loaded = [sitting for sitting in said.get("sittings", []) if "began_s" in sitting]
    if not loaded:
        raise HarnessError("nothing was measured in it that could go on", place=str(folder), way_out="run anew")
    typed(folder, loaded[:-1], list[manifests.Ended])
    typed(folder, loaded[-1], manifests.Loaded)


def read(path: str | Path) -> Run:
    """Any result folder: finished (parquet) or dead in the middle (spool)."""
    folder, said = Path(path), manifest(path)
    if isinstance(said.get("simulated"), bool):
        raise HarnessError("a level map, not a run", place=str(folder), way_out="give the folder of one of its cells")
    if (folder / SPOOL).exists():
        return _read_spool(folder, said)
    if (folder / REQUESTS).exists():
        head, levels, records = columns.requests(folder / REQUESTS)
        samples = columns.telemetry(folder / TELEMETRY) if (folder / TELEMETRY).exists() else []
        return Run(
            path=folder, manifest=said, header=head, levels=levels, records=records, samples=samples, complete=True
        )
    raise HarnessError("neither requests.parquet nor requests.spool here", place=str(folder), way_out="was it a run?")


def _read_spool(folder: Path, said: dict[str, Any]) -> Run:
    place = str(folder / SPOOL)
    with decoding.reading(place, "a spool", "restore it"):
        found = frames.read(folder / SPOOL)
    if found.header is None:
        raise HarnessError(_no_header(found), place=place, way_out="nothing was measured, or it was changed: run anew")
    levels = [found.levels[index] for index in sorted(found.levels)]
    return Run(
        path=folder, manifest=said, header=found.header, levels=levels, records=found.records, samples=found.samples,
        complete=False, damage=str(found.damage or ""),
    )  # fmt: skip


def _no_header(found: frames.Spooled) -> str:
    if found.damage is None or found.damage.at == found.damage.size:
        return "it ends before its first frame"
    return f"its first frame cannot be read: it {found.damage.why}"


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
        file.write(frame(frames.encode(run.header)))
        file.writelines(frame(frames.encode(LevelFrame(level))) for level in run.levels)
        for i in range(0, len(run.records), _ROWS_AT_ONCE):
            file.write(frame(batch(run.records[i : i + _ROWS_AT_ONCE])))
        for i in range(0, len(run.samples), _ROWS_AT_ONCE):
            file.write(frame(frames.encode(TelemetryFrame(run.samples[i : i + _ROWS_AT_ONCE]))))


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
    cells: dict[str, Any] = {}
    for name, kind in columns.PLAIN:
        cells[name.rstrip("_")] = arrow.array([getattr(r, name) for r in records], kind)
    cells["phase"] = arrow.array(
        [phase_of(r.sent_s if r.sent_s is not None else r.scheduled_s, by_index[r.level]) for r in records], "string"
    )
    counts = np.fromiter((len(r.arrivals) // 8 for r in records), dtype=np.int64, count=len(records))
    offsets = arrow.array(np.concatenate([[0], np.cumsum(counts)]), "int32")
    stamps = np.frombuffer(b"".join(r.arrivals for r in records), dtype=np.int64)
    tokens = np.frombuffer(b"".join(tokens_of(r).tobytes() for r in records), dtype=np.int32)
    cells["arrivals_s"] = pa.ListArray.from_arrays(offsets, arrow.array(_kept(stamps * 1e-9), "float64"))
    cells["arrival_tokens"] = pa.ListArray.from_arrays(offsets, arrow.array(tokens, "int32"))
    about = {"header": msgspec.to_builtins(run.header), "levels": msgspec.to_builtins(run.levels)}
    return pa.table(cells).replace_schema_metadata({b"knee": json.dumps(about).encode()})


def requests(path: str | Path) -> pandas.DataFrame:
    """The requests of any result folder as a data frame, a row a request; the columns of requests.parquet."""
    run = read(path)
    return _requests_table(_ordered(run.records), run).to_pandas()


def _write_requests(path: Path, run: Run) -> None:
    import pyarrow.parquet as pq

    times = [n for n, k in columns.PLAIN if k == "float64"] + ["arrivals_s.list.element"]
    names = [n.rstrip("_") for n, k in columns.PLAIN if k != "float64"] + ["phase", "arrival_tokens.list.element"]
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


def _write_telemetry(path: Path, samples: list[Sample]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    cells = {
        "time_s": arrow.array([s.time_s for s in samples], "float64"),
        "source": arrow.array([s.source for s in samples], "string"),
        "metric": arrow.array([s.metric for s in samples], "string"),
        "value": arrow.array([s.value for s in samples], "float64"),
    }
    with files.replacing(path) as part:
        pq.write_table(pa.table(cells), part, compression="zstd", use_dictionary=["source", "metric"])
