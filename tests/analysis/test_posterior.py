"""The posterior of the curve: its parts by hand, its weights and draws against a Gaussian process written out."""

from __future__ import annotations

import doctest
import math
from statistics import NormalDist

import msgspec
import numpy as np
import pytest

from harness.analysis import posterior
from harness.analysis.posterior import Curves, Data, coordinates, hyperbola, walk
from harness.analysis.table import Floats

WIDE = 1e4  # variance of a level that nothing is known of


def data(N: list[float], X: list[float], error: float | None = 0.02, weights: tuple[float, ...] | None = None) -> Data:
    return Data(np.log(N), np.log(X), np.array(weights or [1.0] * len(N)), 0.0, 0, error)


THREE = data([2.0, 5.0, 20.0], [150.0, 300.0, 420.0], weights=(1.0, 1.7, 0.6))
MANY = data([1, 2, 4, 8, 16, 32, 64], [100, 195, 370, 690, 1200, 1290, 1270])


def covariance(x: Floats, y: Floats, start: float, s: float, form: Floats) -> Floats:
    """Return what curves of a form vary by together at loads x and y, the level left out, shape [len(x), len(y)]."""
    tau, w, _, spread, late, _ = form
    (a, v), (b, z) = coordinates(x, np.array(s), w), coordinates(y, np.array(s), w)
    v, z = np.maximum(v - late, 0.0), np.maximum(z - late, 0.0)
    return np.asarray(tau**2 * walk(a - start, b - start) + spread**2 * (v[:, None] * z + walk(v, z)))


def mean(x: Floats, s: float, form: Floats, h: float) -> Floats:
    a, v = coordinates(x, np.array(s), form[1])
    return np.asarray(hyperbola(a, np.array(h)) - form[2] * np.maximum(v - form[4], 0.0))


# ---- parts ----------------------------------------------------------------------------------------------


def test_an_integrated_walk_covaries_as_its_double_integral() -> None:
    # ∫₀¹∫₀² min(s, t) dt ds = 1²·(3·2 - 1)/6 = 5/6; ∫₀²∫₀² = 2²·(6 - 2)/6 = 8/3.
    x = np.array([-1.0, 0.0, 1.0, 2.0])
    assert walk(x, x)[2:, 2:] == pytest.approx(np.array([[1 / 3, 5 / 6], [5 / 6, 8 / 3]]))
    assert not walk(x, x)[:2].any(), "it begins at 0"
    t = (np.arange(400) + 0.5) / 400
    by_sum = np.minimum(1.5 * t[:, None], 0.7 * t).mean() * 1.5 * 0.7
    assert walk(np.array([1.5]), np.array([0.7]))[0, 0] == pytest.approx(by_sum, rel=1e-4)


def test_a_load_is_shared_between_the_rise_and_what_lies_past_the_knee() -> None:
    u, s = np.array([0.0, 2.0, 5.0]), np.array(2.0)
    assert coordinates(u, s, np.array(0.0))[1].tolist() == [0.0, 0.0, 3.0]
    a, v = coordinates(u, s, np.array(0.3))
    assert v[0] == pytest.approx(0.0, abs=1e-9)
    assert v[1] == pytest.approx(0.3 / math.sqrt(2 * math.pi))  # w·E[Z₊]
    assert v[2] == pytest.approx(3.0, abs=1e-9)
    assert a + v == pytest.approx(u)
    assert coordinates(u, s, np.array(0.0), 0.8)[1] == pytest.approx([0.0, 0.0, 2.2]), "it falls from 2.8 on"


def test_a_hyperbola_is_half_of_its_end_at_the_half_point() -> None:
    assert hyperbola(np.log([7.0]), np.array(7.0))[0] == pytest.approx(math.log(0.5))


def test_the_normal_distribution_is_right_to_its_seventh_digit() -> None:
    z = np.linspace(-6, 6, 61)
    exact = np.array([NormalDist().cdf(each) for each in z])
    assert posterior._normal(z) == pytest.approx(exact, abs=1.6e-7)


def test_the_examples_in_the_docstrings_hold() -> None:
    found = doctest.testmod(posterior)
    assert found.attempted
    assert found.failed == 0


# ---- weights --------------------------------------------------------------------------------------------


