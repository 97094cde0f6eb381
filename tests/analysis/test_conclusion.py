"""How much of an answer the levels are: found, provisional, beyond or none; a figure they support is never withheld."""

from __future__ import annotations

import doctest
import math
from collections.abc import Sequence

import numpy as np
import pytest

from harness.analysis import conclusion
from harness.analysis.curve import Fit, Point, fit
from harness.analysis.points import error_scale

DOUBLING = [1, 2, 4, 8, 16, 32, 64]
SHOWN = [145, 282, 535, 990, 1728, 1725, 1734]  # windows of 3 s on a simulated server of 16 seats, 128 tokens out

RISE = {4: "0.66", 8: "0.44"}  # by levels


def csv(levels: Sequence[float], X: Sequence[float]) -> list[Point]:
    return [Point(C, None, x) for C, x in zip(levels, X, strict=True)]


def short(levels: Sequence[float], X: Sequence[float], *, tokens: int = 128, seconds: float = 3.0) -> list[Point]:
    """The same as measured in windows too short for an error of their own: 1/√completions is assumed."""
    assumed = [max(0.02, 1 / math.sqrt(x / tokens * seconds)) * x for x in X]
    return [Point(C, C, x, se, assumed=True) for C, x, se in zip(levels, X, assumed, strict=True)]


def hinge(found: Fit) -> float:
    value = found.curve.hinge_concurrency.value
    assert value is not None
    return value


@pytest.mark.parametrize("points", [csv(DOUBLING, SHOWN), short(DOUBLING, SHOWN)], ids=["csv", "short windows"])
def test_a_flat_tail_is_a_found_knee_whatever_the_windows_could_measure_of_their_errors(points: list[Point]) -> None:
    found = fit(points)
    assert found.curve.state == "found"
    assert hinge(found) == pytest.approx(16.1, rel=0.01)
    low, high = found.curve.hinge_concurrency.ci95 or (None, None)
    assert low is not None
    assert high is not None
    assert 14.5 < low < 16 < high < 17.5
    assert found.curve.plateau_tokens_per_s.value == pytest.approx(1729, rel=0.001)
    single = found.curve.single_stream_tokens_per_s.value
    assert single == pytest.approx(145, rel=0.02)


def test_six_levels_with_a_flat_tail_are_a_plateau() -> None:
    levels = [1, 4, 8, 16, 32, 64]
    found = fit(csv(levels, [100, 385, 745, 1000, 1003, 998]))
    assert found.curve.state == "found"
    assert found.curve.plateau_reached


def test_a_short_tail_is_provisional_with_all_its_figures_and_says_what_would_settle_it() -> None:
    found = fit(short(DOUBLING[:6], SHOWN[:6]))
    assert found.curve.state == "provisional"
    assert hinge(found) == pytest.approx(16.1, rel=0.02)
    assert found.curve.plateau_tokens_per_s.value == pytest.approx(1725, rel=0.01)
    assert found.curve.reasons == ["1 level past the knee, 2 are needed"]
    assert found.curve.settle is not None
    assert found.curve.settle.levels == [24, 40]
    assert found.knees.hinge == found.curve.hinge_concurrency


def test_a_curve_that_rises_to_its_end_is_beyond_and_says_from_where_on() -> None:
    found = fit(short(DOUBLING[:5], SHOWN[:5]))
    assert (found.curve.state, found.curve.at_least_concurrency) == ("beyond", 16)
    assert found.curve.hinge_concurrency.value is None
    assert found.curve.plateau_tokens_per_s.value is None
    assert found.curve.settle is not None
    assert found.curve.settle.levels == [32, 64]


def test_levels_that_scatter_more_than_their_errors_do_not_tell_of_a_rise() -> None:
    """A proxy that is limited by its own processor: 386 tok/s at 32, 521 at 50 and 386 at 64 in flight."""
    C, X = [1, 2, 4, 8, 14, 16, 32, 50, 64], [28.6, 56.0, 108.8, 187.6, 292.2, 337.8, 386.0, 521.4, 385.9]
    relative = [0.005, 0.215, 0.124, 0.077, 0.032, 0.041, 0.038, 0.024, 0.055]
    points = [Point(c, c, x, se * x) for c, x, se in zip(C, X, relative, strict=True)]
    found = fit(points)
    assert found.curve.state == "provisional"
    assert 14 < hinge(found) < 64
    change = "1 % more load changes it by +0.11 ± 0.42 %"
    assert found.curve.reasons == [
        "the level at 50 has 1.4 times the throughput of the others' curve, whose knee is 20.4",
        f"it is open whether throughput still rises at the last levels ({change})",
    ]


