"""Which tool a file is from, by its content, and the file read: JSON, JSON lines or CSV.

The table is in the order of asking. A plain table of `concurrency,output_tokens_per_s[,error]` is one of the formats,
so that published numbers come in too (`results.points`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness.base import decoding
from harness.base.errors import HarnessError
from harness.results import points
from harness.results.foreign import aiperf, guidellm, inference_perf, knee_csv, llm_d, sglang, validity, vllm
from harness.results.foreign.fields import plain
from harness.results.foreign.measured import NO_SERVER, SHARED, ForeignLevel, ForeignResult, in_words

LARGEST = 64 << 20  # bytes of a file: those with single requests are larger, and need not be
_MOST_LEVELS = 10_000
TABLE = "plain table"


class Format(NamedTuple):
    """A tool's file: whether one piece of JSON is from it, and that piece read."""

    name: str
    matches: Callable[[Any], bool]
    read: Callable[[Any], ForeignResult]


FORMATS = tuple(
    Format(each.NAME, each.matches, each.read) for each in (sglang, vllm, guidellm, aiperf, inference_perf, llm_d)
)
_KNOWN = ", ".join(each.name for each in FORMATS)
_WAY_OUT = f"give a result folder, a CSV, or a JSON of {_KNOWN}"


def read(path: str | Path) -> ForeignResult:
    """The levels of a file from outside; HarnessError where it is of no known format or damaged."""
    with decoding.reading(str(path), "a file of measured levels", _WAY_OUT):
        data = decoding.content(Path(path), LARGEST)
    return of_bytes(data, str(path))


def of_bytes(data: bytes, place: str) -> ForeignResult:
    """The same of a file's content."""
    with decoding.reading(place, "a file of measured levels", _WAY_OUT):
        if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
            found = _of_json(data.removeprefix(b"\xef\xbb\xbf"), place)
        else:
            found = _of_csv(data.decode(), place)
    if not any(level.output_tokens_per_s for level in found.levels):
        raise HarnessError(f"no output tokens per second in this file of {found.source}", place=place, way_out=_WAY_OUT)
    if len(found.levels) > _MOST_LEVELS:
        raise HarnessError(f"more than {_MOST_LEVELS:,} levels", place=place, way_out="give fewer")
    return validity.judged(found)


def closed_loop(found: ForeignResult, place: str) -> list[tuple[float, float, ForeignLevel]]:
    """(concurrency, output tokens/s, level) of each level with both; HarnessError where a curve needs more than it has.

    A level that names no concurrency counts by what was in flight.
    """
    out = []
    for level in found.levels:
        load = level.concurrency or (level.in_flight if level.rate is None else None)
        if load and level.output_tokens_per_s:
            out.append((load, level.output_tokens_per_s, level))
    if not out:
        fact = f"this file of {found.source} names no requests in flight"
        if any(level.rate for level in found.levels):
            fact = f"this file of {found.source} was measured at fixed rates, not at requests in flight"
        raise HarnessError(fact, place=place, way_out="give one of a run with fixed concurrency")
    return out


def _of_json(data: bytes, place: str) -> ForeignResult:
    pieces = _pieces(data)
    found = next((each for each in FORMATS if all(map(each.matches, pieces))), None)
    if found is None or not pieces:
        raise HarnessError("a JSON of no known tool", place=place, way_out=_WAY_OUT)
    return _joined([found.read(piece) for piece in pieces], place)


def _joined(results: Sequence[ForeignResult], place: str) -> ForeignResult:
    """Several results as one; HarnessError where they are of two tools, models, engines, cards or numbers of these.

    A simulation and what was measured are two as well.
    """
    facts: dict[str, Any] = {}
    for name in SHARED:
        known = list(dict.fromkeys(each for found in results if (each := getattr(found, name)) is not None))
        if len(known) > 1:
            fact = f"it has levels of {in_words(known[0])} and of {in_words(known[1])}"
            raise HarnessError(fact, place=place, way_out="give each a file of its own")
        facts[name] = known[0] if known else None
    lacks = tuple(dict.fromkeys(lack for found in results for lack in found.lacks))
    levels = [level for found in results for level in found.levels]
    return msgspec.structs.replace(results[0], levels=levels, lacks=lacks, **facts)


def _pieces(data: bytes) -> list[Any]:
    """The whole of a JSON file, or each of its lines."""
    lines = [line for line in data.splitlines() if line.strip()]
    if len(lines) > 1 and all(line[:1] == b"{" and line.rstrip()[-1:] == b"}" for line in lines):
        return [plain(line) for line in lines[: _MOST_LEVELS + 1]]
    return [plain(data)]


def _of_csv(text: str, place: str) -> ForeignResult:
    text = text.removeprefix("\ufeff")  # with semicolons it is what spreadsheets make of a table
    separator = points.separator_of(text.partition("\n")[0])
    try:
        head = _rows(text, separator, 1, strict=False)  # a plain table may have comments, which are no CSV
        if aiperf.matches_rows(head):
            return aiperf.read_rows(_rows(text, separator))
        if knee_csv.matches_rows(head):
            return knee_csv.read_rows(_rows(text, separator), separator, place)
    except csv.Error as error:
        raise HarnessError(f"not a CSV: {error}", place=place, way_out=_WAY_OUT) from None
    levels = [
        ForeignLevel(concurrency=row.concurrency, output_tokens_per_s=row.output_tokens_per_s, se=row.error)
        for row in points.read(text, place)
    ]
    return ForeignResult(source=TABLE, levels=levels, lacks=("no latencies and no lengths", NO_SERVER))


def _rows(text: str, separator: str, most: int = _MOST_LEVELS, *, strict: bool = True) -> list[list[str]]:
    """The first lines of a CSV; `strict`: csv.Error for a quote that is never closed, which would swallow the rest."""
    lines = csv.reader(io.StringIO(text), delimiter=separator, strict=strict)
    return [row for row, _ in zip(lines, range(most), strict=False)]