def by_hand(data: Data, s: float, form: Floats, noise: float, h: float) -> float:
    """Return ln of likelihood times prior, but for a constant: the level integrated over by steps of its own."""
    tau, *_, weight = form
    start, n = data.u[0], len(data.u)
    K = covariance(data.u, data.u, start, s, form) + noise**2 * np.diag(data.g**2)
    rest = data.y - mean(data.u, s, form, h)
    level = np.linspace(rest.mean() - 3, rest.mean() + 3, 4001)
    off = rest[:, None] - level
    of_level = -(off * np.linalg.solve(K, off)).sum(0) / 2
    likelihood = np.logaddexp.reduce(of_level) + math.log(level[1] - level[0]) - np.linalg.slogdet(K)[1] / 2

    # The elasticity at the knee, given the levels: it covaries with the walk at a by a²/2.
    R = K + WIDE * np.ones((n, n))
    c = tau**2 * np.maximum(coordinates(data.u, np.array(s), form[1])[0] - start, 0.0) ** 2 / 2
    elasticity = h / (h + math.exp(s)) + c @ np.linalg.solve(R, rest)
    variance = tau**2 * max(s - start, 0.0) - c @ np.linalg.solve(R, c)
    z = (elasticity - posterior.LEAST_RISE) / math.hypot(math.sqrt(max(variance, 0.0)), 0.03)
    rises = -math.log1p(math.exp(-1.702 * z))
    return float(likelihood + rises + math.log(weight))


def test_weights_are_those_of_a_gaussian_process_written_out() -> None:
    forms = np.array(
        [[0.2, 0.0, 0.0, 0.01, 0.0, 0.3], [0.5, 0.3, 0.2, 0.15, 0.0, 0.1], [0.01, 0.1, 1.0, 0.8, 0.7, 0.6]]
    )
    log_S, noises, half = np.array([1.2, 2.1, 3.3]), np.array([0.01, 0.08]), np.array([1.5, 30.0, 400.0])
    free = msgspec.structs.replace(THREE, error=None)
    found = posterior._log_posterior(free, log_S, forms, noises, half)
    wanted = np.array(
        [[[[by_hand(THREE, s, f, k, h) - k / 0.05 for h in half] for k in noises] for f in forms] for s in log_S]
    )
    assert found.shape == wanted.shape == (3, 3, 2, 3)
    assert found - found[0, 0, 0, 0] == pytest.approx(wanted - wanted[0, 0, 0, 0], abs=2e-3)


def test_repeats_weigh_noises_by_their_scatter() -> None:
    """Three repeats about their level: σ^-3·exp(-Σ/2σ²), between two noises as each has it."""
    scattered = msgspec.structs.replace(THREE, error=None, scatter=3 * 0.04**2, freedom=3)
    noises = np.array([0.01, 0.04])
    more = posterior._noise_prior(scattered, noises) - posterior._noise_prior(
        msgspec.structs.replace(scattered, freedom=0, scatter=0.0), noises
    )
    assert more == pytest.approx(-3 * np.log(noises) - 3 * 0.04**2 / (2 * noises**2))
    assert more[1] > more[0]


def test_the_weights_are_a_distribution_and_the_evidence_is_their_mean() -> None:
    found = posterior.of(MANY)
    assert found.weights.sum() == pytest.approx(1.0)
    assert found.weights.min() >= 0
    assert (np.diff(found.log_S) > 0).all()
    edges = found.log_S - found.width / 2
    assert edges[1:] == pytest.approx((found.log_S + found.width / 2)[:-1]), "cells leave no gap"
    again = posterior._log_posterior(MANY, found.log_S, found.forms, found.noises, found.half_points)
    share = found.width / found.width.sum()
    by_sum = math.log((np.exp(again - again.max()).sum((1, 2, 3)) * share).sum()) + again.max()
    assert found.evidence == pytest.approx(by_sum, abs=2e-3), "forms with less than a thousandth are not refined"


def test_the_knee_s_distribution_rises_from_nothing_to_all() -> None:
    mass, edges = posterior.of(MANY).knees()
    assert mass[0] == pytest.approx(0.0, abs=1e-3)
    assert mass[-1] == pytest.approx(1.0, abs=1e-3)
    assert (np.diff(mass) >= 0).all()
    assert math.exp(np.interp(0.5, mass, edges)) == pytest.approx(17.0, abs=1.5)


