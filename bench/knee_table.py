"""What every row of the knee's benchmark is made of: its line of the table, and intervals compared with a truth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple, Protocol

import msgspec

from harness.summary import Value

COVERED, TOO_WIDE = 0.92, 0.98


class Line(msgspec.Struct, frozen=True):
    """One line of the table; `met` None: no target."""

    row: str
    what: str
    reach: str
    found: str
    met: bool | None
    remark: str = ""


class Options(NamedTuple):
    """The options of the command line."""

    runs: int
    server_runs: int
    cost_runs: int
    short_runs: int
    seed: int


class Bench(Protocol):
    """What a row works with: the options, and the processes."""

    options: Options
    pool: ProcessPoolExecutor


# ---- intervals ------------------------------------------------------------------------------------------


def covers(value: Value, truth: float) -> bool | None:
    """Whether the interval covers the truth; None where there is none. An end that is None is unbounded.

    >>> covers(Value(48.0, (40.0, None)), math.inf), covers(Value(48.0, (40.0, 60.0)), math.inf), covers(Value(None), 1)
    (True, False, None)
    """
    if value.ci95 is None:
        return None
    lo, hi = value.ci95
    return (lo is None or lo <= truth) and (hi is None or truth <= hi)


def width(value: Value) -> float:
    """Full width of the interval, relative to the value; inf where an end is unbounded, nan where there is none.

    >>> width(Value(50.0, (45.0, 55.0)))
    0.2
    """
    if value.ci95 is None:
        return math.nan
    lo, hi = value.ci95
    if lo is None or hi is None or not value.value:
        return math.inf
    return (hi - lo) / value.value


class Tally(msgspec.Struct, frozen=True):
    """Of many intervals: how many there are; of those the shares that cover and that are unbounded, and the width."""

    intervals: int
    of: int
    covered: float
    unbounded: float
    median_width: float

    def __str__(self) -> str:
        if not self.intervals:
            return f"none of {self.of} has an interval"
        return (
            f"{self.covered:.1%} of {self.intervals}/{self.of} intervals, median width {self.median_width:.1%}, "
            f"{self.unbounded:.1%} unbounded"
        )


def tally(values: Sequence[tuple[Value, float]]) -> Tally:
    """The intervals against their truths."""
    intervals = [(value, truth) for value, truth in values if value.ci95 is not None]
    if not intervals:
        return Tally(0, len(values), math.nan, math.nan, math.nan)
    widths = [width(value) for value, _ in intervals]
    covered = sum(covers(value, truth) is True for value, truth in intervals)
    unbounded = sum(math.isinf(w) for w in widths)
    return Tally(
        len(intervals), len(values), covered / len(intervals), unbounded / len(intervals), statistics.median(widths)
    )


def share(holds: Sequence[bool]) -> float:
    """The share that is true, 0 to 1; nan of none."""
    return sum(holds) / len(holds) if holds else math.nan


def kept(found: Tally, strict: bool) -> bool:
    """Whether the intervals keep their promise: at least 92 %, and where it is strict at most 98 %."""
    return found.intervals > 0 and found.covered >= COVERED and not (strict and found.covered > TOO_WIDE)


def promise(strict: bool) -> str:
    return f"{COVERED:.0%} … {TOO_WIDE:.0%}" if strict else f"≥ {COVERED:.0%}"
