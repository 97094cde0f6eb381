"""The table of several runs against one server whose knee is known: did each interval find it, and how tightly.

    python scripts/live/table.py --knee 16 --subset 1,2,4,8,16,32,64 results/live-vllm-*

Each run has a second fit, over a subset of its levels, from the same measurements.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import msgspec

from harness.analysis import curve
from harness.base import units
from harness.data.levels import LevelSummary
from harness.data.summary import Curve, Summary
from harness.data.views import Value

WITHIN = 0.25  # both ends of the interval, of the estimate


class Judged(NamedTuple):
    """One fit's knee, and whether its interval is right and tight."""

    text: str
    holds: bool
    tight: bool


def judge(hinge: Value, knee: float) -> Judged:
    """Return the estimate with its 95 % interval; an unbounded end is neither tight nor a miss.

    >>> judge(Value(16.5, (15.0, 19.0)), 16.0)
    Judged(text='16.5 [15.0, 19.0]', holds=True, tight=True)
    >>> judge(Value(12.0, (11.0, None)), 16.0)
    Judged(text='12.0 [11.0, ∞]', holds=True, tight=False)
    """
    if hinge.value is None or hinge.ci95 is None:
        return Judged("–", holds=False, tight=False)
    low, high = hinge.ci95
    ends = [low if low is not None else 0.0, high if high is not None else float("inf")]
    return Judged(
        f"{hinge.value:.1f} [{ends[0]:.1f}, {'∞' if high is None else f'{high:.1f}'}]",
        holds=ends[0] <= knee <= ends[1],
        tight=max(abs(end / hinge.value - 1) for end in ends) <= WITHIN,
    )


def half_width(level: LevelSummary) -> str:
    """Half of the 95 % interval in per cent of the mean; with ~ from the fit's own error where there is no interval."""
    rate, se = level.output_tokens_per_s, level.output_tokens_per_s_se
    if not rate.mean:
        return "–"
    if rate.ci95 is not None:
        return f"{50 * (rate.ci95[1] - rate.ci95[0]) / rate.mean:.1f}"
    return "–" if se is None else f"~{196 * se / rate.mean:.1f}"


def fit_columns(fitted: Curve, knee: float) -> list[str]:
    found = judge(fitted.hinge_concurrency, knee)
    noise = fitted.parameters.get("noise")
    answers = ["yes" if yes else "no" for yes in (found.holds, found.tight, fitted.plateau_reached)]
    return [found.text, *answers, "–" if noise is None else f"{100 * noise:.1f}"]


def host(folder: Path) -> list[str]:
    """Cores that others kept busy before and during the run, and what the hypervisor took."""
    path = folder / "host_load.json"
    if not path.exists():
        return ["–", "–", "–"]
    load = json.loads(path.read_text())
    during = load["cores_during"]
    return [f"{load['cores_before']['others']:.2f}", f"{during['others']:.2f}", f"{during['steal']:.2f}"]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


def measure_and_table(description: str) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Return the parser of a script that measures, or shows the table of such `folders`, and that of its `measure`."""
    parser = argparse.ArgumentParser(description=description)
    verbs = parser.add_subparsers(dest="verb", required=True)
    measuring = verbs.add_parser("measure")
    verbs.add_parser("table").add_argument("folders", nargs="+", type=Path)
    return parser, measuring


def main() -> None:
    parser = argparse.ArgumentParser(description="The knees of several runs, in one table.")
    parser.add_argument("--knee", type=float, required=True, help="where the server's knee is known to be")
    parser.add_argument("--subset", type=units.levels, required=True, help="levels of the fit beside it")
    parser.add_argument("folders", nargs="+", type=Path)
    arguments = parser.parse_args()
    knee = arguments.knee

    rows, curve_rows, good = [], [], 0
    widths: dict[str, dict[int, str]] = {}
    for folder in arguments.folders:
        summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary)
        widths[folder.name] = {s.concurrency: half_width(s) for s in summary.levels if s.concurrency is not None}
        points = curve.points_of(summary.levels)
        fitted = summary.curve or curve.fit(points).curve
        found = judge(fitted.hinge_concurrency, knee)
        good += found.holds and found.tight
        rows.append([folder.name, *fit_columns(fitted, knee), *host(folder)])
        some = curve.fit([p for p in points if p.concurrency in arguments.subset])
        curve_rows.append([folder.name, *fit_columns(some.curve, knee)])
    grid = sorted({concurrency for run in widths.values() for concurrency in run})

    judged = ["hinge [95 %]", f"holds {knee:g}", "ends within ±25 %", "plateau reached", "σ of a level, %"]
    print("The measured grid, with the cores that others kept busy before and during it:\n")
    print(table(["run", *judged, "others before", "others during", "steal"], rows))
    print("\nHalf-widths of the levels' 95 % intervals, % of output tok/s; ~ is 1.96 times the fit's own error,")
    print("where the window is shorter than the 20 request times that an interval needs:\n")
    by_level = [[name, *(run.get(concurrency, "–") for concurrency in grid)] for name, run in widths.items()]
    print(table(["run", *map(str, grid)], by_level))
    print(f"\nThe same runs, only the levels {', '.join(map(str, arguments.subset))}:\n")
    print(table(["run", *judged], curve_rows))
    print(f"\n{good} of {len(rows)} intervals hold {knee:g} with both ends within ±25 %.")


if __name__ == "__main__":
    main()
