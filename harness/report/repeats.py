"""Levels that were measured more than once, as one each: means of the repeats.

A percentile of several repeats is the mean of those that have it, not that of all their requests together. Left out:
how the fit pools them, weighted by their errors (`analysis.points`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from harness.analysis import slo
from harness.analysis.rules import Purpose, usable
from harness.analysis.stats import t_quantile
from harness.data.summary import Estimate, LevelSummary, Spread

_FEWEST = 3  # repeats whose scatter makes an interval


def of_loads(levels: Sequence[LevelSummary]) -> list[list[LevelSummary]]:
    """The levels by their load, the lowest first, in each the repeats; those that are invalid only where all are."""
    by_load: dict[tuple[float, int], list[LevelSummary]] = {}
    for level in levels:
        by_load.setdefault((level.load or 0, level.input_tokens_asked or 0), []).append(level)
    return [[x for x in same if usable(x, Purpose.ANSWER)] or same for _, same in sorted(by_load.items())]


def distinct(levels: Sequence[LevelSummary]) -> list[LevelSummary]:
    """One level for each load, the lowest first."""
    return [mean_of(same) for same in of_loads(levels)]


def mean_of(same: Sequence[LevelSummary]) -> LevelSummary:
    """Repeats of one level as one: means of rates and times, sums of requests and errors, every verdict."""
    first = same[0]
    if len(same) == 1:
        return first
    spreads = {
        name: _spread([getattr(x, name) for x in same]) for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s", "lag_s")
    }
    rates = {
        name: _estimate([getattr(x, name) for x in same])
        for name in ("output_tokens_per_s", "input_tokens_per_s", "requests_per_s", "documents_per_s")
        if getattr(first, name)
    }
    return msgspec.structs.replace(
        first,
        repeat=0,
        in_flight=_mean(x.in_flight for x in same),
        requests=sum(x.requests for x in same),
        errors=sum(x.errors for x in same),
        verdicts=[verdict for x in same for verdict in x.verdicts],
        slo=list(slo.judged([x.slo for x in same if usable(x, Purpose.ANSWER)] or [first.slo], 0).pooled),
        **spreads,
        **rates,
    )


def _estimate(repeats: Sequence[Estimate]) -> Estimate:
    """The mean, with an interval by the scatter of three or more repeats (Student's t).

    >>> _estimate([Estimate(98.0), Estimate(100.0), Estimate(102.0)]).mean
    100.0
    """
    known = [each.mean for each in repeats if each.mean is not None]
    if len(known) < _FEWEST:
        return Estimate(_mean(known))
    mean = float(np.mean(known))
    half = t_quantile(0.975, len(known) - 1) * float(np.std(known, ddof=1)) / math.sqrt(len(known))
    return Estimate(mean, (mean - half, mean + half))


def _spread(repeats: Sequence[Spread]) -> Spread:
    means = {name: _mean(getattr(x, name) for x in repeats) for name in ("mean", "p50", "p90", "p95", "p99")}
    most = max((x.max for x in repeats if x.max is not None), default=None)
    return Spread(**means, max=most, n=sum(x.n for x in repeats))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
