"""A dataset: a file of requests, opened, and read row by row as often as it is needed.

Its format is found by the names of its fields, or named by the operator: one of Knee's own, or one that another
package adds (`plugins.DATASETS`).

A name is of a data set of Hugging Face's hub, from its cache where it is there: `hf:org/name` is the first file of its
training split, `hf:org/name:part` the first whose path has that part in it, and
`hf:org/name@revision` one revision. Of a split in several files the first is read.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import msgspec

from harness.base import decoding, plugins
from harness.base.errors import HarnessError, nearest
from harness.base.terminal import few
from harness.workload import dataset
from harness.workload.dataset import Reader, Row, files, plain
from harness.workload.dataset.conversations import BRANCHES

_MOST_KEPT = 3  # errors of those that were left out
_FIRST = 100  # objects of a file: one must be whole, and their fields are looked at


@cache
def readers() -> dict[str, Reader]:
    """Return Knee's own readers by their names: `READERS` of each module here."""
    modules = plugins.modules(dataset.__name__, dataset.__path__)
    return {reader.name: reader for module in modules for reader in getattr(module, "READERS", ())}


def reader(name: str, place: str) -> Reader:
    """Return the reader of a dataset format by its name; raise HarnessError with the nearest name for none."""
    if (reader := readers().get(name) or plugins.find(plugins.DATASETS, name, Reader)) is None:
        known = [*readers(), *plugins.names(plugins.DATASETS)]
        raise HarnessError(f"unknown format {name!r}", place=place, way_out=nearest(name, known))
    return reader


class Skipped(msgspec.Struct):
    """The broken rows that were left out."""

    count: int = 0
    first: list[HarnessError] = []

    def add(self, error: HarnessError) -> None:
        self.count += 1
        if len(self.first) < _MOST_KEPT:
            self.first.append(error)


class Dataset(msgspec.Struct, frozen=True):
    """A file and its format; nothing of it is kept in memory."""

    path: Path
    reader: Reader
    unread: tuple[str, ...] = ()  # fields of its first records that look like work, and that nobody reads

    @property
    def format(self) -> str:
        return self.reader.name

    def rows(self, skipped: Skipped | None = None) -> Iterator[Row]:
        """Yield the requests in the order of the file, times since the first of them.

        A broken row is a HarnessError that names file, line and byte; with `skipped` it is left out and counted there.
        So is the end of a file that breaks off, behind all that is whole.
        """
        reader, clock = self.reader, _Clock()
        read = reader.rows if reader.begin is None else reader.begin()
        records = files.container(self.path).records(self.path, reader.record)
        for place, record in reader.gather(records) if reader.gather else records:
            try:
                if isinstance(record, Exception):
                    raise record
                for row in read(record, place):
                    yield clock.since_first(row)
            except decoding.WRONG as error:
                found = _broken(self.path, place, reader.what, error)
                if skipped is None:
                    raise found from None
                skipped.add(found)


def open_dataset(path: Path, format: str | None = None, columns: Mapping[str, str] | None = None) -> Dataset:
    """Open a file or result folder in the format that is named or that its contents show; raise HarnessError without.

    `columns` are names of its fields by what they mean, in place of a format.
    """
    if path.is_dir():
        folder, path = path, path / "requests.parquet"
        if not path.exists():
            raise HarnessError("a folder without requests.parquet", place=str(folder), way_out="give a file of it")
    if format is not None:
        return Dataset(path, reader(format, str(path)))
    first, fields = _fields(path)
    if columns:
        for name in columns.values():
            if name not in fields:
                fact = f"it has no field {name!r}"
                raise HarnessError(fact, place=f"--fields of {path}", way_out=nearest(name, fields))
        of_columns = plain.mapped(columns, str(path))
        return Dataset(path, of_columns, tuple(plain.unread(fields, of_columns.record)))
    wrong, right = plain.meant(fields)
    if wrong:
        way_out = f"did you mean {right!r}? --dataset plain:{path} leaves it out"
        raise HarnessError(f"no reader knows the field {wrong!r}", place=str(path), way_out=way_out)
    recognised = readers()[recognise(path, first)]
    return Dataset(path, recognised, () if recognised.complete else tuple(plain.unread(fields, recognised.record)))


