"""How much of an answer the levels are: found, provisional, beyond or none; a figure they support is never withheld."""

from __future__ import annotations

import doctest
import math
from collections.abc import Sequence

import numpy as np
import pytest

from harness.analysis import conclusion
from harness.analysis.conclusion import LEVELS, NARROW
from harness.analysis.curve import Fit, Point, fit

DOUBLING = [1, 2, 4, 8, 16, 32, 64, 128]
SHOWN = [145, 282, 535, 990, 1728, 1725, 1734]  # windows of 3 s on a simulated server of 16 seats, 128 tokens out
RISE = [100.0, 195, 380, 740, 1300]


def csv(levels: Sequence[float], X: Sequence[float], error: float | None = None) -> list[Point]:
    return [Point(C, None, x, None if error is None else error * x) for C, x in zip(levels, X, strict=True)]


def short(X: Sequence[float], *, tokens: int = 128, seconds: float = 3.0) -> list[Point]:
    """Doubling levels as measured in windows too short for an error of their own: 1/√completions is assumed."""
    assumed = [max(0.02, 1 / math.sqrt(x / tokens * seconds)) * x for x in X]
    return [Point(C, C, x, se, assumed=True) for C, x, se in zip(DOUBLING, X, assumed, strict=False)]


def hinge(found: Fit) -> float:
    value = found.curve.hinge_concurrency.value
    assert value is not None
    return value


def ends(found: Fit) -> tuple[float, float]:
    """Return the ends of the knee's interval; an open one is 0 or inf."""
    low, high = found.curve.hinge_concurrency.ci95 or (None, None)
    return low or 0.0, math.inf if high is None else high


def settle(found: Fit) -> list[int]:
    assert found.curve.settle is not None
    return found.curve.settle.levels


# ---- found ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("points", [csv(DOUBLING[:7], SHOWN), short(SHOWN)], ids=["csv", "short windows"])
def test_a_flat_tail_is_a_found_knee_whatever_the_windows_could_measure_of_their_errors(points: list[Point]) -> None:
    found = fit(points)
    assert found.curve.state == "found"
    assert found.curve.reasons == []
    assert hinge(found) == pytest.approx(16, rel=0.05)
    assert 13 < ends(found)[0] < 16 < ends(found)[1] < 18
    assert found.curve.plateau_tokens_per_s.value == pytest.approx(1729, rel=0.005)
    assert found.curve.single_stream_tokens_per_s.value == pytest.approx(145, rel=0.01)


def test_six_levels_with_a_flat_tail_are_a_plateau_and_five_are_not() -> None:
    six = fit(csv([1, 4, 8, 16, 32, 64], [100, 385, 745, 1000, 1003, 998]))
    assert six.curve.state == "found"
    assert six.curve.plateau_reached
    five = fit(csv([1, 8, 16, 32, 64], [100, 745, 1000, 1003, 998]))
    assert five.curve.state == "provisional"
    assert five.curve.reasons[0] == "5 levels, 6 are needed"
    assert [v.code for v in five.curve.verdicts] == ["plateau_not_reached"]


def test_a_server_that_takes_one_request_at_a_time_has_its_knee_at_one() -> None:
    found = fit(csv(DOUBLING[:7], [100, 101, 99, 100, 100.5, 101, 99]))
    assert found.curve.state == "found"
    assert hinge(found) == pytest.approx(1.0)
    assert found.curve.plateau_tokens_per_s.value == pytest.approx(100, rel=0.01)
    assert found.knees.half_point is None, "no level tells how throughput rises"


def test_throughput_that_falls_from_the_start_has_its_most_at_one_and_no_plateau() -> None:
    found = fit(csv(DOUBLING[:7], [100, 90, 80, 72, 65, 58, 52]))
    assert hinge(found) == pytest.approx(1.0)
    assert not found.curve.plateau_reached
    assert found.curve.dip is not None
    assert found.curve.dip.value == pytest.approx(0.48, abs=0.01)
    assert found.knees.half_point is None


def test_a_slow_rise_past_the_knee_is_no_plateau_though_it_could_be_noise_of_a_flat_one() -> None:
    """Throughput goes with N^0.15 from 32 on. Flat levels of the same noise are a found knee."""
    rng = np.random.default_rng(5)
    C = np.array([*DOUBLING, 256])
    noise = np.exp(0.01 * rng.normal(size=(4, len(C))))
    for each in noise:
        rising = fit(csv(C.tolist(), (np.minimum(C, 32 * (C / 32) ** 0.15) * each).tolist(), 0.01))
        assert rising.curve.state == "provisional"
        assert any("past the knee throughput is not shown to be flat" in reason for reason in rising.curve.reasons)
        assert fit(csv(C.tolist(), (np.minimum(C, 32) * each).tolist(), 0.01)).curve.state == "found"


