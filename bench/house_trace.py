"""Which files of harness/ a process enters, and when: loaded by every Python that KNEE_HOUSE_TRACE reaches.

`environment` makes a Python that is started with it, and all that it starts, note each function of harness/ that is
entered, and leave the notes in the folder when it ends. Bodies of modules and classes are no functions.
"""

from __future__ import annotations

import atexit
import inspect
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

VARIABLE = "KNEE_HOUSE_TRACE"
HARNESS = Path(__file__).resolve().parents[1] / "harness"
STARTS = "import sys; sys.path.append({bench!r}); import house_trace; house_trace.begin()\n"


class TraceEntry(NamedTuple):
    """A function of harness/ that was entered."""

    time_ns: int  # on CLOCK_MONOTONIC
    file: str  # below harness/
    arguments: tuple[str | bytes, ...]  # those of text and bytes, and the request_id of those that have one


class Trace(NamedTuple):
    """What one process did."""

    pid: int
    entries: list[TraceEntry]
    opened: list[tuple[int, str, list[str]]]  # when which file was opened, and the files of harness/ on the stack
    levels: dict[tuple[float, ...], int]  # windows of levels, and when a LevelSummary of them was first handed back


def environment(folder: Path) -> dict[str, str]:
    """Return the variables that make a Python, and those it starts, leave their traces in the folder."""
    (folder / "sitecustomize.py").write_text(STARTS.format(bench=str(Path(__file__).parent)))
    return {VARIABLE: str(folder), "PYTHONPATH": str(folder)}


def read(folder: Path) -> dict[int, Trace]:
    """Return the traces that lie in the folder, by process."""
    traces = [pickle.loads(path.read_bytes()) for path in folder.glob("*.trace")]
    return {pid: Trace(pid, [TraceEntry(*entry) for entry in entries], *more) for pid, entries, *more in traces}


def begin() -> None:
    """Note what this process enters from here on; write it down at its end."""
    entries: list[tuple[int, str, tuple[str | bytes, ...]]] = []
    opened: list[tuple[int, str, list[str]]] = []
    levels: dict[tuple[float, ...], int] = {}
    folder, clock, named = Path(os.environ[VARIABLE]), time.monotonic_ns, _names()

    def profile(frame: FrameType, event: str, value: Any) -> None:
        if event == "call" and (file := named(frame.f_code)):
            entries.append((clock(), file, tuple(_mentioned(frame))))
        elif event == "return" and type(value).__name__ == "LevelSummary":
            levels.setdefault(tuple(value.window), clock())

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str):
            stack = [named(frame.f_code) for frame, _ in traceback.walk_stack(None)]
            opened.append((clock(), arguments[0], [file for file in stack if file]))

    def write() -> None:
        sys.setprofile(None)
        trace = (os.getpid(), entries, opened[:], levels)
        (folder / f"{os.getpid()}.trace").write_bytes(pickle.dumps(trace))

    atexit.register(write)
    sys.addaudithook(audit)
    threading.setprofile(profile)
    sys.setprofile(profile)


def _names() -> Callable[[CodeType], str]:
    """From a function's code to its file below harness/; '' for what is no function or stands elsewhere."""
    known: dict[CodeType, str] = {}

    def named(code: CodeType) -> str:
        if (name := known.get(code)) is None:
            path = Path(code.co_filename)
            ours = code.co_flags & inspect.CO_OPTIMIZED and path.is_relative_to(HARNESS)
            name = known[code] = str(path.relative_to(HARNESS)) if ours else ""
        return name

    return named


def _mentioned(frame: FrameType) -> Iterator[str | bytes]:
    """Yield the arguments that are text or bytes, and the request_id of those that have one, in lists as well."""
    for name in frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]:
        value = frame.f_locals.get(name)
        for each in value[:1] if isinstance(value, list | tuple) else (value,):
            if isinstance(each, str | bytes):
                yield each
            elif hasattr(type(each), "request_id"):  # not of the object: one being made has nothing to look into
                yield str(getattr(each, "request_id", ""))
