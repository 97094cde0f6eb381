"""The families' least squares: exact, within their bounds, and the same for one data set as for many."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis import hyperbolas
from harness.analysis.hyperbolas import CAPPED, DIP, HYPERBOLA, Curves, criterion, least_squares, solve
from harness.analysis.table import Floats

LEVELS = np.array([1.0, 2, 4, 8, 16, 32, 64, 128, 256])


def curve(a: float, b: float, B: float, d: float = 0.0) -> Curves:
    return Curves(np.array([a]), np.array([b]), np.array([B]), np.array([d]), np.array([DIP if d else CAPPED]))


def squares(N: Floats, Y: Floats, w: Floats, found: Curves) -> Floats:
    return np.asarray((w * (Y - found.y(N)) ** 2).sum(1))


def by_grid(N: Floats, y: Floats, w: Floats, family: int) -> float:
    """The same least squares by search, without their algebra: a fine log grid of hinges, then golden section."""

    def at(B: float) -> float:
        g = np.maximum(1.0, N / B)
        columns = np.stack([g, N, N * np.log(g)][: 3 if family == DIP else 2], axis=1) * np.sqrt(w)[:, None]
        least = math.inf
        for size in range(1, columns.shape[1] + 1):
            for face in itertools.combinations(range(columns.shape[1]), size):
                x, *_ = np.linalg.lstsq(columns[:, face], y * np.sqrt(w), rcond=None)
                if (x >= 0).all():
                    least = min(least, float(np.sum((columns[:, face] @ x - y * np.sqrt(w)) ** 2)))
        return least

    if family == HYPERBOLA:
        return at(math.inf)
    hinges = np.geomspace(N[0], N[-1], 400)
    i = int(np.argmin([at(B) for B in hinges]))
    lo, hi = math.log(hinges[max(i - 1, 0)]), math.log(hinges[min(i + 1, 399)])
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(30):
        left, right = hi - golden * (hi - lo), lo + golden * (hi - lo)
        if at(math.exp(left)) < at(math.exp(right)):
            hi = right
        else:
            lo = left
    return at(math.exp((lo + hi) / 2))


def noisy(seed: int, D: int = 1) -> tuple[Floats, Floats, Floats]:
    """Random levels, data sets about a random curve, some wildly off, and weights far apart."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(6, 13))
    N = np.sort(np.exp(rng.uniform(0, 6, n)))
    B, b = math.exp(rng.uniform(0, 6)), rng.uniform(0, 2)
    one = curve(1.0, b / B, B, rng.choice([0.0, 0.1, 0.3]) * (1 + b) / B)
    Y = one.y(N) * np.exp(rng.normal(0, rng.choice([0.01, 0.1, 0.4]), (D, n)))
    return N, Y, np.exp(rng.normal(0, 1, (D, n))) / Y**2


@pytest.mark.slow
@pytest.mark.parametrize("family", [HYPERBOLA, CAPPED, DIP])
@pytest.mark.parametrize("seed", range(6))
def test_no_grid_of_hinges_finds_less_squares(family: int, seed: int) -> None:
    N, Y, w = noisy(seed)
    found = float(squares(N, Y, w, least_squares(N, Y, w, family))[0])
    reference = by_grid(N, Y[0], w[0], family)
    assert found <= reference * (1 + 1e-9) + 1e-12
    assert found >= reference * 0.97, "the grid and golden section come close to the least"


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), family=st.sampled_from([HYPERBOLA, CAPPED, DIP]))
def test_coefficients_stay_in_their_bounds_and_hinges_among_the_levels(seed: int, family: int) -> None:
    N, Y, w = noisy(seed, D=20)
    found = least_squares(N, Y, w, family)
    assert (found.a > 0).all()
    assert (found.b >= 0).all()
    assert (found.d >= 0).all()
    if family == HYPERBOLA:
        assert np.isinf(found.hinge).all()
    else:
        assert ((found.hinge >= N[0] * (1 - 1e-12)) & (found.hinge <= N[-1] * (1 + 1e-12))).all()


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_a_richer_family_leaves_no_more(seed: int) -> None:
    N, Y, w = noisy(seed, D=20)
    left = [squares(N, Y, w, least_squares(N, Y, w, family)) for family in (HYPERBOLA, CAPPED, DIP)]
    assert (left[1] <= left[0] * (1 + 1e-9) + 1e-9).all()
    assert (left[2] <= left[1] * (1 + 1e-9) + 1e-9).all()


@settings(deadline=None, max_examples=60)
@given(
    B=st.floats(2.1, 60), bend=st.floats(0.0, 5.0), fall=st.floats(0.02, 0.5), shift=st.floats(1.0, 2.0),
)  # fmt: skip
def test_an_exact_dip_is_found_wherever_its_hinge_lies(B: float, bend: float, fall: float, shift: float) -> None:
    truth = curve(0.01, bend * 0.01 / B, B, fall * 0.01 * (1 + bend) / B)
    N = LEVELS * shift
    Y = truth.y(N)
    found = least_squares(N, Y, Y**-2.0, DIP)
    if B / N[1] > 1:  # with one level below the hinge a and b are one number
        assert found.hinge[0] == pytest.approx(B, rel=1e-5)
        assert found.d[0] == pytest.approx(truth.d[0], rel=1e-5)
    assert found.y(N)[0] == pytest.approx(Y[0], rel=1e-7)


