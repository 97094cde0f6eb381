"""What other tools measured, read from their files: JSON, YAML or CSV, told apart by their content.

- A folder, several files and files joined to one are the levels of one result. The same measurement in two of a
  folder's files, as in a sweep's summary, counts once.
- READERS of the modules here are those of each format, by its name: maps of names, and how a file is recognised. Other
  packages add readers by the entry point `knee.readers`; such a one is loaded only where its name is given.
- Files are bounded and read as far as they carry; what they do not say stays None.
- A tool's own figures are taken as they are. Throughput is over its whole run, beginning and end included, where Knee's
  is over a steady window; `ForeignResult.lacks` says so wherever the figures are shown.
- Requests one by one, which some tools can add to their files, are not read.
"""

from __future__ import annotations

import functools
import importlib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.base import decoding, plugins
from harness.base.errors import HarnessError, nearest
from harness.results.readers import table
from harness.results.readers.level import SHARED, ForeignLevel, ForeignResult, Reader, in_words

LARGEST = 64 << 20  # bytes of a file: those with single requests are larger, and need not be
FAILED = 0.01  # share of failed requests above which a level is no point, as in `analysis.rules.requests`
CSV = "csv"  # the format of plain tables, and of those of `knee export`
_FIRST = ("vllm", "guidellm", "aiperf", "reports")  # asked in this order, others after them
_MOST_LEVELS = 10_000
_MOST_FILES = 2_000
_ENDINGS = (".json", ".jsonl", ".csv", ".yaml", ".yml")  # endings of files in a folder that are looked into
_SAME = 1e-6  # relative, between two figures of one measurement in two files
_NAMED = 8  # levels
_WHAT = "a file of measured levels"
_JSON = json.JSONDecoder(parse_constant=lambda _: None)
_YAML = re.compile(r"(---\s|[A-Za-z_]\w*:(\s|$))")  # how a report begins, behind its comments
_DOCUMENT = re.compile(r"^---\s*$", re.MULTILINE)
_BETWEEN = re.compile(r"[\s,]*")


@functools.cache
def built_in() -> dict[str, tuple[Reader, ...]]:
    """Return the readers of this package by format, in the order in which a file is shown to them."""
    modules = (importlib.import_module(f"{__name__}.{name}") for name in plugins.module_names(__path__, _FIRST))
    return {name: found for module in modules for name, found in getattr(module, "READERS", {}).items()}


def read(path: str | Path, named: str = "") -> ForeignResult:
    """Return the levels of a file from outside; raise HarnessError if it is of no known format, or damaged.

    `named` is one of `built_in`, CSV or a plug-in; without it the content says which it is.
    """
    with decoding.reading(str(path), _WHAT, _way_out()):
        data = decoding.content(Path(path), LARGEST)
    return of_bytes(data, str(path), named)


def read_folder(folder: str | Path, named: str = "") -> ForeignResult:
    """Return the levels of all files in a folder and below it as one result; raise HarnessError if none has any.

    Files of no known format, such as inputs and logs, are left out; `lacks` names those that could have been one.
    """
    paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in _ENDINGS and path.is_file())
    if len(paths) > _MOST_FILES:
        raise HarnessError(f"more than {_MOST_FILES:,} files", place=str(folder), way_out="name the files that count")
    results, unread = [], []
    for path in paths:
        try:
            results.append((str(path), read(path, named)))
        except decoding.UndecodableError:
            unread.append(path.name)
        except HarnessError:  # a file of another kind
            continue
    if not results:
        raise HarnessError("no run of Knee and no file of measured levels in it", place=str(folder), way_out=_way_out())
    whole = joined(results, str(folder))
    if not unread:
        return whole
    words = f"not read, as they are damaged or too large: {', '.join(unread[:_NAMED])}"
    return msgspec.structs.replace(whole, lacks=(*whole.lacks, words))


