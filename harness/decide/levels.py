"""The levels of a run as every decision reads them: which of them count, their means, and whether they meet a limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from harness.analysis import slo
from harness.analysis.answer import of_ramp
from harness.analysis.points import Point
from harness.analysis.rules import Purpose, usable
from harness.analysis.summarise import summarise
from harness.data.judgement import Outcome
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.summary import Summary
from harness.data.views import Spread
from harness.results.folder import SUMMARY, has_requests
from harness.results.result import Result, read_summary, run_manifest

_LEAST, _MOST = 1e-6, 1e12  # requests in flight, tokens per second: no level has less or more


def opened(place: str, limits: Mapping[str, float] | None = None) -> tuple[Manifest, Summary, Result | None]:
    """Return a result folder's manifest, its summary and its content, which is None where its requests were removed.

    With its requests the levels are judged by `limits` (seconds by name) in place of those of the run and its classes.
    """
    folder = Path(place)
    if (folder / SUMMARY).exists() and not has_requests(folder):
        return run_manifest(folder), read_summary(folder), None
    run = Result.open(folder)
    if limits is not None:
        asked = run.manifest.scenario
        bare = [msgspec.structs.replace(each, slo={}) for each in asked.class_ or ()]
        asked = msgspec.structs.replace(asked, slo=dict(limits), class_=bare or asked.class_)
        run = msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, scenario=asked))
    return run.manifest, summarise(run), run


def valid(levels: Iterable[LevelSummary]) -> list[LevelSummary]:
    """Return the levels of the ramp whose figures may be read."""
    return [level for level in of_ramp(levels) if level.load is not None and usable(level, Purpose.ANSWER)]


def within_reason(point: Point) -> bool:
    """Return whether a server can have reached a level's figures; a stored summary may come from anybody."""
    figures = (point.in_flight or point.concurrency, point.throughput, point.se or 1.0)
    return all(_LEAST < figure < _MOST for figure in figures)


def weighted(pairs: Iterable[tuple[float | None, int]]) -> float | None:
    """Return the mean of values by the requests that each is of; None where no value has a request.

    >>> weighted([(100.0, 1), (200.0, 3), (None, 5)])
    175.0
    """
    known = [(value, n) for value, n in pairs if value is not None and n > 0]
    total = sum(n for _, n in known)
    return sum(value * n for value, n in known) / total if total else None


# ---- limits, by the percentiles that a summary has ------------------------------------------------------------------


def outcome(repeats: Sequence[LevelSummary], limit: slo.SloLimit) -> Outcome:
    """Return whether the repeats of a load meet a limit by their stored percentiles; unresolved where these do not say.

    The percentile decides where the samples are as many as a decision takes (`slo.fewest`). Fewer show that the limit
    is missed where too few are within it even by the lowest percentile above it. Of several repeats the slowest counts.
    """
    found = [each for each in (_stored(level, limit) for level in repeats) if each.samples]
    slowest = max((each.at(limit.needed) for each in found), default=math.nan)
    n = sum(each.samples for each in found)
    if math.isnan(slowest):
        return Outcome.UNRESOLVED
    if n >= slo.fewest(limit.needed, limit.confidence):
        return Outcome.MET if slowest <= limit.seconds else Outcome.MISSED
    within = sum(int(each.most_within(limit.seconds) * each.samples) for each in found)
    missed = slo.attained(limit, within, n, 1.0).outcome == Outcome.MISSED
    return Outcome.MISSED if missed else Outcome.UNRESOLVED


class _Stored(msgspec.Struct, frozen=True):
    """What is stored of a limit's samples: seconds by the share that is within them."""

    seconds: dict[float, float]
    samples: int

    def at(self, share: float) -> float:
        """Return the seconds within which the share lies, at most; nan where nothing is known."""
        return self.seconds.get(share, self.seconds.get(1.0, math.nan))

    def most_within(self, seconds: float) -> float:
        """Return the largest share that may lie within so many seconds."""
        return min((share for share, value in self.seconds.items() if value > seconds), default=1.0)


def _stored(level: LevelSummary, limit: slo.SloLimit) -> _Stored:
    """Return what is known of a limit at a level.

    `itl` and `icl` without a percentile are of requests: their mean pace, and their longest gap.
    """
    if limit.figure == "icl" and not limit.of_gaps:
        longest = level.icl_s.max
        return _Stored({} if longest is None else {1.0: longest}, level.e2e_s.n)
    of_requests = limit.figure == "itl" and not limit.of_gaps
    spread: Spread = level.tpot_s if of_requests else getattr(level, f"{limit.figure}_s")
    stored = {0.5: spread.p50, 0.9: spread.p90, 0.95: spread.p95, 0.99: spread.p99, 1.0: spread.max}
    return _Stored({share: seconds for share, seconds in stored.items() if seconds is not None}, spread.n)
