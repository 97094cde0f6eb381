"""A result folder as a place: the names of its files, how a new one begins, and who may write into it."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from harness.base import files
from harness.base.errors import HarnessError

SPOOL, REQUESTS, TELEMETRY = "requests.spool", "requests.parquet", "telemetry.parquet"
MANIFEST, SUMMARY = "manifest.json", "summary.json"
FOR_PEOPLE = ("curve.png", "report.html", "report.md")
_DIGITS = 9  # most digits of a segment's number
WRITTEN = (MANIFEST, SPOOL, REQUESTS, TELEMETRY, SUMMARY, *FOR_PEOPLE)


def create(path: str | Path) -> Path:
    """Make a new result folder; one that is not empty is the operator's mistake, nothing is overwritten."""
    folder, way_out = Path(path), "choose another --out"
    files.make_folder(folder, way_out=way_out)
    try:
        empty = not any(folder.iterdir())
    except OSError as error:
        raise HarnessError(error.strerror or str(error), place=str(folder), way_out=way_out) from None
    if not empty:
        raise HarnessError("the folder is not empty", place=str(folder), way_out=way_out)
    files.write(folder / MANIFEST, "{}\n", way_out=way_out)  # fails now, not after the load, if it cannot be written
    return folder


def default(name: str) -> Path:
    """Make and return a new folder results/NAME, with a number behind the name where that one is taken."""
    results = Path("results")
    files.make_folder(results, way_out="give --out")
    for number in itertools.count(1):
        folder = files.child(results, f"{name}-{number}" if number > 1 else name)
        if files.make_new_folder(folder, way_out="give --out"):
            return folder
    raise AssertionError("there is always another number")


@contextlib.contextmanager
def new(
    out: str | Path | None, name: str, begun: datetime, holds: Callable[[Path], bool], written: Sequence[str]
) -> Iterator[Path]:
    """Make a new result folder and lock it for this process: `out`, or a default by name and time.

    An error in the block removes it with the files `written`, unless holds(folder): it has what was measured.
    """
    folder = create(out or default(f"{name}-{begun:%Y%m%d-%H%M%S}"))
    try:
        with claimed(folder):
            yield folder
    except BaseException:
        if not holds(folder):
            with contextlib.suppress(HarnessError):
                files.remove(folder, written)
            files.remove_folder(folder)
        raise


def has_requests(folder: Path) -> bool:
    """Return whether the requests of a run are in it; committed results may be without them."""
    return (folder / REQUESTS).exists() or (folder / SPOOL).exists()


def segment(number: int, name: str = SPOOL) -> str:
    """Return the file name of a spool's segment: the spool's own name for segment 0, else with the number behind it.

    >>> segment(0), segment(12)
    ('requests.spool', 'requests.spool.0012')
    """
    return f"{name}.{number:04}" if number else name


def segments(folder: Path, name: str = SPOOL) -> dict[int, str]:
    """Return the files of a spool by their numbers, in order; the first one even if it does not exist."""
    endings = (each.removeprefix(f"{name}.") for each in os.listdir(folder) if each.startswith(f"{name}."))
    numbers = sorted(int(each) for each in endings if each.isascii() and each.isdecimal() and len(each) < _DIGITS)
    return {number: segment(number, name) for number in (0, *(each for each in numbers if each))}


def is_claimed(folder: Path) -> bool:
    """Return whether a running process has locked the result folder, to write into it."""
    fd = files.real_folder(folder, way_out="give the --out of a run")
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock the folder against other runs, raise HarnessError if one has it; a process that dies releases it."""
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
