"""Which levels of a file are points of a curve, by the rules of Knee's own levels, and words for those that are not.

Left out: what a tool's fields say of how many were in flight (its own module).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.results.foreign.measured import ForeignLevel, ForeignResult

FAILED = 0.01  # share of failed requests above which a level is no point, as in `analysis.rules.requests`
_NAMED = 8  # levels


def judged(found: ForeignResult) -> ForeignResult:
    """The same with levels at which requests failed as no points; what is wrong with which levels stands in `lacks`."""
    levels = [msgspec.structs.replace(each, valid=False) if _fails(each) else each for each in found.levels]
    failing, low = [each for each in levels if _fails(each)], [each for each in levels if not each.in_flight_ok]
    words = [
        *([f"more than {FAILED:.0%} of the requests failed at {_loads(failing)}: not counted"] if failing else []),
        *([f"fewer requests were in flight than asked for at {_loads(low)}"] if low else []),
    ]
    return msgspec.structs.replace(found, levels=levels, lacks=(*found.lacks, *words))


def _fails(level: ForeignLevel) -> bool:
    failed = level.failed or 0
    return failed > FAILED * (failed + (level.requests or 0))


def _loads(levels: Sequence[ForeignLevel]) -> str:
    """The first of them by their loads.

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
