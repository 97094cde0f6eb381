"""The adaptive ramp against a fixed sweep on one server whose knee is known: the intervals, and what they cost.

    python scripts/live/versus.py seconds ADAPTIVE --levels 1,2,4,8,16,32,64
    python scripts/live/versus.py table ADAPTIVE FIXED --knee 16

`seconds` is how long every level of the sweep has to be so that it sends twice the requests of the adaptive run, and
some more, as a server may slow down meanwhile; `table` then says whether the sweep's interval is as narrow. If it is
not, it needs more than twice the requests.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from table import judge, table

from harness.analysis import curve
from harness.analysis.summarise import summarise
from harness.base import units
from harness.data.summary import Summary
from harness.data.views import Value
from harness.results.result import Result

TIMES, LEAST = 2.2, 2.0  # the requests of the adaptive run that the sweep aims at, and has to reach
_AROUND = 3.0  # requests a slot that a level sends outside its window: 2 to warm up, 1 until the last has ended


def seconds(folder: Path, levels: list[int], times: float = TIMES) -> float:
    """Window of each level with which the sweep sends so many times the requests of the run in the folder."""
    run = Result.open(folder)
    summary = summarise(run)
    if summary.curve is None or not summary.curve.line:
        sys.exit(f"error: {folder}: no curve was fitted")
    each = run.manifest.workload.output_tokens or 1
    C = np.array(levels, dtype=np.float64)
    per_s = float(curve.throughput(summary.curve, C).sum()) / each
    return max(1.0, (times * len(run.records) - _AROUND * float(C.sum())) / per_s)


def width(hinge: Value) -> float:
    """Width of the interval over the estimate; infinite where it is unbounded or there is none.

    >>> width(Value(16.0, (15.0, 17.0)))
    0.125
    """
    low, high = hinge.ci95 or (None, None)
    return float((high - low) / hinge.value) if hinge.value and low is not None and high is not None else float("inf")


def row(name: str, folder: Path, knee: float) -> tuple[list[str], Summary, int, float]:
    run = Result.open(folder)
    summary = summarise(run)
    hinge = summary.curve.hinge_concurrency if summary.curve else Value(None)
    found = judge(hinge, knee)
    concurrencies = " ".join(f"{s.concurrency}" for s in summary.levels)
    spent = summary.levels[-1].window[1] - min(level.begin_s for level in run.levels)
    wide = width(hinge)
    reached = bool(summary.curve and summary.curve.plateau_reached)
    cells = [name, f"{len(run.records):,}", f"{spent:,.0f}", found.text, "yes" if found.holds else "no"]
    cells += ["–" if wide == float("inf") else f"{wide:.1%}", "yes" if reached else "no", concurrencies]
    return cells, summary, len(run.records), wide


def report(adaptive: Path, fixed: Path, knee: float) -> None:
    """Both runs, and whether the adaptive one contains the knee with at most half of the requests."""
    head = [
        "run",
        "requests",
        "seconds",
        "hinge [95 %]",
        f"holds {knee:g}",
        "width",
        "plateau reached",
        "levels in order",
    ]
    mine, summary, sent, narrow = row("adaptive ramp", adaptive, knee)
    theirs, _, spent, wide = row("fixed sweep", fixed, knee)
    print(table(head, [mine, theirs]))
    contained = judge(summary.curve.hinge_concurrency if summary.curve else Value(None), knee).holds
    enough = LEAST * sent <= spent
    print(f"\nThe fixed sweep sent {spent / sent:.2f} times the requests of the adaptive ramp.")
    cheaper = enough and narrow < wide
    print(f"interval of the adaptive ramp contains {knee:g}: {'yes' if contained else 'no'}")
    print(f"at most half of the requests that the sweep needs for as narrow an interval: {'yes' if cheaper else 'no'}")
    sys.exit(0 if contained and cheaper else 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="The adaptive ramp against a fixed sweep.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    how_long = verbs.add_parser("seconds")
    how_long.add_argument("adaptive", type=Path)
    how_long.add_argument("--levels", type=units.levels, required=True)
    both = verbs.add_parser("table")
    both.add_argument("adaptive", type=Path)
    both.add_argument("fixed", type=Path)
    both.add_argument("--knee", type=float, required=True)
    options = parser.parse_args()
    if options.verb == "seconds":
        print(f"{seconds(options.adaptive, options.levels):.1f}")
    else:
        report(options.adaptive, options.fixed, options.knee)


if __name__ == "__main__":
    main()
