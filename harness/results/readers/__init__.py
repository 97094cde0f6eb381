"""What other tools measured, read from their files: JSON, JSON lines or CSV, told apart by their content.

- Each tool's reader is a module here that has READERS: a map of names, and how its file is recognised. Other packages
  add readers by the entry point `knee.readers`; such a one is loaded only where its name is given.
- Files are bounded and read as far as they carry; what they do not say stays None.
- A tool's own figures are taken as they are. Throughput is over its whole run, beginning and end included, where Knee's
  is over a steady window; `ForeignResult.lacks` says so wherever the figures are shown.
- Requests one by one, which some tools can add to their files, are not read.
"""

from __future__ import annotations

import csv
import functools
import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.base import decoding, plugins
from harness.base.errors import HarnessError, nearest
from harness.results.readers import table
from harness.results.readers.level import SHARED, ForeignLevel, ForeignResult, Reader, in_words, plain

LARGEST = 64 << 20  # bytes of a file: those with single requests are larger, and need not be
FAILED = 0.01  # share of failed requests above which a level is no point, as in `analysis.rules.requests`
CSV = "csv"  # the format of tables, plain ones and those of `knee export`
_FIRST = ("sglang", "vllm", "guidellm", "aiperf", "inference_perf", "llm_d")  # in this order; others come after them
_MOST_LEVELS = 10_000
_NAMED = 8  # levels
_WHAT = "a file of measured levels"


@functools.cache
def built_in() -> dict[str, tuple[Reader, ...]]:
    """Return the readers of this package by format, in the order in which a file is shown to them."""
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in plugins.module_names(__path__, _FIRST)}
    return {name.replace("_", "-"): each.READERS for name, each in modules.items() if hasattr(each, "READERS")}


def read(path: str | Path, named: str = "") -> ForeignResult:
    """Return the levels of a file from outside; HarnessError where it is of no known format, or damaged.

    `named` is one of `built_in`, CSV or a plug-in; without it the content says which it is.
    """
    readers = _readers(named)
    with decoding.reading(str(path), _WHAT, _way_out()):
        data = decoding.content(Path(path), LARGEST)
    return _of_bytes(data, str(path), readers, named)


def of_bytes(data: bytes, place: str, named: str = "") -> ForeignResult:
    """Return the levels of a file's content."""
    return _of_bytes(data, place, _readers(named), named)


def _of_bytes(data: bytes, place: str, readers: Sequence[Reader], named: str) -> ForeignResult:
    with decoding.reading(place, _WHAT, _way_out()):
        if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
            found = _of_json(data.removeprefix(b"\xef\xbb\xbf"), place, readers)
        else:
            found = _of_csv(data.decode(), place, readers, tables=named in ("", CSV))
        if found is None:
            fact = f"no file of the format {named}" if named else "a JSON of no known tool"
            raise HarnessError(fact, place=place, way_out="leave --format out" if named else _way_out())
    if not any(level.output_tokens_per_s for level in found.levels):
        fact = f"no output tokens per second in this file of {found.source}"
        raise HarnessError(fact, place=place, way_out=_way_out())
    if len(found.levels) > _MOST_LEVELS:
        raise HarnessError(f"more than {_MOST_LEVELS:,} levels", place=place, way_out="give fewer")
    return _judged(found)


def _readers(named: str) -> Sequence[Reader]:
    known = built_in()
    if not named:
        return [each for readers in known.values() for each in readers]
    if named in known or named == CSV:
        return known.get(named, ())
    reader = plugins.find(plugins.READERS, named, Reader)
    if reader is None:
        names = [*known, CSV, *plugins.names(plugins.READERS)]
        raise HarnessError(f"no format '{named[:40]}'", place="--format", way_out=nearest(named, names))
    return (reader,)


def _way_out() -> str:
    names = ", ".join(each.name for readers in built_in().values() for each in readers if not each.rows)
    return f"give a result folder, a CSV, or a JSON of {names}"


