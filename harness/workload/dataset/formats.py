"""Which format a file has, found by its first bytes and by the names of its fields, or named by the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from harness import decoding, files
from harness.errors import HarnessError, nearest
from harness.terminal import few
from harness.workload.dataset import (
    azure,
    burstgpt,
    delimited,
    json_array,
    json_lines,
    mooncake,
    parquet,
    plain,
    result,
    sharegpt,
    spans,
)
from harness.workload.dataset.lines import LONGEST
from harness.workload.dataset.row import Row

Found = Iterator[tuple[str, Any]]  # places, and what stands there: a record, or what is wrong with it


class Format(msgspec.Struct, frozen=True):
    """What the records of a file mean."""

    what: str  # one record is, in words
    keys: tuple[frozenset[str], ...]  # of its fields one of these sets is there
    record: type
    rows: Callable[[Any, str], Iterable[Row]]
    gather: Callable[[Found], Found] | None = None  # where the rows do not stand in the order of the records


FORMATS = {
    "sharegpt": Format(sharegpt.WHAT, sharegpt.KEYS, sharegpt.Record, sharegpt.rows),
    "plain": Format(plain.WHAT, plain.KEYS, plain.Record, plain.rows),
    "mooncake": Format(mooncake.WHAT, mooncake.KEYS, mooncake.Record, mooncake.rows),
    "azure": Format(azure.WHAT, azure.KEYS, azure.Record, azure.rows),
    "burstgpt": Format(burstgpt.WHAT, burstgpt.KEYS, burstgpt.Record, burstgpt.rows),
    "spans": Format(spans.WHAT, spans.KEYS, spans.Record, spans.rows, spans.gather),
    "result": Format(result.WHAT, result.KEYS, result.Record, result.rows),
}

_FIRST = 100  # objects of a file of which one must be whole
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}


def container(path: Path) -> ModuleType:
    """How a file holds its records: the module that reads it. HarnessError where it is empty or compressed."""
    place = str(path)
    with decoding.reading(place, "a dataset", "give a file that can be read"), files.opened(path) as file:
        line = file.readline(LONGEST).removeprefix(b"\xef\xbb\xbf")
        while line.isspace():
            line = file.readline(LONGEST)
    if not line:
        raise HarnessError("the file is empty", place=place, way_out="give one that holds requests")
    for magic, name in _COMPRESSED.items():
        if line.startswith(magic):
            raise HarnessError(f"the file is compressed by {name}", place=place, way_out="unpack it first")
    if line.startswith(b"PAR1"):
        return parquet
    if line.lstrip().startswith(b"["):
        return json_array
    if not line.lstrip().startswith(b"{"):
        return delimited
    return json_lines if path.suffix in (".jsonl", ".ndjson") or _whole(line) else json_array


def _whole(line: bytes) -> bool:
    """Whether a line is one JSON object."""
    try:
        msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except decoding.WRONG:
        return False
    return True


def fields(path: Path) -> list[str]:
    """The names of a file's fields; HarnessError where none of its first objects can be read."""
    module = container(path)
    if module in (delimited, parquet):
        names: list[str] = module.keys(path)
        return names
    first: HarnessError | None = None
    for place, found in islice(module.records(path, dict[str, msgspec.Raw]), _FIRST):
        if not isinstance(found, Exception):
            return list(found)
        first = first or broken(path, place, "an object", found)
    raise first or HarnessError("holds no objects", place=str(path), way_out="give a file that holds requests")


def recognise(path: Path, names: Iterable[str]) -> str:
    """The one format whose fields are among these names; HarnessError where there is none, or more than one.

    >>> recognise(Path("x.csv"), ["Timestamp", "Model", "Request tokens", "Response tokens"])
    'burstgpt'
    """
    present = set(names)
    fit = {name: keys for name, each in FORMATS.items() for keys in each.keys if keys <= present}
    # A format whose fields are some of another's is meant only where the other does not fit.
    possible = [name for name, keys in fit.items() if not any(keys < others for others in fit.values())]
    if len(possible) == 1:
        return possible[0]
    if possible:
        raise HarnessError(f"it could be {' or '.join(possible)}", place=str(path), way_out="name its format")
    each_has = "; ".join(f"{name} has {', '.join(sorted(each.keys[0]))}" for name, each in FORMATS.items())
    raise HarnessError(f"no known format has the fields {few(names, 12)}", place=str(path), way_out=each_has)


def broken(path: Path, place: str, what: str, error: Exception) -> HarnessError:
    """What is wrong at a place in a file, as one line."""
    try:
        with decoding.reading(f"{path}, {place}", what, "mend it, or leave it out with --skip-broken"):
            raise error
    except HarnessError as found:
        return found


def known(name: str, place: str) -> str:
    """A format's name; HarnessError with the nearest one where it is none's."""
    if name not in FORMATS:
        raise HarnessError(f"unknown format {name!r}", place=place, way_out=nearest(name, FORMATS))
    return name
