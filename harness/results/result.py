"""A result folder read back, finished or dead in the middle: all that reading code ever sees of one.

A run that lives, or died, has `requests.spool`; one that ended has `requests.parquet` and `telemetry.parquet` in its
place (harness.results.spool). Where both are there, one was cut off in becoming the other: they hold the same, and
the spool is the whole one.
"""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path

import msgspec

from harness.base import decoding
from harness.base.errors import HarnessError
from harness.data import manifest
from harness.data.manifest import Manifest, MapManifest
from harness.data.record import FORMAT, Header, Level, Record, Sample, check_format
from harness.data.summary import Summary
from harness.results import columns, frames
from harness.results.folder import MANIFEST, REQUESTS, SPOOL, SUMMARY, TELEMETRY, has_requests

_LARGEST = 64 << 20  # bytes of a summary: thousands of levels


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a run's folder."""

    path: Path
    manifest: Manifest
    header: Header
    levels: list[Level]
    records: list[Record]
    samples: list[Sample]
    finished: bool  # its spool became parquet: the run ended in order
    damage: str = ""  # why the end of its spool could not be read

    @classmethod
    def open(cls, path: str | Path) -> Result:
        """Return the run in a result folder, from its spool if there is one, else from its parquet files.

        Raise HarnessError if it has neither, with the runs inside it, if any.
        """
        folder, about = Path(path), run_manifest(path)
        if (folder / SPOOL).exists():
            return cls.of_spool(folder, about)
        if not (folder / REQUESTS).exists():
            fact = "neither requests.parquet nor requests.spool here"
            inside = sorted(each.parent for each in folder.glob(f"*/{MANIFEST}"))
            if not inside:
                raise HarnessError(fact, place=str(folder), way_out="was it a run?")
            several = f"give one of the {len(inside)} in it, like {inside[-1]}; `knee list {folder}` lists them"
            raise HarnessError(fact, place=str(folder), way_out=several)
        header, levels, records = columns.requests(folder / REQUESTS)
        samples = columns.telemetry(folder / TELEMETRY) if (folder / TELEMETRY).exists() else []
        return cls(
            path=folder, manifest=about, header=header, levels=levels, records=records, samples=samples, finished=True
        )

    @classmethod
    def of_spool(cls, folder: Path, about: Manifest = Manifest()) -> Result:
        """Return the run in a folder's spool, up to any damage; raise HarnessError if its header cannot be read."""
        place = str(folder / SPOOL)
        with decoding.reading(place, "a spool", "restore it"):
            spooled = frames.read(folder / SPOOL)
        if spooled.header is None:
            way_out = "nothing was measured, or it was changed: run anew"
            raise HarnessError(_no_header(spooled), place=place, way_out=way_out)
        levels = [spooled.levels[index] for index in sorted(spooled.levels)]
        return cls(
            path=folder, manifest=about, header=spooled.header, levels=levels, records=spooled.records,
            samples=spooled.samples, finished=False, damage="; ".join(map(str, spooled.damages)),
        )  # fmt: skip

    @property
    def complete(self) -> bool:
        """Return whether the run came to its end by itself, and its files were written."""
        return self.finished and self.manifest.complete

    @property
    def last_s(self) -> float:
        """Return the last moment in any of the files, seconds since the origin."""
        moments = itertools.chain(
            (sample.time_s for sample in self.samples),
            (max(record.scheduled_s, record.sent_s or 0.0, record.done_s or 0.0) for record in self.records),
            (max(level.begin_s, level.window_end_s or 0.0, level.end_s or 0.0) for level in self.levels),
        )
        return max(moments, default=0.0)


def read_manifest(path: str | Path) -> Manifest | MapManifest:
    """Return the manifest in a result folder (or level map's folder); an empty one if the file is missing.

    Raise HarnessError if there is no folder, or if the file is no manifest.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise HarnessError("no such result folder", place=str(folder), way_out="give the --out of a run")
    file = folder / MANIFEST
    if not file.exists():
        return Manifest()
    way_out = "restore it"
    if has_requests(folder):
        way_out = "what was measured lies next to it: restore it, or move it away and `knee report` reads without it"
    with decoding.reading(str(file), "a manifest of this project", way_out):
        return manifest.read(decoding.json(decoding.content(file)))


def read_summary(path: str | Path) -> Summary:
    """Read a folder's stored summary, for one whose requests were taken out; of any version."""
    file = Path(path) / SUMMARY
    with decoding.reading(str(file), "a summary of this project", "make it again: knee report"):
        summary = decoding.typed(decoding.json(decoding.content(file, _LARGEST)), Summary)
        check_format(summary.format)
        predicted = summary.prediction
        loads = [load for level in summary.levels for load in (level.concurrency, level.rate) if load is not None]
        loads += [predicted.gpus, *(level.concurrency for level in predicted.levels)] if predicted else []
        if min(loads, default=1) <= 0:
            raise ValueError("it has a load that is not above 0")
        return summary


def run_manifest(path: str | Path) -> Manifest:
    """Read the manifest of a run; raise HarnessError if the folder is a level map's."""
    about = read_manifest(path)
    if isinstance(about, MapManifest):
        way_out = "give the folder of one of its cells"
        raise HarnessError("a level map, not a run", place=str(path), way_out=way_out)
    return about


def without_requests(path: str | Path) -> Result | None:
    """Return a run without records, from a folder whose requests were removed and whose summary was kept; else None."""
    folder = Path(path)
    if has_requests(folder) or not (folder / SUMMARY).exists():
        return None
    about = read_manifest(folder)
    if isinstance(about, MapManifest):
        return None
    samples = columns.telemetry(folder / TELEMETRY) if (folder / TELEMETRY).exists() else []
    header = Header(FORMAT, (), 0, 0.0)
    return Result(path=folder, manifest=about, header=header, levels=[], records=[], samples=samples, finished=True)


def must_go_on(folder: Path, about: Manifest | MapManifest) -> None:
    """Raise HarnessError if a run or map cannot be resumed: complete, nothing measured, a shard, a field missing."""
    if about.complete:
        way_out = f"see it by `knee report {shlex.quote(str(folder))}`"
        raise HarnessError("this run is complete", place=str(folder), way_out=way_out)
    if isinstance(about, Manifest) and not about.loaded:
        raise HarnessError("nothing was measured in it that could go on", place=str(folder), way_out="run anew")
    if isinstance(about, Manifest) and about.shards:
        raise HarnessError("the time of a shard's levels is past", place=str(folder), way_out="run all shards anew")
    if (lacking := manifest.missing(about)) is not None:
        raise HarnessError(f"its {lacking} is missing", place=str(folder / MANIFEST), way_out="restore it")


def _no_header(spooled: frames.Spooled) -> str:
    if spooled.damage is None or spooled.damage.at == spooled.damage.size:
        return "it ends before its first frame"
    return f"its first frame cannot be read: it {spooled.damage.why}"
