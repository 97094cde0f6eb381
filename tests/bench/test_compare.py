"""The benchmark of comparisons: its truths, and a short form of it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import compare
import knee_truths
from knee_truths import TrueCurve


def test_a_stack_that_is_faster_is_so_at_every_load() -> None:
    truth = TrueCurve(0.02, 0.0001, 48.0)
    other = compare.faster(truth, 1.05)
    assert [other.throughput(N) / truth.throughput(N) for N in (1, 40, 500)] == pytest.approx([1.05] * 3)


def test_an_order_turns_over_where_the_curves_meet() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        truth = knee_truths.drawn("capped", rng)
        other = compare.turning(truth, rng)
        at = compare.crossing(truth, other, 1.0, 4 * max(truth.B, other.B))
        assert truth.throughput(0.9 * at) > other.throughput(0.9 * at)
        assert truth.throughput(1.1 * at) < other.throughput(1.1 * at)


def test_a_starved_run_loses_from_the_middle_on() -> None:
    rng = np.random.default_rng(0)
    exact = compare.Noise(run=0.0, level=0.0, repeats=1)
    (run,) = compare.runs("A", TrueCurve(0.02, 0.0001, 48.0), [1, 2, 4, 8], exact, rng)
    lost = compare.starved(run)
    shares = [bad.throughput / good.throughput for bad, good in zip(lost.points, run.points, strict=True)]
    assert shares == pytest.approx([1.0, 1.0, 0.6, 0.6])


@pytest.mark.slow
def test_comparisons_say_what_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--trials", "2"]) == 0
    assert capsys.readouterr().out.count("met") == len(compare.CASES)
