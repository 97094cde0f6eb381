"""What is left of a run's bounds, and when nothing may follow."""

from __future__ import annotations

import math

import pytest

from harness.search.budget import Budget, Spent
from harness.spec.scenario import Ramp


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (Ramp(max_seconds=60.0), "--max-seconds 60 is used up"),
        (Ramp(max_requests=100), "--max-requests 100 are sent"),
        (Ramp(max_dollars=2.5), "--max-dollars 2.5 are spent"),
        (Ramp(max_disk=10**10), "--max-disk 10GB is reached"),
    ],
)
def test_a_bound_that_is_reached_ends_the_run_and_one_that_is_not_does_not(spec: Ramp, why: str) -> None:
    assert Budget(spec, Spent(60.0, 100, 2.5, 10**10)).over() == why
    assert Budget(spec, Spent(59.9, 99, 2.4, 10**10 - 1)).over() is None
    assert Budget(Ramp(), Spent(1e9, 10**9, 1e9, 10**15)).over() is None


def test_what_is_left_is_the_nearest_bound_s() -> None:
    assert Budget(Ramp(max_seconds=60.0), Spent(45.0, 0)).seconds_left == 15.0
    assert Budget(Ramp(max_seconds=60.0), Spent(75.0, 0)).seconds_left == 0.0
    # 2 of 3 dollars in 40 s: the third lasts 20 s more.
    assert Budget(Ramp(max_seconds=90.0, max_dollars=3.0), Spent(40.0, 0, 2.0)).seconds_left == pytest.approx(20.0)
    assert Budget(Ramp(max_dollars=3.0), Spent(0.0, 0, 0.0)).seconds_left is None, "the pace is not known yet"
    assert Budget(Ramp(max_requests=100), Spent(0.0, 30)).requests_left == 70
    assert (Budget(Ramp(), Spent(1.0, 1)).seconds_left, Budget(Ramp(), Spent(1.0, 1)).requests_left) == (None, None)


def test_repeats_share_what_is_left_when_they_begin() -> None:
    spec = Ramp(max_seconds=300.0, max_requests=100, max_dollars=3.0, repeat=3)
    first = Budget(spec, Spent(99.0, 33, 0.5), repeats=3)
    assert (first.over(), first.requests_left) == (None, 0)
    assert first.seconds_left == pytest.approx(1.0)
    assert Budget(spec, Spent(100.0), repeats=3).over() == "this repeat's part of --max-seconds 300 is used up"
    assert Budget(spec, Spent(0.0, 34), repeats=3).over() == "this repeat's part of --max-requests 100 is sent"
    assert Budget(spec, Spent(0.0, 0, 1.0), repeats=3).over() == "this repeat's part of --max-dollars 3 is spent"
    # The first took 20 s longer than its part: each of the others has 10 s less.
    second = Budget(spec, Spent(150.0), before=Spent(120.0), repeats=2)
    assert (second.seconds, second.seconds_left) == (90.0, 60.0)
    # 1.2 dollars in 120 s: the half of what was left lasts 90 s, 30 of which are over.
    second = Budget(Ramp(max_dollars=3.0), Spent(150.0, 0, 1.5), before=Spent(120.0, 0, 1.2), repeats=2)
    assert second.seconds_left == pytest.approx(60.0)


def test_a_repeat_that_was_over_has_nothing_left_and_the_run_has() -> None:
    bounds = Budget(Ramp(max_seconds=300.0, repeat=2), Spent(100.0), repeats=math.inf)
    assert bounds.over() == "this repeat's part of --max-seconds 300 is used up"
    assert (bounds.seconds_left, bounds.whole().seconds_left, bounds.whole().over()) == (0.0, 200.0, None)
