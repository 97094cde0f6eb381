"""Silence at launch is broken: what takes longer than a few seconds is said, in one line, while it is waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

AFTER_S = 3.0

Note = Callable[[str], None]


def nowhere(_: str) -> None:
    """Drop a note."""


@contextlib.contextmanager
def broken(note: Note, what: str) -> Iterator[None]:
    """Note what is waited for, unless the block is over by then; on the event loop."""
    timer = asyncio.get_running_loop().call_later(AFTER_S, note, f"waiting for {what}")
    try:
        yield
    finally:
        timer.cancel()
