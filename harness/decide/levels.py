"""The levels of a run as every decision reads them: which of them count, and their means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from harness.analysis.answer import of_ramp
from harness.analysis.points import Point
from harness.analysis.rules import Purpose, usable
from harness.analysis.summarise import summarise
from harness.base.errors import HarnessError
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.summary import Lengths, Summary
from harness.results.folder import SUMMARY, has_requests
from harness.results.result import Result, read_summary, run_manifest

_LEAST, _MOST = 1e-6, 1e12  # requests in flight, tokens per second: no level has less or more


def opened(place: str, limits: Mapping[str, float] | None = None) -> tuple[Manifest, Summary, Result | None]:
    """Return (manifest, summary, records) of a result folder; records are None if its requests were removed.

    With its requests the levels are judged by `limits` (seconds by name) in place of those of the run and its classes.
    """
    folder = Path(place)
    if (folder / SUMMARY).exists() and not has_requests(folder):
        return run_manifest(folder), read_summary(folder), None
    run = Result.open(folder)
    if limits is not None:
        scenario = run.manifest.scenario
        bare = [msgspec.structs.replace(spec, slo={}) for spec in scenario.class_ or ()]
        scenario = msgspec.structs.replace(scenario, slo=dict(limits), class_=bare or scenario.class_)
        run = msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, scenario=scenario))
    return run.manifest, summarise(run), run


def valid(levels: Iterable[LevelSummary]) -> list[LevelSummary]:
    """Return the levels of the ramp whose figures may be read."""
    return [level for level in of_ramp(levels) if level.load is not None and usable(level, Purpose.ANSWER)]


def within_reason(point: Point) -> bool:
    """Return whether a server can have reached a level's figures; a stored summary may come from anybody."""
    figures = (point.in_flight or point.concurrency, point.throughput, point.se or 1.0)
    return all(_LEAST < figure < _MOST for figure in figures)


def weighted(pairs: Iterable[tuple[float | None, int]]) -> float | None:
    """Return the mean of (value, its number of requests), weighted by the requests; None if no value has any.

    >>> weighted([(100.0, 1), (200.0, 3), (None, 5)])
    175.0
    """
    known = [(value, n) for value, n in pairs if value is not None and n > 0]
    total = sum(n for _, n in known)
    return sum(value * n for value, n in known) / total if total else None


def error_of_mean(classes: Sequence[tuple[int, Lengths]]) -> float | None:
    """Return one standard error of the mean length over the requests of all classes; None if it is not known."""
    known = [
        (n, each.realised.mean, each.mean_se or 0.0) for n, each in classes if n and each.realised.mean is not None
    ]
    total = sum(n for n, _, _ in known)
    if total < 2:
        return None
    mean = sum(n * own for n, own, _ in known) / total
    variance = sum(n * (n * se**2 + (own - mean) ** 2) for n, own, se in known) / total  # within classes and between
    return math.sqrt(variance / total)


def each_once(places: Sequence[str]) -> Sequence[str]:
    """Return the places of one side; raise HarnessError if one is given twice, which would count as its own repeat."""
    known = [Path(place).resolve() for place in places]
    for place, own in zip(places, known, strict=True):
        if known.count(own) > 1:
            raise HarnessError("is given twice", place=place, way_out="give each folder once")
    return places