@pytest.mark.slow
def test_found_is_said_of_six_levels_and_two_close_ends_alone() -> None:
    """Random servers and noises: the rule of every answer."""
    rng, states = np.random.default_rng(11), set()
    for seed in range(40):
        S, h, noise = math.exp(rng.uniform(1, 5)), math.exp(rng.uniform(2, 7)), rng.choice([0.0, 0.03, 0.1])
        C = np.unique(np.geomspace(1, math.exp(rng.uniform(2.5, 6)), int(rng.integers(3, 11))).round())
        X = np.minimum(C, S) / (h + np.minimum(C, S)) * np.exp(rng.normal(0, noise, len(C)))
        found = fit(csv(C.tolist(), (1000 * X).tolist()), seed=seed)
        states.add(str(found.curve.state))
        low, high = ends(found)
        if found.curve.state == "found":
            assert len(C) >= LEVELS
            assert low > 0
            assert high <= NARROW * low
        else:
            assert found.curve.reasons
            assert found.curve.settle is not None
        if found.curve.plateau_tokens_per_s.value is None:
            assert found.knees.plateau95 is None
        else:
            assert found.knees.plateau95 is not None
            assert found.knees.plateau95.ci95 is not None
            assert None not in found.knees.plateau95.ci95
    assert states == {"found", "provisional", "beyond"}


@pytest.mark.slow
def test_noisy_short_ramps_below_the_hinge_are_hardly_ever_found() -> None:
    """Hinge 48, levels up to 32, errors of 3 and 6 % that are not known: of 300 ramps at most 1 % say found."""
    claimed = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        X = [c / (0.01 + 0.0001 * c) * math.exp(rng.normal(0, 0.03 + 0.03 * (seed % 2))) for c in DOUBLING[:6]]
        claimed += fit(short(X), draws=100).curve.state == "found"
    assert claimed <= 3


# ---- provisional ----------------------------------------------------------------------------------------


def test_a_short_tail_is_provisional_with_all_its_figures_and_says_what_would_settle_it() -> None:
    found = fit(short(SHOWN[:6]))
    assert found.curve.state == "provisional"
    assert hinge(found) == pytest.approx(16, rel=0.05)
    assert found.curve.plateau_tokens_per_s.value == pytest.approx(1728, rel=0.01)
    assert found.curve.reasons == ["1 level past the knee, 2 are needed"]
    assert settle(found) == [24, 40]
    assert found.knees.hinge == found.curve.hinge_concurrency
    assert [v.code for v in found.curve.verdicts] == ["plateau_not_reached"]


def test_levels_that_scatter_more_than_their_errors_do_not_tell_of_a_rise() -> None:
    """A proxy that is limited by its own processor: 386 tok/s at 32, 521 at 50 and 386 at 64 in flight."""
    C, X = [1, 2, 4, 8, 14, 16, 32, 50, 64], [28.6, 56.0, 108.8, 187.6, 292.2, 337.8, 386.0, 521.4, 385.9]
    relative = [0.005, 0.215, 0.124, 0.077, 0.032, 0.041, 0.038, 0.024, 0.055]
    found = fit([Point(c, c, x, se * x) for c, x, se in zip(C, X, relative, strict=True)])
    assert found.curve.state == "provisional"
    assert 14 < hinge(found) < 64


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
    low, high = ends(found)
    assert found.curve.state == "provisional"
    assert high > NARROW * low
    assert low <= 4 <= high


@pytest.mark.parametrize(("C", "below"), [([16, 32, 64, 128, 256], [4, 8]), ([2, 4, 8, 16, 32], [1])])
def test_a_server_that_the_lowest_level_saturates_is_measured_below_it(C: list[int], below: list[int]) -> None:
    found = fit(csv(C, [300 + i % 2 for i in range(len(C))]))
    assert found.curve.state == "provisional"
    assert hinge(found) == C[0]
    assert ends(found)[0] == 0.0
    assert settle(found) == below


@pytest.mark.parametrize(
    ("C", "X", "knee"),
    [([1, 8, 64], [50, 400, 402], 8.04), ([1, 4, 8], [95.4, 382, 381], 4), ([1, 8, 64], [50, 400, 800], 16)],
)
def test_three_levels_leave_the_knee_open_around_where_it_is_if_they_rise_in_proportion(
    C: list[int], X: list[float], knee: float
) -> None:
    found = fit(csv(C, X))
    assert found.curve.state == "provisional"
    assert found.curve.plateau_tokens_per_s.value == pytest.approx(X[-1], rel=0.01)
    assert ends(found)[0] < knee < ends(found)[1]
    assert set(settle(found)) - set(C)


