"""Result folders as rows: when, against what, and what came of it. For a list, and for a figure over time."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from harness.analysis.summarise import exit_status, summarise
from harness.base import ExitStatus
from harness.base.errors import HarnessError
from harness.data.manifest import MapManifest
from harness.decide.check import decision, figures
from harness.decide.check.expression import Subject
from harness.decide.check.figures import Quantity
from harness.decide.check.sides import CheckedRun
from harness.decide.compare import runs
from harness.results.folder import MANIFEST, REQUESTS, SPOOL, SUMMARY
from harness.results.levelmap import MAP
from harness.results.result import Result, read_manifest, read_summary
from harness.spec.work import Unit

FORMAT = 1
_DEEPEST, _MOST = 6, 20_000  # folders within each other, and folders that are looked into


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A result folder in a line."""

    place: str
    created: str | None
    target: str | None
    model: str | None
    per_s: str  # unit of its throughput
    simulated: bool
    state: str  # how well the knee is known
    knee: Quantity
    plateau: Quantity
    figure: Quantity | None = None  # the one that is plotted
    status: str  # complete | incomplete | invalid

    @property
    def time(self) -> datetime.datetime | None:
        """Return when it was begun; None if its manifest does not say."""
        return moment(self.created)


class Broken(msgspec.Struct, frozen=True):
    """A folder that cannot be read."""

    place: str
    error: str


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What `knee list` found, the oldest first."""

    format: int = FORMAT
    results: list[Entry]
    broken: list[Broken] = []


def listing(places: Sequence[str], plotted: Subject | None = None) -> Listing:
    """Return an entry for every result folder in these places, oldest first, and those that cannot be read."""
    entries: list[Entry] = []
    broken: list[Broken] = []
    for folder in dict.fromkeys(each for place in places for each in folders(place)):
        try:
            entries.append(entry(folder, plotted))
        except HarnessError as error:
            broken.append(Broken(str(folder), str(error)))
    entries.sort(key=lambda each: (each.time is None, each.time, each.place))
    return Listing(results=entries, broken=broken)


def folders(place: str) -> list[Path]:
    """Return the result folders in a place, down to six folders deep, in the order of their names.

    None is looked for inside another, so a place that is one is the only one. Links below the place are not followed.
    Raise HarnessError if there is none, if one cannot be read, or if there are too many folders.
    """
    top = Path(place)
    if not top.is_dir():
        raise HarnessError("no such folder", place=place, way_out="give a result folder, or a folder of them")
    inside = list(_within(top))
    if not inside:
        raise HarnessError("no result folder in it", place=place, way_out="give the --out of a run")
    return inside


def _within(top: Path) -> Iterator[Path]:
    """Yield the result folders in a folder, sorted, none inside another and none too deep.

    Raise HarnessError if a folder cannot be read, and for too many of them.
    """

    def refuse(error: OSError) -> None:
        raise HarnessError(error.strerror or str(error), place=error.filename, way_out="list another") from None

    for seen, (folder, inner, names) in enumerate(os.walk(top, onerror=refuse)):
        if seen >= _MOST:
            raise HarnessError(f"more than {_MOST:,} folders in it", place=str(top), way_out="list fewer at once")
        is_run = MAP not in names and not {MANIFEST, SUMMARY, REQUESTS, SPOOL}.isdisjoint(names)
        if is_run:
            yield Path(folder)
        at_the_end = is_run or len(Path(folder).relative_to(top).parts) >= _DEEPEST
        inner[:] = [] if at_the_end else sorted(inner)


def entry(folder: Path, plotted: Subject | None = None) -> Entry:
    """Return the list's entry of a result folder, from its stored summary, or from its records if a run is not over."""
    manifest = read_manifest(folder)
    if isinstance(manifest, MapManifest):
        raise HarnessError("a level map, not a run", place=str(folder), way_out="restore its map.json")
    stored = (folder / SUMMARY).exists() and not (folder / SPOOL).exists()
    summary = read_summary(folder) if stored else summarise(Result.open(folder))
    measured = runs.of_folder(str(folder), manifest, summary)
    of_figure = None
    if plotted is not None:
        missing = Quantity(None, None, "no level is finished")
        of_figure = decision.quantity(plotted, CheckedRun(run=measured[0], summary=summary)) if measured else missing
    invalid = exit_status(summary) != ExitStatus.DONE
    return Entry(
        place=str(folder),
        created=manifest.created,
        target=f"{len(manifest.urls)} replicas" if manifest.urls else manifest.url,
        model=manifest.model,
        per_s=Unit.known(summary.unit).per_s,
        simulated=summary.simulated,
        state=summary.knee.state,
        knee=figures.knee(summary),
        plateau=figures.plateau(summary),
        figure=of_figure,
        status="incomplete" if not summary.complete else "invalid" if invalid else "complete",
    )


def moment(text: str | None) -> datetime.datetime | None:
    """Return a time as a manifest has it, in UTC; None if it is none.

    >>> moment("2026-11-23T13:21:38+00:00"), moment("lately")
    (datetime.datetime(2026, 11, 23, 13, 21, 38, tzinfo=datetime.timezone.utc), None)
    """
    try:
        found = datetime.datetime.fromisoformat(text or "")
        return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None