def closed_loop(found: ForeignResult, place: str) -> list[tuple[float, float, ForeignLevel]]:
    """Return (concurrency, output tokens/s, level) of each level with both; HarnessError where none has.

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


def _of_json(data: bytes, place: str, readers: Sequence[Reader]) -> ForeignResult | None:
    """Return the levels of all pieces; None where no reader recognises them."""
    pieces = _pieces(data)
    found = next((each for each in readers if not each.rows and all(map(each.matches, pieces))), None)
    return _joined([found.read(piece) for piece in pieces], place) if found and pieces else None


def _joined(results: Sequence[ForeignResult], place: str) -> ForeignResult:
    """Return several results as one; HarnessError for two tools, models, engines, cards or numbers of these.

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
    """Return the whole of a JSON file, or each of its lines."""
    lines = [line for line in data.splitlines() if line.strip()]
    if len(lines) > 1 and all(line[:1] == b"{" and line.rstrip()[-1:] == b"}" for line in lines):
        return [plain(line) for line in lines[: _MOST_LEVELS + 1]]
    return [plain(data)]


def _of_csv(text: str, place: str, readers: Sequence[Reader], *, tables: bool) -> ForeignResult | None:
    """Return the levels of a CSV; None where no reader recognises it, and `tables` is not set."""
    text = text.removeprefix("\ufeff")  # with semicolons it is what spreadsheets make of a table
    separator = table.separator_of(text.partition("\n")[0])
    try:
        head = _rows(text, separator, 1, strict=False)  # a plain table may have comments, which are no CSV
        found = next((each for each in readers if each.rows and each.matches(head)), None)
        if found is not None:
            return found.read(_rows(text, separator))
        if tables and table.is_exported(head):
            return table.exported(_rows(text, separator), separator, place)
    except csv.Error as error:
        raise HarnessError(f"not a CSV: {error}", place=place, way_out=_way_out()) from None
    return table.points(text, place) if tables else None


def _rows(text: str, separator: str, most: int = _MOST_LEVELS, *, strict: bool = True) -> list[list[str]]:
    """Return the first lines of a CSV; `strict`: csv.Error for a quote that is never closed and would hide the rest."""
    lines = csv.reader(io.StringIO(text), delimiter=separator, strict=strict)
    return [row for row, _ in zip(lines, range(most), strict=False)]


# ---- which levels are points of a curve, by the rules of Knee's own -------------------------------------------------


def _judged(found: ForeignResult) -> ForeignResult:
    """Return the result without levels at which requests failed as points; `lacks` says what is wrong with which.

    A reader itself says which levels had fewer requests in flight.
    """
    failing, low = [each for each in found.levels if _fails(each)], [e for e in found.levels if not e.in_flight_ok]
    levels = [msgspec.structs.replace(each, valid=False) if _fails(each) else each for each in found.levels]
    words = [
        *([f"more than {FAILED:.0%} of the requests failed at {_loads(failing)}: not counted"] if failing else []),
        *([f"fewer requests were in flight than asked for at {_loads(low)}"] if low else []),
    ]
    return msgspec.structs.replace(found, levels=levels, lacks=(*found.lacks, *words))


def _fails(level: ForeignLevel) -> bool:
    failed = level.failed or 0
    return failed > FAILED * (failed + (level.requests or 0))


def _loads(levels: Sequence[ForeignLevel]) -> str:
    """Return the first of them by their loads.

    >>> _loads([ForeignLevel(concurrency=8.0), ForeignLevel(rate=2.5), ForeignLevel()])
    '8 in flight, 2.5 requests per second, an unknown load'
    """
    more = len(levels) - _NAMED
    return ", ".join(map(_load, levels[:_NAMED])) + (f" and {more} more" if more > 0 else "")


def _load(level: ForeignLevel) -> str:
    if level.rate:
        return f"{level.rate:g} requests per second"
    load = level.concurrency or level.in_flight
    return f"{load:g} in flight" if load else "an unknown load"
