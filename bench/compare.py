"""Comparisons against truths that are known: what `knee compare` says of stacks whose curves are drawn.

Runs are of curves (`knee_truths`), so nothing takes time: a level has an error of its own, which it knows, and shares
another with all levels of its run, which it does not. Equal stacks must show no difference, a stack that is slower
must be found, and a load where the order turns over must lie in its interval. In some rows a run is starved in every
third trial: it loses 40 % from the middle of its levels on, and the comparison must name it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import knee_truths
import msgspec
import numpy as np
from knee_truths import TrueCurve

from harness.analysis.points import Point
from harness.decide.compare.comparison import compare
from harness.decide.compare.pairs import Pair
from harness.decide.compare.runs import Facts, Run

SLOWER, HIGHER = (1.10, 1.30), (1.10, 1.30)  # the second stack's single stream and its plateau, where the order turns
STARVED = 0.6  # of the throughput of a run from the middle of its levels on
_EVERY = 3  # trials, of which one has a starved run
FACTS = Facts(
    measured_by="knee", workload="w", unit="output tokens", model="m", parameters=8e9, gpu="g", gpus="1",
    power_limit="700 W", engine="e", precision="bf16", kv_dtype="auto", tp="1", max_num_seqs="256",
)  # fmt: skip


class Case(NamedTuple):
    """A kind of truth with so many runs a side, what is due, and in how many of 20 trials."""

    due: str
    fewest: int
    repeats: int
    times: float = 1.0  # the second stack over the first
    starved: bool = False
    turns: bool = False


CASES = {
    "equal-3": Case("3+3 equal: no difference shown", 19, 3),
    "slower-3": Case("3+3, 5 % slower: found", 18, 3, times=0.95),
    "turning-3": Case("3+3, turn-over: in its interval", 18, 3, turns=True),
    "equal-2": Case("2+2 equal: no difference shown", 19, 2),
    "slower-2": Case("2+2, 10 % slower: found", 18, 2, times=0.9),
    "starved-equal-3": Case("3+3 equal, 1 starved: none shown", 19, 3, starved=True),
    "starved-slower-3": Case("3+3, 5 % slower, 1 starved: found", 18, 3, times=0.95, starved=True),
    "named-3": Case("3+3, 1 starved: named, no other", 19, 3, starved=True),
    "starved-equal-2": Case("2+2 equal, 1 starved: none shown", 19, 2, starved=True),
    "starved-slower-2": Case("2+2, 10 % slower, 1 starved: not wrong", 20, 2, times=0.9, starved=True),
    "named-2": Case("2+2, 1 starved: named, no other", 19, 2, starved=True),
}
LEAST = {kind: (case.due, case.fewest) for kind, case in CASES.items()}


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


def starved(run: Run) -> Run:
    """Return a run that loses throughput from the middle of its levels on."""
    middle = len(run.points) // 2
    lost = [msgspec.structs.replace(each, throughput=STARVED * each.throughput) for each in run.points[middle:]]
    return msgspec.structs.replace(run, points=[*run.points[:middle], *lost])


def trial(kind: str, noise: Noise, rng: np.random.Generator) -> bool:
    """Return whether the comparison of a drawn pair says what is true."""
    case = CASES[kind]
    truth = knee_truths.drawn("capped", rng)
    other = turning(truth, rng) if case.turns else faster(truth, case.times)
    levels = knee_truths.doubling(max(truth.B, other.B))
    one, two = (
        runs(name, curve, levels, noise._replace(repeats=case.repeats), rng)
        for name, curve in (("A", truth), ("B", other))
    )
    victim = ""
    if case.starved and rng.random() < 1 / _EVERY:
        of = rng.choice([0, 1])
        side = (one, two)[of]
        side[0] = starved(side[0])
        victim = side[0].place
    found = compare([*one, *two])
    (pair,) = found.pairs
    if kind.startswith("named"):
        return [odd.place for stack in found.stacks for odd in stack.odd] == [victim] * bool(victim)
    if case.turns:
        return _meets(pair, crossing(truth, other, 1.0, float(levels[-1])))
    if case.times == 1.0:
        return pair.outcome not in ("faster", "turns_over")
    if case.starved and case.repeats == 2:
        return pair.faster != "B" and pair.outcome != "turns_over"
    return pair.faster == "A"


def _meets(pair: Pair, at: float) -> bool:
    """Return whether the load where the order turns over lies in its interval."""
    turned = pair.turnover
    if turned is None or turned.at.ci95 is None:
        return False
    low, high = turned.at.ci95
    return low is not None and high is not None and low <= at <= high and turned.below == "A"


def parser() -> argparse.ArgumentParser:
    """Return the options."""
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
    noise = Noise(options.run_noise, options.level_noise, getattr(options, "repeats", 0))
    met = True
    for i, (kind, (due, fewest)) in enumerate(least.items()):
        rngs = [np.random.default_rng([options.seed, i, number]) for number in range(options.trials)]
        right = sum(trial(kind, noise, rng) for rng in rngs)
        ok = right * 20 >= fewest * options.trials
        met = met and ok
        print(
            f"{due:40} {right:5} of {options.trials}   at least {fewest} of 20   {'met' if ok else 'MISSED'}",
            flush=True,
        )
    return 0 if met else 1


def main(arguments: list[str] | None = None) -> int:
    return count(parser().parse_args(arguments), LEAST, trial)


if __name__ == "__main__":
    sys.exit(main())