# ---- beyond and none ------------------------------------------------------------------------------------


def test_a_curve_that_rises_to_its_end_is_beyond_and_says_from_where_on() -> None:
    found = fit(short(SHOWN[:5]))
    assert (found.curve.state, found.curve.at_least_concurrency) == ("beyond", 16)
    assert found.curve.hinge_concurrency.value is None
    assert found.curve.plateau_tokens_per_s.value is None
    assert settle(found) == [32, 64]
    assert found.curve.reasons == ["throughput still rises at the last level, by 0.78 % for 1 % more load"]


@pytest.mark.parametrize(
    ("C", "X"),
    [  # MiniMax-M2.5 on B200s under vLLM, as published
        ([8, 16, 32, 64], [638, 1042, 1513, 2385]),
        ([4, 8, 16, 32, 64, 128, 256, 512], [550, 983, 1717, 2553, 4162, 6672, 9630, 13103]),
        ([1, 2, 4], [100, 195, 370]),
        (DOUBLING[:7], [c / (0.01 + 0.0005 * c) for c in DOUBLING[:7]]),  # a hyperbola, 76 % of its end at 64
    ],
)
def test_what_rises_to_its_end_has_no_knee(C: list[int], X: list[float]) -> None:
    found = fit(csv(C, X))
    assert (found.curve.state, found.curve.at_least_concurrency) == ("beyond", C[-1])
    assert found.knees.hinge is None
    assert found.knees.plateau95 is None


@pytest.mark.parametrize(
    ("points", "state"),
    [
        (csv([1, 4], [100, 380]), "beyond"),
        (csv([16, 32], [1000, 1200]), "beyond"),
        ([Point(1, None, 301, se=100), Point(2, None, 587, se=55)], "none"),  # it doubles, within wide errors
        (csv([8, 16], [300, 301]), "none"),
        (csv([2, 100], [587, 55]), "none"),
        (csv([1, 2], [100, 100]), "none"),
    ],
)
def test_two_levels_never_show_a_knee(points: list[Point], state: str) -> None:
    found = fit(points)
    assert found.curve.state == state
    assert found.curve.at_least_concurrency == (points[1].concurrency if state == "beyond" else None)
    assert found.curve.hinge_concurrency.value is None
    assert found.curve.plateau_tokens_per_s.value is None
    assert found.curve.line == []
    assert found.curve.reasons[0] == "2 levels, 6 are needed"
    assert settle(found)


def test_two_levels_say_what_they_show_of_a_rise() -> None:
    doubled = fit([Point(1, None, 301, se=100), Point(2, None, 587, se=55)]).curve
    assert doubled.reasons[1] == "their errors leave open whether throughput rises from 1 to 2 in flight"
    flat = fit([Point(8, None, 300, se=3), Point(16, None, 301, se=3)])
    assert flat.curve.reasons[1] == "throughput does not rise from 8 to 16 in flight, so a knee lies below 16"
    assert settle(flat) == [4, 11]


def test_one_level_is_nothing_and_says_what_to_measure() -> None:
    one = fit(csv([1], [100]))
    assert one.curve.state == "none"
    assert one.curve.reasons == ["one level is valid, a curve needs more"]
    assert settle(one) == [2, 4, 8]
    assert fit([]).curve.reasons == ["no valid level of concurrency was measured"]


@pytest.mark.parametrize("levels", [[1, 2], [1, 2, 3], [1, 2, 4]])
def test_levels_that_would_settle_it_are_others_than_those_measured(levels: list[int]) -> None:
    assert set(settle(fit(csv(levels, [100.0] * len(levels))))) - set(levels)


# ---- a fall past the knee -------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [[1310, 700, 650], [1310, 440, 430], [1310, 300, 90], [1310, 1300, 130]])
def test_the_knee_is_that_of_the_levels_below_a_collapse(tail: list[float]) -> None:
    found = fit(csv(DOUBLING, RISE + tail))
    falls = 128 if tail[1] == 1300 else 64
    assert found.curve.state == "provisional"
    assert f"throughput has collapsed at {falls} in flight" in found.curve.reasons
    assert 12 < ends(found)[0] < 15 < ends(found)[1] < 18
    assert found.curve.plateau_tokens_per_s.value == pytest.approx(1305, rel=0.02)
    assert all(falls > C for C in settle(found))
    assert found.curve.verdicts[0].code == "throughput_collapses"


