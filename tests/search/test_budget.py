"""What is left of a run's bounds, and when nothing may follow."""

from __future__ import annotations

import pytest

from harness.scenario import Ramp
from harness.search.budget import Budget, Spent


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
