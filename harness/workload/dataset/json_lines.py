"""JSON lines: one object a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from harness.base import files
from harness.workload.dataset.json_object import decoded, place
from harness.workload.dataset.lines import LONGEST, Lines, too_long

T = TypeVar("T")


def records(path: Path, kind: type[T]) -> Iterator[tuple[str, T | Exception]]:
    """Each line as that type, or what is wrong with it, with its place; a number may be written as text."""
    decode = msgspec.json.Decoder(kind, strict=False).decode
    with files.opened(path) as file:
        lines = Lines(file)
        for line in lines:
            if len(line) > LONGEST:
                yield place(lines.number, lines.begin), too_long()
            elif not line.isspace():
                yield decoded(decode, line, lines.number, lines.begin)
