"""Checks against truths that are known: what `knee check` says of a plateau against its baseline.

The runs are those of `compare`: drawn curves whose levels err by themselves, and share an error that no window shows.
Both sides have the same curve, or the baseline is faster by 5 %. The threshold lies between: 98 % of the baseline.
Three repeats find 5 % in 18 of 20.
"""

from __future__ import annotations

import sys

import compare
import knee_truths
import numpy as np
from compare import Noise
from knee_truths import TrueCurve

from harness.analysis import curve
from harness.data.summary import ClientSummary, Summary
from harness.decide.check.decision import decide
from harness.decide.check.expression import parse
from harness.decide.check.sides import CheckedRun

SLOWER = 0.95
THRESHOLD = parse("plateau >= 0.98*baseline")
LEAST = {
    "equal": ("the same again: never missed", 20),
    "slower": ("5 % slower: missed", 18),
}
_DRAWS = 100  # curves of a fit: its interval is only the least that repeats count as


def measured(
    label: str, truth: TrueCurve, levels: list[int], noise: Noise, rng: np.random.Generator
) -> list[CheckedRun]:
    """Return the repeats of one side, each with a curve of its own."""
    out = []
    for run in compare.runs(label, truth, levels, noise, rng):
        fit = curve.fit(run.points, draws=_DRAWS)
        summary = Summary(
            simulated=False, complete=True, verdicts=[], knee_concurrency=None, levels=[], curve=fit.curve,
            knees=fit.knees, prediction=None, cost=None, client=ClientSummary(),
        )  # fmt: skip
        out.append(CheckedRun(run=run, summary=summary))
    return out


def outcome(kind: str, noise: Noise, rng: np.random.Generator) -> str:
    """Return what the check says of a drawn stack against its baseline."""
    truth = knee_truths.drawn("capped", rng)
    other = compare.faster(truth, SLOWER) if kind == "slower" else truth
    levels = knee_truths.doubling(truth.B)
    baseline, runs = (measured(each, own, levels, noise, rng) for each, own in (("A", truth), ("B", other)))
    return decide([THRESHOLD], runs, baseline).outcome


def trial(kind: str, noise: Noise, rng: np.random.Generator) -> bool:
    """Return whether the check says what is true."""
    return (outcome(kind, noise, rng) == "missed") == (kind == "slower")


def main(arguments: list[str] | None = None) -> int:
    options = compare.parser()
    options.add_argument("--repeats", type=int, default=3)
    return compare.count(options.parse_args(arguments), LEAST, trial)


if __name__ == "__main__":
    sys.exit(main())
