"""What every row of the knee's benchmark is made of: its line of the table, and intervals compared with a truth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple, Protocol

import msgspec

from harness.data.summary import FOUND
from harness.data.views import Value

COVERED, TOO_WIDE = 0.92, 0.98
WRONG, FINITE = 0.02, 0.90  # of all ramps, found and yet wrong; of those past the truth, an interval with two ends


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
    """Return whether the interval covers the truth; None where there is none. An end that is None is unbounded.

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


def sharpness(value: Value) -> float:
    """Return upper / lower end of the interval; inf where an end is unbounded, or where there is none.

    >>> sharpness(Value(50.0, (40.0, 60.0))), sharpness(Value(50.0, (40.0, None))), sharpness(Value(None))
    (1.5, inf, inf)
    """
    lo, hi = value.ci95 or (None, None)
    return hi / lo if hi is not None and lo else math.inf


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
    """Return the intervals against their truths."""
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
    """Return the share that is true, 0 to 1; nan of none."""
    return sum(holds) / len(holds) if holds else math.nan


def kept(found: Tally, strict: bool) -> bool:
    """Return whether the intervals keep their promise: at least 92 %, and where it is strict at most 98 %."""
    return found.intervals > 0 and found.covered >= COVERED and not (strict and found.covered > TOO_WIDE)


def promise(strict: bool) -> str:
    return f"{COVERED:.0%} … {TOO_WIDE:.0%}" if strict else f"≥ {COVERED:.0%}"


# ---- ramps whose truth is known -------------------------------------------------------------------------


class Outcome(msgspec.Struct, frozen=True):
    """One ramp: what is true, and what the fit of its levels says."""

    truth: float
    state: str
    hinge: Value
    highest: int  # level
    levels: int


class Sharp(NamedTuple):
    """How sharp the answers of a row shall be; None: that has no target."""

    found: float | None = None  # least share of the ramps that say found
    ratio: float | None = None  # most of the median upper / lower end


def judged(row: str, what: str, outcomes: Sequence[Outcome], sharp: Sharp) -> Line:
    """Return the line of those ramps: met where every figure that has a target reaches it.

    An answer without an interval covers nothing. Wrong is a found answer that excludes the truth; its share is of all
    ramps.
    """
    covered = [covers(one.hinge, one.truth) is True for one in outcomes]
    found = [one.state == FOUND for one in outcomes]
    wrong = [says and not right for says, right in zip(found, covered, strict=True)]
    ratios = [sharpness(one.hinge) for one in outcomes if one.highest > one.truth]
    finite, ratio = share([math.isfinite(r) for r in ratios]), statistics.median(ratios) if ratios else math.inf
    checks = [
        (f"cover ≥ {COVERED:.0%}", f"{share(covered):.1%} cover", share(covered) >= COVERED),
        (f"wrong ≤ {WRONG:.0%}", f"{share(wrong):.1%} wrong", share(wrong) <= WRONG),
        (f"finite ≥ {FINITE:.0%}", f"{finite:.1%} of {len(ratios)} finite", finite >= FINITE),
        ("" if sharp.found is None else f"found ≥ {sharp.found:.0%}", f"{share(found):.1%} found",
         sharp.found is None or share(found) >= sharp.found),
        ("" if sharp.ratio is None else f"upper/lower ≤ {sharp.ratio:g}", f"upper/lower {ratio:.2f}",
         sharp.ratio is None or ratio <= sharp.ratio),
    ]  # fmt: skip
    middle = statistics.median(one.hinge.value or math.inf for one in outcomes)
    levels = statistics.median(one.levels for one in outcomes)
    return Line(
        row, what, ", ".join(target for target, _, _ in checks if target),
        f"of {len(outcomes)} ramps {', '.join(figure for _, figure, _ in checks)}", all(met for _, _, met in checks),
        f"truth {outcomes[0].truth:.1f}, median hinge {middle:.1f}; {levels:.0f} levels (median)",
    )  # fmt: skip