class _Clock:
    """Rows with their times since the first one; either all rows have a time, or none.

    A row with a pause in place of a time comes so long after the row before of its session, whose answer takes no time.
    One without a pause has that from the end of the row before, where this says how long it took.
    A time that may be in milliseconds is, but where the first one is that of a log, in seconds since 1970.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self._begun = False
        self._per_s: float | None = None  # units of the times that rows have as milliseconds
        self._latest: dict[str, float] = {}  # time of each session's last row, after which a pause may come
        self._ended: dict[str, float] = {}  # end of each session whose rows say it

    def since_first(self, row: Row) -> Row:
        """Return the row with its time in seconds since the first row; raise ValueError if only some have times."""
        _check_blocks(row)
        at, notes = row.at_s, row.notes
        if row.output_tokens == 0:  # it failed there: how many it wanted is not known
            notes = (*notes, "an answer of 0 tokens says no length: as many as --output-tokens are asked for")
            row = msgspec.structs.replace(row, output_tokens=None, notes=notes)
        if row.at_ms is not None:
            self._per_s = self._per_s or (1.0 if 1e9 <= row.at_ms < 1e10 else 1e3)
            at = row.at_ms / self._per_s
            if self._per_s != 1 and row.hashes is None:  # other traces than Mooncake's
                notes = (*notes, "timestamp is read as milliseconds, at_s is in seconds")
        if not self._begun:
            self._begun, self._first = True, at
        if at is None and row.pause_s is not None and row.session in self._latest:
            at = self._latest[row.session] + row.pause_s
        if at is None or self._first is None:
            if at is not None or self._first is not None:
                raise ValueError("it has a time, or none, unlike the rows before it; one below 0 is none")
            return row
        if row.session:
            self._latest[row.session] = at
            if row.pause_s is None and row.session in self._ended:
                row = msgspec.structs.replace(row, pause_s=max(0.0, at - self._ended[row.session]))
            if row.took_s is not None:
                self._ended[row.session] = at + row.took_s
        return msgspec.structs.replace(row, at_s=at - self._first, at_ms=None, notes=notes)


def _check_blocks(row: Row) -> None:
    """Raise ValueError if a row has more block hashes than its prompt has blocks, or hashes of more than 64 bits."""
    if row.hashes and max(row.hashes) >> 64:
        raise ValueError("a hash of it has more than 64 bits")
    if row.hashes and row.input_tokens is not None and (len(row.hashes) - 1) * row.block >= row.input_tokens:
        fact = f"{len(row.hashes):,} hashes of {row.block:,} tokens are more than a prompt of {row.input_tokens:,}"
        raise ValueError(f"{fact}: its rows have to say another block_size")


def _fields(path: Path) -> tuple[list[str], list[str]]:
    """Return (field names of a file's first object, those of its first few objects with their bodies and turns).

    Fields by which turns branch count for the first object, whichever of the first few has them.

    Raise HarnessError if none of the first objects can be read.
    """
    container = files.container(path)
    if container.columns is not None:
        return container.columns(path), container.columns(path)
    wrong: HarnessError | None = None
    first: list[str] = []
    fields: dict[str, None] = {}  # in their order
    for place, record in islice(container.records(path, dict[str, msgspec.Raw]), _FIRST):
        if isinstance(record, Exception):
            wrong = wrong or _broken(path, place, "an object", record)
            continue
        first = first or list(record)
        fields |= dict.fromkeys(record)
        with contextlib.suppress(*decoding.WRONG):
            if "body" in record:
                fields |= dict.fromkeys(msgspec.json.decode(record["body"], type=dict[str, msgspec.Raw]))
            for turn in msgspec.json.decode(record.get("turns", b"[]"), type=list[dict[str, msgspec.Raw]]):
                fields |= dict.fromkeys(turn)
    if not first:
        raise wrong or HarnessError("holds no objects", place=str(path), way_out="give a file that holds requests")
    return [*first, *(name for name in BRANCHES if name in fields)], list(fields)


def recognise(path: Path, fields: Sequence[str]) -> str:
    """Return the only format whose fields are all among `fields`; raise HarnessError for none, or for several.

    >>> recognise(Path("x.csv"), ["Timestamp", "Model", "Request tokens", "Response tokens"])
    'burstgpt'
    """
    fit = {name: keys for name, each in readers().items() for keys in each.keys if keys.issubset(fields)}
    # A format whose fields are some of another's is meant only if the other does not fit.
    possible = [name for name, keys in fit.items() if not any(keys < others for others in fit.values())]
    possible.sort(key=lambda name: name == "plain")  # the general one is the last that an error names
    if len(possible) == 1:
        return possible[0]
    if possible:
        raise HarnessError(f"it could be {' or '.join(possible)}", place=str(path), way_out="name its format")
    # A header may be any text, also a secret: what of it is no name that files have is not shown.
    listed = [name for name in fields if plain.is_field(name) or files.container(path) is not files.DELIMITED]
    if len(fields) == 1 and files.container(path) is files.DELIMITED and not plain.is_field(fields[0]):
        way_out = """write each line like {"prompt": "…"}, or begin it with the line: prompt"""
        raise HarnessError("it is text without columns", place=str(path), way_out=way_out)
    fact = "none of its fields is known to hold prompts, or lengths of prompts and of answers"
    way_out = "say which do with --fields, like prompt=query, or input_tokens=query_len,output_tokens=reply_len"
    raise HarnessError(fact + (f": {few(listed, 12)}" if listed else ""), place=str(path), way_out=way_out)


def _broken(path: Path, place: str, what: str, error: Exception) -> HarnessError:
    """Return the one-line error on what is wrong at a place in a file."""
    try:
        with decoding.reading(f"{path}, {place}", what, "mend it, or leave it out with --skip-broken"):
            raise error
    except HarnessError as found:
        return found


# ---- by name
HUB = "hf:"
KNOWN = {  # data sets by the names that people use
    "lmsys": "hf:lmsys/lmsys-chat-1m",
    "mt-bench": "hf:HuggingFaceH4/mt_bench_prompts",
    "openorca": "hf:Open-Orca/OpenOrca",
    "sharegpt": "hf:anon8231489123/ShareGPT_Vicuna_unfiltered:ShareGPT_V3_unfiltered_cleaned_split.json",
    "wildchat": "hf:allenai/WildChat-1M",
}
_READ = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+?))?(?::(.+))?")
_LICENCE = re.compile(r"^license:\s*(\S+)", re.MULTILINE)


class Named(msgspec.Struct, frozen=True):
    """A file of a data set with a name."""

    path: Path
    revision: str
    licence: str | None  # licence on its card


def named(text: str, revision: str | None = None) -> Named | None:
    """Return the file, in the hub's cache or fetched, of a dataset's name like hf:org/name; None if it is a path."""
    if os.path.exists(text) or not (name := KNOWN.get(text, text)).startswith(HUB):
        return None
    match = _NAME.fullmatch(name.removeprefix(HUB))
    if match is None:
        raise HarnessError("it is no name of a data set", place=text, way_out="write it like hf:org/name:train")
    repository, asked, part = match.groups()
    try:
        from huggingface_hub import HfApi, constants, errors, hf_hub_download
    except ImportError:
        way_out = "pip install 'knee-harness[hub]', or give a file"
        raise HarnessError("huggingface_hub is not installed", place=text, way_out=way_out) from None
    wanted = revision or asked or "main"
    cache = Path(constants.HF_HUB_CACHE, f"datasets--{repository.replace('/', '--')}")
    with contextlib.suppress(OSError):
        wanted = (cache / "refs" / wanted).read_text().strip()
    folder = cache / "snapshots" / wanted
    here = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    if (chosen := _chosen(here, part)) is None:
        try:
            info = HfApi().dataset_info(repository, revision=wanted)
            there = [sibling.rfilename for sibling in info.siblings or ()]
            if (chosen := _chosen(there, part)) is None:
                way_out = nearest(part or "", there)
                raise HarnessError(f"it has no file of {part or 'a known format'}", place=text, way_out=way_out)
            for each in [chosen, *(["README.md"] if "README.md" in there else [])]:
                found = hf_hub_download(repository, each, repo_type="dataset", revision=info.sha)
                folder = Path(found.removesuffix(each))
        # Those of the hub, which are also those of the HTTP client that it uses, and a name that is none.
        except (ValueError, *errors.HfHubHTTPError.__bases__) as error:  # type: ignore[misc]  # all are errors
            reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
            way_out = (
                f"where there is a network, `hf download {repository} --repo-type dataset`, and copy its folder to "
                f"{cache}; or give a file"
            )
            raise HarnessError(
                f"it is not in the cache, and not to be had ({reason})", place=text, way_out=way_out
            ) from None
    card = folder / "README.md"
    licence = _LICENCE.search(card.read_text(errors="replace")) if card.is_file() else None
    return Named(folder / chosen, folder.name, licence[1] if licence else None)


def _chosen(files: Iterable[str], part: str | None) -> str | None:
    """Return the first file of these that is read and has the part in its path, by default of a training split.

    >>> _chosen(["README.md", "data/test-0.parquet", "data/train-0.parquet"], None)
    'data/train-0.parquet'
    """
    found = sorted(file for file in files if file.endswith(_READ) and (part or "") in file)
    return next((each for each in found if "train" in each), found[0] if found else None)
