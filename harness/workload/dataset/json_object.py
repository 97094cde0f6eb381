"""One JSON object of a file, decoded: it, or what is wrong with it, and the place of either."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from harness.base import decoding

_OFFSET = re.compile(r" \(byte (\d+)\)$")  # how msgspec says where the text is broken

T = TypeVar("T")


def place(line: int, byte: int) -> str:
    return f"line {line}, byte {byte}"


def decoded(decode: Callable[[bytes], T], data: bytes, line: int, byte: int) -> tuple[str, T | Exception]:
    """The object that begins at this line and byte of its file.

    >>> import msgspec
    >>> decoded(msgspec.json.decode, b'{"a": x}', 3, 100)
    ('line 3, byte 106', ValueError('JSON is malformed: invalid character'))
    """
    try:
        return place(line, byte), decode(data)
    except decoding.WRONG as error:
        why = str(error)
        offset = _OFFSET.search(why)
        if not offset:
            return place(line, byte), error
        at = int(offset[1])
        return place(line + data.count(b"\n", 0, at), byte + at), ValueError(why[: offset.start()])
