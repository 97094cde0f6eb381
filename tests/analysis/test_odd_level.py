"""A level far off the curve of all others is named, with the knee that the others have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from harness.analysis import odd_level
from harness.analysis.curve import fit
from harness.analysis.points import Point, pool

LEVELS = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64]
SHOWN = [145, 282, 535, 990, 1400, 1728, 1730, 1725, 1729, 1734]


def points(throughput: Sequence[float], levels: Sequence[float] = LEVELS) -> list[Point]:
    return [Point(C, None, x) for C, x in zip(levels, throughput, strict=True)]


def with_level(concurrency: int, throughput: float) -> list[float]:
    return [throughput if concurrency == C else x for C, x in zip(LEVELS, SHOWN, strict=True)]


@pytest.mark.parametrize(("concurrency", "factor"), [(8, 0.1), (8, 5.0), (24, 10.0), (32, 0.5), (2, 3.0)])
def test_one_level_that_slipped_is_named_with_the_knee_of_the_others(concurrency: int, factor: float) -> None:
    slipped = with_level(concurrency, factor * SHOWN[LEVELS.index(concurrency)])
    odd = odd_level.find(pool(points(slipped)))
    assert odd is not None
    assert odd.concurrency == concurrency
    assert odd.ratio == pytest.approx(factor, rel=0.03)
    assert odd.hinge == pytest.approx(16.0, rel=0.03)


def test_it_is_the_first_reason_and_is_to_be_measured_again() -> None:
    found = fit(points(with_level(24, 17_300))).curve
    assert found.state == "provisional"
    assert found.reasons[0] == "the level at 24 has 10 times the throughput of the others' curve, whose knee is 16"
    assert found.settle is not None
    assert found.settle.levels == [24]


def test_a_level_that_was_measured_twice_is_no_slip() -> None:
    twice = [*points(with_level(24, 17_300)), Point(24, None, 17_310)]
    assert odd_level.find(pool(twice)) is None


@pytest.mark.parametrize("throughput", [SHOWN, with_level(64, 400), with_level(1, 60)], ids=["none", "end", "begin"])
def test_what_servers_do_is_no_slip(throughput: list[float]) -> None:
    """A fall at the last level and a slow single stream stay unnamed."""
    assert odd_level.find(pool(points(throughput))) is None


def test_a_noisy_server_is_rarely_accused() -> None:
    """Levels that scatter by 10 % about their curve: at most three sweeps in 200."""
    rng = np.random.default_rng(1)
    noisy = [np.array(SHOWN) * np.exp(0.1 * rng.normal(size=len(SHOWN))) for _ in range(200)]
    assert sum(odd_level.find(pool(points(list(each)))) is not None for each in noisy) <= 3


def test_six_levels_name_none() -> None:
    assert odd_level.find(pool(points([145, 282, 5350, 990, 1728, 1725], [1, 2, 4, 8, 16, 32]))) is None
