"""Throughput that collapses past the knee leaves the knee to the levels below the fall."""

from __future__ import annotations

import pytest

from harness.analysis import curve
from harness.analysis.curve import Fit, Point, fit

DOUBLING = [1, 2, 4, 8, 16, 32, 64, 128]
RISE = [100.0, 195, 380, 740, 1300]


def curve_with(tail: list[float]) -> Fit:
    return fit([Point(C, None, X) for C, X in zip(DOUBLING, RISE + tail, strict=True)])


@pytest.mark.parametrize("tail", [[1310, 700, 650], [1310, 440, 430], [1310, 900, 260], [1310, 300, 90]])
def test_the_knee_is_that_of_the_levels_below_the_fall(tail: list[float]) -> None:
    found = curve_with(tail).curve
    low, high = found.hinge_concurrency.ci95 or (None, None)
    assert found.state == "provisional"
    assert low is not None
    assert high is not None
    assert 12 < low < (found.hinge_concurrency.value or 0) < high <= 64
    assert found.plateau_tokens_per_s.value == pytest.approx(1305, rel=0.02)
    assert found.settle is not None
    assert all(C < 64 for C in found.settle.levels)


def test_a_plateau_that_was_found_stays_found() -> None:
    found = curve_with([1310, 1300, 130])
    assert found.curve.state == "found"
    assert found.curve.hinge_concurrency.value == pytest.approx(15.2, rel=0.02)
    assert found.curve.parameters["collapse"] == 128
    assert found.knees.peak == found.knees.hinge
    assert [v.message for v in found.curve.verdicts] == [
        "throughput collapses past the knee, from 1310 at 32 in flight to 130 at 128; "
        "knee and plateau are those of the levels below 128"
    ]


def test_throughput_that_rises_up_to_the_fall_has_its_knee_between_the_neighbours_of_the_highest_level() -> None:
    found = curve_with([400, 300, 250])
    assert found.curve.state == "provisional"
    assert found.curve.hinge_concurrency.value == 16
    assert found.curve.hinge_concurrency.ci95 == (8, 32)
    assert found.knees.hinge == found.curve.hinge_concurrency
    assert found.curve.plateau_tokens_per_s.value == 1300
    assert found.curve.plateau_tokens_per_s.ci95 is not None
    assert 1200 < (found.curve.plateau_tokens_per_s.ci95[0] or 0) < 1300
    assert found.curve.reasons == ["throughput rises up to 16 in flight and has collapsed at 32"]
    assert found.curve.settle is not None
    assert found.curve.settle.levels == [23]
    assert found.draws is not None
    assert found.draws.hinge.max() <= 32


def test_a_provisional_plateau_rises_no_further_than_the_fall() -> None:
    """Three levels below it leave the asymptote open; the steepest line has 5,600 tok/s at the fall."""
    found = fit([Point(C, None, X) for C, X in zip([8, 16, 32, 64], [700.0, 1200, 1600, 500], strict=True)])
    assert found.curve.state == "provisional"
    low, high = found.curve.plateau_tokens_per_s.ci95 or (None, None)
    assert 1300 < (low or 0) < 1600 < (high or 0) < 5600
    assert found.knees.plateau95 is not None
    assert found.knees.plateau95.ci95 is not None
    assert found.knees.plateau95.ci95[1] == 64
    rising = curve_with([400, 300, 250]).curve.plateau_tokens_per_s.ci95
    assert rising is not None
    assert 1300 < (rising[1] or 0) < 2600, "a line from 16 to the fall at 32 doubles it"


@pytest.mark.parametrize(
    ("N", "X", "collapses"),
    [
        ([8, 16, 50, 50], [700.0, 1200, 1600, 500], True),
        ([8, 16, 50, 50], [700.0, 1200, 1600, 1600], False),
        ([50, 50, 50, 50], [700.0, 1200, 1600, 400], True),
        ([8, 16, 50, 40], [700.0, 1200, 1600, 1600], False),
    ],
)
def test_levels_of_which_as_many_were_in_flight_count_by_their_concurrency(
    N: list[float], X: list[float], collapses: bool
) -> None:
    """A server that runs 50 requests and no more: a doubling of N = 0 has no slope."""
    found = fit([Point(C, n, x) for C, n, x in zip([8, 16, 32, 64], N, X, strict=True)])
    assert ("collapse" in found.curve.parameters) is collapses
    assert not any("e+" in reason or len(reason) > 150 for reason in found.curve.reasons)


@pytest.mark.parametrize(
    "X",
    [
        [100.0, 195, 380, 740, 1300, 1290, 1250, 1200],  # a mild fall
        [100.0, 195, 380, 740, 1300, 900, 600, 400],  # a dip follows it
        [100.0, 90, 80, 72, 65, 58, 52, 47],  # falls from the first level on, and nowhere steeply
        [100.0, 195, 380, 90, 1300, 1310, 1305, 1300],  # one level that is off
        [100.0, 60, 40, 30, 20, 15, 10, 5],  # nothing below the fall
    ],
)
def test_other_falls_are_no_collapse(X: list[float]) -> None:
    found = fit([Point(C, None, x) for C, x in zip(DOUBLING, X, strict=True)])
    assert "collapse" not in found.curve.parameters


def test_a_fall_within_the_scatter_of_the_levels_is_none() -> None:
    scattered = [100.0, 300, 250, 900, 700, 1900, 1000, 600]
    found = fit([Point(C, None, x) for C, x in zip(DOUBLING, scattered, strict=True)])
    assert "collapse" not in found.curve.parameters
    assert found.curve.family in curve.FAMILIES
