"""Canaries against a planted fault: whole runs on a virtual clock, against a simulated endpoint with it and without.

Above 16 requests in flight the endpoint gives a share of its answers in other words, to canaries and to all others. The
level of 32 must be named, and no other; clean runs must be silent; and canaries must leave throughput as it is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec

sys.path.append(str(Path(__file__).parents[2]))

from harness.data.summary import Summary
from harness.sim import profile as profiles
from harness.spec import reading, scenario
from harness.spec.scenario import Scenario
from tests.builders import virtual_run

LEAST = 19  # of 20
REPEATS = 100  # of each prompt before the load, the most: requests are cheap here
UP_TO, ABOVE = 16, 32


def spec(seed: int, seconds: float) -> Scenario:
    """Return a run of short requests, so that many come; seeds of prompts differ from run to run."""
    tree = {
        "workload": {"input_tokens": 16, "output_tokens": 1, "seed": seed},
        "ramp": {"levels": [UP_TO, ABOVE], "level_seconds": seconds},
        "quality": {"repeats": REPEATS, "output_tokens": 1},
        "sim": {"max_num_seqs": 64},
    }
    return reading.build(tree, place="bench/research/quality")


def measured(asked: Scenario, seed: int, share: float = 0.0) -> Summary:
    """Return what comes of a run whose server has faults at its highest level, other ones by another seed."""
    served = profiles.embedded(asked.sim)
    with tempfile.TemporaryDirectory() as folder:
        server = virtual_run.Server(served, corrupt=share, above=UP_TO, seed=seed)
        return virtual_run.run(asked, served, Path(folder), server=server).summary


def named(found: Summary) -> list[float | None]:
    """Return the loads at which answers changed."""
    return [each.at for each in found.verdicts if each.code == "answers_changed"]


def alike(one: Summary, other: Summary) -> bool:
    """Return whether the intervals of requests per second overlap at every level that has them in both runs."""
    pairs = zip(one.levels, other.levels, strict=True)
    ends = [(a.requests_per_s.ci95, b.requests_per_s.ci95) for a, b in pairs]
    return all(max(a[0], b[0]) <= min(a[1], b[1]) for a, b in ends if a and b)


def report(name: str, right: int, runs: int, least: int) -> bool:
    met = right * 20 >= least * runs
    print(f"{name:48} {right:3} of {runs}   at least {least} of 20   {'met' if met else 'MISSED'}", flush=True)
    return met


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--share", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.runs)
    corrupted = [named(measured(spec(seed, options.seconds), seed, options.share)) for seed in seeds]
    clean = [measured(spec(seed, options.seconds), seed) for seed in seeds]
    plain = spec(options.seed, options.seconds)
    plain = msgspec.structs.replace(plain, quality=scenario.UNSET)
    met = [
        report(
            f"{options.share:.0%} corrupted: C = {ABOVE} named alone", corrupted.count([ABOVE]), options.runs, LEAST
        ),
        report("clean: silent", [named(each) for each in clean].count([]), options.runs, 20),
        report(
            "throughput with and without canaries alike", int(alike(clean[0], measured(plain, options.seed))), 1, 20
        ),
    ]
    for level in clean[0].levels:
        if level.quality:
            print(
                f"C = {level.concurrency}: {level.quality.compared} canaries of {level.requests} requests", flush=True
            )
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
