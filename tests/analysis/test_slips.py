"""One level that is off by itself moves the knee only as far as the other levels allow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest

from harness.analysis import posterior, slips
from harness.analysis.curve import Fit, Point, fit
from harness.analysis.points import pool
from harness.analysis.posterior import Data
from harness.analysis.table import Floats

DOUBLING = [2**i for i in range(10)]
KNEE = 40.0


def points(factors: Mapping[int, float] = MappingProxyType({}), *, noise: float = 0.01, seed: int = 0) -> list[Point]:
    """Levels of a server whose throughput bends at KNEE; `factors` multiply the throughput of some of them."""
    errors = np.random.default_rng(seed).normal(0.0, noise, len(DOUBLING))
    X = [100 * min(C, KNEE) / (40 + min(C, KNEE)) * math.exp(e) for C, e in zip(DOUBLING, errors, strict=True)]
    X = [x * factors.get(C, 1.0) for C, x in zip(DOUBLING, X, strict=True)]
    return [Point(float(C), float(C), x, noise * x) for C, x in zip(DOUBLING, X, strict=True)]


def covers(found: Fit) -> bool:
    low, high = found.curve.hinge_concurrency.ci95 or (None, None)
    return (low or 0.0) <= KNEE <= (high or math.inf)


def named(found: Fit) -> list[float | None]:
    return [each.at for each in found.curve.verdicts if each.code == "level_off"]


@pytest.mark.parametrize("C", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_a_level_with_luck_leaves_the_knee_inside_its_interval(C: int, factor: float) -> None:
    found = [fit(points({C: factor}, seed=seed)) for seed in range(4)]
    assert sum(map(covers, found)) >= 3


@pytest.mark.parametrize("factor", [0.7, 1.4])
def test_a_level_that_is_far_off_is_named_and_the_others_have_the_answer(factor: float) -> None:
    usual, found = fit(points()), fit(points({16: factor}))
    assert (named(usual), named(found)) == ([], [16])
    assert found.curve.hinge_concurrency.value == pytest.approx(usual.curve.hinge_concurrency.value, rel=0.1)


def test_no_level_is_named_where_none_is_off() -> None:
    assert sum(bool(named(fit(points(noise=noise, seed=seed)))) for noise in (0.01, 0.03) for seed in range(15)) <= 1


def test_where_several_levels_are_off_it_is_noise() -> None:
    assert named(fit(points({4: 1.2, 16: 0.8, 64: 1.2, 128: 0.8}))) == []


def test_two_measurements_that_agree_are_no_luck() -> None:
    once = points({128: 0.8})
    again = [each for each in once if each.concurrency == 128]
    assert (named(fit(once)), named(fit([*once, *again]))) == ([128], [])


def data(factor: float) -> Data:
    return pool(points({16: factor})).data


@pytest.mark.parametrize("factor", [1.0, 0.85, 1.2])
def test_the_odds_of_all_levels_agree_with_a_posterior_of_each(factor: float) -> None:
    levels = data(factor)
    usual = posterior.of(levels)
    each = [posterior.odds_of_slip(usual, posterior.of(posterior.slipped(levels, i))) for i in range(len(DOUBLING))]
    together = np.log(posterior.odds_of_slips(levels, math.inf))
    assert together == pytest.approx(np.log(each), abs=3.0)
    assert factor == 1.0 or np.argmax(together) == np.argmax(each) == 4


def test_the_parts_of_a_mixture_are_weighed_by_their_chances() -> None:
    mixture = slips.of(data(1.15), np.ones(len(DOUBLING), bool))
    assert len(mixture.parts) >= 2
    assert mixture.chances.sum() == pytest.approx(1.0)
    assert sorted(mixture.chances, reverse=True) == list(mixture.chances)
    below = [mixture.chance_below(N) for N in mixture.quantiles(0.025, 0.5, 0.975)]
    assert below == pytest.approx([0.025, 0.5, 0.975], abs=0.01)
    N: Floats = np.array([1.0, 512.0])
    assert mixture.draw(N, 100, np.random.default_rng(0)).log_X.shape == (100, 2)


def test_many_levels_are_taken_as_they_are() -> None:
    C = np.arange(2.0, 130.0, 2.0)
    many = [Point(c, c, min(c, KNEE) * (1.5 if c == 20 else 1.0), 0.01 * c) for c in C]
    assert slips.of(pool(many).data, np.ones(len(C), bool)).slips == [None]
