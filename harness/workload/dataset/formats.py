"""Which format a file has, found by its first bytes and by the names of its fields, or named by the operator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from harness.base import decoding, files
from harness.base.errors import HarnessError, nearest
from harness.base.terminal import few
from harness.workload.dataset import delimited, json_array, json_lines, names, parquet, plain, result, sharegpt, spans
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
    fields: type | None = None  # that are read of a record, where others may be work; None: others are known not to be


def _trace(what: str, *required: str, other: tuple[str, ...] = ()) -> Format:
    """The rows of a trace, which all have these fields, and the first one the others too."""
    record = names.record(frozenset(required))
    return Format(what, (frozenset({*required, *other}),), record, plain.rows, fields=record)


FORMATS = {
    "sharegpt": Format(sharegpt.WHAT, sharegpt.KEYS, sharegpt.Record, sharegpt.rows, fields=sharegpt.Record),
    "plain": Format(plain.WHAT, plain.KEYS, names.record(), plain.rows, fields=names.record()),
    # github.com/kvcache-ai/Mooncake, "Open Source Trace". AIPerf's have sessions too, and pauses in place of times.
    "mooncake": _trace("a request of a Mooncake trace", "input_length", "output_length", other=("timestamp",)),
    # github.com/Azure/AzurePublicDataset: of 2023 without a zone, of 2024, and with images.
    "azure": _trace("a request of an Azure trace", "TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    # github.com/HPMLL/BurstGPT. A request that failed there has 0 response tokens: how many it wanted is not known.
    "burstgpt": _trace("a request of a BurstGPT trace", "Timestamp", "Request tokens", "Response tokens"),
    # github.com/microsoft/vidur, data/processed_traces; github.com/Mutinifni/splitwise-sim, traces.
    "vidur": _trace("a request of a Vidur trace", "arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    "splitwise": _trace("a request of a Splitwise trace", "arrival_timestamp", "prompt_size", "token_size"),
    "spans": Format(spans.WHAT, spans.KEYS, spans.Record, spans.rows, spans.gather),
    "result": Format(result.WHAT, result.KEYS, result.Record, result.rows),
}

_FIRST = 100  # objects of a file of which one must be whole, and whose fields are looked at
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


def fields(path: Path) -> tuple[list[str], list[str]]:
    """(The names of the fields of a file's first object, those of its first ones and of the bodies in them).

    HarnessError where none of the first objects can be read.
    """
    module = container(path)
    if module in (delimited, parquet):
        columns: list[str] = module.keys(path)
        return columns, columns
    wrong: HarnessError | None = None
    first: list[str] = []
    found: dict[str, None] = {}  # in their order
    for place, record in islice(module.records(path, dict[str, msgspec.Raw]), _FIRST):
        if isinstance(record, Exception):
            wrong = wrong or broken(path, place, "an object", record)
            continue
        first = first or list(record)
        found |= dict.fromkeys(record)
        if "body" in record:
            with contextlib.suppress(*decoding.WRONG):
                found |= dict.fromkeys(msgspec.json.decode(record["body"], type=dict[str, msgspec.Raw]))
    if not first:
        raise wrong or HarnessError("holds no objects", place=str(path), way_out="give a file that holds requests")
    return first, list(found)


def recognise(path: Path, found: Sequence[str]) -> str:
    """The one format whose fields are among these names; HarnessError where there is none, or more than one.

    >>> recognise(Path("x.csv"), ["Timestamp", "Model", "Request tokens", "Response tokens"])
    'burstgpt'
    """
    present = set(found)
    fit = {name: keys for name, each in FORMATS.items() for keys in each.keys if keys <= present}
    # A format whose fields are some of another's is meant only where the other does not fit.
    possible = [name for name, keys in fit.items() if not any(keys < others for others in fit.values())]
    if len(possible) == 1:
        return possible[0]
    if possible:
        raise HarnessError(f"it could be {' or '.join(possible)}", place=str(path), way_out="name its format")
    # A header may be any text, also a secret: what of it is no name that files have is not shown.
    listed = [name for name in found if names.is_one(name) or container(path) is not delimited]
    fact = "none of its fields is known to hold prompts, or lengths of prompts and of answers"
    raise HarnessError(fact + (f": {few(listed, 12)}" if listed else ""), place=str(path), way_out=_rename(present))


def _rename(present: set[str]) -> str:
    """Which field to give another name."""
    if present.intersection(names.NAMES["input_tokens"]):
        return "rename the one that holds the lengths of answers to output_tokens"
    lengths = "the lengths of prompts to input_tokens"
    if not present.intersection(names.NAMES["output_tokens"]):
        lengths += " and those of answers to output_tokens"
    return f"rename the one that holds prompts to prompt, messages or conversations, or {lengths}"


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
