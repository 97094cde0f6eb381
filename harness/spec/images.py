"""Images in the prompts of a scenario: how many, and of what size."""

from __future__ import annotations

import re

from harness.base.errors import HarnessError

DEFAULT = "512x512"
LARGEST = 4096  # pixels of a side
_SIZE = re.compile(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})")


def size(text: str, place: str) -> tuple[int, int]:
    """Width and height, pixels; HarnessError where the text is no size.

    >>> size("640x480", "test")
    (640, 480)
    """
    match = _SIZE.fullmatch(text)
    sides = (int(match[1]), int(match[2])) if match else (LARGEST + 1, 0)
    if max(sides) > LARGEST:
        raise HarnessError(
            f"not a size of at most {LARGEST} pixels a side: {text[:40]!r}",
            place=place,
            way_out="write it like '512x512'",
        )
    return sides
