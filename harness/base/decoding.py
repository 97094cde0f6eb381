"""Files from outside, decoded: the one place where what is wrong with one becomes a line that names it.

A result folder, a scenario or a model's config may come from anybody and may be damaged. So a file is read only if it
is a regular one and no larger than such files are, its data is taken only as the type that it is meant to be, and
numbers, depths and texts out of bounds are refused by their path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from harness.base import files
from harness.base.errors import HarnessError

LARGEST = 4 << 20  # bytes of a manifest, a scenario, a config: a hundred times what they are
_DEEPEST = 64  # levels of nesting
_FARTHEST, _NEAREST = 2**63, 1e-30  # bounds of any number but 0: what 64 bits hold, and far below any time or share

# What decoders raise for bytes that are not what they should be. RecursionError: nested too deep; ValueError is also
# text that is no UTF-8, and an integer with more digits than Python converts.
WRONG = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)

T = TypeVar("T")


class UndecodableError(HarnessError):
    """Data that are damaged, too large or of another form."""


@contextlib.contextmanager
def reading(place: str, what: str, way_out: str) -> Iterator[None]:
    """Raise what is wrong with the data decoded in the block as one line: it is not `what`, and why.

    Raise UndecodableError for the data, another HarnessError for a file that cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise HarnessError(error.strerror or str(error), place=place, way_out=way_out) from None
    except WRONG as error:
        raise UndecodableError(f"not {what}: {_why(error)}", place=place, way_out=way_out) from None


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, UnicodeError):
        return "it is not text in UTF-8"
    return str(error).partition("\n")[0].replace("`", "'") or type(error).__name__


def content(path: Path, most: int = LARGEST) -> bytes:
    """Return all bytes of a regular file; raise ValueError if they are more than `most`."""
    with files.opened(path) as file:
        return bounded(file, most)


def bounded(file: BinaryIO, most: int = LARGEST) -> bytes:
    """Return the content of an open file; raise ValueError if that is more than `most` bytes."""
    data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it is longer than {most:,} bytes")
    return data


def json(data: bytes, *, numbers: bool = True) -> Any:
    """Return JSON as plain data; raise one of WRONG if it is none, or out of bounds.

    Without `numbers` they are not checked, and may be Infinity or NaN as Python writes them: for a file with numbers
    that this program does not read.
    """
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError:
        if numbers or not any(each in data for each in (b"Infinity", b"NaN")):
            raise
        import json  # the standard decoder knows them

        value = json.loads(data)
    check(value, numbers=numbers)
    return value


def toml(data: bytes) -> dict[str, Any]:
    """Return TOML as plain data, dates among it; raise one of WRONG if it is none."""
    import tomllib  # most commands read none

    return tomllib.loads(data.decode())


def typed(value: Any, kind: type[T]) -> T:
    """Return plain data as that type; fields that it does not have are left out."""
    return msgspec.convert(value, kind)


def check(value: Any, *, numbers: bool = True) -> None:
    """Raise ValueError, with its path, for the first thing in plain data that is out of bounds.

    These are too deep a nesting, a text or a type that JSON does not have, and, with `numbers`, a number that is far
    too large or too near to 0.

    >>> check({"a": [1, float("inf")]})
    Traceback (most recent call last):
    ValueError: inf is a number beyond reason at $.a[1]
    """
    pending: list[tuple[Any, str, int]] = [(value, "$", 0)]
    while pending:
        each, path, depth = pending.pop()
        if depth > _DEEPEST:
            raise ValueError("it is nested too deep")
        if isinstance(each, dict):
            for key in each:
                _text(key, path)
            pending += [(inner, f"{path}.{key[:40]}", depth + 1) for key, inner in each.items()]
        elif isinstance(each, list):
            pending += [(inner, f"{path}[{i}]", depth + 1) for i, inner in enumerate(each)]
        elif isinstance(each, str):
            _text(each, path)
        elif isinstance(each, int | float):
            if numbers and each and not _NEAREST < abs(each) < _FARTHEST:
                shown = f"{each}" if isinstance(each, float) else f"one of {each.bit_length():,} bits"
                raise ValueError(f"{shown} is a number beyond reason at {path}")
        elif each is not None:
            raise ValueError(f"a {type(each).__name__} at {path} is neither text nor number")


def _text(text: str, path: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"half a character at {path}") from None