def joined(results: Sequence[tuple[str, ForeignResult]], place: str) -> ForeignResult:
    """Return the results of several files as one; raise HarnessError if their tools, models, engines or cards differ.

    A level without a load is left out where others have one, and so is a level that another file has with the same
    load and throughput.
    """
    whole = _joined([each for _, each in results], place)
    loads = any(level.concurrency or level.rate for level in whole.levels)
    levels: list[ForeignLevel] = []
    for _, each in results:
        before = list(levels)
        for level in each.levels:
            if loads and not (level.concurrency or level.rate or level.in_flight):
                continue
            if not any(_is_same(level, known) for known in before):
                levels.append(level)
    return msgspec.structs.replace(whole, levels=levels)


def _is_same(one: ForeignLevel, other: ForeignLevel) -> bool:
    """Return whether two levels of two files have the same load and the same throughput."""
    if (one.concurrency, one.rate, one.requests) != (other.concurrency, other.rate, other.requests):
        return False
    a, b = one.output_tokens_per_s or 0.0, other.output_tokens_per_s or 0.0
    return abs(a - b) <= _SAME * b and one.in_flight == other.in_flight


def of_bytes(data: bytes, place: str, named: str = "") -> ForeignResult:
    """Return the levels in a known tool's JSON, YAML or CSV; raise HarnessError for anything else."""
    readers = _readers(named)
    with decoding.reading(place, _WHAT, _way_out()):
        text = data.decode().removeprefix("\ufeff")
        if text.lstrip()[:1] in ("{", "["):
            result = _of_documents(_of_json(text, _MOST_LEVELS), place, readers)
        elif _is_yaml(text):
            result = _of_documents(_of_yaml(text, _MOST_LEVELS), place, readers)
        else:
            result = _of_csv(text, place, readers, plain=named in ("", CSV))
        if result is None:
            fact = f"no file of the format {named}" if named else "a file of no known tool"
            raise HarnessError(fact, place=place, way_out="leave --format out" if named else _way_out())
    if not any(level.output_tokens_per_s for level in result.levels):
        fact = f"no output tokens per second in this file of {result.source}"
        raise HarnessError(fact, place=place, way_out=_way_out())
    if len(result.levels) > _MOST_LEVELS:
        raise HarnessError(f"more than {_MOST_LEVELS:,} levels", place=place, way_out="give fewer")
    return _judged(result)


def _readers(named: str) -> Sequence[Reader]:
    """Return the readers of a format, built in or of another package; all built-in ones without a name."""
    known = built_in()
    if not named:
        return [each for readers in known.values() for each in readers]
    if named in known:
        return known[named]
    reader = plugins.find(plugins.READERS, named, Reader)
    if reader is None:
        names = [*known, *plugins.names(plugins.READERS)]
        raise HarnessError(f"no format '{named[:40]}'", place="--format", way_out=nearest(named, names))
    return (reader,)


def _way_out() -> str:
    known = (reader for name, readers in built_in().items() for reader in readers if name != CSV and not reader.rows)
    names = ", ".join(each.name for each in known)
    return f"give a result folder, a CSV, or a file of {names}"


def closed_loop(result: ForeignResult, place: str) -> list[tuple[float, float, ForeignLevel]]:
    """Return (concurrency, output tokens/s, level) of each level with both; raise HarnessError if none has.

    A level that names no concurrency counts by what was in flight.
    """
    out = []
    for level in result.levels:
        load = level.requested
        if load and level.output_tokens_per_s:
            out.append((load, level.output_tokens_per_s, level))
    if not out:
        fact = f"this file of {result.source} names no requests in flight"
        if any(level.rate for level in result.levels):
            fact = f"this file of {result.source} was measured at fixed rates, not at requests in flight"
        raise HarnessError(fact, place=place, way_out="give one of a run with fixed concurrency")
    return out


def _of_documents(documents: Sequence[Any], place: str, readers: Sequence[Reader]) -> ForeignResult | None:
    """Return the levels of all documents or rows; None if no reader recognises them."""
    documents = [each for i, each in enumerate(documents) if each not in documents[:i]]  # one may stand twice in a file
    reader = next((each for each in readers if not each.rows and all(map(each.matches, documents))), None)
    return _joined([reader.read(piece) for piece in documents], place) if reader and documents else None