def test_many_data_sets_are_fitted_as_each_alone() -> None:
    N, Y, w = noisy(3, D=9)
    for family in (HYPERBOLA, CAPPED, DIP):
        together = least_squares(N, Y, w, family)
        alone = [least_squares(N, Y[i : i + 1], w[i : i + 1], family) for i in range(9)]
        assert together.y(N) == pytest.approx(np.concatenate([one.y(N) for one in alone]), rel=1e-9)


def test_a_level_without_weight_takes_no_part() -> None:
    truth = curve(0.01, 0.0001, 48.0)
    for i in range(len(LEVELS)):
        Y, w = truth.y(LEVELS), np.ones((1, len(LEVELS)))
        Y[0, i], w[0, i] = 1e3, 0.0
        assert least_squares(LEVELS, Y, w / truth.y(LEVELS) ** 2, CAPPED).hinge[0] == pytest.approx(48.0, rel=1e-6)


def test_throughput_that_never_rises_has_its_hinge_at_the_first_level() -> None:
    found = least_squares(LEVELS, LEVELS[None] / 100, (LEVELS[None] / 100) ** -2.0, CAPPED)
    assert found.hinge[0] == LEVELS[0]
    assert found.plateau[0] == pytest.approx(100.0)


def test_scores_by_hand() -> None:
    # χ² = 5, k = 3, n = 10: 5 + 6 + 24/6 = 15.
    assert criterion(np.array([[5.0]]), np.array([3]), 10)[0, 0] == pytest.approx(15.0)
    # Below 6 levels the correction is that of two more: n = 4, k = 3: 5 + 6 + 24/2 = 23.
    assert criterion(np.array([[5.0]]), np.array([3]), 4)[0, 0] == pytest.approx(23.0)


def test_a_tie_goes_to_the_plainer_family() -> None:
    """A hyperbola is exactly fitted by all three: scores are their penalties, 2k + 2k(k+1)/(n-k-1) with n = 40."""
    N = np.geomspace(1, 1000, 40)
    solved = solve(N, curve(0.01, 0.0002, math.inf).y(N), np.full(40, 0.01), DIP)
    assert solved.chosen.family[0] == HYPERBOLA
    assert solved.score[0] == pytest.approx([4 + 12 / 37, 6 + 24 / 36, 8 + 40 / 35], abs=1e-6)
    # Less than 2 apart, and still the plainer one.
    cases = set()
    for bend in np.linspace(0.0, 0.05, 26):
        Y = curve(0.01, 0.0002, math.inf).y(N)
        Y[0, -4:] *= 1 + bend
        solved = solve(N, Y, np.full(40, 0.01), CAPPED)
        gained = solved.score[0, 0] - solved.score[0, 1]
        assert (solved.chosen.family[0] == CAPPED) == (gained > 2.0), (bend, gained)
        cases.add((gained > 0, gained > 2))
    assert cases == {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize("robust", [False, True])
def test_the_lack_of_fit_brings_chi_square_down_to_its_degrees_of_freedom(robust: bool) -> None:
    rng = np.random.default_rng(5)
    s = np.exp(rng.uniform(-5, -3, (300, 10)))
    r = rng.normal(0, np.hypot(s, rng.uniform(0, 0.3, (300, 1))))
    low = rng.uniform(size=(300, 10)) < 0.3
    tau = hyperbolas._moment(r, s, low, 7, robust)
    z2 = r**2 / (s**2 + tau[:, None] ** 2)
    if robust:  # E min(z², 1.345²) = 0.7101 for a normal z
        z2 = np.where(low, z2, np.minimum(z2, 1.345**2) / 0.7101)
    needed = tau > 0
    assert 50 < needed.sum() < 300
    assert z2.sum(1)[needed] == pytest.approx(7.0, rel=1e-3)
    assert (z2.sum(1)[~needed] <= 7.0).all()


def test_curves_say_what_they_are() -> None:
    # a = 10 ms, b = 0.1 ms, B = 50: P = 50/0.015 = 3333.3; at 100 with d = 0.03 ms: y = 30 ms + 3 ms·ln 2 = 32.079 ms.
    one = curve(0.01, 0.0001, 50.0, 0.00003)
    assert one.plateau[0] == pytest.approx(10000 / 3)
    assert one.throughput(np.array([25.0, 50.0, 100.0]))[0] == pytest.approx([2000, 10000 / 3, 3117.26], rel=1e-5)
    assert math.isinf(curve(0.01, 0.0001, math.inf).plateau[0])
