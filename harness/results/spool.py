"""The one writer of a run: everything that is measured is appended to `requests.spool` while the run lives.

A frame (harness.results.frames) is written whole or not at all. Its bytes are with the operating system when `write`
returns: it survives the death of every process, not that of the machine. At the end the spool becomes
`requests.parquet` and `telemetry.parquet` and goes away; a run that is resumed turns them back first. Where both stand,
one of the two was cut off in doing so: they hold the same, and the spool is the whole one.
"""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import msgspec

from harness import files
from harness.errors import HarnessError
from harness.record import FORMAT, Header, Level, Record, Sample
from harness.results import columns, frames
from harness.results.folder import REQUESTS, SPOOL, TELEMETRY
from harness.results.result import Result

_ROWS_AT_ONCE = 1024  # of one frame that is written anew


def header(monotonic_ns_origin: int, unix_origin: float) -> Header:
    return Header(FORMAT, tuple(f.name for f in msgspec.structs.fields(Record)), monotonic_ns_origin, unix_origin)


class Spool:
    """A run's spool, open for writing.

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
        data = frames.frame(payload)
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
        self.write(frames.encode(frames.LevelFrame(level)))

    def telemetry(self, samples: list[Sample]) -> None:
        self.write(frames.encode(frames.TelemetryFrame(samples)))

    @property
    def size(self) -> int:
        """Bytes that are written, those of earlier sessions included."""
        return self._end

    def close(self) -> None:
        os.close(self._fd)


def finish(folder: Path) -> Result:
    """Turn the spool into requests.parquet and telemetry.parquet; the spool goes only when both are whole."""
    run = Result.of_spool(folder)
    columns.write_requests(folder / REQUESTS, run.header, run.levels, run.records)
    columns.write_telemetry(folder / TELEMETRY, run.samples)
    files.remove(folder, (SPOOL,))
    del run  # not two of them at once
    return Result.open(folder)


def _unpack(folder: Path) -> None:
    """Turn the parquet files of a run that was interrupted back into the spool that they were."""
    run = Result.open(folder)
    with files.replacing(folder / SPOOL) as file:
        file.write(frames.frame(frames.encode(run.header)))
        file.writelines(frames.frame(frames.encode(frames.LevelFrame(level))) for level in run.levels)
        for i in range(0, len(run.records), _ROWS_AT_ONCE):
            file.write(frames.frame(frames.batch(run.records[i : i + _ROWS_AT_ONCE])))
        for i in range(0, len(run.samples), _ROWS_AT_ONCE):
            file.write(frames.frame(frames.encode(frames.TelemetryFrame(run.samples[i : i + _ROWS_AT_ONCE]))))


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