def _joined(results: Sequence[ForeignResult], place: str) -> ForeignResult:
    """Return one result with the levels of several; raise HarnessError if their tools, models, engines or cards differ.

    A simulation and a measurement differ too.
    """
    facts: dict[str, Any] = {}
    for name in SHARED:
        known = list(dict.fromkeys(each for result in results if (each := getattr(result, name)) is not None))
        if len(known) > 1:
            fact = f"it has levels of {in_words(known[0])} and of {in_words(known[1])}"
            raise HarnessError(fact, place=place, way_out="give each a file of its own")
        facts[name] = known[0] if known else None
    lacks = tuple(dict.fromkeys(lack for result in results for lack in result.lacks))
    levels = [level for result in results for level in result.levels]
    return msgspec.structs.replace(results[0], levels=levels, lacks=lacks, **facts)


def _of_csv(text: str, place: str, readers: Sequence[Reader], *, plain: bool) -> ForeignResult | None:
    """Return the levels of a CSV by the reader that recognises it, or as a `plain` table if allowed; else None."""
    rows = table.rows(text, place)
    cells = [row.cells for row in rows]
    found = next((reader for reader in readers if reader.rows and reader.matches(cells)), None)
    if found is not None:
        return found.read(cells)
    named = _of_documents(table.by_name(rows), place, readers) if rows else None
    return table.points(text, place) if named is None and plain else named


# ---- which levels are points of a curve, by the rules of Knee's own --------------------------------------------------


def _judged(result: ForeignResult) -> ForeignResult:
    """Return the result with levels at which too many requests failed marked invalid, and what it lacks in words.

    A reader itself says which levels had fewer requests in flight.
    """
    nothing = [level for level in result.levels if not (level.output_tokens_per_s or _fails(level))]
    failing, low = [level for level in result.levels if _fails(level)], [e for e in result.levels if not e.in_flight_ok]
    levels = [msgspec.structs.replace(level, valid=False) if _fails(level) else level for level in result.levels]
    words = [
        *([f"more than {FAILED:.0%} of the requests failed at {_loads(failing)}: not counted"] if failing else []),
        *([f"no output tokens per second at {_loads(nothing)}: not counted"] if nothing else []),
        *([f"fewer requests were in flight than asked for at {_loads(low)}"] if low else []),
    ]
    return msgspec.structs.replace(result, levels=levels, lacks=(*result.lacks, *words))


def _fails(level: ForeignLevel) -> bool:
    failed = level.failed or 0
    return failed > FAILED * (failed + (level.requests or 0))


def _loads(levels: Sequence[ForeignLevel]) -> str:
    """Return as words the loads of the first few levels, and how many more there are.

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


# ---- the pieces of a file: documents of JSON or YAML one after the other, or the rows of a table ---------------------
# A list is its elements. So a line a level, a file a level joined by `cat`, and a list of levels are read alike.


def _of_json(text: str, most: int) -> list[Any]:
    """Return the JSON documents in a text as plain data, lists flattened; it stops after more than `most`.

    >>> _of_json('{"a": 1}{"a": NaN}\\n[{"a": 3}, {"a": 4}]', 9)
    [{'a': 1}, {'a': None}, {'a': 3}, {'a': 4}]
    """
    documents: list[Any] = []
    at = _end(text, 0)
    while at < len(text) and len(documents) <= most:
        value, at = _JSON.raw_decode(text, at)
        decoding.check(value, numbers=False)
        documents += value if isinstance(value, list) else [value]
        at = _end(text, at)
    return documents


def _end(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return found.end() if found else at


def _is_yaml(text: str) -> bool:
    """Return whether a text that is no JSON begins as a document of YAML does.

    >>> _is_yaml("# a\\nversion: '0.2'"), _is_yaml("# a\\nconcurrency,output_tokens_per_s")
    (True, False)
    """
    lines = (line.lstrip() for line in io.StringIO(text))
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return _YAML.match(first) is not None and "," not in first


def _of_yaml(text: str, most: int) -> list[Any]:
    """Return the documents of YAML as plain data, lists as their entries; raise one of decoding.WRONG if it is none."""
    documents = [each for each in _DOCUMENT.split(text) if each.strip()][: most + 1]
    parsed = [msgspec.to_builtins(msgspec.yaml.decode(document)) for document in documents]
    decoding.check(parsed, numbers=False)
    return [piece for document in parsed for piece in (document if isinstance(document, list) else [document])]