@pytest.mark.parametrize(
    ("C", "X"),
    [  # MiniMax-M2.5 on B200s under vLLM, as published: no family follows how they rise at low load
        ([8, 16, 32, 64], [638, 1042, 1513, 2385]),
        ([4, 8, 16, 32, 64, 128, 256, 512], [550, 983, 1717, 2553, 4162, 6672, 9630, 13103]),
    ],
)
def test_what_a_family_lacks_hides_no_rise_that_all_neighbours_show(C: list[int], X: list[int]) -> None:
    found = fit(csv(C, X))
    assert found.curve.state == "beyond"
    assert found.curve.at_least_concurrency == C[-1]
    assert found.curve.reasons == [f"throughput still rises at the last level, by {RISE[len(C)]} % for 1 % more load"]


def test_a_hyperbola_puts_its_bend_where_its_asymptote_does() -> None:
    found = fit(csv(DOUBLING, [c / (0.01 + 0.0005 * c) for c in DOUBLING]))  # 95 % of 2,000 at 19·20 = 380
    assert found.curve.state == "beyond"
    assert found.curve.expected_concurrency == pytest.approx(380, rel=0.02)
    assert found.curve.expected_by == "asymptote"


def test_three_levels_that_rise_are_beyond_and_one_is_nothing() -> None:
    assert fit(csv([1, 2, 4], [100, 195, 370])).curve.state == "beyond"
    assert fit(csv([1, 2], [100, 195])).curve.state == "beyond"
    one = fit(csv([1], [100])).curve
    assert one.state == "none"
    assert one.reasons == ["one level was measured, a curve needs at least two"]
    assert fit([]).curve.reasons == ["no valid level of concurrency was measured"]


@pytest.mark.parametrize(
    ("C", "X", "state", "knee"),
    [
        ([1, 430], [95, 2400], "provisional", 2400 / 95),  # one stream, and all requests at once: what lies between?
        ([1, 256], [95, 2400], "provisional", 2400 / 95),
        ([1, 256], [95, 95 * 200], "beyond", None),  # no knee lies below 200
        ([1, 4], [100, 380], "beyond", None),
        ([16, 32], [1000, 1200], "beyond", None),
    ],
)
def test_two_levels_far_apart_show_no_rise_at_the_second(
    C: list[int], X: list[float], state: str, knee: float | None
) -> None:
    found = fit(csv(C, X))
    assert found.curve.state == state
    assert found.curve.hinge_concurrency.value == (knee and pytest.approx(knee))
    if state == "beyond":
        assert found.curve.at_least_concurrency == C[-1]
        return
    assert found.curve.plateau_tokens_per_s.value == pytest.approx(X[-1])
    assert found.curve.reasons[1] == f"1 and {C[1]} in flight are too far apart to show a rise at the last level"
    assert found.curve.settle is not None
    assert found.curve.settle.levels == [38, 63]


@pytest.mark.parametrize(
    ("C", "X", "knee", "settle"),
    [
        ([1, 8, 64], [50, 400, 402], 8.04, [12, 20]),  # a hyperbola's asymptote is 529
        ([1, 4, 8], [95.4, 382, 381], 3.99, [6, 10]),
        ([1, 8, 64], [50, 400, 800], 16.0, [24, 40]),
        ([1, 4, 16], [96.0, 189.0, 189.0], 4.0, [6, 10]),  # a hyperbola has 95 % of its asymptote at 16
    ],
)
def test_of_three_levels_the_plateau_is_what_the_last_gave(
    C: list[int], X: list[float], knee: float, settle: list[int]
) -> None:
    found = fit(csv(C, X))
    assert found.curve.state == "provisional"
    assert found.curve.plateau_tokens_per_s.value == pytest.approx(X[-1])
    assert hinge(found) == pytest.approx(knee, rel=0.001)
    assert found.knees.plateau95 is not None
    assert found.knees.plateau95.value == pytest.approx(0.95 * knee, rel=0.001)
    assert found.curve.settle is not None
    assert found.curve.settle.levels == settle


def test_a_server_that_takes_one_request_at_a_time_has_its_knee_at_one() -> None:
    found = fit(csv(DOUBLING, [100, 101, 99, 100, 100.5, 101, 99]))
    assert found.curve.state == "found"
    assert hinge(found) == pytest.approx(1.0)
    assert found.curve.plateau_tokens_per_s.value == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize(
    ("C", "settle"), [([16, 32, 64, 128, 256], [4, 8]), ([8, 16], [2, 4]), ([2, 4, 8, 16, 32], [1])]
)
def test_a_server_that_the_lowest_level_saturates_is_measured_below_it(C: list[int], settle: list[int]) -> None:
    found = fit(csv(C, [300 + i % 2 for i in range(len(C))]))
    assert found.curve.state == "provisional"
    assert found.curve.settle is not None
    assert found.curve.settle.levels == settle


