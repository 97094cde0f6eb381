"""How a part of this package is started as a process of its own, and how that process is told what to do."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path


def module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package by the Python that runs it now.

    `python -m` looks for modules in the current folder first, which may belong to another project: a `json.py` there
    would be run. So that folder is left out (`-P`), unless the package itself is found in it.
    """
    package = Path(__file__).parents[1]
    safe = [] if Path.cwd() == package.parent else ["-P"]
    return [sys.executable, *safe, "-m", name, *arguments]


def next_line() -> bytes:
    """Return the next line of stdin, with its end: what the process that started this one tells it.

    Empty where the input ends before the line does, for then the starter is gone. Nothing is read ahead, so what comes
    next can be waited for by `select`.
    """
    line = b""
    with contextlib.suppress(OSError):
        while byte := os.read(sys.stdin.fileno(), 1):
            line += byte
            if byte == b"\n":
                return line
    return b""
