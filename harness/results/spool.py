"""The one writer of a run: everything that is measured is appended to `requests.spool` while the run lives.

A frame (harness.results.frames) is written whole or not at all. Its bytes are with the operating system when `write`
returns: it survives the death of every process. A segment that is full is synced to the disk while the next one is
written, so a power cut takes what the last one has at most, or the last two where the sync was not over. At the end the
spool becomes `requests.parquet` and `telemetry.parquet` and goes away; a run that is resumed turns them back first.
Where both are there, one of the two was cut off in doing so: they hold the same, and the spool is the whole one. Later
segments without the first are left of a spool that became parquet.
"""

from __future__ import annotations

import itertools
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from harness.base import files
from harness.base.errors import HarnessError
from harness.data.record import FORMAT, Header, Level, Record, Sample
from harness.results import columns, frames
from harness.results.folder import REQUESTS, SPOOL, TELEMETRY, segment, segments
from harness.results.frames import Position, Spooled
from harness.results.result import Result

SEGMENT_BYTES = 1 << 26  # from which on a segment is full
_ROWS_AT_ONCE = 1024  # rows of a frame that is written anew


def header(monotonic_ns_origin: int, unix_origin: float) -> Header:
    return Header(FORMAT, tuple(f.name for f in msgspec.structs.fields(Record)), monotonic_ns_origin, unix_origin)


class Spool:
    """A run's spool, open for writing.

    Without a header: the spool of a run that ended early, to go on behind its last whole frame.
    """

    def __init__(self, folder: Path, header: Header | None = None) -> None:
        self._folder, self._header = folder, header
        self._levels: dict[int, Level] = {}  # the levels as they are now
        self._number = self._before = self._at = 0  # the last segment, the bytes of those before it, and its own
        self._syncing = ThreadPoolExecutor(max_workers=1)  # a disk may take seconds
        self._syncing.submit(bool)  # its thread begins now, not in the middle of a level
        self._synced: list[Future[None]] = []
        if header is not None:
            self._fd = files.appending(folder / SPOOL, new=True)
            self.write(frames.encode(header))
            return
        if not (folder / SPOOL).exists():
            files.remove(folder, segments(folder).values())
            _unpack(folder)
        self._go_on()

    def _go_on(self) -> None:
        """Open an existing spool to write on: cut each segment behind its last whole frame, continue the last segment.

        Removes the parquet files, which are made anew from the spool.
        """
        names, spooled = segments(self._folder), Spooled()
        descriptors = [files.appending(self._folder / name, new=False) for name in names.values()]
        files.remove(self._folder, (REQUESTS, TELEMETRY))
        for (self._number, name), fd in zip(names.items(), descriptors, strict=True):
            self._before += self._at
            self._at = _set_aside(self._folder / name, spooled)
            os.ftruncate(fd, self._at)
        *earlier, self._fd = descriptors
        for fd in earlier:
            os.close(fd)
        self._header, self._levels = spooled.header, spooled.levels

    def write(self, payload: bytes) -> None:
        """Append a payload as one frame; where the disk is full, remove what was written of it and raise."""
        if self._at >= SEGMENT_BYTES:
            self._rotate()
        data = frames.frame(payload)
        try:
            _write(self._fd, data)
            self._at += len(data)
        except OSError as error:
            os.ftruncate(self._fd, self._at)
            raise self._failure(error) from None

    def _rotate(self) -> None:
        """Begin the next segment with the header and the levels so far; the one before is synced meanwhile."""
        first = [self._header] if self._header else []
        head = [*first, *map(frames.LevelFrame, self._levels.values())]
        data, name = b"".join(frames.frame(frames.encode(each)) for each in head), segment(self._number + 1)
        fd = files.appending(self._folder / name, new=True, way_out="go on with `knee run --resume`")
        try:
            _write(fd, data)
            for each in self._synced:
                if each.done():
                    each.result()
        except OSError as error:
            os.close(fd)
            files.remove(self._folder, (name,))
            raise self._failure(error) from None
        pending = [each for each in self._synced if not each.done()]
        self._synced = [*pending, self._syncing.submit(_sync, self._fd)]
        self._fd, self._number = fd, self._number + 1
        self._before, self._at = self._before + self._at, len(data)

    def _failure(self, error: OSError) -> HarnessError:
        return HarnessError(
            f"cannot write what is measured: {error.strerror}",
            place=str(self._folder / segment(self._number)),
            way_out="make room, then go on with `knee run --resume`",
        )

    def level(self, level: Level) -> None:
        self._levels[level.index] = level
        self.write(frames.encode(frames.LevelFrame(level)))

    def telemetry(self, samples: list[Sample]) -> None:
        self.write(frames.encode(frames.TelemetryFrame(samples)))

    @property
    def position(self) -> Position:
        """Return where the next frame begins."""
        return Position(self._number, self._at)

    def between(self, since: Position, until: Position) -> Spooled:
        """Read back the frames written between two positions; from any thread, while more is written.

        Raise HarnessError if they cannot be read or are damaged.
        """
        try:
            spooled = frames.read_between(self._folder / SPOOL, since, until, dict(self._levels))
        except OSError as error:
            raise HarnessError(
                f"cannot read back what was measured: {error.strerror}",
                place=str(self._folder),
                way_out="leave the folder where it is while a run writes into it, then run anew",
            ) from None
        if spooled.damage is not None:
            raise HarnessError(str(spooled.damage), place=str(self._folder), way_out="check the disk, then run anew")
        return spooled

    @property
    def size(self) -> int:
        """Return how many bytes are written, those of earlier sessions included."""
        return self._before + self._at

    def close(self) -> None:
        self._syncing.shutdown()
        os.close(self._fd)


def _write(fd: int, data: bytes) -> None:
    """Write all of it; raise OSError if not all fits."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync(fd: int) -> None:
    """Wait until a file is on the disk, and close it."""
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def finish(folder: Path) -> Result:
    """Turn the spool into requests.parquet and telemetry.parquet; the spool goes only when both are whole."""
    run = Result.of_spool(folder)
    columns.write_requests(folder / REQUESTS, run.header, run.levels, run.records)
    columns.write_telemetry(folder / TELEMETRY, run.samples)
    files.remove(folder, segments(folder).values())  # the first one first: without it the others are none
    del run  # not two of them at once
    return Result.open(folder)


def _unpack(folder: Path) -> None:
    """Write the spool of an interrupted run anew from its parquet files."""
    run = Result.open(folder)
    with files.replacing(folder / SPOOL) as file:
        file.write(frames.frame(frames.encode(run.header)))
        file.writelines(frames.frame(frames.encode(frames.LevelFrame(level))) for level in run.levels)
        for i in range(0, len(run.records), _ROWS_AT_ONCE):
            file.write(frames.frame(frames.batch(run.records[i : i + _ROWS_AT_ONCE])))
        for i in range(0, len(run.samples), _ROWS_AT_ONCE):
            file.write(frames.frame(frames.encode(frames.TelemetryFrame(run.samples[i : i + _ROWS_AT_ONCE]))))


def _set_aside(path: Path, spooled: Spooled) -> int:
    """Read a segment into `spooled`, copy what is damaged behind its whole frames to a file; return the frames' end."""
    before = len(spooled.damages)
    end = frames.read_segment(path, spooled)
    if len(spooled.damages) == before or spooled.damages[-1].why == frames.ZEROS:
        return end
    rest = next(each for n in itertools.count(1) if not os.path.lexists(each := Path(f"{path}.damaged-{n}")))
    with files.replacing(rest) as aside, files.opened(path) as file:
        file.seek(end)
        shutil.copyfileobj(file, aside)
    return end