def test_no_knee_is_looked_for_above_a_fall() -> None:
    found = posterior.of(MANY, 20.0)
    assert found.log_S.max() <= math.log(20.0) + found.width.max()


# ---- draws ----------------------------------------------------------------------------------------------


def certain(data: Data, s: float, form: Floats, noise: float, h: float) -> posterior.Posterior:
    """Return a posterior that knows all but the walk, the level and the loss."""
    return posterior.Posterior(
        data, np.array([s]), np.zeros(1), form[None], np.array([noise]), np.array([h]), np.ones((1, 1, 1, 1)), 0.0
    )


@pytest.mark.parametrize(
    "form",
    [[0.2, 0.0, 0.0, 0.01, 0.0, 1.0], [0.5, 0.3, 0.2, 0.15, 0.0, 1.0], [0.06, 0.0, 1.0, 0.8, 0.4, 1.0]],
    ids=["sharp and flat", "soft and falling", "flat, then falling"],
)
def test_drawn_curves_are_the_exact_conditional(form: list[float]) -> None:
    """Mean and covariance of 4,000 draws against a Gaussian process on the three levels, worked out by its blocks."""
    s, noise, h, shape = 2.3, 0.03, 25.0, np.array(form)
    N = np.array([1.0, 2.0, 3.5, 8.0, 20.0, 40.0])
    drawn = posterior.draw(certain(THREE, s, shape, noise, h), N, 4000, np.random.default_rng(1)).log_X

    x, u, start = np.log(N), THREE.u, THREE.u[0]
    K = covariance(u, u, start, s, shape) + WIDE + noise**2 * np.diag(THREE.g**2)
    k = covariance(x, u, start, s, shape) + WIDE
    exact_mean = mean(x, s, shape, h) + k @ np.linalg.solve(K, THREE.y - mean(u, s, shape, h))
    exact = covariance(x, x, start, s, shape) + WIDE - k @ np.linalg.solve(K, k.T)
    sd = np.sqrt(np.diag(exact))
    assert np.abs(drawn.mean(0) - exact_mean).max() < 4.5 * sd.max() / math.sqrt(4000)
    assert np.cov(drawn.T) == pytest.approx(exact, abs=0.1 * sd.max() ** 2)


def test_draws_have_the_knees_of_the_weights() -> None:
    found = posterior.of(MANY)
    mass, edges = found.knees()
    hinges = posterior.draw(found, np.geomspace(1, 64, 8), 2000, np.random.default_rng(3)).hinge
    for share in (0.1, 0.5, 0.9):
        assert np.quantile(hinges, share) == pytest.approx(math.exp(np.interp(share, mass, edges)), rel=0.02)


def test_curves_are_read_between_their_places_and_beyond() -> None:
    one = np.ones(1)
    curves = Curves(np.array([1.0, 2.0, 4.0]), np.log([[10.0, 20.0, 20.0]]), 2 * one, 20 * one, one)
    got = curves.throughput(np.array([0.5, 1.0, math.sqrt(2), 3.0, 8.0]))[0]
    assert got.tolist() == pytest.approx([5.0, 10.0, 10 * math.sqrt(2), 20.0, 20.0])
    for share, N in ((1.0, 2.0), (0.75, 1.5), (0.5, 1.0), (0.25, 0.5), (1.5, 4.0)):
        assert curves.reaching(share, 20 * one)[0] == pytest.approx(N, rel=0.02), share


@pytest.mark.slow
def test_curves_of_a_single_load_are_in_proportion_below_it_and_flat_above() -> None:
    one = np.ones(1)
    curves = Curves(N=8 * one, log_X=np.log([[80.0]]), hinge=one, plateau=one, blur=one)
    assert curves.throughput(np.array([4.0, 8.0, 16.0])).tolist() == [pytest.approx([40.0, 80.0, 80.0])]


def test_thousands_of_levels_make_the_same_knee_as_the_means_of_neighbours() -> None:
    N = np.arange(1.0, 3000.0)
    many = data(N, np.minimum(N, 48) / (0.01 + 0.0001 * np.minimum(N, 48)))
    found = posterior.of(many)
    assert len(found.data.u) <= 64
    mass, edges = found.knees()
    low, high = np.exp(np.interp((0.025, 0.975), mass, edges))
    assert low < 48 < high < 1.5 * low
