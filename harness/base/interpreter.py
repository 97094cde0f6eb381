"""How a part of this package is started as a process of its own."""

from __future__ import annotations

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