def test_throughput_that_rises_up_to_the_collapse_has_its_knee_below_that() -> None:
    found = fit(csv(DOUBLING, [*RISE, 400, 300, 250]))
    assert found.curve.state == "provisional"
    assert 8 < ends(found)[0] < 16 < ends(found)[1] == 32
    assert found.curve.plateau_tokens_per_s.ci95 is not None
    assert 1200 < (found.curve.plateau_tokens_per_s.ci95[0] or 0) < 1300
    assert 16 < settle(found)[0] < 32


def test_a_fall_that_is_no_collapse_is_a_dip_with_its_knee() -> None:
    """Hinge 48; past it 10 % of the plateau are lost for each e-fold, 21 % up to 512."""
    levels = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    X = [min(c, 48) / (0.01 + 0.0001 * min(c, 48)) * math.exp(-0.1 * max(math.log(c / 48), 0)) for c in levels]
    found = fit(csv(levels, X, 0.01))
    assert found.curve.state in ("found", "provisional")
    assert ends(found)[0] < 48 < ends(found)[1]
    assert not found.curve.plateau_reached
    assert found.curve.dip is not None
    assert found.curve.dip.value == pytest.approx(1 - math.exp(-0.1 * math.log(512 / 48)), abs=0.03)


@pytest.mark.parametrize(("falls_from", "states"), [(64, ("found", "provisional")), (128, ("found",))])
def test_a_fall_that_begins_past_a_plateau_leaves_the_knee_where_the_plateau_begins(
    falls_from: int, states: tuple[str, ...]
) -> None:
    """Hinge 32, flat up to `falls_from`; past that half of an e-fold of throughput is lost for each of load."""
    levels = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    X = [min(c, 32) / (60 + min(c, 32)) * min((c / falls_from) ** -0.5, 1) for c in levels]
    found = fit(csv(levels, X, 0.01))
    low, high = ends(found)
    assert low <= 32 <= high < 50
    assert found.curve.state in states
    assert not found.curve.plateau_reached


def test_a_plateau_that_no_level_has_is_not_found() -> None:
    """Flat from 32 to 48 and then lower: a peak between the two fits as well, and is none that was measured."""
    levels = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128]
    X = [min(c, 32) / (0.01 + 0.0002 * min(c, 32)) * (1 if c <= 48 else 0.6) for c in levels]
    found = fit(csv(levels, X))
    assert found.curve.state == "provisional"
    assert any("times the throughput of any level" in reason for reason in found.curve.reasons)
    assert any(32 < C < 48 for C in settle(found))


def test_one_level_that_slipped_is_no_collapse() -> None:
    found = fit(csv(DOUBLING, [100.0, 195, 380, 90, 1300, 1310, 1305, 1300]))
    assert not any("collapse" in reason for reason in found.curve.reasons)
    assert ends(found)[0] < 16 < ends(found)[1]


SLIPPED = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64]
AS_MEASURED = [145, 282, 535, 990, 1400, 1728, 1730, 1725, 1729, 1734]


@pytest.mark.parametrize(("at", "factor"), [(8, 0.1), (8, 5.0), (24, 10.0), (32, 0.5), (2, 3.0)])
def test_one_level_that_slipped_makes_no_wrong_knee_a_found_one(at: int, factor: float) -> None:
    found = fit(csv(SLIPPED, [x * (factor if at == C else 1) for C, x in zip(SLIPPED, AS_MEASURED, strict=True)]))
    assert found.curve.state != "found" or ends(found)[0] <= 16 <= ends(found)[1]
    named = [each.at for each in found.curve.verdicts if each.code == "level_off"] == [at]
    assert named or found.curve.parameters["noise"] > 0.1 or found.curve.parameters["roughness"] > 0.5


def test_the_examples_in_the_docstrings_hold() -> None:
    found = doctest.testmod(conclusion)
    assert found.attempted
    assert found.failed == 0


@pytest.mark.parametrize("C", [DOUBLING, [1, 2, 3, 4, 5, 6, 8, 10, 12, 16]])
@pytest.mark.parametrize("half", [1.3, 4.0, 40.0])
def test_a_server_of_two_seats_has_them_in_its_interval(C: list[int], half: float) -> None:
    """A bend just below 2 fits as well as one at 2 where the rise is steep, but no server has 1.4 seats."""
    found = fit(csv(C, [100 * (half + 1) * min(c, 2) / (half + min(c, 2)) for c in C]))
    low, high = ends(found)
    assert low <= 2.0 <= high