def test_throughput_that_falls_from_the_start_says_so() -> None:
    found = fit(csv(DOUBLING, [100, 90, 80, 72, 65, 58, 52]))
    assert found.curve.state == "provisional"
    assert hinge(found) == pytest.approx(1.0)
    assert found.curve.reasons == ["throughput falls with load from the first level on"]
    assert found.curve.slope_tokens_per_s.value is None  # no level tells how it rises
    assert found.knees.half_point is None


@pytest.mark.slow
def test_noisy_short_ramps_below_the_hinge_are_hardly_ever_found() -> None:
    """Hinge 48, levels up to 32, errors of 3 and 6 % that are not known: of 300 ramps at most 1 % say found."""
    claimed = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        X = [c / (0.01 + 0.0001 * c) * math.exp(rng.normal(0, 0.03 + 0.03 * (seed % 2))) for c in DOUBLING[:6]]
        claimed += fit(short(DOUBLING[:6], X), draws=100).curve.state == "found"
    assert claimed <= 3


@pytest.mark.parametrize(("noise", "assumed"), [(0.01, 0.2), (0.05, 0.02), (0.02, 0.02)])
def test_the_scale_of_assumed_errors_is_that_of_the_scatter(noise: float, assumed: float) -> None:
    N = np.geomspace(1, 256, 17)
    found = []
    for seed in range(50):
        y = np.maximum(0.01 + 1e-4 * N, N / 3000) * np.exp(np.random.default_rng(seed).normal(0, noise, 17))
        found.append(error_scale(N, y, np.full(17, assumed), np.full(17, True))[0] * assumed)
    assert np.median(found) == pytest.approx(noise, rel=0.2)


def test_measured_errors_count_as_they_are() -> None:
    N = np.geomspace(1, 256, 17)
    scale, _ = error_scale(N, np.maximum(0.01, N / 3000), np.full(17, 0.05), np.zeros(17, dtype=np.bool_))
    assert scale == 1.0


def test_a_level_that_seems_saturated_at_once_is_no_found_knee_where_the_levels_scatter_as_much() -> None:
    """llama-server with 4 slots on a machine whose speed changed: between 200 and 340 tok/s from 1 to 19 in flight."""
    seen = [
        (1, 1.00, 251.75, 1.26, False), (2, 2.00, 211.31, 149.42, True), (3, 3.00, 229.90, 132.73, True),
        (4, 4.00, 282.54, 15.19, False), (5, 5.00, 290.73, 14.56, False), (6, 6.00, 294.62, 12.62, False),
        (2, 2.00, 226.47, 6.27, False), (9, 9.00, 272.03, 9.51, False), (13, 13.00, 262.95, 5.82, False),
        (2, 2.00, 218.00, 3.41, False), (2, 2.00, 215.15, 1.08, False), (19, 19.00, 235.43, 14.48, False),
        (19, 18.99, 267.78, 14.38, False), (13, 12.99, 266.58, 11.77, False), (1, 1.00, 227.95, 1.72, False),
        (3, 2.99, 226.39, 75.46, True), (3, 3.00, 221.58, 10.70, False), (3, 3.00, 229.53, 14.09, False),
        (2, 2.00, 210.15, 20.69, False), (4, 3.99, 282.65, 99.93, True), (11, 11.00, 338.61, 79.81, True),
        (6, 5.99, 202.21, 82.55, True),
    ]  # fmt: skip
    found = fit([Point(C, N, X, se, assumed=assumed) for C, N, X, se, assumed in seen])
    low, high = found.curve.hinge_concurrency.ci95 or (None, None)
    assert low == 1
    assert high is not None
    assert high > 19
    assert found.curve.state == "provisional"
    assert found.curve.reasons[0].startswith("the knee lies near the highest level or above it with a chance of ")


def test_levels_that_are_all_alike_are_a_found_knee_at_the_first() -> None:
    found = fit(csv([1, 2, 4, 8, 16, 32], [270, 271, 269, 270, 271, 270]))
    assert found.curve.state == "found"
    assert hinge(found) == 1


def test_the_examples_in_the_docstrings_hold() -> None:
    found = doctest.testmod(conclusion)
    assert found.attempted
    assert found.failed == 0


def test_levels_that_would_settle_it_are_others_than_those_measured() -> None:
    for levels in ([1, 2], [1, 2, 3], [1, 2, 4]):
        settle = fit(csv(levels, [100.0] * len(levels))).curve.settle
        assert settle is not None
        assert settle.levels
        assert not set(settle.levels) & set(levels), levels
