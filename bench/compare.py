"""Comparisons against truths that are known: what `knee compare` says of stacks whose curves are drawn.

Runs are of curves (`knee_truths`), so nothing takes time: a level has an error of its own, which it knows, and shares
another with all levels of its run, which it does not. Equal stacks must show no difference, stacks that are 5 % apart
theirs, and a load where the order turns over must lie in its interval.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import knee_truths
import numpy as np
from knee_truths import TrueCurve

from harness.analysis.points import Point
from harness.decide.compare.comparison import Pair, compare
from harness.decide.compare.runs import Facts, Run

APART = 1.05
SLOWER, HIGHER = (1.10, 1.30), (1.10, 1.30)  # the second stack's single stream and its plateau, where the order turns
FACTS = Facts(
    measured_by="knee", workload="w", unit="output tokens", model="m", parameters=8e9, gpu="g", gpus="1",
    power_limit="700 W", engine="e", precision="bf16", kv_dtype="auto", tp="1", max_num_seqs="256",
)  # fmt: skip
LEAST = {  # by kind of truth: what is due, and in how many of 20
    "equal": ("equal stacks: no difference shown", 19),
    "apart": ("5 % apart: found", 18),
    "turning": ("turn-over: in its interval", 18),
}


class Noise(NamedTuple):
    """Relative errors, and runs of each stack."""

    run: float
    level: float
    repeats: int


def runs(label: str, truth: TrueCurve, levels: list[int], noise: Noise, rng: np.random.Generator) -> list[Run]:
    """Return the repeats of one stack."""
    out = []
    for repeat in range(noise.repeats):
        shared = math.exp(noise.run * rng.normal())
        X = [truth.throughput(C) * shared * (1 + noise.level * rng.normal()) for C in levels]
        points = [Point(float(C), float(C), x, noise.level * x) for C, x in zip(levels, X, strict=True)]
        out.append(
            Run(
                label=label, place=f"{label}-{repeat}", facts=FACTS, input_tokens=512.0, output_tokens=128.0,
                points=points, loads=[],
            )
        )  # fmt: skip
    return out


def faster(truth: TrueCurve, by: float) -> TrueCurve:
    """Return the same curve with every level faster."""
    return truth._replace(a=truth.a / by, b=truth.b / by)


def turning(truth: TrueCurve, rng: np.random.Generator) -> TrueCurve:
    """Return a curve that is below `truth` at low load and above it at high load."""
    a, plateau = truth.a * rng.uniform(*SLOWER), truth.plateau * rng.uniform(*HIGHER)
    return TrueCurve(a, truth.b, a / (1 / plateau - truth.b))


def crossing(one: TrueCurve, other: TrueCurve, low: float, high: float) -> float:
    """Return where two curves that change their order once meet; by bisection.

    >>> round(crossing(TrueCurve(0.02, 0.0, 48.0), TrueCurve(0.03, 0.0, 96.0), 1.0, 1000.0), 6)    # N/0.03 = 48/0.02
    72.0
    """
    ahead = one.throughput(low) > other.throughput(low)
    for _ in range(80):
        middle = math.sqrt(low * high)
        if (one.throughput(middle) > other.throughput(middle)) == ahead:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def trial(kind: str, noise: Noise, rng: np.random.Generator) -> bool:
    """Return whether the comparison of a drawn pair says what is true."""
    truth = knee_truths.drawn("capped", rng)
    other = {"equal": lambda: truth, "apart": lambda: faster(truth, APART), "turning": lambda: turning(truth, rng)}[
        kind
    ]()
    levels = knee_truths.doubling(max(truth.B, other.B))
    pair = compared(truth, other, levels, noise, rng)
    if kind == "equal":
        return pair.outcome == "no_difference"
    if kind == "apart":
        return pair.faster == "B"
    turned = pair.turnover
    if turned is None or turned.at.ci95 is None:
        return False
    at, (low, high) = crossing(truth, other, 1.0, float(levels[-1])), turned.at.ci95
    return low is not None and high is not None and low <= at <= high and turned.below == "A"


def compared(one: TrueCurve, other: TrueCurve, levels: list[int], noise: Noise, rng: np.random.Generator) -> Pair:
    (pair,) = compare([*runs("A", one, levels, noise, rng), *runs("B", other, levels, noise, rng)]).pairs
    return pair


def parser() -> argparse.ArgumentParser:
    """Return the options, less how many runs a side has."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-noise", type=float, default=0.007)
    parser.add_argument("--level-noise", type=float, default=0.01)
    return parser


def count(
    options: argparse.Namespace,
    least: dict[str, tuple[str, int]],
    trial: Callable[[str, Noise, np.random.Generator], bool],
) -> int:
    """Draw as many of each kind as are asked for, and count those of which the right thing is said."""
    noise = Noise(options.run_noise, options.level_noise, options.repeats)
    met = True
    for i, (kind, (due, fewest)) in enumerate(least.items()):
        rngs = [np.random.default_rng([options.seed, i, number]) for number in range(options.trials)]
        right = sum(trial(kind, noise, rng) for rng in rngs)
        ok = right * 20 >= fewest * options.trials
        met = met and ok
        print(
            f"{due:36} {right:5} of {options.trials}   at least {fewest} of 20   {'met' if ok else 'MISSED'}",
            flush=True,
        )
    return 0 if met else 1


def main(arguments: list[str] | None = None) -> int:
    options = parser()
    options.add_argument("--repeats", type=int, default=3)
    return count(options.parse_args(arguments), LEAST, trial)


if __name__ == "__main__":
    sys.exit(main())
